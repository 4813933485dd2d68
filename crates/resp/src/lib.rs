//! The Redis protocol, versions 2 and 3, on a separate listener.
//!
//! ```text
//! bytes ─ parse ─► arguments ─ commands ─► service ─► reply ─► bytes
//! └───────────────────── connection ─────────────────────┘
//! └── reactor: one thread, many connections: reads all that is ready, decides for every frame in it, then writes once ──┘
//! ```
//!
//! `commands` has the table of all commands. It imports the commands that limit (`limiting`), those
//! about heavy keys (`heavy`), those about the connection (`handshake`), those about the server
//! (`introspection`) and those that queue others (`transaction`), which import only `session` and
//! `reply`.
//!
//! If limits are shared over a store, `batch` keeps the questions of a connection in a future that
//! the thread polls between its turns, and the store's reply wakes the thread. Nothing else
//! differs.
//!
//! The listener uses its own threads on `mio` instead of tokio tasks. A task costs about as much
//! per wakeup, but a reactor decides *when* to poll and when to write: it lets requests of many
//! connections gather, and answers everything that is ready before it writes anything.
//! `docs/decisions/0011` has the figures. All connections also share one read buffer, so an idle
//! connection needs no buffer at all.
//!
//! An internal crate of `tidegate serve`, without a promise of stability.

#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the crates of the server are the callers"
)]

mod batch;
mod commands;
mod connection;
mod gather;
mod handshake;
mod heavy;
mod increx;
mod introspection;
mod limiting;
mod parse;
mod question;
mod queued;
mod reactor;
mod reply;
mod reserving;
mod session;
mod socket;
mod stats;
mod transaction;

use std::sync::Arc;

use tidegate_core::Nanos;

pub use parse::{Args, MAX_ARGS, MAX_BULK, MAX_FRAME, ProtocolError, parse};
pub use reactor::{Reactors, start};
pub use stats::RespStats;
use tidegate_listen::{
    access::Door, descriptors::Descriptors, peers::Peers, strangers::Strangers, tls::Tls,
};
use tidegate_service::decide::service::Service;

/// The protocol version. A connection starts with 2, and `HELLO` can change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Resp2 = 2,
    Resp3 = 3,
}

/// The state that all connections of the listener share.
pub struct Shared {
    pub service: Arc<Service>,
    pub config: RespConfig,
    /// The access control of clients.
    pub door: Door,
    /// TLS, if it is enabled.
    pub tls: Option<Arc<Tls>>,
    /// The number of connections of each client.
    pub peers: Arc<Peers>,
    /// Who gave wrong passwords.
    pub strangers: Strangers,
    /// The connections of all listeners.
    pub descriptors: Arc<Descriptors>,
    pub started: Nanos,
    pub stats: Arc<RespStats>,
    /// The runtime that asks the shared store; `None` without a store.
    pub runtime: Option<tokio::runtime::Handle>,
}

/// The listener's options.
#[derive(Clone, Debug)]
pub struct RespConfig {
    /// The password for `AUTH`; `None` admits every client.
    pub password: Option<String>,
    pub max_connections: usize,
    /// A connection without a command for this long is closed; `None` means never.
    pub idle_timeout: Option<Nanos>,
    pub threads: usize,
    /// For `INFO`.
    pub port: u16,
}
