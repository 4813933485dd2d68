//! A server that answers every HTTP request with the same few bytes, on hyper alone: what `POST /v1/acquire` is measured beside.
//!
//! `constant-http ADDRESS`; used by `bench/http.sh`.

use std::{convert::Infallible, io};

use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

/// As long as an answer of `/v1/acquire`.
const ANSWER: &[u8] =
    br#"{"allowed":true,"limit":1000000,"remaining":999999,"retry_after_ms":null,"reset_after_ms":1}"#;

#[tokio::main]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:16384".to_owned());
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .pipeline_flush(true)
                .serve_connection(TokioIo::new(stream), service_fn(answer)),
        );
    }
}

/// Reads the whole request, as a server that wants to know its key has to.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(Bytes::from_static(ANSWER)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
