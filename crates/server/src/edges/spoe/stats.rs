//! The counters of the SPOE listener.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use tidegate_service::observe::{
    latency::Latency,
    metrics::{ConnectionStats, MetricKind, MetricSource, Sink, read},
};

/// The counters of SPOE. Relaxed throughout: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub(crate) struct SpoeStats {
    pub connections: Arc<ConnectionStats>,
    /// Connections that violated the protocol, whose TLS handshake failed, or whose client read
    /// nothing.
    pub failed: AtomicU64,
    /// NOTIFY frames by outcome: admitted, denied, without a decision.
    pub requests: [AtomicU64; 3],
    pub latency: Latency,
}

impl MetricSource for SpoeStats {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        self.connections.report(sink, "spoe", "SPOE")?;
        let help = "SPOE connections that ended with an error, such as an invalid frame";
        sink.count("spoe_connections_failed", help, read(&self.failed))?;
        let [admitted, denied, failed] = self.requests.each_ref().map(read);
        let outcomes = [
            ("admitted", admitted),
            ("denied", denied),
            ("error", failed),
        ];
        let outcomes = outcomes.map(|(outcome, count)| ([("outcome", outcome)], count));
        sink.labelled(
            "spoe_requests",
            "NOTIFY frames by outcome",
            MetricKind::Counter,
            outcomes,
        )?;
        let help = "Seconds from a parsed NOTIFY frame to its answer";
        sink.histogram("spoe_request_seconds", help, &[(&[], self.latency.read())])
    }
}
