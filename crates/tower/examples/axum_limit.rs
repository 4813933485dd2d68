//! An axum service where each client has five requests in ten seconds, and all together twenty.
//!
//! ```console
//! cargo run -p tidegate-tower --example axum_limit
//! for n in 1 2 3 4 5 6; do curl -i http://127.0.0.1:3000/; done
//! ```

use std::{error::Error, net::SocketAddr};

use axum::{Router, extract::ConnectInfo, routing::get};
use tidegate_limiter::{KeyedLimiter, Limiter, Policy};
use tidegate_tower::{
    RateLimitLayer,
    key::{Fixed, Peer},
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let per_client = KeyedLimiter::new(Policy::sliding_window("5/10s".parse()?))?;
    let address = Peer::found_in(|info: &ConnectInfo<SocketAddr>| info.0.ip());
    let everybody = Limiter::new(Policy::token_bucket("20/10s".parse()?));
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        // What is added last is asked first.
        .layer(RateLimitLayer::builder(everybody, Fixed::new("")).name("everybody").build())
        .layer(RateLimitLayer::builder(per_client, address).name("client").build());

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
