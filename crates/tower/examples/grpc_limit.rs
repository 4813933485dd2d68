//! A tonic service where each client may call each method three times in ten seconds, and a client
//! that limits itself to three calls in ten seconds.
//!
//! ```console
//! cargo run -p tidegate-tower --features grpc --example grpc_limit
//! ```

use std::{error::Error, net::SocketAddr, time::Duration};

use tidegate_limiter::{KeyedLimiter, Limiter, Policy};
use tidegate_tower::{
    RateLimitLayer,
    key::{Fixed, GrpcMethod, Peer},
};
use tokio::net::TcpListener;
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::Layer;

/// Serves tonic's health service. Any other service is added in the same way.
pub(crate) async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let per_client = KeyedLimiter::new(Policy::sliding_log("3/10s".parse()?)?)?;
    let limits = RateLimitLayer::builder(per_client, (Peer::address(), GrpcMethod))
        .name("client")
        .build()
        .same_body();
    let service = Server::builder().layer(limits).add_service(health);
    Ok(service
        .serve_with_incoming(TcpIncoming::from(listener))
        .await?)
}

pub(crate) async fn connect(address: SocketAddr) -> Result<Channel, Box<dyn Error>> {
    Ok(Channel::from_shared(format!("http://{address}"))?
        .connect()
        .await?)
}

/// On the client side, the same layer waits for admission, here for at most ten seconds.
pub(crate) fn paced() -> Result<RateLimitLayer, Box<dyn Error>> {
    let pace = Limiter::new(Policy::sliding_log("3/10s".parse()?)?);
    Ok(RateLimitLayer::builder(pace, Fixed::new(""))
        .max_wait(Duration::from_secs(10))
        .build())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener));

    let mut hasty = HealthClient::new(connect(address).await?);
    for _ in 0..4 {
        match hasty.check(HealthCheckRequest::default()).await {
            Ok(answer) => println!("hasty: {}", answer.get_ref().status),
            Err(status) => println!("hasty: {status}"),
        }
    }
    let mut patient = HealthClient::new(paced()?.layer(connect(address).await?));
    for _ in 0..3 {
        let status = patient
            .check(HealthCheckRequest::default())
            .await
            .map(|answer| answer.get_ref().status);
        println!("patient: {status:?}");
    }
    Ok(())
}
