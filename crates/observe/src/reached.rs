//! Thresholds that keys reach, and the counters of the webhook that posts them.

use std::sync::atomic::AtomicU64;

use serde::Serialize;

/// A key has reached a threshold of its limit.
#[derive(Clone, Debug, Serialize)]
pub struct Reached {
    pub limit: String,
    pub key: String,
    /// The threshold.
    pub percent: u8,
    pub used: u64,
    pub of: u64,
    pub time_ms: u64,
}

/// Relaxed counters: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub struct WebhookStats {
    pub sent: AtomicU64,
    /// Attempts that failed.
    pub failed: AtomicU64,
    pub dropped: AtomicU64,
}
