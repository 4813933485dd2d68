//! Requests with an id, which are safe to repeat, tested with a manual clock.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{executor::block_on, future::poll_immediate};
use http::{Request, Response};
use tidegate_limiter::{
    KeyedLimiter, ManualTimer, Nanos, Policy,
    algorithm::{Concurrency, LeakyBucket},
};
use tidegate_tower::{
    Body, Builder, RateLimit, RateLimitLayer, Refusal,
    key::{Fixed, Header},
};
use tower::{Layer, ServiceExt, service_fn, util::ServiceFn};

const KEY: Header = Header::named("x-api-key");
const ID: Header = Header::named("idempotency-key");

type Keyed = Arc<KeyedLimiter<ManualTimer>>;
type Hello = ServiceFn<fn(Request<()>) -> std::future::Ready<Result<Response<String>, Infallible>>>;
type Limited = RateLimit<Hello, ManualTimer>;

fn limiter(policy: Policy, timer: &ManualTimer) -> Keyed {
    let limiter = KeyedLimiter::builder(policy).max_keys(1_000);
    Arc::new(limiter.clock(timer.clone()).build().unwrap())
}

fn timer() -> ManualTimer {
    ManualTimer::new(Nanos::from_secs(1_000))
}

fn log(quota: &str) -> Policy {
    Policy::sliding_log(quota.parse().unwrap()).unwrap()
}

/// A service whose response says that the request cost 5.
fn service(builder: Builder<ManualTimer>) -> Limited {
    let hello: fn(Request<()>) -> _ = |_| {
        let response = Response::builder().header("x-cost", 5);
        std::future::ready(Ok(response.body("hello".to_owned()).unwrap()))
    };
    builder.build().layer(service_fn(hello))
}

fn request(key: &str, id: &str, cost: u64) -> Request<()> {
    let request = Request::builder()
        .header("x-api-key", key)
        .header("idempotency-key", id)
        .header("x-cost", cost);
    request.body(()).unwrap()
}

fn cost_of(parts: &http::request::Parts) -> u64 {
    parts.headers["x-cost"].to_str().unwrap().parse().unwrap()
}

fn ask(service: &Limited, key: &str, id: &str, cost: u64) -> Response<Body<String>> {
    block_on(service.clone().oneshot(request(key, id, cost))).unwrap()
}

/// The status, and what the response says about the limits.
fn seen(response: &Response<Body<String>>) -> (u16, Option<String>) {
    let field = response.headers().get("ratelimit");
    (
        response.status().as_u16(),
        field.map(|field| field.to_str().unwrap().to_owned()),
    )
}

/// Counts the refusals of a dry run.
fn counts(heard: &Arc<AtomicU32>) -> impl Fn(&Refusal<'_>) + Send + Sync + 'static + use<> {
    let heard = Arc::clone(heard);
    move |_| {
        heard.fetch_add(1, Ordering::Relaxed);
    }
}

fn left(limiter: &Keyed, key: &str) -> u64 {
    limiter.peek(key, 0).remaining()
}

#[test]
fn a_repeat_of_an_admitted_request_takes_nothing_for_a_minute() {
    let timer = timer();
    let limit = limiter(log("10/1h"), &timer);
    let calls = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&calls);
    let inner = service_fn(move |_: Request<()>| {
        counts.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(Response::new(String::new())) }
    });
    let layer = RateLimitLayer::builder(Arc::clone(&limit), KEY)
        .cost(cost_of)
        .id(ID)
        .build();
    let service = layer.layer(inner);
    let ask = |key, id, cost| block_on(service.clone().oneshot(request(key, id, cost))).unwrap();
    let first = seen(&ask("alice", "a", 3));
    assert_eq!(first, (200, Some("\"default\";r=7;t=3600".to_owned())));
    timer.advance(Duration::from_secs(20));
    assert_eq!(seen(&ask("alice", "a", 3)), first);
    assert_eq!(left(&limit, "alice"), 7);
    assert_eq!(calls.load(Ordering::Relaxed), 2, "its service is called");
    // Another id, cost or key is another request.
    for (key, id, cost, expected) in [
        ("alice", "b", 3, 4),
        ("alice", "a", 2, 2),
        ("bob", "a", 3, 7),
    ] {
        assert_eq!(ask(key, id, cost).status(), 200);
        assert_eq!(left(&limit, key), expected);
    }
    // An empty id is none.
    for expected in [1, 0] {
        assert_eq!(ask("alice", "", 1).status(), 200);
        assert_eq!(left(&limit, "alice"), expected);
    }
    timer.advance(Duration::from_secs(41));
    assert_eq!(ask("alice", "a", 3).status(), 429, "it is forgotten");
}

#[test]
fn a_denial_is_not_remembered() {
    let timer = timer();
    let limit = limiter(log("2/10s"), &timer);
    let service = service(RateLimitLayer::builder(limit, KEY).id(ID));
    for (id, expected) in [("a", 200), ("b", 200), ("c", 429), ("c", 429), ("a", 200)] {
        assert_eq!(ask(&service, "alice", id, 1).status(), expected, "{id}");
    }
    timer.advance(Duration::from_secs(10));
    for (id, expected) in [("c", 200), ("c", 200), ("d", 200), ("e", 429)] {
        assert_eq!(ask(&service, "alice", id, 1).status(), expected, "{id}");
    }
}

#[test]
fn an_id_counts_once_for_all_limits_of_a_layer_and_those_in_a_dry_run() {
    let timer = timer();
    let [user, all, tried, alone] =
        ["3/1h", "10/1h", "1/1h", "1/1h"].map(|quota| limiter(log(quota), &timer));
    let heard = Arc::new(AtomicU32::new(0));
    let builder = RateLimitLayer::builder(Arc::clone(&user), KEY)
        .and(Arc::clone(&all), Fixed::new("all"))
        .and(Arc::clone(&tried), KEY)
        .shadow()
        .on_shadow(counts(&heard))
        .id(ID);
    let both = service(builder);
    for (id, expected) in [
        ("a", 200),
        ("a", 200),
        ("b", 200),
        ("b", 200),
        ("c", 200),
        ("d", 429),
        ("c", 200),
    ] {
        assert_eq!(ask(&both, "alice", id, 1).status(), expected, "{id}");
    }
    assert_eq!((left(&user, "alice"), left(&all, "all")), (0, 7));
    assert_eq!(heard.load(Ordering::Relaxed), 2, "b and c, once each");

    // A layer that only has a dry run.
    heard.store(0, Ordering::Relaxed);
    let builder = RateLimitLayer::builder(Arc::clone(&alone), KEY)
        .shadow()
        .on_shadow(counts(&heard))
        .id(ID);
    let dry = service(builder);
    for id in ["a", "a", "b", "b"] {
        assert_eq!(ask(&dry, "alice", id, 1).status(), 200);
    }
    assert_eq!(heard.load(Ordering::Relaxed), 1);
}

#[test]
fn a_request_that_is_dropped_while_it_waits_keeps_its_units_for_its_repeat() {
    let timer = timer();
    let bucket = LeakyBucket::new("1/1s".parse().unwrap());
    let bucket = bucket.max_wait(Duration::from_secs(2)).unwrap().into();
    let limit = limiter(bucket, &timer);
    let service = service(RateLimitLayer::builder(Arc::clone(&limit), KEY).id(ID));
    assert_eq!(ask(&service, "alice", "a", 1).status(), 200);
    let mut waiting = pin!(service.clone().oneshot(request("alice", "b", 1)));
    assert!(block_on(poll_immediate(&mut waiting)).is_none(), "it waits");
    let next = || limit.peek("alice", 1).delay();
    assert_eq!(next(), Duration::from_secs(2));
    waiting.set(service.clone().oneshot(request("alice", "b", 1)));
    assert!(block_on(poll_immediate(&mut waiting)).is_none());
    assert_eq!(next(), Duration::from_secs(2), "the repeat takes nothing");
    timer.advance(Duration::from_secs(1));
    assert_eq!(block_on(waiting).unwrap().status(), 200);
}

#[test]
fn each_repeat_needs_its_own_permit() {
    let timer = timer();
    let limit = limiter(Concurrency::new(1).into(), &timer);
    let service = service(RateLimitLayer::builder(limit, KEY).id(ID));
    let first = ask(&service, "alice", "a", 1);
    assert_eq!(ask(&service, "alice", "a", 1).status(), 429);
    drop(first);
    assert_eq!(ask(&service, "alice", "a", 1).status(), 200);
}

#[test]
fn an_id_counts_once_with_costs_from_responses_and_with_waits() {
    let timer = timer();
    let cost = |head: &http::response::Parts| head.headers["x-cost"].to_str().ok()?.parse().ok();
    let limit = limiter(log("10/1h"), &timer);
    let builder = RateLimitLayer::builder(Arc::clone(&limit), KEY)
        .cost_from_response(cost)
        .id(ID);
    let billed = service(builder);
    for _ in 0..3 {
        assert_eq!(ask(&billed, "alice", "a", 1).status(), 200);
        assert_eq!(left(&limit, "alice"), 5, "the cost of the first response");
    }
    let limit = limiter(log("1/1s"), &timer);
    let builder = RateLimitLayer::builder(Arc::clone(&limit), KEY)
        .max_wait(Duration::from_secs(5))
        .id(ID);
    let waits = service(builder);
    for _ in 0..2 {
        assert_eq!(ask(&waits, "alice", "a", 1).status(), 200);
    }
    let mut waiting = pin!(waits.clone().oneshot(request("alice", "b", 1)));
    assert!(block_on(poll_immediate(&mut waiting)).is_none(), "it waits");
    timer.advance(Duration::from_secs(1));
    assert_eq!(block_on(waiting).unwrap().status(), 200);
    assert_eq!(ask(&waits, "alice", "b", 1).status(), 200);
    let mut waiting = pin!(waits.clone().oneshot(request("alice", "c", 1)));
    assert!(
        block_on(poll_immediate(&mut waiting)).is_none(),
        "another waits"
    );
}

#[test]
fn threads_that_repeat_requests_take_once() {
    let timer = timer();
    let limit = limiter(log("100000/1h"), &timer);
    let service = service(RateLimitLayer::builder(Arc::clone(&limit), KEY).id(ID));
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for id in 0..2_000 {
                    let response = ask(&service, "alice", &id.to_string(), 1);
                    admitted.fetch_add(u64::from(response.status() == 200), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 8_000);
    assert_eq!(left(&limit, "alice"), 98_000);
}

/// An id, a key and a cost.
type Asked = (String, String, u64);

/// The answers of a layer with ids must be those of another layer that is asked once for each
/// admitted id, within the time.
#[test]
fn each_id_counts_once_in_random_steps() {
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some();
    let steps: u64 = if is_long { 100_000 } else { 10_000 };
    let timer = timer();
    let made = || {
        let limits = [
            limiter(log("6/20s"), &timer),
            limiter(Policy::token_bucket("30/10s".parse().unwrap()), &timer),
        ];
        let [user, all] = limits.clone();
        let builder = RateLimitLayer::builder(user, KEY)
            .name("user")
            .cost(cost_of)
            .and(all, Fixed::new("all"))
            .name("all")
            .cost(cost_of);
        (limits, builder)
    };
    let (limits, builder) = made();
    let subject = service(builder.id(ID));
    let (oracle_limits, builder) = made();
    let oracle = service(builder);
    let mut first: HashMap<Asked, (u64, (u16, Option<String>))> = HashMap::new();
    let mut asked: Vec<Asked> = Vec::new();
    let mut seed = 0x5EED_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let (mut repeats, mut denied, mut expired, mut now) = (0, 0, 0, 1_000_000);
    for step in 0..steps {
        let span = if random(200) == 0 { 20_000 } else { 200 };
        let millis = random(span);
        now += millis;
        timer.advance(Duration::from_millis(millis));
        let question = if asked.is_empty() || random(2) == 0 {
            let id = if random(10) == 0 { 7 } else { step };
            let question = (id.to_string(), format!("k{}", random(6)), random(4));
            asked.push(question.clone());
            question
        } else {
            let back = random((asked.len() as u64).min(300)) as usize;
            asked[asked.len() - 1 - back].clone()
        };
        let (id, key, cost) = &question;
        let known = first.get(&question);
        let remembered = known.filter(|(then, _)| now / 1_000 - then / 1_000 <= 60);
        let expected = if let Some((_, answer)) = remembered {
            repeats += 1;
            answer.clone()
        } else {
            expired += u32::from(known.is_some());
            let answer = seen(&ask(&oracle, key, id, *cost));
            if answer.0 == 200 {
                first.insert(question.clone(), (now, answer.clone()));
            } else {
                denied += 1;
                first.remove(&question);
            }
            answer
        };
        assert_eq!(
            seen(&ask(&subject, key, id, *cost)),
            expected,
            "step {step}: {question:?}"
        );
        for (one, other) in limits.iter().zip(&oracle_limits) {
            for key in [&**key, "all"] {
                assert_eq!(left(one, key), left(other, key), "step {step}");
            }
        }
    }
    assert!(
        repeats > steps / 10 && denied > steps / 20 && expired > 10,
        "{repeats} repeats, {denied} denied, {expired} expired"
    );
}
