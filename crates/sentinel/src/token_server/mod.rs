//! The token server for the cluster clients of Alibaba Sentinel.
//!
//! ```text
//! serve ─ connections ─► connection ─ frames ─► tokens ─► limits
//!                                  └─ PING ──► namespaces
//! ```
//!
//! A request takes tokens by the id of a rule. Each rule is a limit of the service, so its counts
//! are seen, restored and shared as those of any other limit.

mod connection;
mod frames;
mod namespaces;
mod serve;
mod tokens;

use std::sync::Arc;

pub use serve::serve;
use tidegate_listen::access::Door;
use tidegate_service::decide::service::Service;
use tokens::Tokens;

use crate::stats::SentinelStats;

/// The state that all connections share.
#[derive(Clone)]
pub struct TokenServer {
    tokens: Arc<Tokens>,
    /// Determines the rights of clients.
    door: Door,
    stats: Arc<SentinelStats>,
}

impl TokenServer {
    /// Allows each namespace at most `max_qps` requests a second.
    pub fn new(service: Arc<Service>, max_qps: u32, door: Door, stats: Arc<SentinelStats>) -> Self {
        Self {
            tokens: Arc::new(Tokens::new(service, max_qps)),
            door,
            stats,
        }
    }
}
