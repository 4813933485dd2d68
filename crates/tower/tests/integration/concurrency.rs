//! Limits on the number of requests in flight.

use std::{convert::Infallible, time::Duration};

use futures::{executor::block_on, future::poll_immediate};
use http::{Request, Response};
use tidegate_tower::{ConcurrencyLayer, key::Header};
use tower::{Layer, ServiceExt, service_fn};

async fn hello(_: Request<()>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".to_owned()))
}

fn from(key: &str) -> Request<()> {
    Request::builder()
        .header("x-api-key", key)
        .body(())
        .unwrap()
}

#[test]
fn requests_in_flight_are_bounded_in_total_or_per_key() {
    for (layer, bob) in [
        (ConcurrencyLayer::new(2), 429),
        (
            ConcurrencyLayer::per_key(2, Header::named("x-api-key")).unwrap(),
            200,
        ),
    ] {
        let service = layer.layer(service_fn(hello));
        let ask = |key| block_on(service.clone().oneshot(from(key))).unwrap();
        let held = [ask("alice"), ask("alice")];
        assert_eq!(
            (ask("alice").status().as_u16(), ask("bob").status().as_u16()),
            (429, bob)
        );
        drop(held);
        assert_eq!(ask("alice").status(), 200);
    }
}

#[test]
fn requests_above_the_limit_wait_and_a_dropped_one_leaves_the_line() {
    let service = ConcurrencyLayer::waiting(1, Duration::from_hours(1)).layer(service_fn(hello));
    let ask = || Box::pin(service.clone().oneshot(from("alice")));
    block_on(async {
        let first = ask().await.unwrap();
        let (mut second, mut third) = (ask(), ask());
        assert!(
            poll_immediate(&mut second).await.is_none()
                && poll_immediate(&mut third).await.is_none()
        );
        drop(second);
        drop(first);
        assert_eq!(third.await.unwrap().status(), 200);
    });
}
