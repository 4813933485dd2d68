//! What a client is answered whose request is refused.

#[cfg(feature = "grpc")]
mod grpc;
mod problem;

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use tidegate_core::Decision;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit denies. Answered with 429, or `RESOURCE_EXHAUSTED`.
    Limited,
    /// The request has no key (see [`NoKey`](crate::NoKey)). Answered with 500, or `INTERNAL`.
    NoKey,
    /// A shared limit had no answer from its store, and fails closed. Answered with 503, or `UNAVAILABLE`.
    StoreFailed,
    /// The layer's limits cannot be decided together: see the log. Answered with 500, or `INTERNAL`.
    Misconfigured,
}

impl Reason {
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::Limited => StatusCode::TOO_MANY_REQUESTS,
            Self::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoKey | Self::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// gRPC's number.
    #[cfg(feature = "grpc")]
    const fn code(self) -> u8 {
        match self {
            Self::Limited => 8,
            Self::StoreFailed => 14,
            Self::NoKey | Self::Misconfigured => 13,
        }
    }
}

/// A request that is refused, for closures that answer it or count it.
#[derive(Clone, Copy)]
pub struct Refusal<'a> {
    pub(crate) reason: Reason,
    pub(crate) name: &'a str,
    pub(crate) decision: &'a Decision,
    pub(crate) request: &'a Parts,
}

impl<'a> Refusal<'a> {
    /// Why.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The name of the limit that bound.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// Its decision.
    pub const fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The request, but its body.
    #[must_use]
    pub const fn request(&self) -> &'a Parts {
        self.request
    }

    /// The answer that a layer gives unless told otherwise: for a gRPC request a gRPC status with `RetryInfo` (feature
    /// `grpc`), for others a problem document (RFC 9457).
    #[must_use]
    pub fn usual(&self) -> Response<Bytes> {
        #[cfg(feature = "grpc")]
        if is_grpc(&self.request.headers) {
            let kind = self.request.headers.get(CONTENT_TYPE);
            return grpc::answer(kind, self.reason.code(), &self.message(), self.decision.retry_after());
        }
        problem::answer(self)
    }

    fn message(&self) -> String {
        match self.reason {
            Reason::Limited => format!("limit {}: {}", self.name, self.decision),
            Reason::NoKey => "the service could not tell whose request this is".to_owned(),
            Reason::StoreFailed => format!("limit {}: the store did not answer", self.name),
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

/// Whether these are the headers of a gRPC call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// An answer that no limit gives: a problem of a status alone, or a gRPC status.
#[cfg(feature = "flow")]
pub(crate) fn plain(
    status: StatusCode,
    #[cfg_attr(not(feature = "grpc"), allow(unused_variables))] code: u8,
    request: &Parts,
    detail: &str,
    #[cfg_attr(not(feature = "grpc"), allow(unused_variables))] retry_after: Option<std::time::Duration>,
) -> Response<Bytes> {
    #[cfg(feature = "grpc")]
    if is_grpc(&request.headers) {
        return grpc::answer(request.headers.get(CONTENT_TYPE), code, detail, retry_after);
    }
    let _ = request;
    problem::plain(status, detail)
}
