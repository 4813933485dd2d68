//! What the gRPC listener has counted.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};

use super::{counter, gauge, read};
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

/// Read when somebody asks.
#[derive(Debug)]
pub(super) struct AtScrape(pub Arc<GrpcStats>);

impl Collector for AtScrape {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = &self.0;
        let open = stats.connections.load(Ordering::Relaxed) as u64;
        let help = "Open gRPC connections";
        gauge(&mut out.encode_descriptor("grpc_connections", help, None, MetricType::Gauge)?, &[], open)?;
        for (name, help, counted) in [
            ("grpc_connections_accepted", "gRPC connections accepted", &stats.accepted),
            ("grpc_connections_evicted", "Idle gRPC connections that gave way to new ones", &stats.evicted),
            ("grpc_connections_refused", "gRPC connections for which there was no slot", &stats.refused),
            (
                "grpc_connections_failed",
                "gRPC connections that ended with an error, such as too many resets",
                &stats.failed,
            ),
        ] {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(&mut family, &[], read(counted))?;
        }
        let help = "ShouldRateLimit calls by overall code";
        let mut family = out.encode_descriptor("grpc_requests", help, None, MetricType::Counter)?;
        for (code, counted) in ["OK", "OVER_LIMIT", "error"].into_iter().zip(&stats.requests) {
            counter(&mut family, &[("code", code)], read(counted))?;
        }
        for (name, help, now) in [
            (
                "grpc_quota_streams",
                "Envoys that decide by themselves with a share of limits",
                &stats.quota_streams,
            ),
            ("grpc_quota_buckets", "Buckets that Envoys have shares for", &stats.quota_buckets),
        ] {
            let now = now.load(Ordering::Relaxed) as u64;
            gauge(&mut out.encode_descriptor(name, help, None, MetricType::Gauge)?, &[], now)?;
        }
        let help = "Reports of what Envoys used of their shares";
        let mut family = out.encode_descriptor("grpc_quota_reports", help, None, MetricType::Counter)?;
        counter(&mut family, &[], read(&stats.quota_reports))?;
        let help = "Seconds from a decoded ShouldRateLimit request to its answer";
        let latency = stats.latency.read();
        out.encode_descriptor("grpc_request_seconds", help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(latency.sum, latency.count, &latency.buckets, None)
    }
}
