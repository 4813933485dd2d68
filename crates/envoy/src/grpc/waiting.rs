//! How long a call waits in line, and its priority.

use std::{error::Error, fmt, time::Duration};

use http::{HeaderMap, HeaderName};
use tidegate_core::{Priority, parse_duration};
use tidegate_service::decide::service::{WaitFor, check_wait};
use tonic::Status;

/// The key of a call's metadata that says how long it may wait in line.
const WAIT: HeaderName = HeaderName::from_static("tidegate-wait");

/// The key of a call's metadata with its priority in line.
const PRIORITY: HeaderName = HeaderName::from_static("tidegate-priority");

/// The key with the time that a client gives a call.
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// How a call may wait in line: what its metadata says, and no longer than its deadline.
#[allow(
    clippy::result_large_err,
    reason = "a status is what a call is answered with"
)]
pub(super) fn wait(headers: &HeaderMap) -> Result<Option<WaitFor>, Status> {
    let span = read(headers, &WAIT, |text| -> Result<_, Box<dyn Error>> {
        let span = parse_duration(text)?;
        check_wait(span)?;
        Ok(deadline(headers).map_or(span, |time| span.min(time)))
    })?;
    let priority = read(headers, &PRIORITY, str::parse::<Priority>)?;
    match (span, priority) {
        // A deadline may be shorter than what a request may ask for.
        (Some(span), priority) => Ok(Some(WaitFor::new(span, priority.unwrap_or_default()))),
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let alone = "a priority is for a call that waits in line: give";
            let why = format!("{PRIORITY}: {alone} `{WAIT}`, too");
            Err(Status::invalid_argument(why))
        }
    }
}

/// Parses the value of a key of a call's metadata, if it has one.
#[allow(
    clippy::result_large_err,
    reason = "a status is what a call is answered with"
)]
fn read<T, E: fmt::Display>(
    headers: &HeaderMap,
    key: &HeaderName,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, Status> {
    let Some(value) = headers.get(key) else {
        return Ok(None);
    };
    let refused = |why: &dyn fmt::Display| Status::invalid_argument(format!("{key}: {why}"));
    let text = value.to_str().map_err(|error| refused(&error))?;
    parse(text).map(Some).map_err(|error| refused(&error))
}

/// The time that a client gives a call: a number and its unit.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT)?.to_str().ok()?;
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
