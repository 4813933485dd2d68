//! A service behind Tidegate's layer for clients that retry by themselves. The first segment of a
//! path says which fields a refusal has, and the second one is the key: it may ask once in 1.4
//! seconds, and never if its name has `hopeless` in it. `/counts/KEY` is how many requests came.

use std::{
    collections::HashMap,
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::{any, get, post},
};
use http::request::Parts;
use serde_json::json;
use tidegate_limiter::{KeyedLimiter, Policy};
use tidegate_tower::{RateLimitLayer, Vendor};
use tokio::net::TcpListener;

type Counts = Arc<Mutex<HashMap<String, u32>>>;

/// The key of a request: of gRPC's clients in the metadata, otherwise in the path.
fn key_of(uri: &http::Uri, headers: &http::HeaderMap) -> Option<String> {
    let named = headers.get("x-key").and_then(|key| key.to_str().ok());
    named.or_else(|| uri.path().split('/').nth(2)).map(str::to_owned)
}

fn limits(vendor: Option<Vendor>) -> Result<RateLimitLayer, Box<dyn Error>> {
    let one = Policy::token_bucket("1/1400ms".parse()?);
    let key = |parts: &Parts| key_of(&parts.uri, &parts.headers);
    // Two units never fit into a bucket of one.
    let cost = |parts: &Parts| {
        let key = key_of(&parts.uri, &parts.headers).unwrap_or_default();
        1 + u64::from(key.contains("hopeless"))
    };
    let limits = RateLimitLayer::builder(KeyedLimiter::new(one)?, key).cost(cost);
    Ok(match vendor {
        Some(vendor) => limits.vendor_headers(vendor).build(),
        None => limits.build(),
    })
}

async fn count(State(counts): State<Counts>, request: Request, next: Next) -> Response {
    if let Some(key) = key_of(request.uri(), request.headers()) {
        *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    }
    next.run(request).await
}

async fn counted(State(counts): State<Counts>, Path(key): Path<String>) -> String {
    let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    counts.get(&key).copied().unwrap_or_default().to_string()
}

async fn completion() -> Json<serde_json::Value> {
    Json(json!({
        "id": "one", "object": "chat.completion", "created": 1, "model": "any",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }))
}

async fn message() -> Json<serde_json::Value> {
    Json(json!({
        "id": "one", "type": "message", "role": "assistant", "model": "any", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "hello"}], "usage": {"input_tokens": 1, "output_tokens": 1},
    }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let counts = Counts::default();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let limited = Router::new()
        .route("/plain/{key}", any(async || "hello"))
        .merge(tonic::service::Routes::new(health).into_axum_router())
        .layer(limits(None)?);
    let openai = Router::new()
        .route("/openai/{key}/chat/completions", post(completion))
        .layer(limits(Some(Vendor::OpenAi))?);
    let anthropic = Router::new()
        .route("/anthropic/{key}/v1/messages", post(message))
        .layer(limits(Some(Vendor::Anthropic))?);
    let counting = Router::new().route("/counts/{key}", get(counted)).with_state(Arc::clone(&counts));
    let app: Router = limited
        .merge(openai)
        .merge(anthropic)
        .layer(from_fn_with_state(counts, count))
        .merge(counting);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    Ok(axum::serve(listener, app).await?)
}
