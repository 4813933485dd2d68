//! The counters of the gRPC listener.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tidegate_core::Nanos;
use tidegate_service::observe::{
    latency::Latency,
    metrics::{ConnectionStats, MetricKind, MetricSource, Sink, read},
    once_a_minute::OnceAMinute,
};
use tonic::{Code, Status};

/// The counters of gRPC. Relaxed throughout: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub struct GrpcStats {
    pub connections: Arc<ConnectionStats>,
    /// Connections that violated HTTP/2 or exceeded its bounds.
    pub failed: AtomicU64,
    /// `ShouldRateLimit` calls by overall code: OK, over the limit, errors.
    pub requests: [AtomicU64; 3],
    pub latency: Latency,
    pub errors: Errors,
    /// Envoys that decide with quotas, and the buckets for which they have shares.
    pub quota_streams: AtomicUsize,
    pub quota_buckets: AtomicUsize,
    pub quota_reports: AtomicU64,
}

/// Calls that ended with an error, by its code, which is the cause as far as gRPC knows it.
#[derive(Debug, Default)]
pub struct Errors {
    /// By the code's number.
    by_code: [(AtomicU64, OnceAMinute); CODES.len()],
}

/// The names of gRPC's codes, from 0 on.
pub const CODES: [&str; 17] = [
    "ok",
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
];

impl Errors {
    /// How many calls have ended with this code.
    pub fn count(&self, code: Code) -> u64 {
        read(&self.by_code[code as usize].0)
    }

    /// Counts an error, and logs it at most once a minute for each code.
    pub fn add(&self, status: &Status, now: Nanos) {
        let code = status.code() as usize;
        let (count, log) = &self.by_code[code];
        count.fetch_add(1, Ordering::Relaxed);
        if log.is_due(now) {
            let cause = CODES[code];
            tracing::warn!(
                cause,
                message = status.message(),
                "a gRPC call failed; Envoy admits the request unless failure_mode_deny is set"
            );
        }
    }
}

impl MetricSource for GrpcStats {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        self.connections.report(sink, "grpc", "gRPC")?;
        let help = "gRPC connections that ended with an error, such as too many resets";
        sink.count("grpc_connections_failed", help, read(&self.failed))?;
        let help = "ShouldRateLimit calls and those of Kuadrant's service by overall code";
        let [ok, over, failed] = self.requests.each_ref().map(read);
        let codes = [("OK", ok), ("OVER_LIMIT", over), ("error", failed)];
        let codes = codes.map(|(code, count)| ([("code", code)], count));
        sink.labelled("grpc_requests", help, MetricKind::Counter, codes)?;
        let help = "gRPC calls that ended with an error, by its code";
        let causes = CODES.iter().zip(&self.errors.by_code).skip(1);
        let seen = causes.map(|(cause, (count, _))| ([("cause", *cause)], read(count)));
        sink.labelled("grpc_errors", help, MetricKind::Counter, seen)?;
        for (name, help, now) in [
            (
                "grpc_quota_streams",
                "Envoys that decide with quotas",
                &self.quota_streams,
            ),
            (
                "grpc_quota_buckets",
                "Quota buckets with a share",
                &self.quota_buckets,
            ),
        ] {
            sink.gauge(name, help, now.load(Ordering::Relaxed) as u64)?;
        }
        sink.count(
            "grpc_quota_reports",
            "Quota reports from Envoys",
            read(&self.quota_reports),
        )?;
        let help = "Seconds from a decoded ShouldRateLimit request to its answer";
        sink.histogram("grpc_request_seconds", help, &[(&[], self.latency.read())])
    }
}
