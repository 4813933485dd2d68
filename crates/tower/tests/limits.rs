//! What the middleware promises, on a clock that the test moves.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{executor::block_on, future::poll_immediate};
use http::{Request, Response, StatusCode, request::Parts};
use tidegate_limiter::{
    Decision, KeyedLimit, KeyedLimiter, Limiter, ManualClock, ManualTimer, Nanos, Policy,
    algorithm::{Concurrency, LeakyBucket},
};
use tidegate_tower::{
    NoKey, RateLimitLayer, Tell,
    key::{Fixed, Header, KeySource, Path, Peer},
};
use tower::{Layer, Service, ServiceExt, service_fn};

const ALICE: Header = Header::named("x-api-key");

fn limiter(policy: Policy) -> (Arc<KeyedLimiter<Arc<ManualClock>>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_000)));
    let limiter = KeyedLimiter::builder(policy).max_keys(1_000).clock(Arc::clone(&clock));
    (Arc::new(limiter.build().unwrap()), clock)
}

fn log(quota: &str) -> Policy {
    Policy::sliding_log(quota.parse().unwrap()).unwrap()
}

/// Answers with its own name, and counts how often it is called.
fn hello(
    calls: &Arc<AtomicU32>,
) -> impl Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send> + Clone + Send + use<>
{
    let calls = Arc::clone(calls);
    service_fn(move |_: Request<()>| {
        calls.fetch_add(1, Ordering::Relaxed);
        async { Ok(Response::new("hello".to_owned())) }
    })
}

fn from(key: &str) -> Request<()> {
    Request::builder().uri("/a/b?c=d").header("x-api-key", key).body(()).unwrap()
}

/// Status, and the header fields by which a client is told where it stands.
fn told<R>(response: &Response<R>) -> (u16, [Option<&str>; 3]) {
    let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap());
    (response.status().as_u16(), ["retry-after", "ratelimit-policy", "ratelimit"].map(header))
}

#[test]
fn a_denial_is_429_with_an_honest_wait_and_the_inner_service_does_not_see_it() {
    let (limiter, clock) = limiter(log("2/10s"));
    let calls = Arc::default();
    let layer = RateLimitLayer::builder(limiter, ALICE).name("per \"key\"").build();
    let service = layer.layer(hello(&calls));
    let policy = Some("\"per _key_\";q=2;w=10");
    let ask = |key| block_on(service.clone().oneshot(from(key))).unwrap();
    let first = ask("alice");
    assert_eq!(first.body(), "hello");
    assert_eq!(told(&first), (200, [None, policy, Some("\"per _key_\";r=1;t=10")]));
    clock.advance(Nanos::from_millis(500));
    assert_eq!(told(&ask("alice")), (200, [None, policy, Some("\"per _key_\";r=0;t=10")]));
    assert_eq!(told(&ask("alice")), (429, [Some("10"), policy, Some("\"per _key_\";r=0;t=10")]));
    assert_eq!(ask("bob").status(), 200);
    // 9.5 s are 10 on the wire; a nanosecond before the wait is over it still is one.
    clock.advance(Nanos::new(9_499_999_999));
    assert_eq!(told(&ask("alice")).1[0], Some("1"));
    clock.advance(Nanos::new(1));
    assert_eq!(ask("alice").status(), 200);
    assert_eq!(calls.load(Ordering::Relaxed), 4);
}

#[test]
fn what_a_request_costs_and_how_it_is_denied_are_the_callers_choice() {
    let (limiter, _) = limiter(log("10/1m"));
    let calls = Arc::default();
    let layer = RateLimitLayer::builder(limiter, ALICE)
        .cost(|parts: &Parts| {
            parts.headers.get("x-cost").and_then(|cost| cost.to_str().ok()?.parse().ok()).unwrap_or(1)
        })
        .on_denial(|decision: &Decision| {
            let response =
                Response::builder().status(StatusCode::SERVICE_UNAVAILABLE).header("retry-after", "7");
            response.body(format!("{} left", decision.remaining())).unwrap()
        })
        .tell(Tell::Denials)
        .build();
    let service = layer.layer(hello(&calls));
    let ask = |cost: &str| {
        let mut request = from("alice");
        request.headers_mut().insert("x-cost", cost.parse().unwrap());
        block_on(service.clone().oneshot(request)).unwrap()
    };
    assert_eq!(told(&ask("8")), (200, [None; 3]));
    let denied = ask("3");
    assert_eq!(denied.body(), "2 left");
    assert_eq!(
        told(&denied),
        (503, [Some("7"), Some("\"default\";q=10;w=60"), Some("\"default\";r=2;t=60")])
    );
    assert_eq!(ask("0").status(), 200);
    assert_eq!(ask("2").status(), 200);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[test]
fn requests_without_a_key_share_one_unless_the_caller_says_otherwise() {
    let statuses = |no_key| {
        let (limiter, _) = limiter(log("1/1m"));
        let service =
            RateLimitLayer::builder(limiter, ALICE).no_key(no_key).build().layer(hello(&Arc::default()));
        [(); 2].map(|()| told(&block_on(service.clone().oneshot(Request::new(()))).unwrap()).0)
    };
    assert_eq!(statuses(NoKey::Shared), [200, 429]);
    assert_eq!(statuses(NoKey::Admit), [200, 200]);
    assert_eq!(statuses(NoKey::Deny), [429, 429]);
}

#[test]
fn keys_come_from_headers_paths_peers_and_closures() {
    #[derive(Clone)]
    struct Connection(SocketAddr);
    let mut request = from("alice");
    let socket: SocketAddr = "192.0.2.7:80".parse().unwrap();
    request.extensions_mut().insert(socket);
    request.extensions_mut().insert(Connection("[2001:db8::1]:80".parse().unwrap()));
    let (parts, ()) = request.into_parts();
    let key =
        |source: &dyn KeySource| source.key(&parts).map(|key| String::from_utf8(key.into_owned()).unwrap());
    assert_eq!(key(&ALICE).as_deref(), Some("alice"));
    assert_eq!(key(&Header::named("x-other")), None);
    assert_eq!(key(&Path).as_deref(), Some("/a/b"));
    assert_eq!(key(&Fixed::new("all")).as_deref(), Some("all"));
    assert_eq!(key(&Peer::address()).as_deref(), Some("192.0.2.7"));
    let found = Peer::found_in(|connection: &Connection| connection.0.ip());
    assert_eq!(key(&found).as_deref(), Some("2001:db8::/64"));
    assert_eq!(key(&|parts: &Parts| parts.uri.query().map(str::to_owned)).as_deref(), Some("c=d"));
    let (mut bare, ()) = Request::new(()).into_parts();
    assert_eq!(Peer::address().key(&bare), None);
    bare.extensions.insert(IpAddr::from([192, 0, 2, 9]));
    assert_eq!(Peer::address().key(&bare).as_deref(), Some(&b"192.0.2.9"[..]));
}

#[test]
fn a_delayed_request_starts_when_its_turn_comes() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let pace = LeakyBucket::new("1/1s".parse().unwrap()).max_wait(Duration::from_secs(5)).unwrap();
    let limiter = Limiter::with_clock(pace, timer.clone());
    let calls = Arc::default();
    let layer = RateLimitLayer::builder(limiter, Fixed::new("")).timer(timer.clone()).build();
    let service = layer.layer(hello(&calls));
    block_on(async {
        assert_eq!(service.clone().oneshot(from("alice")).await.unwrap().status(), 200);
        let mut second = std::pin::pin!(service.clone().oneshot(from("alice")));
        assert!(poll_immediate(second.as_mut()).await.is_none());
        timer.advance(Duration::from_nanos(999_999_999));
        assert!(poll_immediate(second.as_mut()).await.is_none() && calls.load(Ordering::Relaxed) == 1);
        timer.advance(Duration::from_nanos(1));
        assert_eq!(second.await.unwrap().status(), 200);
    });
}

#[test]
fn layers_stand_behind_each_other_and_each_tells_its_own_limit() {
    let (user, _) = limiter(log("5/1m"));
    let (seats, _) = limiter(Concurrency::new(1).into());
    let inner = RateLimitLayer::builder(seats, Path).name("path").build().layer(hello(&Arc::default()));
    let service = RateLimitLayer::builder(user, ALICE).name("user").build().layer(inner);
    let ask = || block_on(service.clone().oneshot(from("alice"))).unwrap();
    let lines = |response: &Response<String>, name| {
        let values = response.headers().get_all(name).iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = ask();
    let policies = ["\"path\";q=1;qu=\"concurrent-requests\"", "\"user\";q=5;w=60"];
    assert_eq!(
        (first.status().as_u16(), lines(&first, "ratelimit-policy")),
        (200, policies.map(str::to_owned).into())
    );
    let second = ask();
    // Nobody can say when the holder of the permit leaves.
    assert_eq!(told(&second).0, 429);
    assert!(!second.headers().contains_key("retry-after"));
    assert_eq!(lines(&second, "ratelimit"), ["\"path\";r=0", "\"user\";r=3;t=60"]);
}

/// A limit of a caller's own making, decided elsewhere: after a while, and by a policy of one key's own.
struct Elsewhere;

impl KeyedLimit for Elsewhere {
    async fn decide(&self, _key: &[u8], _cost: u32) -> Decision {
        let mut again = true;
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            if std::mem::take(&mut again) { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
        })
        .await;
        Decision::allow(9, 8, 1, 1_000_000_000)
    }

    fn policy(&self) -> Policy {
        log("5/1m")
    }
}

#[test]
fn any_limit_will_do_and_what_is_not_known_of_it_is_not_told() {
    let service = RateLimitLayer::new(Elsewhere, Path).layer(hello(&Arc::default()));
    let response = block_on(service.oneshot(from("alice"))).unwrap();
    assert_eq!(told(&response), (200, [None, Some("\"default\";q=9"), Some("\"default\";r=8;t=1")]));
}
