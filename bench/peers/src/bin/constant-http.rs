//! A server that answers every HTTP request with the same few bytes, on hyper alone: the reference
//! for `POST /v1/acquire`.
//!
//! `constant-http ADDRESS [--fields]`; used by `bench/http.sh`. With `--fields` the answer also has
//! two fields as long as `RateLimit` and `RateLimit-Policy`, so that the client has as much to
//! read.

use std::{convert::Infallible, io};

use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

/// As long as an answer of `/v1/acquire`.
const ANSWER: &[u8] =
    br#"{"allowed":true,"limit_name":"bucket","limit":1000000,"remaining":999999,"retry_after_ms":null,"reset_after_ms":1,"delay_ms":0}"#;

#[tokio::main]
async fn main() -> io::Result<()> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:16384".to_owned());
    let has_fields = std::env::args()
        .nth(2)
        .is_some_and(|option| option == "--fields");
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .pipeline_flush(true)
                .serve_connection(
                    TokioIo::new(stream),
                    service_fn(move |request| answer(request, has_fields)),
                ),
        );
    }
}

/// The fields of an answer of `/v1/acquire`.
const FIELDS: [(&str, &str); 2] = [
    ("ratelimit-policy", r#""bucket";q=1000000;w=1"#),
    ("ratelimit", r#""bucket";r=999999;t=1"#),
];

/// Reads the whole request, as a server that wants to know its key has to.
async fn answer(
    request: Request<Incoming>,
    has_fields: bool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(Bytes::from_static(ANSWER)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if has_fields {
        for (name, value) in FIELDS {
            response.headers_mut().insert(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
    }
    Ok(response)
}
