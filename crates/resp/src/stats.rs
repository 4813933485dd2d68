//! The counters of the RESP listener.

use std::sync::atomic::AtomicU64;

use tidegate_service::observe::{
    latency::Latency, metrics::ConnectionStats, once_a_minute::OnceAMinute,
};

/// Counters of the listener. Relaxed is enough: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub struct RespStats {
    pub connections: ConnectionStats,
    pub commands: AtomicU64,
    pub protocol_errors: AtomicU64,
    /// Connections closed because they were idle, or stuck in a frame or a reply.
    pub timeouts: AtomicU64,
    pub auth_failures: AtomicU64,
    pub full_warning: OnceAMinute,
    /// From the start of a turn, or the question to the store, until the reply is ready to be sent.
    pub latency: Latency,
    pub next_id: AtomicU64,
}
