//! The responses to refused requests.

#[cfg(feature = "grpc")]
mod grpc;
mod problem;

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use tidegate_core::Decision;

/// Why a layer refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit denies the request. The response is 429, or `RESOURCE_EXHAUSTED`.
    Limited,
    /// The request has no key (see [`NoKey`](crate::NoKey)). The response is 500, or `INTERNAL`.
    NoKey,
    /// A shared limit got no reply from its store and fails closed. The response is 503, or
    /// `UNAVAILABLE`.
    StoreFailed,
    /// The layer's limits cannot be decided together; the log says why. The response is 500, or
    /// `INTERNAL`.
    Misconfigured,
}

impl Reason {
    /// The reason's name in events and as a label of metrics.
    #[cfg(any(feature = "events", feature = "metrics"))]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::NoKey => "no-key",
            Self::StoreFailed => "store-failed",
            Self::Misconfigured => "misconfigured",
        }
    }

    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::Limited => StatusCode::TOO_MANY_REQUESTS,
            Self::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoKey | Self::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The gRPC status code.
    #[cfg(feature = "grpc")]
    const fn code(self) -> u8 {
        match self {
            Self::Limited => 8,
            Self::StoreFailed => 14,
            Self::NoKey | Self::Misconfigured => 13,
        }
    }
}

/// A refused request. Closures that build the response or count refusals receive it.
#[derive(Clone, Copy)]
pub struct Refusal<'a> {
    pub(crate) reason: Reason,
    pub(crate) name: &'a str,
    pub(crate) decision: &'a Decision,
    pub(crate) request: &'a Parts,
}

impl<'a> Refusal<'a> {
    /// Why the request is refused.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The name of the limit that denied the request.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// The decision of that limit.
    pub const fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The request without its body.
    #[must_use]
    pub const fn request(&self) -> &'a Parts {
        self.request
    }

    /// The default response: a gRPC status with `RetryInfo` for gRPC requests (feature `grpc`), a
    /// problem document (RFC 9457) for others.
    #[must_use]
    pub fn usual(&self) -> Response<Bytes> {
        #[cfg(feature = "grpc")]
        if is_grpc(&self.request.headers) {
            let kind = self.request.headers.get(CONTENT_TYPE);
            return grpc::answer(
                kind,
                self.reason.code(),
                &self.message(),
                self.decision.retry_after(),
            );
        }
        problem::answer(self)
    }

    fn message(&self) -> String {
        match self.reason {
            Reason::Limited => format!("limit {}: {}", self.name, self.decision),
            Reason::NoKey => "the server could not determine the key of this request".to_owned(),
            Reason::StoreFailed => format!("limit {}: no reply from the store", self.name),
            Reason::Misconfigured => "the service's limits are misconfigured".to_owned(),
        }
    }
}

impl fmt::Debug for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal")
            .field("reason", &self.reason)
            .field("name", &self.name)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

/// Whether the headers belong to a gRPC call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// A response that no limit causes: a problem document with just the status, or a gRPC status.
#[cfg(feature = "flow")]
pub(crate) fn plain(
    status: StatusCode,
    #[cfg_attr(not(feature = "grpc"), allow(unused_variables))] code: u8,
    request: &Parts,
    detail: &str,
    #[cfg_attr(not(feature = "grpc"), allow(unused_variables))] retry_after: Option<
        std::time::Duration,
    >,
) -> Response<Bytes> {
    #[cfg(feature = "grpc")]
    if is_grpc(&request.headers) {
        return grpc::answer(request.headers.get(CONTENT_TYPE), code, detail, retry_after);
    }
    let _ = request;
    problem::plain(status, detail)
}
