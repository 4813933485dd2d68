//! Reads request bodies within bounds of size and time, and makes plain-text responses.

use std::{pin::pin, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    extract::Request,
    http::{HeaderValue, Response, StatusCode, header},
};
use futures_util::FutureExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::problem::{Problem, Refused};
use crate::rules::MAX_FILE;

/// The longest body, in bytes.
pub const MAX_BODY: usize = 64 * 1024;
/// How long a client may take to send its body.
const BODY_TIME: Duration = Duration::from_secs(10);

/// How long to read the rest of a refused request.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// The body, whatever its declared type: `curl -d` declares a form, and the JSON is checked anyway.
pub(super) async fn body(request: Request) -> Result<Bytes, Refused> {
    up_to(request, MAX_BODY, "ask for fewer limits at once").await
}

/// A body that is a rules file, which may be as long as one.
pub(super) async fn rules_body(request: Request) -> Result<String, Refused> {
    let body = up_to(request, MAX_FILE as usize, "is this a rules file?").await?;
    let text = String::from_utf8(body.into());
    text.map_err(|_| Problem::bad_field("#", "the rules are not UTF-8").into())
}

async fn up_to(request: Request, most: usize, mend: &str) -> Result<Bytes, Refused> {
    let too_large = || {
        let detail = format!("the body is longer than {most} bytes; {mend}");
        Refused::from(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", detail))
    };
    // Check before reading: a client that waits for `100 Continue` has not sent it yet.
    if request.body().size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let mut body = pin!(Limited::new(request.into_body(), most).collect());
    // Most bodies arrive with their head: then there is no need of a timer.
    let read = match body.as_mut().now_or_never() {
        Some(read) => Ok(read),
        None => tokio::time::timeout(BODY_TIME, body).await,
    };
    match read {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(e)) => Err(Problem::bad_json(format!("the body could not be read: {e}")).into()),
        Err(_) => {
            let detail = format!("the body did not arrive within {} seconds", BODY_TIME.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "Body too slow", detail).into())
        }
    }
}

/// Reads the rest of a request that is refused in any case, if it arrives soon. Some HTTP/2 clients drop a response that
/// overtakes their own request.
pub(crate) async fn drain<B>(body: B)
where
    B: hyper::body::Body + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let rest = Limited::new(body, MAX_BODY).collect();
    // It does not matter whether it arrived.
    let _ = tokio::time::timeout(DRAIN_TIME, rest).await;
}

pub(super) fn text(text: String, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_arrives_times_out() {
        // The clock is paused: it jumps to the next deadline when nothing else is left to do.
        let never = Body::new(http_body_util::StreamBody::new(Silence));
        let refused = body(Request::new(never)).await.unwrap_err();
        assert_eq!(refused.into_response().status(), StatusCode::REQUEST_TIMEOUT);
    }

    /// A client that sends nothing and does not disconnect.
    struct Silence;

    impl futures_core::Stream for Silence {
        type Item = Result<hyper::body::Frame<Bytes>, std::io::Error>;

        fn poll_next(
            self: std::pin::Pin<&mut Self>,
            _context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Pending
        }
    }
}
