//! An axum service that allows each client 5 requests in 10 seconds and all clients together 20.
//! One decision checks both limits.
//!
//! ```console
//! cargo run -p tidegate-tower --example axum_limit
//! for n in 1 2 3 4 5 6; do curl -i http://127.0.0.1:3000/; done
//! ```

use std::{error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use tidegate_limiter::{KeyedLimiter, Limiter, Policy};
use tidegate_tower::{
    RateLimitLayer,
    key::{Fixed, Peer},
};
use tokio::net::TcpListener;

pub(crate) fn app() -> Result<Router, Box<dyn Error>> {
    let per_client = KeyedLimiter::new(Policy::sliding_window("5/10s".parse()?))?;
    let everybody = Limiter::new(Policy::token_bucket("20/10s".parse()?));
    let limits = RateLimitLayer::builder(per_client, Peer::address())
        .name("client")
        .and(everybody, Fixed::new(""))
        .name("everybody")
        .build()
        .same_body();
    Ok(Router::new()
        .route("/", get(async || "hello\n"))
        .layer(limits))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}", listener.local_addr()?);
    // Without connect info the layer finds no peer address and answers each request with 500.
    axum::serve(
        listener,
        app()?.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}
