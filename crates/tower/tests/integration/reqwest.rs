//! The layers in clients of reqwest.
#![cfg(all(feature = "axum", feature = "flow", feature = "reqwest"))]

use std::time::Duration;

use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error};
use tidegate_flow::{BlockKind, Blocked};
use tidegate_limiter::{Limiter, Policy};
use tidegate_tower::{
    NotSent, RateLimitLayer, Reason,
    key::{Fixed, Header},
};

#[path = "../../examples/reqwest_limit.rs"]
#[allow(dead_code)]
mod example;

fn cause<E: std::error::Error + Send + Sync + Clone + 'static>(error: Error) -> E {
    let Error::Middleware(error) = error else {
        panic!("the request was sent: {error}")
    };
    error
        .downcast_ref::<E>()
        .unwrap_or_else(|| panic!("another error: {error}"))
        .clone()
}

fn limited(layer: RateLimitLayer) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new())
        .with(layer)
        .build()
}

#[tokio::test]
async fn a_denied_request_is_not_sent_and_the_error_has_the_wait() {
    let address = example::serve().await.unwrap();
    let client = example::client(Duration::ZERO).unwrap();
    for _ in 0..3 {
        let response = client
            .get(format!("http://{address}/"))
            .send()
            .await
            .unwrap();
        assert_eq!(response.url().path(), "/");
        assert_eq!(response.text().await.unwrap(), "hello");
    }
    let error: NotSent = cause(
        client
            .get(format!("http://{address}/"))
            .send()
            .await
            .unwrap_err(),
    );
    assert_eq!((error.reason(), error.name()), (Reason::Limited, "host"));
    assert!(
        error
            .decision()
            .retry_after()
            .is_some_and(|wait| wait <= Duration::from_secs(1)),
        "{error}"
    );
}

#[tokio::test]
async fn the_example_client_waits_for_admission_and_stops_calling_a_failing_service() {
    let address = example::serve().await.unwrap();
    let client = example::client(Duration::from_secs(10)).unwrap();
    let get = async |path: &str| client.get(format!("http://{address}/{path}")).send().await;
    for _ in 0..4 {
        assert_eq!(get("").await.unwrap().status(), 200);
    }
    // The breaker opens after more than one failure. A failure counts when its body is read or
    // dropped.
    for _ in 0..2 {
        assert_eq!(get("broken").await.unwrap().status(), 500);
    }
    let blocked: Blocked = cause(get("").await.unwrap_err());
    assert_eq!(blocked.kind(), BlockKind::Breaker);
}

#[tokio::test]
async fn a_clients_permit_ends_with_the_response_body() {
    let address = example::serve().await.unwrap();
    let client = limited(RateLimitLayer::new(
        Limiter::new(Policy::concurrency(1)),
        Fixed::new(""),
    ));
    let ask = async || client.get(format!("http://{address}/")).send().await;
    for _ in 0..3 {
        assert_eq!(ask().await.unwrap().text().await.unwrap(), "hello");
    }
    let held = ask().await.unwrap();
    let error: NotSent = cause(ask().await.unwrap_err());
    assert_eq!(
        error.to_string(),
        "request not sent because of the limit default: denied, 0 of 1 left"
    );
    drop(held);
    assert!(ask().await.is_ok());
}

#[tokio::test]
async fn a_request_without_a_key_is_not_sent() {
    let layer = RateLimitLayer::new(
        Limiter::new(Policy::concurrency(1)),
        Header::named("x-tenant"),
    );
    let error: NotSent = cause(
        limited(layer)
            .get("http://127.0.0.1:1/")
            .send()
            .await
            .unwrap_err(),
    );
    assert_eq!(error.reason(), Reason::NoKey);
}
