//! How long a call waits in line.

use std::time::Duration;

use http::HeaderMap;
use tidegate_core::parse_duration;
use tidegate_service::decide::service::check_wait;
use tonic::Status;

/// The key of a call's metadata that says how long it may wait in line.
const WAIT: &str = "tidegate-wait";

/// How long a call may wait in line: what its metadata says, and no longer than its deadline.
#[allow(
    clippy::result_large_err,
    reason = "a status is what a call is answered with"
)]
pub(super) fn span(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(text) = headers.get(WAIT) else {
        return Ok(None);
    };
    let refuse = |why: String| Status::invalid_argument(format!("{WAIT}: {why}"));
    let text = text.to_str().map_err(|error| refuse(error.to_string()))?;
    let span = parse_duration(text).map_err(|error| refuse(error.to_string()))?;
    check_wait(span).map_err(|refusal| refuse(refusal.to_string()))?;
    Ok(Some(deadline(headers).map_or(span, |time| span.min(time))))
}

/// The time that a client gives a call: a number and its unit.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number.saturating_mul(3_600)),
        "M" => Duration::from_secs(number.saturating_mul(60)),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}
