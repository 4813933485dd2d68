//! gRPC: Envoy's rate limit services, Kuadrant's, and `grpc.health.v1`.
//!
//! ```text
//! serve ─ HTTP/2 connections, their bounds ─► routes ─┬─► rls     ShouldRateLimit
//!                                                     ├─► kuadrant  check, report, reserve, commit
//!                                                     ├─► rlqs    StreamRateLimitQuotas
//!                                                     ├─► health  of the process and its store
//!                                                     └─► reflection  of the services and their messages
//! ```
//!
//! `wire` converts between Envoy's messages and the server's questions and answers.

mod health;
mod kuadrant;
mod messages;
mod reference;
mod reflection;
mod rlqs;
mod rls;
mod routes;
mod serve;
mod stats;
mod unary;
mod waiting;
mod wire;

use std::sync::Arc;

pub use reference::Reference;
pub use serve::{MaxAge, serve};
pub use stats::{CODES, GrpcStats};

/// The state that the routes share.
#[derive(Clone)]
pub struct Shared {
    pub rates: Arc<crate::descriptors::DescriptorService>,
    pub stats: Arc<GrpcStats>,
    /// The access control of clients.
    pub door: tidegate_listen::access::Door,
    /// `None` if OTLP export is off.
    pub telemetry: Option<Arc<tidegate_export::telemetry::Telemetry>>,
}
