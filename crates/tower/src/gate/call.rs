//! One request as an entry of a gate, and how the entry ends.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, request::Parts};
use tidegate_flow::{BlockKind, Blocked, OwnedGuard};

use super::layer::GateOptions;
use crate::{
    answer::{Reason, is_grpc, plain},
    bodies::OutOf,
    body::AtEnd,
    fields::write_retry_after,
    future::After,
    key::KeySource,
    log::at_most_once_a_minute,
};

/// The gRPC status codes that are failures of the service.
const FAILURES: [&[u8]; 5] = [b"2", b"4", b"13", b"14", b"15"];

/// Why a request could not enter.
pub(crate) enum Stopped {
    /// The layer found no resource name for the request.
    NoResource,
    Blocked(Blocked),
}

impl GateOptions {
    /// Enters the request's resource.
    pub(crate) fn enter(&self, parts: &Parts) -> Result<OwnedGuard, Stopped> {
        let Some(name) = self.resource.key(parts) else {
            at_most_once_a_minute(&self.logged, self.gate.now(), || {
                tracing::error!(
                    why = self.resource.missing(),
                    "refused a request without a resource with status 500"
                );
            });
            return Err(Stopped::NoResource);
        };
        let resource = self.gate.resource(&String::from_utf8_lossy(&name));
        let origin = self
            .origin
            .as_ref()
            .and_then(|origin| text(&**origin, parts));
        let mut entry = resource.entry();
        if self.inbound {
            entry = entry.inbound();
        }
        if let Some(origin) = &origin {
            entry = entry.origin(origin);
        }
        if let Some(count) = &self.count {
            entry = entry.count(count(parts));
        }
        if self
            .prioritized
            .as_ref()
            .is_some_and(|is_prioritized| is_prioritized(parts))
        {
            entry = entry.prioritized();
        }
        for arg in &self.args {
            entry = entry.arg(text(&**arg, parts).unwrap_or_default());
        }
        for (name, arg) in &self.named {
            if let Some(arg) = text(&**arg, parts) {
                entry = entry.attach(name, arg);
            }
        }
        entry.enter_owned().map_err(Stopped::Blocked)
    }

    pub(crate) fn refuse(&self, stopped: &Stopped, parts: &Parts) -> Response<Bytes> {
        let Stopped::Blocked(blocked) = stopped else {
            let text = "the server could not determine the resource of this request";
            return plain(Reason::NoKey.status(), 13, parts, text, None);
        };
        let mut response = match &self.answers {
            Some(answer) => answer(blocked, parts),
            None => usual(blocked, parts),
        };
        if let Some(wait) = blocked.retry_after() {
            write_retry_after(response.headers_mut(), wait);
        }
        response
    }

    fn has_failed(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        if let Some(failed) = &self.failed {
            return failed(status, headers);
        }
        let grpc = headers.get("grpc-status");
        status.is_server_error() || grpc.is_some_and(|code| FAILURES.contains(&code.as_bytes()))
    }
}

fn text(key: &dyn KeySource, parts: &Parts) -> Option<String> {
    key.key(parts)
        .map(|key| String::from_utf8_lossy(&key).into_owned())
}

fn usual(blocked: &Blocked, parts: &Parts) -> Response<Bytes> {
    let (status, code) = match blocked.kind() {
        BlockKind::Flow | BlockKind::HotParam => (StatusCode::TOO_MANY_REQUESTS, 8),
        BlockKind::Authority => (StatusCode::FORBIDDEN, 7),
        _ => (StatusCode::SERVICE_UNAVAILABLE, 14),
    };
    // The response names the rule's kind and the reason only: the rule itself is internal.
    let detail = format!(
        "blocked by a rule of kind {}: {}",
        blocked.kind(),
        blocked.reason().name()
    );
    plain(status, code, parts, &detail, blocked.retry_after())
}

/// A request in flight. If it is dropped, the request was cancelled.
pub struct Entered {
    options: Arc<GateOptions>,
    guard: Option<OwnedGuard>,
}

impl Entered {
    pub(crate) fn new(options: &Arc<GateOptions>, guard: OwnedGuard) -> Self {
        Self {
            options: Arc::clone(options),
            guard: Some(guard),
        }
    }
}

impl<R, O: OutOf<R>> After<R, O> for Entered {
    fn finish(mut self, response: Response<R>) -> Response<O> {
        let (head, body) = response.into_parts();
        let guard = self.guard.take();
        let failed = self.options.has_failed(head.status, &head.headers);
        let has_trailers = is_grpc(&head.headers);
        let options = Arc::clone(&self.options);
        let end = Answered {
            options,
            guard,
            status: head.status,
            failed,
            is_underway: false,
        };
        Response::from_parts(head, O::passed(body, Some(Box::new(end)), has_trailers))
    }

    fn failed(mut self) {
        if let Some(mut guard) = self.guard.take() {
            guard.mark_failed();
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.cancel();
        }
    }
}

/// A request whose response head has been sent.
struct Answered {
    options: Arc<GateOptions>,
    guard: Option<OwnedGuard>,
    status: StatusCode,
    failed: bool,
    is_underway: bool,
}

impl AtEnd for Answered {
    fn data(&mut self, _bytes: &[u8]) {
        self.is_underway = true;
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        self.failed |= self.options.has_failed(self.status, trailers);
        self.is_underway = false;
    }

    fn ended(&mut self, well: bool) {
        self.failed |= !well;
        self.is_underway = false;
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        let Some(mut guard) = self.guard.take() else {
            return;
        };
        match (self.failed, self.is_underway) {
            (true, _) => guard.mark_failed(),
            // The client has given up.
            (false, true) => guard.cancel(),
            // The body was never polled, as with HEAD: the response head says whether the request
            // failed.
            (false, false) => drop(guard),
        }
    }
}
