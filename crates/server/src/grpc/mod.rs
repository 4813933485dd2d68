//! gRPC: Envoy's rate limit services and `grpc.health.v1`.
//!
//! ```text
//! serve ─ HTTP/2 connections, their bounds ─► routes ─┬─► rls     ShouldRateLimit
//!                                                     ├─► rlqs    StreamRateLimitQuotas
//!                                                     └─► health  of the process and its store
//! ```
//!
//! `wire` turns Envoy's messages into questions and answers into messages.

mod health;
mod rlqs;
mod rls;
mod routes;
mod serve;
mod wire;

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize},
};

pub(crate) use serve::{GrpcConfig, serve};

use crate::latency::Latency;

/// What gRPC counts. Relaxed throughout: a scrape needs no exact instant.
#[derive(Debug, Default)]
pub(crate) struct GrpcStats {
    pub connections: AtomicUsize,
    pub accepted: AtomicU64,
    pub evicted: AtomicU64,
    /// New connections for which not even an idle one could give way.
    pub refused: AtomicU64,
    /// Connections that broke the rules of HTTP/2, or went beyond its bounds.
    pub failed: AtomicU64,
    /// `ShouldRateLimit` by overall code: OK, over the limit, errors.
    pub requests: [AtomicU64; 3],
    pub latency: Latency,
    /// Envoys that decide by themselves, and the buckets that they have shares for.
    pub quota_streams: AtomicUsize,
    pub quota_buckets: AtomicUsize,
    pub quota_reports: AtomicU64,
}

/// What the routes share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub rates: Arc<crate::envoy::RateLimits>,
    pub stats: Arc<GrpcStats>,
    /// What clients may do.
    pub door: crate::access::Door,
}
