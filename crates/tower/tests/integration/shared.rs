//! The middleware over shared limits, with a real Redis server.
#![cfg(all(feature = "shared", feature = "servers"))]

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body_util::BodyExt;
use tidegate_limiter::{Limiter, Policy, algorithm::Concurrency};
use tidegate_redis::{Health, Mode, OnError, SharedLimit, Store};
use tidegate_redis_servers::{PATIENCE, Server, eventually};
use tidegate_tower::{
    Bill, RateLimit, RateLimitLayer,
    key::{Fixed, Header},
};
use tower::{Layer, ServiceExt, service_fn, util::ServiceFn};

const ALICE: Header = Header::named("x-api-key");

type Hello = ServiceFn<fn(Request<()>) -> std::future::Ready<Result<Response<String>, Infallible>>>;

fn behind(layer: &RateLimitLayer) -> RateLimit<Hello> {
    let hello: fn(Request<()>) -> _ = |_| std::future::ready(Ok(Response::new("hello".to_owned())));
    layer.layer(service_fn(hello))
}

async fn ask(service: &RateLimit<Hello>, key: &str) -> Response<tidegate_tower::Body<String>> {
    let request = Request::builder()
        .header("x-api-key", key)
        .body(())
        .unwrap();
    service.clone().oneshot(request).await.unwrap()
}

async fn status(service: &RateLimit<Hello>, key: &str) -> u16 {
    ask(service, key).await.status().as_u16()
}

fn log(quota: &str) -> Policy {
    Policy::sliding_log(quota.parse().unwrap()).unwrap()
}

fn store(server: &Server) -> Store {
    let store = Store::open(&server.address()).unwrap();
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_share_a_limit_and_report_the_same_state() {
    let server = Server::start(&[]);
    let limit = |store: Store| {
        store
            .limit("user", log("2/1h"))
            .deadline(PATIENCE)
            .build()
            .unwrap()
    };
    let services = [store(&server), store(&server)]
        .map(|store| behind(&RateLimitLayer::new(limit(store), ALICE)));
    let first = ask(&services[0], "alice").await;
    assert_eq!(
        first.headers()["ratelimit-policy"],
        "\"default\";q=2;w=3600"
    );
    assert_eq!(first.headers()["ratelimit"], "\"default\";r=1;t=3600");
    assert_eq!(status(&services[1], "alice").await, 200);
    let denied = ask(&services[0], "alice").await;
    assert_eq!(denied.status(), 429);
    assert!(denied.headers().contains_key("retry-after"));
    assert_eq!(status(&services[1], "bob").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_and_local_limits_are_decided_together_and_a_denial_charges_neither() {
    let server = Server::start(&[]);
    let store = store(&server);
    let limit = |name, quota| {
        store
            .limit(name, log(quota))
            .deadline(PATIENCE)
            .build()
            .unwrap()
    };
    let (user, all) = (limit("user", "5/1h"), limit("all", "3/1h"));
    let local = Arc::new(Limiter::new(log("4/1h")));
    let layer = RateLimitLayer::builder(user.clone(), ALICE)
        .and(all.clone(), Fixed::new("all"))
        .and(Arc::clone(&local), Fixed::new(""))
        .build();
    let service = behind(&layer);
    for expected in [200, 200, 200, 429, 429] {
        assert_eq!(status(&service, "alice").await, expected);
    }
    // The store denied a request, and its local cost was refunded.
    assert_eq!(local.peek(0).remaining(), 1);
    assert_eq!(user.peek("alice", 0).await.decision.remaining(), 2);
    assert!(local.acquire(1).is_allowed());
    // Now the local limit denies, and the store is not asked.
    let another = behind(
        &RateLimitLayer::builder(user.clone(), ALICE)
            .and(local, Fixed::new(""))
            .build(),
    );
    assert_eq!(status(&another, "alice").await, 429);
    assert_eq!(user.peek("alice", 0).await.decision.remaining(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_permit_ends_with_the_response_body() {
    let server = Server::start(&[]);
    let hold = Concurrency::new(1).hold(Duration::from_hours(1)).unwrap();
    let seats = store(&server)
        .limit("seats", Policy::from(hold))
        .deadline(PATIENCE)
        .build()
        .unwrap();
    let service = behind(&RateLimitLayer::new(seats.clone(), ALICE));
    let free = async || {
        for _ in 0..1_000 {
            if seats.peek("alice", 0).await.decision.remaining() == 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the permit did not come back");
    };
    for _ in 0..3 {
        let held = ask(&service, "alice").await;
        assert_eq!(
            (held.status().as_u16(), status(&service, "alice").await),
            (200, 429)
        );
        assert_eq!(
            held.into_body().collect().await.unwrap().to_bytes(),
            "hello"
        );
        free().await;
    }
    let held = ask(&service, "alice").await;
    drop(held);
    free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_store_a_shared_limit_follows_on_error() {
    let mut server = Server::start(&[]);
    let store = store(&server);
    let limit = |on_error| {
        let limit = store
            .limit("user", log("1/1h"))
            .on_error(on_error)
            .deadline(PATIENCE);
        behind(&RateLimitLayer::new(limit.build().unwrap(), ALICE))
    };
    let [open, closed, local] = [OnError::Open, OnError::Closed, OnError::Local].map(limit);
    server.kill();
    eventually("the store is lost", || store.health() == Health::Down);
    let passed = ask(&open, "alice").await;
    assert_eq!(passed.status(), 200);
    // Without the store the state of the limit is unknown.
    assert!(!passed.headers().contains_key("ratelimit"));
    assert_eq!(status(&open, "alice").await, 200);
    assert_eq!(status(&closed, "alice").await, 503);
    assert_eq!(
        [status(&local, "alice").await, status(&local, "alice").await],
        [200, 429]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_and_reported_limits_admit_over_two_services_no_more_than_they_promise() {
    let server = Server::start(&[]);
    for (name, mode, most) in [
        ("leased", Mode::Leased, 40),
        ("reported", Mode::Reported, 40 + 2 * 4),
    ] {
        let services = [store(&server), store(&server)].map(|store| {
            let limit = store
                .limit(name, log("40/1h"))
                .mode(mode)
                .deadline(PATIENCE);
            let limit = if mode == Mode::Reported {
                limit.unreported(4)
            } else {
                limit
            };
            behind(&RateLimitLayer::new(limit.build().unwrap(), ALICE))
        });
        let mut admitted = 0;
        for turn in 0..200 {
            admitted += u32::from(status(&services[turn % 2], "alice").await == 200);
        }
        // What a node took and did not use is not lost for good, but may be on its way.
        assert!((20..=most).contains(&admitted), "{name}: {admitted}");
        let told = ask(&services[0], "alice").await;
        assert_eq!(
            (
                told.status().as_u16(),
                told.headers().contains_key("retry-after")
            ),
            (429, true),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_dropped_gives_back_what_it_took_from_every_limit() {
    let server = Server::start(&[]);
    let store = store(&server);
    let paced: Policy = "leaky-bucket:max_wait=1h 1/10m".parse().unwrap();
    let shared = store
        .limit("paced", paced)
        .deadline(PATIENCE)
        .build()
        .unwrap();
    let leased = store
        .limit("leased", log("10/1h"))
        .mode(Mode::Leased)
        .deadline(PATIENCE)
        .build()
        .unwrap();
    let local = Arc::new(Limiter::new(paced));
    let layer = RateLimitLayer::builder(leased.clone(), ALICE)
        .and(shared.clone(), ALICE)
        .and(Arc::clone(&local), Fixed::new(""));
    let service = behind(&layer.build());
    assert_eq!(status(&service, "alice").await, 200);
    // How long until each limit is fresh again: ten minutes for each place that is taken.
    let taken = async || {
        let shared = shared.peek("alice", 0).await.decision.reset_after();
        [local.peek(0).reset_after(), shared].map(|left| left.as_secs().div_ceil(600))
    };
    assert_eq!(taken().await, [1, 1]);
    let its = service.clone();
    let waits = tokio::spawn(async move { status(&its, "alice").await });
    until("its places are taken", async || taken().await == [2, 2]).await;
    waits.abort();
    until("its places are free", async || taken().await == [1, 1]).await;
    // One of ten is used.
    let mut more = 0;
    for _ in 0..20 {
        more += u32::from(leased.acquire("alice", 1).await.is_allowed());
    }
    assert!(more <= 9, "{more} more than the one that was used");
}

type Billed = Response<tidegate_tower::Body<String>>;

/// A request with an estimate, which is billed when its answer ends.
async fn billed(layer: &RateLimitLayer, key: &str, estimate: u64, actual: u64) -> Option<Billed> {
    let bills = service_fn(move |request: Request<()>| {
        request.extensions().get::<Bill>().unwrap().set(actual);
        std::future::ready(Ok::<_, Infallible>(Response::new("hello".to_owned())))
    });
    let request = Request::builder()
        .header("x-api-key", key)
        .header("x-estimate", estimate)
        .body(())
        .unwrap();
    let answer = layer.layer(bills).oneshot(request).await.unwrap();
    (answer.status() == 200).then_some(answer)
}

async fn until(what: &str, mut yes: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if yes().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("still not so: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_neither_keeps_permits_nor_forgets_delays() {
    let mut server = Server::start(&[]);
    let store = store(&server);
    let seats = Arc::new(Limiter::new(Policy::concurrency(1)));
    let limit = |policy, on_error| {
        store
            .limit("user", policy)
            .on_error(on_error)
            .deadline(PATIENCE)
    };
    let user = |on_error| limit(log("5/1h"), on_error).build().unwrap();
    let beside = |on_error| {
        RateLimitLayer::builder(user(on_error), ALICE).and(Arc::clone(&seats), Fixed::new(""))
    };
    let [closed, open] =
        [OnError::Closed, OnError::Open].map(|on_error| behind(&beside(on_error).build()));
    let patient = behind(
        &beside(OnError::Closed)
            .max_wait(Duration::from_millis(50))
            .build(),
    );
    // One place each ten minutes, and room for one that waits.
    let paced: Policy = "leaky-bucket:max_wait=10m 1/10m".parse().unwrap();
    let paced = |on_error| limit(paced, on_error).build().unwrap();
    let local = paced(OnError::Local);
    let [paced_closed, paced_open, paced_local] =
        [paced(OnError::Closed), paced(OnError::Open), local.clone()]
            .map(|paced| behind(&RateLimitLayer::new(paced, ALICE)));
    server.kill();
    eventually("the store is lost", || store.health() == Health::Down);
    for service in [&closed, &closed, &patient] {
        assert_eq!(status(service, "alice").await, 503);
        assert_eq!(seats.peek(0).remaining(), 1, "the permit came back");
    }
    let held = ask(&open, "alice").await;
    assert_eq!(
        (held.status().as_u16(), seats.peek(0).remaining()),
        (200, 0)
    );
    assert_eq!(
        status(&open, "alice").await,
        429,
        "permits of the process hold without the store"
    );
    drop(held);
    assert_eq!(seats.peek(0).remaining(), 1);
    // A limit that paces does so in the process as well, or denies, or lets through.
    assert_eq!(status(&paced_closed, "alice").await, 503);
    for _ in 0..3 {
        assert_eq!(status(&paced_open, "alice").await, 200);
    }
    assert_eq!(status(&paced_local, "alice").await, 200);
    // One may wait, for ten minutes, and nobody beside it until it is dropped.
    let taken = async || {
        local
            .peek("alice", 0)
            .await
            .decision
            .reset_after()
            .as_secs()
            .div_ceil(600)
    };
    assert_eq!(taken().await, 1);
    let its = paced_local.clone();
    let waits = tokio::spawn(async move { status(&its, "alice").await });
    until("its place is taken", async || taken().await == 2).await;
    assert_eq!(status(&paced_local, "alice").await, 429);
    waits.abort();
    until("its place is free", async || taken().await == 1).await;
}

/// Each algorithm that counts units of 10,000 in a minute, alone and next to another limit, and how
/// it is shared.
fn budgets(store: &Store) -> Vec<(String, SharedLimit, RateLimitLayer)> {
    let mut budgets = Vec::new();
    for algorithm in [
        "fixed-window:first_hit=true",
        "sliding-window",
        "sliding-counter",
        "token-bucket",
        "sliding-log",
    ] {
        for (mode, joint) in [
            (Mode::Exact, false),
            (Mode::Leased, false),
            (Mode::Exact, true),
        ] {
            let name = format!("{}-{mode:?}-{joint}", algorithm.split(':').next().unwrap());
            let limit = |name: &str, quota: &str| {
                store
                    .limit(
                        name,
                        format!("{algorithm} {quota}").parse::<Policy>().unwrap(),
                    )
                    .mode(mode)
                    .remember_denials(false)
                    .deadline(PATIENCE)
                    .build()
                    .unwrap()
            };
            let tokens = limit(&name, "10000/1m");
            let estimate = |parts: &http::request::Parts| {
                parts.headers["x-estimate"]
                    .to_str()
                    .unwrap()
                    .parse()
                    .unwrap()
            };
            let layer = RateLimitLayer::builder(tokens.clone(), ALICE)
                .cost(estimate)
                .billed();
            let layer = if joint {
                layer.and(limit(&format!("{name}-requests"), "100/1m"), ALICE)
            } else {
                layer
            };
            budgets.push((name, tokens, layer.build()));
        }
    }
    budgets
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_outlasts_the_window_returns_no_units_of_other_requests() {
    let server = Server::with_clock();
    let store = store(&server);
    let budgets = budgets(&store);
    let mut slow = Vec::new();
    for (name, limit, layer) in &budgets {
        slow.push(billed(layer, "alice", 4_000, 500).await.expect(name));
        // Of an answer within the window, the unused units return.
        let quick = billed(layer, "bob", 4_000, 500).await.expect(name);
        drop(quick);
        until(name, async || {
            limit.peek("bob", 0).await.decision.remaining() >= 9_500
        })
        .await;
    }
    server.shift_clock(130);
    for ((name, limit, layer), slow) in budgets.iter().zip(slow) {
        let others = billed(layer, "alice", 10_000, 10_000).await.expect(name);
        drop(slow);
        // The correction is on its way. A token bucket refills a few in the meantime.
        for _ in 0..20 {
            let free = limit.peek("alice", 0).await.decision.remaining();
            assert!(free < 3_000, "{name}: {free} of 10,000 are free");
        }
        assert!(billed(layer, "alice", 3_500, 0).await.is_none(), "{name}");
        drop(others);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_counts_once_in_all_processes_with_a_store() {
    let server = Server::start(&[]);
    let calls = |store: &Store| {
        let built = store.limit("calls", log("3/1h")).deadline(PATIENCE).build();
        built.unwrap()
    };
    let units = |store: &Store| {
        let leased = store.limit("units", log("100/1h")).mode(Mode::Leased);
        leased.deadline(PATIENCE).build().unwrap()
    };
    let stores = [store(&server), store(&server)];
    let services = stores.each_ref().map(|store| {
        let builder = RateLimitLayer::builder(calls(store), ALICE).id(Header::named("id"));
        behind(&builder.and(units(store), ALICE).build())
    });
    let ask = async |at: usize, id: &str| {
        let request = Request::builder().header("x-api-key", "alice");
        let request = request.header("id", id).body(()).unwrap();
        let response = services[at].clone().oneshot(request).await.unwrap();
        let field = response.headers().get("ratelimit").cloned();
        (response.status().as_u16(), field)
    };
    let first = ask(0, "a").await;
    assert_eq!(first.0, 200);
    for at in [1, 0] {
        assert_eq!(ask(at, "a").await, first);
    }
    for (at, id, expected) in [
        (1, "b", 200),
        (0, "b", 200),
        (0, "c", 200),
        (1, "d", 429),
        (0, "d", 429),
        (1, "c", 200),
    ] {
        assert_eq!(ask(at, id).await.0, expected, "{id}");
    }
    // The denial took nothing and is not remembered.
    calls(&stores[0]).reset("alice").await.unwrap();
    for at in [0, 1] {
        assert_eq!(ask(at, "d").await.0, 200);
    }
    let left = calls(&stores[1]).peek("alice", 0).await;
    assert_eq!(left.decision.remaining(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_counts_once_in_this_process_if_the_store_is_one_of_several_places() {
    let server = Server::start(&[]);
    let store = store(&server);
    let made = store.limit("calls", log("9/1h")).deadline(PATIENCE).build();
    let calls = made.unwrap();
    let here = Arc::new(Limiter::new(log("9/1h")));
    let id = || Header::named("x-api-key");
    let both = RateLimitLayer::builder(calls.clone(), Fixed::new("a")).id(id());
    let both = behind(&both.and(Arc::clone(&here), Fixed::new("")).build());
    let cost = |_: &http::response::Parts| Some(3);
    let settled = RateLimitLayer::builder(calls.clone(), Fixed::new("b")).cost_from_response(cost);
    let settled = behind(&settled.id(id()).build());
    for service in [&both, &settled] {
        for name in ["one", "one", "two", "one", "two"] {
            assert_eq!(status(service, name).await, 200);
        }
    }
    assert_eq!(here.peek(0).remaining(), 7);
    assert_eq!(calls.peek("a", 0).await.decision.remaining(), 7);
    // Corrections of costs are on their way.
    for _ in 0..1_000 {
        if calls.peek("b", 0).await.decision.remaining() == 3 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{:?}", calls.peek("b", 0).await);
}
