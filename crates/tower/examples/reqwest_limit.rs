//! A reqwest client that sends at most three requests per second to each host, has at most two
//! calls to a service in flight, and stops calling a service that fails.
//!
//! ```console
//! cargo run -p tidegate-tower --features axum,flow,reqwest --example reqwest_limit
//! ```

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, http::StatusCode, routing::get};
use http::request::Parts;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tidegate_flow::{
    Gate,
    rules::{BreakerRule, IsolationRule, Rules, Trip},
};
use tidegate_limiter::{KeyedLimiter, Policy};
use tidegate_tower::{GateLayer, RateLimitLayer};
use tokio::net::TcpListener;

pub(crate) fn client(max_wait: Duration) -> Result<ClientWithMiddleware, Box<dyn Error>> {
    let host = |parts: &Parts| parts.uri.host().map(str::to_owned);
    let per_host = KeyedLimiter::new(Policy::sliding_log("3/1s".parse()?)?)?;
    let pace = RateLimitLayer::builder(per_host, host)
        .name("host")
        .max_wait(max_wait)
        .build();

    let gate = Gate::new();
    let trip = Trip::ErrorCount { count: 1 };
    gate.load(
        Rules::from(vec![IsolationRule::new("127.0.0.1", 2)]).and(vec![
            BreakerRule::new("127.0.0.1", trip, Duration::from_mins(1)).min_calls(1),
        ]),
    )?;
    let guard = GateLayer::builder(&gate, host).outbound().build();
    // Middleware runs in the order in which it was added.
    Ok(ClientBuilder::new(reqwest::Client::new())
        .with(pace)
        .with(guard)
        .build())
}

/// A service that the client can call.
pub(crate) async fn serve() -> Result<SocketAddr, Box<dyn Error>> {
    let broken = get(async || StatusCode::INTERNAL_SERVER_ERROR);
    let app = Router::new()
        .route("/", get(async || "hello"))
        .route("/broken", broken);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = serve().await?;
    let client = client(Duration::from_secs(2))?;
    for path in ["", "", "", "", "broken", "broken", "broken"] {
        match client.get(format!("http://{address}/{path}")).send().await {
            Ok(response) => println!("/{path}: {}", response.status()),
            Err(error) => println!("/{path}: {error}"),
        }
    }
    Ok(())
}
