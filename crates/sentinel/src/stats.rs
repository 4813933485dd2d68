//! The counters of the token server for Sentinel's clients.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_service::observe::{
    latency::Latency,
    metrics::{ConnectionStats, MetricKind, MetricSource, Sink, read},
};

/// The counters of the token server. Relaxed throughout: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub struct SentinelStats {
    pub connections: Arc<ConnectionStats>,
    /// Connections that broke, whose TLS handshake failed, or whose client read nothing.
    pub failed: AtomicU64,
    requests: [[AtomicU64; STATUSES.len()]; TYPES.len()],
    pub latency: Latency,
}

/// The counters of the listener for heartbeats.
#[derive(Debug, Default)]
pub struct DashboardStats {
    pub connections: Arc<ConnectionStats>,
    /// Heartbeats by outcome: taken, refused.
    pub heartbeats: [AtomicU64; 2],
}

/// The types of requests, in the order of their codes; the last is that of all other codes.
const TYPES: [&str; 4] = ["ping", "flow", "param_flow", "unknown"];
/// How requests end, in the order of the codes of answers, which begin with -4.
const STATUSES: [&str; 8] = [
    "bad_request",
    "",
    "too_many_requests",
    "fail",
    "ok",
    "blocked",
    "should_wait",
    "no_rule",
];

impl SentinelStats {
    /// Counts a request by its type and its answer, both as they are sent.
    pub fn count(&self, code: i8, status: i8) {
        let code = usize::try_from(code)
            .unwrap_or(usize::MAX)
            .min(TYPES.len() - 1);
        if let Some(count) = usize::try_from(status + 4)
            .ok()
            .and_then(|at| self.requests[code].get(at))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl MetricSource for SentinelStats {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        self.connections
            .report(sink, "sentinel", "the token server")?;
        let help = "Connections of the token server that ended with an error";
        sink.count("sentinel_connections_failed", help, read(&self.failed))?;
        let requests = TYPES
            .iter()
            .zip(&self.requests)
            .flat_map(|(code, by_status)| {
                let of_status = move |(status, count): (&&'static str, &AtomicU64)| {
                    ([("type", *code), ("status", *status)], read(count))
                };
                STATUSES
                    .iter()
                    .zip(by_status)
                    .filter(|(status, _)| !status.is_empty())
                    .map(of_status)
            });
        let help = "Requests of Sentinel's clients by type and answer";
        // Answers that a type never has stay away.
        let seen = requests.filter(|(_, count)| *count > 0);
        sink.labelled("sentinel_requests", help, MetricKind::Counter, seen)?;
        let help = "Seconds from a parsed request for tokens to its answer";
        sink.histogram(
            "sentinel_request_seconds",
            help,
            &[(&[], self.latency.read())],
        )
    }
}

impl MetricSource for DashboardStats {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        self.connections
            .report(sink, "sentinel_dashboard", "heartbeat")?;
        let [taken, refused] = self.heartbeats.each_ref().map(read);
        let outcomes = [
            ([("outcome", "taken")], taken),
            ([("outcome", "refused")], refused),
        ];
        sink.labelled(
            "sentinel_dashboard_heartbeats",
            "Heartbeats by outcome",
            MetricKind::Counter,
            outcomes,
        )
    }
}
