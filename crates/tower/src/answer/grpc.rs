//! Refusals for gRPC: a status without messages, with `google.rpc.RetryInfo` if the wait is known,
//! and `grpc-retry-pushback-ms`, which the clients' own retries obey.

use std::{fmt::Write, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use http::{Response, header::CONTENT_TYPE, header::HeaderValue};

/// The status code of a denial.
const RESOURCE_EXHAUSTED: u8 = 8;
const RETRY_INFO: &[u8] = b"type.googleapis.com/google.rpc.RetryInfo";

pub(crate) fn answer(
    kind: Option<&HeaderValue>,
    code: u8,
    message: &str,
    retry_after: Option<Duration>,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    let kind = kind
        .cloned()
        .unwrap_or_else(|| HeaderValue::from_static("application/grpc"));
    headers.insert(CONTENT_TYPE, kind);
    headers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    if let Ok(message) = HeaderValue::try_from(percent(message)) {
        headers.insert("grpc-message", message);
    }
    if let Some(pushback) = pushback(code, retry_after) {
        headers.insert("grpc-retry-pushback-ms", pushback.into());
    }
    if let Some(wait) = retry_after {
        let details = STANDARD_NO_PAD.encode(status(code, message, wait));
        if let Ok(details) = HeaderValue::try_from(details) {
            headers.insert("grpc-status-details-bin", details);
        }
    }
    response
}

/// The wait for clients that retry by themselves, in whole milliseconds (gRFC A6). −1, which forbids
/// a retry, if no wait helps, or if the wait is beyond the 24 days that clients can count.
fn pushback(code: u8, retry_after: Option<Duration>) -> Option<i32> {
    let Some(wait) = retry_after else {
        return (code == RESOURCE_EXHAUSTED).then_some(-1);
    };
    // After 0, grpcio does not try again before its deadline.
    let ms = wait.as_nanos().div_ceil(1_000_000).max(1);
    Some(i32::try_from(ms).unwrap_or(-1))
}

/// Percent-encodes everything except printable ASCII, and the percent sign, as gRPC requires.
fn percent(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            text.push(byte.into());
        } else {
            // Writing to a `String` does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// A `google.rpc.Status` with one detail. It is encoded by hand because the four messages have only
/// seven fields.
fn status(code: u8, message: &str, wait: Duration) -> Vec<u8> {
    let mut duration = Vec::new();
    number(&mut duration, 1, wait.as_secs().min(i64::MAX as u64));
    number(&mut duration, 2, wait.subsec_nanos().into());
    let mut info = Vec::new();
    bytes(&mut info, 1, &duration);
    let mut any = Vec::new();
    bytes(&mut any, 1, RETRY_INFO);
    bytes(&mut any, 2, &info);
    let mut status = Vec::new();
    number(&mut status, 1, code.into());
    bytes(&mut status, 2, message.as_bytes());
    bytes(&mut status, 3, &any);
    status
}

fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
