//! The middleware's promises, tested with a manual clock.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, executor::block_on, future::poll_immediate};
use http::{Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt, StreamBody};
use tidegate_limiter::{
    Clock, Decision, KeyedLimit, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Standing,
    Timer,
    algorithm::{Concurrency, LeakyBucket},
};
use tidegate_tower::{
    Bill, Body, Builder, Limit, NoKey, RateLimitLayer, Reason, Refusal, Tell,
    key::{Extension, Fixed, GrpcMethod, Header, KeyList, KeySource, Path, Peer},
};
use tower::{Layer, Service, ServiceExt, service_fn};

const ALICE: Header = Header::named("x-api-key");

type Keyed = Arc<KeyedLimiter<ManualTimer>>;

fn limiter(policy: Policy) -> (Keyed, ManualTimer) {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let limiter = KeyedLimiter::builder(policy)
        .max_keys(1_000)
        .clock(timer.clone());
    (Arc::new(limiter.build().unwrap()), timer)
}

fn beside(policy: Policy, timer: &ManualTimer) -> Keyed {
    Arc::new(
        KeyedLimiter::builder(policy)
            .max_keys(1_000)
            .clock(timer.clone())
            .build()
            .unwrap(),
    )
}

fn log(quota: &str) -> Policy {
    Policy::sliding_log(quota.parse().unwrap()).unwrap()
}

/// Responds with its name and counts the calls.
fn hello(
    calls: &Arc<AtomicU32>,
) -> impl Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ use<> {
    let calls = Arc::clone(calls);
    service_fn(move |_: Request<()>| {
        calls.fetch_add(1, Ordering::Relaxed);
        async { Ok(Response::new("hello".to_owned())) }
    })
}

fn from(key: &str) -> Request<()> {
    Request::builder()
        .uri("/a/b?c=d")
        .header("x-api-key", key)
        .body(())
        .unwrap()
}

/// The status, and the header fields that report the limits.
fn told<R>(response: &Response<R>) -> (u16, [Option<&str>; 3]) {
    let header = |name| {
        response
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap())
    };
    (
        response.status().as_u16(),
        ["retry-after", "ratelimit-policy", "ratelimit"].map(header),
    )
}

fn text(response: Response<Body<String>>) -> String {
    let whole = block_on(response.into_body().collect()).unwrap().to_bytes();
    String::from_utf8(whole.to_vec()).unwrap()
}

/// Sends requests with a given key and returns their status. Each response is dropped immediately.
fn asks(builder: Builder<ManualTimer>) -> impl Fn(&str) -> u16 {
    let service = builder.build().layer(hello(&Arc::default()));
    move |key| {
        block_on(service.clone().oneshot(from(key)))
            .unwrap()
            .status()
            .as_u16()
    }
}

#[test]
fn a_denial_is_429_with_the_exact_wait_and_does_not_reach_the_inner_service() {
    let (limiter, timer) = limiter(log("2/10s"));
    let calls = Arc::default();
    let layer = RateLimitLayer::builder(limiter, ALICE)
        .name("per \"key\"")
        .build();
    let service = layer.layer(hello(&calls));
    let policy = Some("\"per _key_\";q=2;w=10");
    let ask = |key| block_on(service.clone().oneshot(from(key))).unwrap();
    let first = ask("alice");
    assert_eq!(
        told(&first),
        (200, [None, policy, Some("\"per _key_\";r=1;t=10")])
    );
    assert_eq!(text(first), "hello");
    timer.advance(Duration::from_millis(500));
    assert_eq!(
        told(&ask("alice")),
        (200, [None, policy, Some("\"per _key_\";r=0;t=10")])
    );
    let denied = ask("alice");
    assert_eq!(
        told(&denied),
        (429, [Some("10"), policy, Some("\"per _key_\";r=0;t=10")])
    );
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert_eq!(
        text(denied),
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\"title\":\"Request cannot be \
         satisfied as assigned quota has been exceeded\",\"status\":429,\"violated-policies\":[\"per _key_\"]}"
    );
    assert_eq!(ask("bob").status(), 200);
    // `Retry-After` rounds 9.5 s up to 10, and a nanosecond before the wait is over it is 1.
    timer.advance(Duration::from_nanos(9_499_999_999));
    assert_eq!(told(&ask("alice")).1[0], Some("1"));
    timer.advance(Duration::from_nanos(1));
    assert_eq!(ask("alice").status(), 200);
    assert_eq!(calls.load(Ordering::Relaxed), 4);
}

#[test]
fn the_caller_sets_the_cost_of_a_request_and_the_response_to_a_denial() {
    let (limiter, _) = limiter(log("10/1m"));
    let calls = Arc::default();
    let layer = RateLimitLayer::builder(limiter, ALICE)
        .cost(|parts: &Parts| {
            parts
                .headers
                .get("x-cost")
                .and_then(|cost| cost.to_str().ok()?.parse().ok())
                .unwrap_or(1)
        })
        .on_denial(|refusal: &Refusal<'_>| {
            assert_eq!(
                (refusal.reason(), refusal.name()),
                (Reason::Limited, "default")
            );
            let response = Response::builder()
                .status(StatusCode::SERVICE_UNAVAILABLE)
                .header("retry-after", "7");
            let (left, path) = (refusal.decision().remaining(), refusal.request().uri.path());
            response.body(format!("{left} left of {path}")).unwrap()
        })
        .tell(Tell::Denials)
        .old_headers()
        .build();
    let service = layer.layer(hello(&calls));
    let ask = |cost: &str| {
        let mut request = from("alice");
        request
            .headers_mut()
            .insert("x-cost", cost.parse().unwrap());
        block_on(service.clone().oneshot(request)).unwrap()
    };
    let admitted = ask("8");
    assert_eq!(told(&admitted), (200, [None; 3]));
    assert!(!admitted.headers().contains_key("x-ratelimit-limit"));
    let denied = ask("3");
    assert_eq!(
        told(&denied),
        (
            503,
            [
                Some("7"),
                Some("\"default\";q=10;w=60"),
                Some("\"default\";r=2;t=60")
            ]
        )
    );
    let old = ["limit", "remaining", "reset"]
        .map(|name| denied.headers()[format!("x-ratelimit-{name}")].clone());
    assert_eq!(old, ["10", "2", "60"]);
    assert_eq!(text(denied), "2 left of /a/b");
    assert_eq!(ask("0").status(), 200);
    assert_eq!(ask("2").status(), 200);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[test]
fn a_permit_ends_when_the_response_body_ends_or_is_dropped() {
    let (seats, _) = limiter(Concurrency::new(2).into());
    let service = RateLimitLayer::new(Arc::clone(&seats), ALICE).layer(hello(&Arc::default()));
    let ask = || block_on(service.clone().oneshot(from("alice"))).unwrap();
    // Each response is read or dropped before the next request.
    for _ in 0..5 {
        assert_eq!(text(ask()), "hello");
        drop(ask());
    }
    let (first, second) = (ask(), ask());
    assert_eq!(ask().status(), 429);
    drop(first.into_body());
    assert_eq!(ask().status(), 200);
    // A body that was read to its end holds nothing, although it still exists.
    let mut body = second.into_body();
    assert_eq!(
        block_on(body.frame())
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "hello"
    );
    let all = [ask(), ask()];
    assert!(all.iter().all(|response| response.status() == 200));
    drop(all);
    assert_eq!(seats.peek("alice", 0).remaining(), 2);
}

#[test]
fn a_permit_is_held_in_the_middle_of_a_body_and_ends_when_the_rest_is_dropped() {
    let (seats, _) = limiter(Concurrency::new(1).into());
    let streams = service_fn(async |_: Request<()>| {
        let frames = futures::stream::iter(["a", "b", "c"]).map(|text| {
            Ok::<_, Infallible>(http_body::Frame::data(Bytes::from_static(text.as_bytes())))
        });
        Ok::<_, Infallible>(Response::new(StreamBody::new(frames)))
    });
    let service = RateLimitLayer::new(Arc::clone(&seats), ALICE).layer(streams);
    for frames in 0..=3 {
        let mut body = block_on(service.clone().oneshot(from("alice")))
            .unwrap()
            .into_body();
        for _ in 0..frames {
            block_on(body.frame()).unwrap().unwrap();
            assert_eq!(seats.peek("alice", 0).remaining(), 0, "{frames} frames");
        }
        assert_eq!(
            block_on(service.clone().oneshot(from("alice")))
                .unwrap()
                .status(),
            429
        );
        drop(body);
        assert_eq!(seats.peek("alice", 0).remaining(), 1, "{frames} frames");
    }
}

#[test]
fn a_permit_ends_when_the_service_fails_and_when_the_request_is_dropped() {
    let (seats, _) = limiter(Concurrency::new(1).into());
    let fails = service_fn(async |_: Request<()>| Err::<Response<String>, _>("no"));
    let failing = RateLimitLayer::new(Arc::clone(&seats), ALICE).layer(fails);
    assert_eq!(block_on(failing.oneshot(from("alice"))).unwrap_err(), "no");
    assert_eq!(seats.peek("alice", 0).remaining(), 1);
    let hangs =
        service_fn(|_: Request<()>| std::future::pending::<Result<Response<String>, Infallible>>());
    let hanging = RateLimitLayer::new(Arc::clone(&seats), ALICE).layer(hangs);
    let mut call = Box::pin(hanging.oneshot(from("alice")));
    assert!(block_on(poll_immediate(&mut call)).is_none());
    assert_eq!(seats.peek("alice", 0).remaining(), 0);
    drop(call);
    assert_eq!(seats.peek("alice", 0).remaining(), 1);
}

#[test]
fn requests_without_a_key_are_refused_unless_the_caller_says_otherwise() {
    let statuses = |no_key: Option<NoKey>| {
        let (limiter, _) = limiter(log("1/1m"));
        let builder = RateLimitLayer::builder(limiter, ALICE);
        let layer = no_key.into_iter().fold(builder, Builder::no_key).build();
        let service = layer.layer(hello(&Arc::default()));
        [(); 2].map(|()| told(&block_on(service.clone().oneshot(Request::new(()))).unwrap()).0)
    };
    assert_eq!(statuses(None), [500, 500]);
    assert_eq!(statuses(Some(NoKey::Shared)), [200, 429]);
    assert_eq!(statuses(Some(NoKey::Admit)), [200, 200]);
    assert_eq!(statuses(Some(NoKey::Deny)), [429, 429]);
}

/// Counts the events of the current thread.
struct Events(Arc<AtomicU32>);

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn requests_without_a_key_are_logged_at_most_once_a_minute() {
    let (limiter, timer) = limiter(log("1/1m"));
    let service = RateLimitLayer::new(limiter, Peer::address()).layer(hello(&Arc::default()));
    let events = Arc::new(AtomicU32::new(0));
    let ask = || {
        assert_eq!(
            block_on(service.clone().oneshot(from("alice")))
                .unwrap()
                .status(),
            500
        );
        events.load(Ordering::Relaxed)
    };
    tracing::subscriber::with_default(Events(Arc::clone(&events)), || {
        assert_eq!([ask(), ask()], [1, 1]);
        timer.advance(Duration::from_nanos(59_999_999_999));
        assert_eq!(ask(), 1);
        timer.advance(Duration::from_nanos(1));
        assert_eq!([ask(), ask()], [2, 2]);
    });
}

#[test]
fn keys_come_from_headers_paths_peers_extensions_and_closures() {
    #[derive(Clone)]
    struct Connection(SocketAddr);
    let mut request = from("alice");
    let socket: SocketAddr = "192.0.2.7:80".parse().unwrap();
    request.extensions_mut().insert(socket);
    request
        .extensions_mut()
        .insert(Connection("[2001:db8::1]:80".parse().unwrap()));
    let (parts, ()) = request.into_parts();
    let key = |source: &dyn KeySource| {
        source
            .key(&parts)
            .map(|key| String::from_utf8(key.into_owned()).unwrap())
    };
    assert_eq!(key(&ALICE).as_deref(), Some("alice"));
    assert_eq!(key(&Header::named("x-other")), None);
    assert_eq!(key(&Path).as_deref(), Some("/a/b"));
    assert_eq!(key(&Fixed::new("all")).as_deref(), Some("all"));
    assert_eq!(key(&Peer::address()).as_deref(), Some("192.0.2.7"));
    let found = Peer::found_in(|connection: &Connection| connection.0.ip());
    assert_eq!(key(&found).as_deref(), Some("2001:db8::/64"));
    assert_eq!(key(&found.ipv6_prefix(128)).as_deref(), Some("2001:db8::1"));
    let port = Extension::new(|connection: &Connection| connection.0.port().to_string());
    assert_eq!(key(&port).as_deref(), Some("80"));
    assert_eq!(
        key(&|parts: &Parts| parts.uri.query().map(str::to_owned)).as_deref(),
        Some("c=d")
    );
    assert_eq!(key(&GrpcMethod), None, "it is no gRPC call");
    let (call, ()) = Request::builder()
        .uri("http://api/shop.Orders/Create")
        .header("content-type", "application/grpc+proto")
        .body(())
        .unwrap()
        .into_parts();
    assert_eq!(
        GrpcMethod.key(&call).as_deref(),
        Some(&b"/shop.Orders/Create"[..])
    );
    assert_eq!(key(&(ALICE, Path)).as_deref(), Some("5:alice4:/a/b"));
    assert_eq!(key(&(ALICE, Path, Header::named("x-other"))), None);
    let (mut bare, ()) = Request::new(()).into_parts();
    assert_eq!(Peer::address().key(&bare), None);
    bare.extensions.insert(IpAddr::from([192, 0, 2, 9]));
    assert_eq!(
        Peer::address().key(&bare).as_deref(),
        Some(&b"192.0.2.9"[..])
    );
}

/// The subject of a bearer token, as a closure reads it. Whether its signature holds, an
/// authentication layer has checked before.
#[cfg(feature = "grpc")]
fn subject(parts: &Parts) -> Option<String> {
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
    let token = parts
        .headers
        .get("authorization")?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")?;
    let claims = BASE64_URL_SAFE_NO_PAD
        .decode(token.split('.').nth(1)?)
        .ok()?;
    let claims = String::from_utf8(claims).ok()?;
    let (_, from) = claims.split_once(r#""sub":""#)?;
    Some(from.split('"').next()?.to_owned())
}

#[test]
#[cfg(feature = "grpc")]
fn a_claim_of_a_token_is_a_key_by_a_closure() {
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
    let (limiter, _) = limiter(log("1/1m"));
    let service = RateLimitLayer::new(limiter, subject).layer(hello(&Arc::default()));
    let ask = |token: Option<String>| {
        let request = Request::builder();
        let request = match token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        block_on(service.clone().oneshot(request.body(()).unwrap()))
            .unwrap()
            .status()
            .as_u16()
    };
    // The same user with a token that was issued later is the same key.
    let token = |user: &str, issued: u64| {
        let part = |text: String| BASE64_URL_SAFE_NO_PAD.encode(text);
        let claims = part(format!(r#"{{"sub":"{user}","iat":{issued}}}"#));
        Some(format!(
            "{}.{claims}.{}",
            part(r#"{"alg":"none"}"#.to_owned()),
            part("signed".to_owned())
        ))
    };
    assert_eq!(
        [
            ask(token("ada", 1)),
            ask(token("ada", 2)),
            ask(token("bob", 1))
        ],
        [200, 429, 200]
    );
    assert_eq!(
        [ask(None), ask(Some("no.token".to_owned()))],
        [500, 500],
        "a request without a key"
    );
}

#[test]
fn several_limits_of_one_layer_are_one_decision_and_a_denial_spends_none() {
    let (user, timer) = limiter(log("5/1m"));
    let all = Arc::new(Limiter::with_clock(log("2/10s"), timer.clone()));
    let builder = RateLimitLayer::builder(Arc::clone(&user), ALICE).name("user");
    let layer = builder
        .and(Arc::clone(&all), Fixed::new(""))
        .name("all")
        .build();
    let service = layer.layer(hello(&Arc::default()));
    let ask = || block_on(service.clone().oneshot(from("alice"))).unwrap();
    let policies = Some("\"user\";q=5;w=60, \"all\";q=2;w=10");
    assert_eq!(
        told(&ask()),
        (
            200,
            [None, policies, Some("\"user\";r=4;t=60, \"all\";r=1;t=10")]
        )
    );
    assert_eq!(ask().status(), 200);
    for _ in 0..3 {
        let denied = ask();
        assert_eq!(
            told(&denied),
            (
                429,
                [
                    Some("10"),
                    policies,
                    Some("\"user\";r=3;t=60, \"all\";r=0;t=10")
                ]
            )
        );
        assert!(text(denied).contains("\"violated-policies\":[\"all\"]"));
    }
    assert_eq!(
        (user.peek("alice", 0).remaining(), all.peek(0).remaining()),
        (3, 0)
    );
}

#[test]
fn the_first_limit_of_a_layer_that_admits_takes_the_cost() {
    let (steady, timer) = limiter(log("1/1s"));
    let reserve = beside(log("2/1m"), &timer);
    let seats = beside(Concurrency::new(1).into(), &timer);
    let layer = RateLimitLayer::builder(Arc::clone(&steady), ALICE)
        .name("steady")
        .and(Arc::clone(&reserve), ALICE)
        .name("reserve")
        .and(Arc::clone(&seats), ALICE)
        .name("seats")
        .any()
        .build();
    let service = layer.layer(hello(&Arc::default()));
    let ask = || block_on(service.clone().oneshot(from("alice"))).unwrap();
    for left in [
        "\"steady\";r=0;t=1",
        "\"reserve\";r=1;t=60",
        "\"reserve\";r=0;t=60",
    ] {
        let response = ask();
        assert_eq!(response.status(), 200);
        assert_eq!(told(&response).1[2], Some(left));
    }
    // The third limit's permit is held until the body ends.
    let held = ask();
    assert_eq!(
        (held.status(), seats.peek("alice", 0).remaining()),
        (StatusCode::OK, 0)
    );
    let denied = ask();
    let (status, [retry, told_policies, _]) = told(&denied);
    assert_eq!(
        (status, retry),
        (429, Some("1")),
        "the denial that ends first"
    );
    assert_eq!(told_policies, Some("\"steady\";q=1;w=1"));
    drop(held);
    assert_eq!(ask().status(), 200);
    timer.advance(Nanos::from_secs(1));
    assert_eq!(told(&ask()).1[2], Some("\"steady\";r=0;t=1"));
    assert_eq!(reserve.peek("alice", 0).remaining(), 0);
}

#[test]
fn a_custom_limit_and_one_of_this_process_are_asked_in_turn() {
    struct Never;
    impl KeyedLimit for Never {
        async fn decide(&self, _: &[u8], _: u64) -> Decision {
            Decision::deny(
                Standing {
                    limit: 1,
                    room: 0,
                    unit: 1,
                    reset_after: 9,
                },
                9_000_000_000,
            )
        }

        fn policy(&self) -> Policy {
            log("1/9s")
        }
    }
    let steady = KeyedLimiter::new(log("2/1h")).unwrap();
    let layer: RateLimitLayer = RateLimitLayer::builder(Limit::own(Never), ALICE)
        .and(steady, ALICE)
        .any()
        .build();
    let service = layer.layer(hello(&Arc::default()));
    let ask = || block_on(service.clone().oneshot(from("alice"))).unwrap();
    assert_eq!([(); 2].map(|()| ask().status()), [200, 200]);
    let denied = ask();
    let (status, [retry, ..]) = told(&denied);
    assert_eq!((status, retry), (429, Some("9")));
}

#[test]
fn permits_and_rates_of_one_layer_are_decided_together_and_each_is_given_back_in_its_way() {
    let (rate, timer) = limiter(log("3/1m"));
    let seats = beside(Concurrency::new(1).into(), &timer);
    let builder = RateLimitLayer::builder(Arc::clone(&rate), ALICE).and(Arc::clone(&seats), ALICE);
    let service = builder.build().layer(hello(&Arc::default()));
    let ask = || block_on(service.clone().oneshot(from("alice"))).unwrap();
    let held = ask();
    assert_eq!([ask().status(), ask().status()], [429, 429]);
    assert_eq!(rate.peek("alice", 0).remaining(), 2);
    drop(held);
    assert_eq!(
        [ask(), ask(), ask()].map(|response| response.status().as_u16()),
        [200, 429, 429]
    );
    assert_eq!(
        (
            rate.peek("alice", 0).remaining(),
            seats.peek("alice", 0).remaining()
        ),
        (1, 1)
    );
}

#[test]
fn a_delayed_request_runs_after_its_delay_and_is_refunded_when_dropped() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let pace = LeakyBucket::new("1/1s".parse().unwrap())
        .max_wait(Duration::from_secs(5))
        .unwrap();
    let limiter = Arc::new(Limiter::with_clock(pace, timer.clone()));
    let calls = Arc::default();
    let service = RateLimitLayer::new(Arc::clone(&limiter), Fixed::new("")).layer(hello(&calls));
    block_on(async {
        assert_eq!(
            service
                .clone()
                .oneshot(from("alice"))
                .await
                .unwrap()
                .status(),
            200
        );
        let mut second = pin!(service.clone().oneshot(from("alice")));
        assert!(poll_immediate(second.as_mut()).await.is_none());
        let mut third = Box::pin(service.clone().oneshot(from("alice")));
        assert!(poll_immediate(third.as_mut()).await.is_none());
        assert_eq!(limiter.peek(1).delay(), Duration::from_secs(3));
        drop(third);
        assert_eq!(limiter.peek(1).delay(), Duration::from_secs(2));
        timer.advance(Duration::from_nanos(999_999_999));
        assert!(
            poll_immediate(second.as_mut()).await.is_none() && calls.load(Ordering::Relaxed) == 1
        );
        timer.advance(Duration::from_nanos(1));
        assert_eq!(second.await.unwrap().status(), 200);
        // A place that was used stays taken.
        assert_eq!(limiter.peek(1).delay(), Duration::from_secs(1));
    });
}

#[test]
fn a_bounded_wait_is_first_come_first_served_and_longer_ones_are_refused_at_once() {
    let (limiter, timer) = limiter(log("1/1s"));
    let layer = RateLimitLayer::builder(Arc::clone(&limiter), ALICE)
        .max_wait(Duration::from_millis(2_500))
        .build();
    let service = layer.layer(hello(&Arc::default()));
    let ask = || Box::pin(service.clone().oneshot(from("alice")));
    block_on(async {
        assert_eq!(ask().await.unwrap().status(), 200);
        let (mut second, mut third) = (ask(), ask());
        assert!(
            poll_immediate(&mut second).await.is_none()
                && poll_immediate(&mut third).await.is_none()
        );
        // It would be the fourth request, after a wait of three seconds.
        assert_eq!(told(&ask().await.unwrap()).0, 429);
        // When a request leaves the line, the next one moves up.
        drop(second);
        timer.advance(Duration::from_secs(1));
        assert_eq!(third.await.unwrap().status(), 200);
    });
    assert_eq!(limiter.peek("alice", 0).remaining(), 0);
}

#[test]
fn a_bounded_wait_for_a_permit_ends_when_another_request_ends() {
    let (seats, _) = limiter(Concurrency::new(1).into());
    let layer = RateLimitLayer::builder(seats, ALICE)
        .max_wait(Duration::from_secs(1))
        .build();
    let service = layer.layer(hello(&Arc::default()));
    block_on(async {
        let first = service.clone().oneshot(from("alice")).await.unwrap();
        let mut second = Box::pin(service.clone().oneshot(from("alice")));
        assert!(poll_immediate(&mut second).await.is_none());
        drop(first);
        let second = second.await.unwrap();
        assert_eq!(second.status(), 200);
    });
}

#[test]
fn a_bounded_wait_for_several_limits_asks_again_after_the_wait_they_named() {
    let (user, timer) = limiter(log("1/1s"));
    let all = beside(log("5/1s"), &timer);
    let layer = RateLimitLayer::builder(user, ALICE)
        .and(Arc::clone(&all), Fixed::new(""))
        .max_wait(Duration::from_secs(1));
    let service = layer.build().layer(hello(&Arc::default()));
    let ask = || Box::pin(service.clone().oneshot(from("alice")));
    block_on(async {
        assert_eq!(ask().await.unwrap().status(), 200);
        timer.advance(Duration::from_millis(400));
        let mut second = ask();
        assert!(poll_immediate(&mut second).await.is_none());
        assert_eq!(all.peek("", 0).remaining(), 4);
        timer.advance(Duration::from_millis(600));
        assert_eq!(second.await.unwrap().status(), 200);
        // A leaky bucket's delay counts as a wait.
        let pace = LeakyBucket::new("1/1s".parse().unwrap())
            .max_wait(Duration::from_secs(5))
            .unwrap();
        let pace = Arc::new(Limiter::with_clock(pace, timer.clone()));
        let layer = RateLimitLayer::builder(Arc::clone(&pace), Fixed::new(""))
            .max_wait(Duration::from_millis(500));
        let service = layer.build().layer(hello(&Arc::default()));
        assert_eq!(
            service
                .clone()
                .oneshot(from("alice"))
                .await
                .unwrap()
                .status(),
            200
        );
        let late = service.clone().oneshot(from("alice")).await.unwrap();
        assert_eq!(told(&late).0, 429);
        assert_eq!(pace.peek(1).delay(), Duration::from_secs(1));
    });
}

#[test]
fn exempt_requests_and_keys_are_not_counted_and_the_list_changes_meanwhile() {
    let (limiter, _) = limiter(log("1/1m"));
    let friends = KeyList::from_iter(["alice"]);
    let builder = RateLimitLayer::builder(limiter, ALICE).exempt_keys(friends.clone());
    let ask = asks(builder.exempt(|parts| parts.headers["x-api-key"] == "probe"));
    assert_eq!(
        ["alice", "alice", "probe", "probe", "bob", "bob"].map(&ask),
        [200, 200, 200, 200, 200, 429]
    );
    friends.set(["bob"]);
    assert_eq!(["alice", "alice", "bob"].map(&ask), [200, 429, 200]);
}

/// A clock that does something when it is read next, as another thread may just then.
#[derive(Clone)]
struct Interrupted {
    timer: ManualTimer,
    next: Arc<Mutex<Option<Interruption>>>,
}

type Interruption = Box<dyn FnOnce() + Send>;

impl Clock for Interrupted {
    fn now(&self) -> Nanos {
        let next = self.next.lock().unwrap().take();
        if let Some(interrupt) = next {
            interrupt();
        }
        self.timer.now()
    }
}

impl Timer for Interrupted {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        self.timer.sleep_until(at)
    }
}

#[test]
fn a_permit_returns_though_the_policy_became_one_of_permits_while_it_was_asked_for() {
    for kind in ["plain", "general", "joint"] {
        let clock = Interrupted {
            timer: ManualTimer::new(Nanos::from_secs(1_000)),
            next: Arc::default(),
        };
        let limiter = |policy: &str| {
            let builder = KeyedLimiter::builder(policy.parse::<Policy>().unwrap());
            let builder = builder.max_keys(1_000).clock(clock.clone());
            Arc::new(builder.build().unwrap())
        };
        let changing = limiter("fixed-window 10/1s");
        let layer = RateLimitLayer::builder(Arc::clone(&changing), ALICE);
        let layer = match kind {
            "plain" => layer,
            "general" => layer.exempt(|_| false),
            _ => layer.and(limiter("1000/1s"), ALICE),
        };
        let service = layer.build().layer(hello(&Arc::default()));
        let ask = || {
            let request = Request::builder().header("x-api-key", "bob");
            let call = service.clone().oneshot(request.body(()).unwrap());
            block_on(poll_immediate(call)).unwrap().unwrap()
        };
        assert_eq!(ask().status(), 200);
        let change = move |policy: &str| {
            let policy = policy.parse::<Policy>().unwrap();
            let later = changing.at(Nanos::from_secs(1_000));
            later.set_policy(policy).unwrap().finish();
        };
        let to_permits = change.clone();
        *clock.next.lock().unwrap() = Some(Box::new(move || to_permits("concurrency 1")));
        let in_flight = ask();
        assert_eq!(in_flight.status(), 200, "{kind}");
        assert_eq!(ask().status(), 429, "{kind}");
        drop(in_flight);
        for _ in 0..3 {
            assert_eq!(ask().status(), 200, "{kind}");
        }
        // Under a rate the permit counts as a unit, which does not return.
        change("fixed-window 10/1s");
        let to_permits = change.clone();
        *clock.next.lock().unwrap() = Some(Box::new(move || to_permits("concurrency 1")));
        let in_flight = ask();
        change("fixed-window 1/1s");
        drop(in_flight);
        assert_eq!(ask().status(), 429, "{kind}");
    }
}

/// A layer with one plain limit decides without lists. With an exemption that exempts nobody it
/// does not, and nothing else may differ, also while the policy changes and a key has its own.
#[test]
fn a_layer_with_one_plain_limit_answers_as_any_other() {
    let policies: Vec<Policy> = [
        "fixed-window 3/1s",
        "concurrency 9",
        "sliding-window 5/1s",
        "leaky-bucket 5/1s",
        "sliding-log 4/1s",
        "sliding-counter 5/1s",
        "token-bucket:burst=4 5/1s",
        "concurrency 8",
        "fixed-window 3/1s",
    ]
    .map(|policy| policy.parse().unwrap())
    .into();
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let limiters = [(); 2].map(|()| beside(policies[0], &timer));
    let [plain, general] = limiters.each_ref().map(|limiter| {
        RateLimitLayer::builder(Arc::clone(limiter), ALICE)
            .name("api")
            .cost(|parts| u64::from(parts.uri.path() == "/two") + 1)
            .old_headers()
            .no_key(NoKey::Deny)
    });
    let services = [plain, general.exempt(|_| false)]
        .map(|builder| builder.build().layer(hello(&Arc::default())));
    for policy in policies {
        for limiter in &limiters {
            limiter.set_policy(policy).unwrap().finish();
        }
        let mut seen = [0; 2];
        for turn in 0..600_u32 {
            if let 200 | 400 = turn {
                for limiter in &limiters {
                    let own = ["concurrency 9", "token-bucket 2/1s"][turn as usize / 200 - 1];
                    limiter
                        .set_override("bob", own.parse::<Policy>().unwrap())
                        .unwrap();
                }
            }
            let random = turn.wrapping_mul(2_654_435_761) >> 20;
            timer.advance(Nanos::from_millis(u64::from(random % 150)));
            let answers = services.each_ref().map(|service| {
                let path = if random.is_multiple_of(3) {
                    "/two"
                } else {
                    "/one"
                };
                let mut request = Request::builder().uri(path);
                match random % 7 {
                    0 => {}
                    1..=3 => request = request.header("x-api-key", "bob"),
                    _ => request = request.header("x-api-key", "alice"),
                }
                let call = service.clone().oneshot(request.body(()).unwrap());
                // A delayed request is dropped in its wait.
                block_on(poll_immediate(call)).map(|answer| {
                    let (head, _) = answer.unwrap().into_parts();
                    (head.status, head.headers)
                })
            });
            assert_eq!(answers[0], answers[1], "{policy}, turn {turn}");
            let is_refused = answers[0]
                .as_ref()
                .is_some_and(|(status, _)| *status == StatusCode::TOO_MANY_REQUESTS);
            seen[usize::from(is_refused)] += 1;
        }
        assert!(seen.iter().all(|count| *count > 20), "{policy}: {seen:?}");
        for limiter in &limiters {
            limiter.remove_override("bob");
        }
    }
}

#[test]
fn a_limit_in_a_dry_run_refuses_nobody_and_reports_whom_it_would_have_refused() {
    let (real, timer) = limiter(log("3/1m"));
    let tried = beside(log("1/1m"), &timer);
    let heard = Arc::new(AtomicU32::new(0));
    let hears = Arc::clone(&heard);
    let builder = RateLimitLayer::builder(real, ALICE)
        .name("real")
        .and(tried, ALICE)
        .name("tried")
        .shadow();
    let layer = builder.on_shadow(move |refusal| {
        assert_eq!(refusal.name(), "tried");
        hears.fetch_add(1, Ordering::Relaxed);
    });
    let service = layer.build().layer(hello(&Arc::default()));
    let ask = || block_on(service.clone().oneshot(from("alice"))).unwrap();
    let first = ask();
    assert_eq!(told(&first).1[1], Some("\"real\";q=3;w=60"));
    assert_eq!([(); 3].map(|()| ask().status().as_u16()), [200, 200, 429]);
    assert_eq!(heard.load(Ordering::Relaxed), 2);
}

#[test]
fn a_tenants_limit_comes_from_a_table_that_changes_meanwhile() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let plan = |quota| beside(log(quota), &timer);
    let table = Arc::new(std::sync::Mutex::new(std::collections::HashMap::from([(
        "alice",
        plan("1/1m"),
    )])));
    let seen = Arc::clone(&table);
    let everybody = beside(log("100/1m"), &timer);
    let ask = asks(RateLimitLayer::builder(everybody, Fixed::new("")).and_by(
        move |parts| {
            let tenant = parts.headers["x-api-key"].to_str().ok()?;
            let plan = seen.lock().unwrap().get(tenant).cloned()?;
            Some(tidegate_tower::IntoLimit::into_limit(plan))
        },
        ALICE,
    ));
    assert_eq!(
        ["alice", "alice", "bob", "bob"].map(&ask),
        [200, 429, 200, 200]
    );
    table.lock().unwrap().insert("alice", plan("2/1m"));
    assert_eq!(["alice", "alice", "alice"].map(&ask), [200, 200, 429]);
}

#[test]
fn an_override_for_one_key_applies_while_the_layer_runs() {
    let (limiter, _) = limiter(log("1/1m"));
    let ask = asks(RateLimitLayer::builder(Arc::clone(&limiter), ALICE));
    assert_eq!(["alice", "alice"].map(&ask), [200, 429]);
    limiter.set_override("alice", log("3/1m")).unwrap();
    assert_eq!(["alice", "alice", "alice"].map(&ask), [200, 200, 429]);
}

#[test]
fn an_override_of_another_kind_is_given_back_as_its_own_kind_says() {
    let (seats, timer) = limiter(Concurrency::new(1).into());
    let ask = asks(RateLimitLayer::builder(Arc::clone(&seats), ALICE));
    seats.set_override("alice", log("2/1m")).unwrap();
    // Each response is dropped immediately, but the key's own limit is a rate.
    assert_eq!(
        ["alice", "alice", "alice", "bob", "bob", "bob"].map(&ask),
        [200, 200, 429, 200, 200, 200]
    );
    let rate = beside(log("1/1m"), &timer);
    let ask = asks(RateLimitLayer::builder(Arc::clone(&rate), ALICE));
    rate.set_override("alice", Concurrency::new(1)).unwrap();
    assert_eq!(
        ["alice", "alice", "alice", "bob", "bob"].map(&ask),
        [200, 200, 200, 200, 429]
    );
}

#[test]
fn responses_and_permits_follow_a_change_of_policy() {
    let (keyed, timer) = limiter(log("9/1m"));
    let one = Arc::new(Limiter::with_clock(log("9/1m"), timer));
    let by_key = RateLimitLayer::new(Arc::clone(&keyed), ALICE).layer(hello(&Arc::default()));
    let together =
        RateLimitLayer::new(Arc::clone(&one), Fixed::new("")).layer(hello(&Arc::default()));
    let permits: Policy = Concurrency::new(9).into();
    // Both limiters take up again what they have for a policy that returns.
    for (policy, text, is_back) in [
        (log("9/1m"), "\"default\";q=9;w=60", false),
        (log("9/1h"), "\"default\";q=9;w=3600", false),
        (permits, "\"default\";q=9;qu=\"concurrent-requests\"", true),
        (log("9/1m"), "\"default\";q=9;w=60", false),
        (permits, "\"default\";q=9;qu=\"concurrent-requests\"", true),
        (log("9/1h"), "\"default\";q=9;w=3600", false),
    ] {
        keyed.set_policy(policy).unwrap();
        one.set_policy(policy);
        keyed.reset("alice");
        for _ in 0..2 {
            for (service, left) in [
                (
                    &by_key,
                    &(|| keyed.peek("alice", 0).remaining()) as &dyn Fn() -> u64,
                ),
                (&together, &|| one.peek(0).remaining()),
            ] {
                let before = left();
                let response = block_on(service.clone().oneshot(from("alice"))).unwrap();
                assert_eq!(told(&response).1[1], Some(text));
                drop(response);
                assert_eq!(left() == before, is_back, "{policy:?}");
            }
        }
    }
}

#[test]
fn the_cost_in_a_response_head_is_refunded_or_charged() {
    let (limiter, _) = limiter(log("10/1m"));
    let builder = RateLimitLayer::builder(Arc::clone(&limiter), ALICE)
        .cost(|_| 3)
        .cost_from_response(|head| head.headers.get("x-tokens")?.to_str().ok()?.parse().ok());
    let costs = service_fn(async |request: Request<()>| {
        let mut response = Response::new(String::new());
        if let Some(tokens) = request.headers().get("x-tokens") {
            response.headers_mut().insert("x-tokens", tokens.clone());
        }
        Ok::<_, Infallible>(response)
    });
    let service = builder.build().layer(costs);
    let left = |tokens: &str| {
        let mut request = from("alice");
        if !tokens.is_empty() {
            request
                .headers_mut()
                .insert("x-tokens", tokens.parse().unwrap());
        }
        assert_eq!(
            block_on(service.clone().oneshot(request)).unwrap().status(),
            200
        );
        limiter.peek("alice", 0).remaining()
    };
    assert_eq!(left("1"), 9);
    assert_eq!(left(""), 6);
    assert_eq!(left("5"), 1);
    limiter.reset("alice");
    // What exceeds the limit is debt.
    assert_eq!(left("25"), 0);
    limiter.refund("alice", 16);
    assert_eq!(limiter.peek("alice", 0).remaining(), 1);
}

#[test]
fn a_cost_of_zero_is_settled_too_and_its_debt_ends_the_next_requests() {
    for (tokens, most) in [(100, 11), (300, 4), (1_200, 1)] {
        let (limiter, timer) = limiter(log("1000/1m"));
        let layer = RateLimitLayer::builder(Arc::clone(&limiter), ALICE)
            .cost(|_| 0)
            .billed();
        let service = layer.build().layer(service_fn(move |request: Request<()>| {
            request.extensions().get::<Bill>().unwrap().set(tokens);
            std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
        }));
        let status = || {
            block_on(service.clone().oneshot(from("alice")))
                .unwrap()
                .status()
        };
        assert_eq!(
            (0..200).filter(|_| status() == 200).count(),
            most,
            "{tokens} tokens an answer"
        );
        timer.advance(std::time::Duration::from_mins(2));
        assert_eq!(status(), 200, "time repays it");
    }
}

/// A login, which fails with a wrong password. It writes what it costs into its bill, if it has one.
async fn login(request: Request<()>) -> Result<Response<String>, Infallible> {
    let is_wrong = request.headers().contains_key("x-wrong");
    if let Some(bill) = request.extensions().get::<Bill>() {
        bill.set(u64::from(is_wrong));
    }
    let mut response = Response::new("hello".to_owned());
    if is_wrong {
        *response.status_mut() = http::StatusCode::UNAUTHORIZED;
    }
    Ok(response)
}

#[test]
fn only_failed_logins_count_by_their_status_or_their_bill() {
    let (limiter, timer) = limiter(log("3/1m"));
    let builder = || RateLimitLayer::builder(Arc::clone(&limiter), ALICE);
    let layers = [
        builder().billed(),
        builder().cost_from_response(|response| Some(u64::from(response.status == 401))),
    ];
    for (layer, key) in layers.into_iter().zip(["alice", "bob"]) {
        let service = layer.build().layer(service_fn(login));
        let ask = |is_wrong: bool| {
            let mut request = from(key);
            if is_wrong {
                let wrong = http::HeaderValue::from_static("1");
                request.headers_mut().insert("x-wrong", wrong);
            }
            block_on(service.clone().oneshot(request)).unwrap()
        };
        for failed in 0..3 {
            for _ in 0..5 {
                assert_eq!(ask(false).status(), 200);
            }
            assert_eq!(3 - limiter.peek(key, 0).remaining(), failed);
            assert_eq!(ask(true).status(), 401);
        }
        for is_wrong in [false, true] {
            assert_eq!(ask(is_wrong).status(), 429);
        }
        timer.advance(std::time::Duration::from_mins(2));
        assert_eq!(ask(false).status(), 200);
        assert_eq!(limiter.peek(key, 0).remaining(), 3);
    }
    // Logins that run at the same time count until each has succeeded.
    let service = builder().billed().build().layer(service_fn(login));
    let ask = || block_on(service.clone().oneshot(from("carol"))).unwrap();
    let running = [ask(), ask(), ask()];
    assert!(running.iter().all(|response| response.status() == 200));
    assert_eq!(ask().status(), 429);
    drop(running);
    assert_eq!(ask().status(), 200);
}

#[test]
fn bytes_and_bills_are_charged_when_the_body_is_over() {
    let (limiter, timer) = limiter(log("100/1m"));
    let tokens = beside(log("100/1m"), &timer);
    let layer = RateLimitLayer::builder(Arc::clone(&limiter), ALICE)
        .cost_per_bytes(NonZeroU32::new(4).unwrap())
        .and(Arc::clone(&tokens), ALICE)
        .billed();
    let streams = service_fn(async |request: Request<()>| {
        let bill = request.extensions().get::<Bill>().unwrap().clone();
        let frames = futures::stream::iter([3, 8]).map(move |cost| {
            bill.add(cost);
            Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(vec![0; cost as usize])))
        });
        Ok::<_, Infallible>(Response::new(StreamBody::new(frames)))
    });
    let service = layer.build().layer(streams);
    let left = || [&limiter, &tokens].map(|limiter| 100 - limiter.peek("alice", 0).remaining());
    let mut body = block_on(service.clone().oneshot(from("alice")))
        .unwrap()
        .into_body();
    assert_eq!(left(), [1, 1]);
    block_on(body.frame()).unwrap().unwrap();
    // A body that is dropped costs what was read.
    drop(body);
    assert_eq!(left(), [1, 3]);
    let body = block_on(service.clone().oneshot(from("alice")))
        .unwrap()
        .into_body();
    block_on(body.collect()).unwrap();
    assert_eq!(left(), [1 + 3, 3 + 11]);
}

#[test]
fn stacked_layers_each_report_their_own_limit() {
    let (user, _) = limiter(log("5/1m"));
    let (path, _) = limiter(log("1/1s"));
    let inner = RateLimitLayer::builder(path, Path)
        .name("path")
        .build()
        .layer(hello(&Arc::default()));
    let service = RateLimitLayer::builder(user, ALICE)
        .name("user")
        .build()
        .layer(inner);
    let response = block_on(service.clone().oneshot(from("alice"))).unwrap();
    let lines = response.headers().get_all("ratelimit-policy").iter();
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["\"path\";q=1;w=1", "\"user\";q=5;w=60"]
    );
}

#[test]
fn a_long_field_is_whole() {
    let name = |at: usize| format!("{}{at}", "n".repeat(40));
    let (first, timer) = limiter(log("5/1m"));
    let mut builder = RateLimitLayer::builder(first, ALICE).name(&name(0));
    for at in 1..5 {
        builder = builder
            .and(beside(log("5/1m"), &timer), ALICE)
            .name(&name(at));
    }
    let service = builder.build().layer(hello(&Arc::default()));
    let response = block_on(service.oneshot(from("alice"))).unwrap();
    let all: Vec<String> = (0..5)
        .map(|at| format!("\"{}\";r=4;t=60", name(at)))
        .collect();
    assert_eq!(told(&response).1[2], Some(&*all.join(", ")));
}

/// A custom limit whose decision takes a while. Its decisions can come from an override.
struct Elsewhere;

impl KeyedLimit for Elsewhere {
    async fn decide(&self, _key: &[u8], _cost: u64) -> Decision {
        let mut again = true;
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            if std::mem::take(&mut again) {
                std::task::Poll::Pending
            } else {
                std::task::Poll::Ready(())
            }
        })
        .await;
        Decision::allow(Standing {
            limit: 9,
            room: 8,
            unit: 1,
            reset_after: 1_000_000_000,
        })
    }

    fn policy(&self) -> Policy {
        log("5/1m")
    }
}

#[test]
fn a_custom_limit_works_and_headers_omit_what_is_unknown() {
    let service = RateLimitLayer::new(Limit::own(Elsewhere), Path).layer(hello(&Arc::default()));
    let response = block_on(service.oneshot(from("alice"))).unwrap();
    assert_eq!(
        told(&response),
        (
            200,
            [None, Some("\"default\";q=9"), Some("\"default\";r=8;t=1")]
        )
    );
}
