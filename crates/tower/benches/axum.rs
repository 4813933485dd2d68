//! The time that a layer adds to a request of axum: the same router with and without it,
//! alternating on one thread.
//!
//! ```console
//! cargo bench -p tidegate-tower --features flow --bench axum
//! ```
//!
//! Each row is the median over the turns. The added time is the median of the differences within a
//! turn.
//!
//! With the number of a row, it only makes requests of that row (0 is the router without a layer),
//! for callgrind's `--toggle-collect=*counted*`.

use std::{convert::Infallible, env, hint::black_box, net::SocketAddr};

use axum::{Router, body::Body, extract::ConnectInfo, routing::get};
use futures::executor::block_on;
use http::Request;
use tidegate_core::{Clock, clock::SystemClock};
use tidegate_flow::Gate;
use tidegate_limiter::{KeyedLimiter, Limiter, Policy};
use tidegate_tower::{
    GateLayer, RateLimitLayer, Tell,
    key::{Fixed, Header, Peer},
};
use tower::{Service, layer::util::Identity};

const TURNS: usize = 31;
/// Requests are made in batches small enough for the CPU cache: a request that a server has just
/// read is in the cache too.
const BATCHES: u32 = 200;
const REQUESTS: u32 = 100;

/// The router as `axum::serve` calls it. `with_state` makes the handlers routes once; without it,
/// each request would wrap its route in the layers again.
fn served(router: Router) -> Router {
    router.with_state(())
}

fn router() -> Router {
    Router::new().route("/hello", get(async || "hello"))
}

fn request() -> Request<Body> {
    let request = Request::builder()
        .uri("/hello")
        .header("x-api-key", "alice");
    let mut request = request
        .body(Body::empty())
        .expect("the request is well formed");
    request
        .extensions_mut()
        .insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 80))));
    request
}

/// One request, as callgrind counts it. Dropping the response gives back what the request holds.
#[inline(never)]
fn counted(app: &mut Router, request: Request<Body>) {
    let response: Result<_, Infallible> = block_on(app.call(request));
    drop(black_box(response));
}

/// Nanoseconds per request, without the time to build the requests.
fn turn(app: &mut Router, clock: &SystemClock) -> f64 {
    let mut nanos = 0;
    for _ in 0..BATCHES {
        let requests: Vec<_> = (0..REQUESTS).map(|_| request()).collect();
        let start = clock.now();
        for request in requests {
            counted(app, request);
        }
        nanos += clock.now().saturating_since(start).get();
    }
    nanos as f64 / f64::from(BATCHES * REQUESTS)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let clock = SystemClock::new();
    // The limit is so high that nothing is denied.
    let keyed = || {
        let policy =
            Policy::token_bucket("1000000000/1s".parse().expect("the quota is well formed"));
        KeyedLimiter::new(policy).expect("there is memory for the keys")
    };
    let one = || {
        Limiter::new(Policy::token_bucket(
            "1000000000/1s".parse().expect("the quota is well formed"),
        ))
    };
    let quiet = RateLimitLayer::builder(keyed(), Header::named("x-api-key"))
        .tell(Tell::Never)
        .build();
    let told = RateLimitLayer::new(keyed(), Header::named("x-api-key"));
    let [quiet_same, told_same] = [&quiet, &told].map(|layer| layer.clone().same_body());
    let peer = RateLimitLayer::new(keyed(), Peer::address());
    let both = RateLimitLayer::builder(keyed(), Peer::address())
        .and(one(), Fixed::new(""))
        .build();
    let permit = RateLimitLayer::new(Limiter::new(Policy::concurrency(1_000)), Fixed::new(""));
    let gate = GateLayer::new(&Gate::new(), Fixed::new("hello"));

    let mut bare = served(router());
    let mut rows = [
        (
            "a layer that does nothing: what axum takes for any",
            served(router().layer(Identity::new())),
        ),
        (
            "rate limit by header, no RateLimit headers",
            served(router().layer(quiet)),
        ),
        (
            "the same with `same_body`",
            served(router().layer(quiet_same)),
        ),
        ("rate limit by header", served(router().layer(told))),
        (
            "the same with `same_body`",
            served(router().layer(told_same)),
        ),
        ("rate limit by peer address", served(router().layer(peer))),
        ("two limits in one decision", served(router().layer(both))),
        (
            "a permit until the body ends",
            served(router().layer(permit)),
        ),
        ("an entry of a gate", served(router().layer(gate))),
    ];
    if let Some(row) = env::args().find_map(|argument| argument.parse::<usize>().ok()) {
        let app = row.checked_sub(1).map_or(&mut bare, |row| &mut rows[row].1);
        return (0..BATCHES * REQUESTS).for_each(|_| counted(app, request()));
    }
    let mut without = Vec::new();
    let mut added = [const { Vec::new() }; 9];
    for at in 0..=TURNS {
        let base = turn(&mut bare, &clock);
        for ((_, app), added) in rows.iter_mut().zip(&mut added) {
            let with = turn(app, &clock);
            // The first turn warms up.
            if at > 0 {
                added.push(with - base);
            }
        }
        if at > 0 {
            without.push(base);
        }
    }
    println!(
        "{:7.0} ns a request of axum without a layer",
        median(without)
    );
    for ((name, _), added) in rows.iter().zip(added) {
        println!("{:+7.0} ns {name}", median(added));
    }
}
