//! The Redis protocol, versions 2 and 3, on a listener of its own.
//!
//! ```text
//! bytes ─ parse ─► arguments ─ commands ─► service ─► reply ─► bytes
//! └───────────────────── connection ─────────────────────┘
//! └── reactor: one thread, many connections: reads all that is ready, decides for every frame in it, then writes once ──┘
//! ```
//!
//! `commands` has the table of all commands. It imports those that limit (`limiting`), those about heavy keys (`heavy`), those about the connection (`handshake`)
//! and those about the server (`introspection`), which import `session` and `reply` alone.
//!
//! Where limits are shared over a store, `batch` keeps the questions of a connection in a future that the thread polls between
//! its turns, and an answer wakes the thread; nothing else is different.
//!
//! The listener has threads of its own on `mio` instead of tokio tasks. A task costs about as much a wakeup, but a reactor
//! decides *when* to write: it answers everything that is ready before it writes anything, so that a client with many
//! connections is woken once for a batch instead of once for each answer. It also lets all connections share one read
//! buffer: a silent connection holds no buffer at all.

mod batch;
mod commands;
mod connection;
mod gather;
mod handshake;
mod heavy;
mod introspection;
mod limiting;
mod parse;
mod reactor;
mod reply;
mod session;
mod socket;

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize},
};

use tidegate_core::Nanos;

pub use parse::{Args, MAX_ARGS, MAX_BULK, MAX_FRAME, ProtocolError, parse};
pub(crate) use reactor::{Reactors, start};

use crate::{
    access::Door, latency::Latency, once_a_minute::OnceAMinute, peers::Peers, service::Service, tls::Tls,
};

/// The protocol's versions; a connection begins with 2 and may change with `HELLO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Resp2,
    Resp3,
}

impl Protocol {
    fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// What all connections of the listener share.
pub(crate) struct Shared {
    pub service: Arc<Service>,
    pub config: RespConfig,
    /// What clients may do.
    pub door: Door,
    /// TLS, if it is on.
    pub tls: Option<Arc<Tls>>,
    /// How many connections each client has.
    pub peers: Arc<Peers>,
    pub started: Nanos,
    pub stats: Arc<RespStats>,
    /// Where the shared store is asked; `None` where there is none.
    pub runtime: Option<tokio::runtime::Handle>,
}

/// How the listener behaves.
#[derive(Clone, Debug)]
pub(crate) struct RespConfig {
    /// What `AUTH` must give; `None` lets everybody in.
    pub password: Option<String>,
    pub max_connections: usize,
    /// Beyond so many of one client's its new ones are closed.
    pub max_per_peer: Option<usize>,
    /// After this long without a command a connection is closed; `None` never.
    pub idle_timeout: Option<Nanos>,
    pub threads: usize,
    /// For `INFO`.
    pub port: u16,
}

/// What happened on the listener. Relaxed counters: a scrape needs no exact instant.
#[derive(Debug, Default)]
pub(crate) struct RespStats {
    pub connections: AtomicUsize,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub commands: AtomicU64,
    pub protocol_errors: AtomicU64,
    /// Connections that were closed for being idle, or stuck in the middle of a frame or a reply.
    pub timeouts: AtomicU64,
    /// Connections that gave way to new ones.
    pub evicted: AtomicU64,
    pub auth_failures: AtomicU64,
    /// Connections whose TLS handshake failed, or broke off.
    pub handshakes_failed: AtomicU64,
    pub auth_warning: OnceAMinute,
    pub full_warning: OnceAMinute,
    /// From a turn's beginning, or the question to the store, to the answer's way out.
    pub latency: Latency,
    pub next_id: AtomicU64,
}
