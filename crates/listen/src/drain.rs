//! The rest of requests that are refused.

use std::time::Duration;

use http_body::Body;
use http_body_util::{BodyExt as _, Limited};

/// How long to read it.
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// How much of it to read, in bytes.
const MOST: usize = 64 * 1024;

/// Reads the rest of a request that is refused in any case, if it arrives soon. Some HTTP/2 clients
/// drop a response that overtakes their own request.
pub async fn drain<B>(body: B)
where
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let rest = Limited::new(body, MOST).collect();
    // It does not matter whether it arrived.
    let _ = tokio::time::timeout(DRAIN_TIME, rest).await;
}
