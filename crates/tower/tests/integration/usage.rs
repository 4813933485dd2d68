//! Costs that are read from the answers of a stand-in for a provider of language models, which
//! streams.
#![cfg(all(feature = "axum", feature = "json", feature = "reqwest"))]

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::Value;
use tidegate_limiter::{KeyedLimiter, Policy};
use tidegate_tower::{
    RateLimitLayer,
    key::{Fixed, Header},
};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt, service_fn};

const OPENAI: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":330,\"total_tokens\":350}}\n\n\
    data: [DONE]\n\n";
const ANTHROPIC: &str = "event: message_start\n\
    data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n\
    event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":100}}\n\n\
    event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":250}}\n\n";

/// A body of these events, in pieces of a few bytes, which does not end if `hangs`.
fn stream_of(events: &'static str, hangs: bool) -> Response<Body> {
    let pieces = events
        .as_bytes()
        .chunks(7)
        .map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(piece))));
    let pieces = stream::iter(pieces.collect::<Vec<_>>());
    let end = if hangs {
        stream::pending().boxed()
    } else {
        stream::empty().boxed()
    };
    let body = Body::new(StreamBody::new(pieces.chain(end)));
    Response::builder()
        .header(CONTENT_TYPE, "text/event-stream")
        .body(body)
        .unwrap()
}

fn document(text: &'static str) -> Response<Body> {
    Response::builder()
        .header(CONTENT_TYPE, "application/json; charset=utf-8")
        .body(Body::from(text))
        .unwrap()
}

fn provider() -> Router {
    Router::new()
        .route("/openai", post(async || stream_of(OPENAI, false)))
        .route("/anthropic", post(async || stream_of(ANTHROPIC, false)))
        .route("/hangs", post(async || stream_of(ANTHROPIC, true)))
        .route(
            "/document",
            post(async || document("{\"usage\":{\"total_tokens\":120}}")),
        )
        .route("/unknown", post(async || document("{\"usage\":{}}")))
        .route(
            "/broken",
            post(async || document("{\"usage\":{\"total_tokens\":120")),
        )
}

fn total(answer: &Value) -> Option<u64> {
    answer.pointer("/usage/total_tokens")?.as_u64()
}

fn input(answer: &Value) -> Option<u64> {
    answer.pointer("/message/usage/input_tokens")?.as_u64()
}

fn output(answer: &Value) -> Option<u64> {
    answer.pointer("/usage/output_tokens")?.as_u64()
}

fn limiter() -> Arc<KeyedLimiter> {
    Arc::new(KeyedLimiter::new(Policy::sliding_window("1000/1h".parse().unwrap())).unwrap())
}

fn used(limiter: &KeyedLimiter) -> u64 {
    1_000 - limiter.peek("alice", 0).remaining()
}

async fn ask(app: &Router, path: &str) -> Response<Body> {
    let request = Request::post(path)
        .header("x-api-key", "alice")
        .body(Body::empty())
        .unwrap();
    app.clone().oneshot(request).await.unwrap()
}

/// A gateway in axum.
#[tokio::test]
async fn an_estimate_is_settled_by_what_the_answer_says_when_it_ends() {
    let tokens = limiter();
    let layer = RateLimitLayer::builder(Arc::clone(&tokens), Header::named("x-api-key"));
    let app = provider().layer(layer.cost(|_| 200).cost_from_json(total).build());
    let mut all = 0;
    // Unknown use keeps the estimate.
    for (path, cost) in [
        ("/openai", 350),
        ("/document", 120),
        ("/unknown", 200),
        ("/broken", 200),
    ] {
        let answer = ask(&app, path).await;
        assert_eq!(
            (answer.status().as_u16(), used(&tokens)),
            (200, all + 200),
            "{path}: the estimate"
        );
        answer.into_body().collect().await.unwrap();
        all += cost;
        assert_eq!(used(&tokens), all, "{path}");
    }
    assert_eq!(ask(&app, "/document").await.status(), 429);
}

#[tokio::test]
async fn several_limits_read_one_stream_and_a_client_that_goes_away_pays_for_what_was_told() {
    let (inputs, outputs) = (limiter(), limiter());
    let key = || Header::named("x-api-key");
    let layer = RateLimitLayer::builder(Arc::clone(&inputs), key())
        .cost(|_| 10)
        .cost_from_json(input);
    let layer = layer
        .and(Arc::clone(&outputs), key())
        .cost(|_| 400)
        .cost_from_json(output);
    let app = provider().layer(layer.build());
    ask(&app, "/anthropic")
        .await
        .into_body()
        .collect()
        .await
        .unwrap();
    assert_eq!((used(&inputs), used(&outputs)), (25, 250));

    let mut body = ask(&app, "/hangs").await.into_body();
    assert_eq!((used(&inputs), used(&outputs)), (35, 650), "the estimates");
    let mut read = String::new();
    while !read.contains("\"output_tokens\":100}}\n\n") {
        read.push_str(
            str::from_utf8(&body.frame().await.unwrap().unwrap().into_data().unwrap()).unwrap(),
        );
    }
    drop(body);
    assert_eq!(
        (used(&inputs), used(&outputs)),
        (50, 350),
        "the last cost so far"
    );
}

/// A program that calls a provider.
#[tokio::test]
async fn a_client_of_reqwest_counts_what_a_provider_says() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, provider()).await });
    let tokens = limiter();
    let layer: RateLimitLayer = RateLimitLayer::builder(Arc::clone(&tokens), Fixed::new("alice"))
        .cost(|_| 200)
        .cost_from_json(total)
        .build();
    let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new())
        .with(layer)
        .build();
    let post = async |path: &str| client.post(format!("http://{address}{path}")).send().await;
    let text = post("/openai").await.unwrap().text().await.unwrap();
    assert_eq!(
        (text.as_str(), used(&tokens)),
        (OPENAI, 350),
        "the text is passed on"
    );
    post("/document").await.unwrap().bytes().await.unwrap();
    assert_eq!(used(&tokens), 470);
    drop(post("/hangs").await.unwrap());
    assert_eq!(used(&tokens), 670, "no total was told");
}

/// The documents that are read from a body of this type in these pieces.
async fn read(kind: &str, pieces: &[&[u8]]) -> Vec<String> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&told);
    let note = move |value: &Value| {
        noted.lock().unwrap().push(value.to_string());
        None
    };
    let layer: RateLimitLayer = RateLimitLayer::builder(limiter(), Fixed::new("alice"))
        .cost_from_json(note)
        .build();
    let pieces: Vec<_> = pieces
        .iter()
        .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
        .collect();
    let answer = Response::builder().header(CONTENT_TYPE, kind);
    let answer = Arc::new(Mutex::new(Some(
        answer.body(StreamBody::new(stream::iter(pieces))).unwrap(),
    )));
    let inner = service_fn(move |_: Request<()>| {
        std::future::ready(Ok::<_, Infallible>(answer.lock().unwrap().take().unwrap()))
    });
    let answer = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    answer.into_body().collect().await.unwrap();
    Arc::try_unwrap(told).map_or_else(
        |told| told.lock().unwrap().clone(),
        |told| told.into_inner().unwrap(),
    )
}

#[tokio::test]
async fn each_event_of_a_stream_is_read_however_it_is_cut() {
    let stream = b": hi\nevent: a\ndata: {\"n\":1}\n\ndata:{\"n\":\r\ndata: 2}\r\n\r\ndata: {\ndata: \"n\":3}\n\ndata: [DONE]\n\n";
    for size in 1..stream.len() {
        let pieces: Vec<&[u8]> = stream.chunks(size).collect();
        let told = read("text/event-stream; charset=utf-8", &pieces).await;
        assert_eq!(
            told,
            ["{\"n\":1}", "{\"n\":2}", "{\"n\":3}"],
            "pieces of {size}"
        );
    }
}

#[tokio::test]
async fn a_document_is_read_at_its_end_and_other_or_too_large_ones_are_not() {
    assert_eq!(
        read("application/json", &[b"{\"a\"", b":[1]}"]).await,
        ["{\"a\":[1]}"]
    );
    assert_eq!(read("application/vnd.api+json", &[b"7"]).await, ["7"]);
    for kind in ["text/html", "", "application/octet-stream"] {
        assert_eq!(read(kind, &[b"7"]).await, Vec::<String>::new(), "{kind}");
    }
    let large = vec![b'1'; (1 << 20) + 1];
    assert_eq!(
        read("application/json", &[&large]).await,
        Vec::<String>::new()
    );
    assert_eq!(
        read(
            "text/event-stream",
            &[b"data: ", &large, b"\n\ndata: 5\n\n"]
        )
        .await,
        ["5"]
    );
}
