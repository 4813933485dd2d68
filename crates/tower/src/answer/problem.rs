//! Problem documents.

use std::fmt::Write;

use bytes::Bytes;
use http::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};

use super::{Reason, Refusal};

/// The problem types of the draft `draft-ietf-httpapi-ratelimit-headers`, version 10.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

pub(super) fn answer(refusal: &Refusal<'_>) -> Response<Bytes> {
    let status = refusal.reason.status();
    let (kind, title) = match refusal.reason {
        Reason::Limited => (
            QUOTA_EXCEEDED,
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        Reason::StoreFailed => (
            REDUCED_CAPACITY,
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
        Reason::NoKey | Reason::Misconfigured => ("about:blank", "Internal Server Error"),
    };
    let mut text = format!(
        r#"{{"type":"{kind}","title":"{title}","status":{}"#,
        status.as_u16()
    );
    // Writing to a `String` does not fail.
    if refusal.reason == Reason::Limited {
        // Names contain no quotes and no backslashes.
        let _ = write!(text, r#","violated-policies":["{}"]"#, refusal.name);
    } else {
        let _ = write!(text, r#","detail":"{}""#, refusal.message());
    }
    text.push('}');
    document(status, text)
}

/// A problem document whose type is the HTTP status itself.
#[cfg(feature = "flow")]
pub(super) fn plain(status: StatusCode, detail: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or_default();
    let number = status.as_u16();
    // Neither string contains quotes or backslashes.
    document(
        status,
        format!(
            r#"{{"type":"about:blank","title":"{title}","status":{number},"detail":"{detail}"}}"#
        ),
    )
}

fn document(status: StatusCode, text: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    response
}
