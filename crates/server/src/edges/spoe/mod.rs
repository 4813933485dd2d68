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

use std::sync::Arc;

pub(crate) use serve::serve;

use crate::{decide::service::Service, listen::access::Door, observe::metrics::SpoeStats};

/// The state that all connections share.
#[derive(Clone)]
pub(crate) struct Agent {
    pub service: Arc<Service>,
    /// The access control of clients.
    pub door: Door,
    pub stats: Arc<SpoeStats>,
}
