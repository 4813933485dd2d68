//! The counters of the gRPC listener.

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

/// The counters of gRPC. Relaxed throughout: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub(crate) struct GrpcStats {
    pub connections: AtomicUsize,
    pub accepted: AtomicU64,
    pub evicted: AtomicU64,
    /// New connections that were refused because no idle one could be closed.
    pub refused: AtomicU64,
    /// Connections that violated HTTP/2 or exceeded its bounds.
    pub failed: AtomicU64,
    /// `ShouldRateLimit` calls by overall code: OK, over the limit, errors.
    pub requests: [AtomicU64; 3],
    pub latency: Latency,
    /// Envoys that decide with quotas, and the buckets for which they have shares.
    pub quota_streams: AtomicUsize,
    pub quota_buckets: AtomicUsize,
    pub quota_reports: AtomicU64,
}

/// Reads the counters when a scrape asks for them.
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
            ("grpc_connections_evicted", "Idle gRPC connections closed for new ones", &stats.evicted),
            (
                "grpc_connections_refused",
                "gRPC connections refused because all slots were busy",
                &stats.refused,
            ),
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
            ("grpc_quota_streams", "Envoys that decide with quotas", &stats.quota_streams),
            ("grpc_quota_buckets", "Quota buckets with a share", &stats.quota_buckets),
        ] {
            let now = now.load(Ordering::Relaxed) as u64;
            gauge(&mut out.encode_descriptor(name, help, None, MetricType::Gauge)?, &[], now)?;
        }
        let help = "Quota reports from Envoys";
        let mut family = out.encode_descriptor("grpc_quota_reports", help, None, MetricType::Counter)?;
        counter(&mut family, &[], read(&stats.quota_reports))?;
        let help = "Seconds from a decoded ShouldRateLimit request to its answer";
        let latency = stats.latency.read();
        out.encode_descriptor("grpc_request_seconds", help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(latency.sum, latency.count, &latency.buckets, None)
    }
}
