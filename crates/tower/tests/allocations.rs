//! How many allocations a limit adds to a request of axum.
#![cfg(feature = "axum")]

use allocation_counter::measure;
use axum::{Router, body::Body, routing::get};
use futures::executor::block_on;
use http::Request;
use tidegate_limiter::{KeyedLimiter, Limiter, Policy};
use tidegate_tower::{
    Builder, RateLimitLayer, Tell,
    key::{Fixed, Header},
};
use tower::{Service, layer::util::Identity};

const KEY: Header = Header::named("x-api-key");

/// The router as `axum::serve` calls it: `with_state` wraps the handlers in their layers once, not
/// for each request.
fn served(layer: impl FnOnce(Router) -> Router) -> Router {
    layer(Router::new().route("/", get(async || "hello"))).with_state(())
}

/// The allocations of one request, until its response is dropped.
fn allocations(mut app: Router) -> u64 {
    let request = || {
        Request::get("/")
            .header("x-api-key", "alice")
            .body(Body::empty())
            .unwrap()
    };
    let ask = |app: &mut Router, request: Request<Body>| {
        let response = block_on(app.call(request)).unwrap();
        assert_eq!(response.status(), 200);
    };
    // The first requests add the key and format the policy.
    for _ in 0..10 {
        ask(&mut app, request());
    }
    let requests: Vec<_> = (0..100).map(|_| request()).collect();
    let all = measure(|| {
        for request in requests {
            ask(&mut app, request);
        }
    })
    .count_total;
    assert_eq!(all % 100, 0, "each request allocates the same: {all}");
    all / 100
}

fn limit() -> Builder {
    let policy = Policy::token_bucket("1000000000/1s".parse().unwrap());
    RateLimitLayer::builder(
        KeyedLimiter::builder(policy)
            .max_keys(1_000)
            .build()
            .unwrap(),
        KEY,
    )
}

fn all_requests() -> Limiter {
    Limiter::new(Policy::token_bucket("1000000000/1s".parse().unwrap()))
}

#[test]
fn a_limit_allocates_for_its_field_alone_when_the_body_keeps_its_type() {
    // Axum boxes the service and the future of each layer.
    let without = allocations(served(|router| router.layer(Identity::new())));
    assert!(without > 0, "the counter counts");
    let added = |layer: RateLimitLayer| {
        let same = layer.clone().same_body();
        [
            served(|router| router.layer(same)),
            served(|router| router.layer(layer)),
        ]
        .map(|app| allocations(app) - without)
    };
    assert_eq!(
        added(limit().tell(Tell::Never).build()),
        [0, 1],
        "axum boxes a body of another type"
    );
    assert_eq!(added(limit().build()), [1, 2], "the value of `RateLimit`");
    let two = || limit().and(all_requests(), Fixed::new(""));
    assert_eq!(
        added(two().tell(Tell::Never).build()),
        [0, 1],
        "one decision over two limits"
    );
    assert_eq!(added(two().build()), [2, 3], "the joined policies too");
    let permit = RateLimitLayer::builder(Limiter::new(Policy::concurrency(9)), Fixed::new(""));
    assert_eq!(
        added(permit.tell(Tell::Never).build()),
        [2, 2],
        "the permit, and the body that holds it"
    );
}
