//! Reads request bodies within bounds of size and time.

use std::{pin::pin, time::Duration};

use axum::{
    BoxError,
    body::{Bytes, HttpBody},
    http::{Request, StatusCode},
};
use bytes::BytesMut;
use futures_util::FutureExt;
use http_body_util::BodyExt;

use tidegate_service::rules::MAX_FILE;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::problem::Problem;

/// The longest body, in bytes.
pub const MAX_BODY: usize = 64 * 1024;
/// How long a client may take to send its body.
const BODY_TIME: Duration = Duration::from_secs(10);

/// The body of a request, as it arrives.
pub(crate) trait Arrives: HttpBody<Data = Bytes, Error: Into<BoxError>> {}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>>> Arrives for B {}

/// The body of any declared type: `curl -d` declares a form, and the JSON is checked anyway.
pub(crate) async fn body<B: Arrives>(request: Request<B>) -> Result<Bytes, Problem> {
    up_to(request, MAX_BODY, "ask for fewer limits at once").await
}

/// A body that is a rules file, which may be as long as one. It is read when one of the two permits
/// is free, and the text may be used as long as the permit is held.
pub(crate) async fn rules_body<B: Arrives>(
    readers: &Semaphore,
    request: Request<B>,
) -> Result<(String, SemaphorePermit<'_>), Problem> {
    let Ok(Ok(permit)) = tokio::time::timeout(BODY_TIME, readers.acquire()).await else {
        let detail = "other rules are being checked: try again in a moment";
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Busy",
            detail,
        ));
    };
    let body = up_to(request, MAX_FILE as usize, "is this a rules file?").await?;
    let text = String::from_utf8(body.into());
    Ok((
        text.map_err(|_| Problem::at("#", "the rules are not UTF-8"))?,
        permit,
    ))
}

async fn up_to<B: Arrives>(request: Request<B>, most: usize, mend: &str) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("the body is longer than {most} bytes; {mend}");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", detail)
    };
    // Check before reading: a client that waits for `100 Continue` has not sent it yet.
    if request.body().size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let mut body = pin!(whole(request.into_body(), most));
    // Most bodies arrive with their head, and then no timer is needed.
    let read = match body.as_mut().now_or_never() {
        Some(read) => Ok(read),
        None => tokio::time::timeout(BODY_TIME, body).await,
    };
    match read {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => Err(too_large()),
        Ok(Err(e)) => Err(Problem::bad_json(format!(
            "the body could not be read: {}",
            e.into()
        ))),
        Err(_) => {
            let detail = format!(
                "the body did not arrive within {} seconds",
                BODY_TIME.as_secs()
            );
            Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "Body too slow",
                detail,
            ))
        }
    }
}

/// All bytes of a body; `None` if they are more than `most`. A body that arrives in one piece, as
/// most do, is not copied.
async fn whole<B: Arrives>(body: B, most: usize) -> Result<Option<Bytes>, B::Error> {
    let (mut body, mut whole) = (pin!(body), Bytes::new());
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if whole.len() + data.len() > most {
            return Ok(None);
        }
        whole = if whole.is_empty() {
            data
        } else {
            let mut longer = BytesMut::from(whole);
            // The announced length within the bound: growing by doubling would take twice as much.
            let announced = usize::try_from(body.size_hint().lower()).unwrap_or(most);
            longer.reserve(
                data.len()
                    .saturating_add(announced)
                    .min(most - longer.len()),
            );
            longer.extend_from_slice(&data);
            longer.freeze()
        };
    }
    Ok(Some(whole))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_arrives_times_out() {
        // The clock is paused: it jumps to the next deadline when nothing else is left to do.
        let never = futures_util::stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
        let refused = body(Request::new(Body::new(StreamBody::new(never))))
            .await
            .unwrap_err();
        assert_eq!(
            refused.into_response().status(),
            StatusCode::REQUEST_TIMEOUT
        );
    }
}
