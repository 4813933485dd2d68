//! The middleware in tonic, as tonic's clients see it.
#![cfg(feature = "grpc")]

use std::time::Duration;

use tidegate_limiter::{Limiter, Policy};
use tidegate_tower::{RateLimitLayer, key::Fixed};
use tokio::net::TcpListener;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;
use tower::Layer;

#[path = "../../examples/grpc_limit.rs"]
#[allow(dead_code)]
mod example;

async fn start() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(example::serve(listener));
    address
}

#[tokio::test]
async fn a_denied_call_is_resource_exhausted_with_retry_info() {
    let mut client = HealthClient::new(example::connect(start().await).await.unwrap());
    for _ in 0..3 {
        let answer = client.check(HealthCheckRequest::default()).await.unwrap();
        assert!(answer.metadata().contains_key("ratelimit"), "{answer:?}");
    }
    let denied = client
        .check(HealthCheckRequest::default())
        .await
        .unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert!(
        denied
            .message()
            .starts_with("limit client: denied, 0 of 3 left, try again in "),
        "{denied}"
    );
    let wait = denied
        .get_details_retry_info()
        .and_then(|info| info.retry_delay)
        .unwrap();
    assert!(
        wait > Duration::ZERO && wait <= Duration::from_secs(10),
        "{wait:?}"
    );
    assert!(denied.metadata().contains_key("retry-after"));
    // The clients' own retries obey this field, in whole milliseconds.
    let pushback = denied.metadata().get("grpc-retry-pushback-ms").unwrap();
    let pushback: u64 = pushback.to_str().unwrap().parse().unwrap();
    assert_eq!(u128::from(pushback), wait.as_nanos().div_ceil(1_000_000));
    // Another method of the same client has a separate limit.
    let other = client.watch(HealthCheckRequest::default()).await;
    assert!(other.is_ok(), "{other:?}");
}

#[tokio::test]
async fn a_client_that_limits_itself_reads_its_own_refusal_as_a_status() {
    let seats = Limiter::new(Policy::sliding_log("1/1h".parse().unwrap()).unwrap());
    let limited = RateLimitLayer::builder(seats, Fixed::new(""))
        .name("mine")
        .build();
    let channel = example::connect(start().await).await.unwrap();
    let mut client = HealthClient::new(limited.layer(channel));
    assert!(client.check(HealthCheckRequest::default()).await.is_ok());
    let denied = client
        .check(HealthCheckRequest::default())
        .await
        .unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let never = Limiter::new(Policy::token_bucket("0/1h".parse().unwrap()));
    let channel = example::connect(start().await).await.unwrap();
    let mut hopeless = HealthClient::new(RateLimitLayer::new(never, Fixed::new("")).layer(channel));
    let hopeless = hopeless
        .check(HealthCheckRequest::default())
        .await
        .unwrap_err();
    let pushback = hopeless.metadata().get("grpc-retry-pushback-ms");
    assert_eq!(pushback.unwrap(), "-1", "no wait helps");
    assert!(
        denied.message().starts_with("limit mine: denied"),
        "{denied}"
    );
}

#[tokio::test]
async fn the_example_client_that_waits_is_admitted() {
    let channel = example::connect(start().await).await.unwrap();
    let mut patient = HealthClient::new(example::paced().unwrap().layer(channel));
    for _ in 0..3 {
        assert!(patient.check(HealthCheckRequest::default()).await.is_ok());
    }
}
