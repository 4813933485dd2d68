//! The counters of the SPOE listener.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use super::{ConnectionStats, Kind, Labels, Sink, Source, one, read};
use crate::observe::latency::Latency;

/// The counters of SPOE. Relaxed throughout: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub(crate) struct SpoeStats {
    pub connections: Arc<ConnectionStats>,
    /// Connections that violated the protocol, whose TLS handshake failed, or whose client read nothing.
    pub failed: AtomicU64,
    /// NOTIFY frames by outcome: admitted, denied, without a decision.
    pub requests: [AtomicU64; 3],
    pub latency: Latency,
}

/// Read at each scrape.
pub(super) struct Counted(pub Arc<SpoeStats>);

impl Source for Counted {
    fn tell(&self, sink: &mut dyn Sink) -> fmt::Result {
        let stats = &self.0;
        stats.connections.tell(sink, "spoe", "SPOE")?;
        let help = "SPOE connections that ended with an error, such as an invalid frame";
        sink.family("spoe_connections_failed", help, Kind::Counter, &one(read(&stats.failed)))?;
        let [admitted, denied, failed] = stats.requests.each_ref().map(read);
        let outcomes: [(Labels<'_>, u64); 3] = [
            (&[("outcome", "admitted")], admitted),
            (&[("outcome", "denied")], denied),
            (&[("outcome", "error")], failed),
        ];
        sink.family("spoe_requests", "NOTIFY frames by outcome", Kind::Counter, &outcomes)?;
        let help = "Seconds from a parsed NOTIFY frame to its answer";
        sink.histogram("spoe_request_seconds", help, &[(&[], stats.latency.read())])
    }
}
