//! The agent that HAProxy asks about requests: SPOE, over the protocol SPOP 2.0.
//!
//! ```text
//! serve ─ connections ─► connection ─ frames ─► question ─► service
//! ```
//!
//! Each NOTIFY frame is one decision of all its messages, and its ACK frame sets variables of
//! HAProxy's transaction. The crate `spop` parses and writes frames.

mod connection;
mod question;
mod serve;
mod stats;

use std::sync::Arc;

pub(crate) use serve::serve;
pub(crate) use stats::SpoeStats;

use tidegate_listen::access::Door;
use tidegate_service::decide::service::Service;

/// The state that all connections share.
#[derive(Clone)]
pub(crate) struct Agent {
    pub service: Arc<Service>,
    /// The access control of clients.
    pub door: Door,
    pub stats: Arc<SpoeStats>,
}
