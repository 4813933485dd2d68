//! The server's metrics for Prometheus. Every label has few values (limits, outcomes, routes) and never a key.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text},
    metrics::{MetricType, counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tidegate_core::Nanos;
use tidegate_limiter::Stats;

use crate::{counts::CountsRead, latency::Latency, resp::RespStats, service::Service, throttle::THROTTLE};

mod envoy;
#[cfg(feature = "grpc")]
mod grpc;
mod store;

#[cfg(feature = "grpc")]
pub(crate) use self::grpc::GrpcStats;

/// The buckets' upper bounds in seconds, from the fastest answers to suspiciously slow ones.
const LATENCIES: [f64; 10] = [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0];

/// Events other than decisions. Relaxed counters: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub reloads: AtomicU64,
    pub reloads_refused: AtomicU64,
    /// The problems of the rules at the last failed reload; empty after a successful one.
    rejected: Mutex<Vec<String>>,
    /// When the rules were last loaded, in nanoseconds of the server's clock.
    pub rules_loaded_at: AtomicU64,
    pub state_writes: AtomicU64,
    pub state_writes_failed: AtomicU64,
    pub state_written_at: AtomicU64,
    pub state_bytes: AtomicU64,
    /// Successful and failed reloads of the certificates.
    pub certificate_loads: [AtomicU64; 2],
    /// The same for the access file.
    pub access_loads: [AtomicU64; 2],
    pub http: Arc<HttpStats>,
    pub admin: Arc<HttpStats>,
}

/// Connection events of one HTTP listener.
#[derive(Debug, Default)]
pub(crate) struct HttpStats {
    pub connections: AtomicUsize,
    pub accepted: AtomicU64,
    /// Idle connections that were closed for new ones.
    pub evicted: AtomicU64,
    /// New connections that were refused because no idle one could be closed.
    pub refused: AtomicU64,
    /// Connections whose TLS handshake failed or timed out.
    pub handshakes_failed: AtomicU64,
}

impl Events {
    pub fn set_rejected(&self, problems: Vec<String>) {
        *self.rejected.lock().unwrap_or_else(PoisonError::into_inner) = problems;
    }

    /// The known problems of the rules file.
    pub fn rejected(&self) -> Vec<String> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// All metrics of one server.
pub(crate) struct Metrics {
    registry: Registry,
    http: Family<HttpLabels, Counter>,
    latency: Family<RouteLabels, Histogram, fn() -> Histogram>,
    /// The latency of decisions over HTTP.
    pub answers: Latency,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HttpLabels {
    route: &'static str,
    status: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    route: &'static str,
}

impl Metrics {
    pub fn new(service: Arc<Service>, events: Arc<Events>, resp: Arc<RespStats>) -> Self {
        let mut registry = Registry::with_prefix("tidegate");
        let http = Family::default();
        let latency = Family::new_with_constructor((|| Histogram::new(LATENCIES)) as fn() -> Histogram);
        registry.register("http_requests", "HTTP requests by route and status", http.clone());
        let help = "Seconds from the head of an HTTP request to its response";
        registry.register("http_request_seconds", help, latency.clone());
        registry.register_collector(Box::new(AtScrape { service, events, resp }));
        Self { registry, http, latency, answers: Latency::default() }
    }

    /// Adds the counters of gRPC.
    #[cfg(feature = "grpc")]
    pub fn add_grpc(&mut self, stats: Arc<GrpcStats>) {
        self.registry.register_collector(Box::new(grpc::AtScrape(stats)));
    }

    /// Counts one HTTP request. The route is one of the server's own, so the number of label values is bounded.
    pub fn http_request(&self, route: &'static str, status: u16, took: Nanos) {
        self.http.get_or_create(&HttpLabels { route, status: status.into() }).inc();
        self.latency.get_or_create(&RouteLabels { route }).observe(took.get() as f64 / 1e9);
    }

    /// All metrics in the text format of `OpenMetrics`.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

/// Counters that are kept elsewhere and read when a scrape asks for them.
struct AtScrape {
    service: Arc<Service>,
    events: Arc<Events>,
    resp: Arc<RespStats>,
}

impl fmt::Debug for AtScrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtScrape").finish_non_exhaustive()
    }
}

type Labels<'a> = &'a [(&'a str, &'a str)];

/// A metric's name, help and type, and its value for one limit.
type PerLimit = (&'static str, &'static str, MetricType, fn(&CountsRead, &Stats) -> u64);

const PER_LIMIT: [PerLimit; 11] = [
    ("shadow_denials", "Decisions that a shadow limit would have denied", MetricType::Counter, |c, _| {
        c.shadow_denied
    }),
    ("keys", "Keys of a limit in memory", MetricType::Gauge, |_, s| s.keys),
    ("keys_max", "Maximum number of keys of a limit in memory", MetricType::Gauge, |_, s| s.max_keys),
    ("store_bytes", "Bytes reserved for a limit's states", MetricType::Gauge, |_, s| s.bytes),
    ("keys_reclaimed", "States removed because they had fully recovered", MetricType::Counter, |_, s| {
        s.reclaimed
    }),
    ("keys_evicted", "Keys that were evicted with a debt and left a record", MetricType::Counter, |_, s| {
        s.evicted
    }),
    ("keys_returned", "Evicted keys that returned and got their debt back", MetricType::Counter, |_, s| {
        s.returned
    }),
    ("records", "Records of evicted keys", MetricType::Gauge, |_, s| s.records),
    (
        "keys_refused",
        "Requests of new keys denied so that no exhausted key is forgotten",
        MetricType::Counter,
        |_, s| s.refused,
    ),
    (
        "keys_forgotten",
        "Evicted keys whose debt was forgotten because no record with less debt was left",
        MetricType::Counter,
        |_, s| s.forgotten.total(),
    ),
    (
        "keys_forgotten_exhausted",
        "Forgotten keys that had used up their limit and so got a fresh allowance",
        MetricType::Counter,
        |_, s| s.forgotten.exhausted,
    ),
];

impl Collector for AtScrape {
    fn encode(&self, mut out: DescriptorEncoder) -> fmt::Result {
        let in_force = self.service.in_force();
        let all = in_force.limits();
        let throttle = self.service.throttle();
        let limits: Vec<(&str, CountsRead, Stats)> = all
            .limits()
            .iter()
            .map(|limit| (limit.spec().name.as_str(), limit.counts(), limit.limiter().stats()))
            .chain([(THROTTLE, throttle.counts().read(), throttle.limiter().stats())])
            .collect();
        let help = "Decisions by limit and outcome";
        let mut family = out.encode_descriptor("decisions", help, None, MetricType::Counter)?;
        for (limit, counts, _) in &limits {
            for (outcome, count) in
                [("allowed", counts.allowed), ("delayed", counts.delayed), ("denied", counts.denied)]
            {
                counter(&mut family, &[("limit", limit), ("outcome", outcome)], count)?;
            }
        }
        for (name, help, kind, read) in PER_LIMIT {
            let mut family = out.encode_descriptor(name, help, None, kind)?;
            for (limit, counts, stats) in &limits {
                let value = read(counts, stats);
                match kind {
                    MetricType::Counter => counter(&mut family, &[("limit", limit)], value)?,
                    _ => gauge(&mut family, &[("limit", limit)], value)?,
                }
            }
        }
        envoy::encode(&mut out, in_force.descriptors())?;
        if let Some(shared) = self.service.store() {
            store::encode(&mut out, shared.store())?;
        }
        self.encode_connections(&mut out)?;
        self.encode_events(&mut out, all.limits().len() as u64)
    }
}

impl AtScrape {
    fn encode_connections(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (resp, events) = (&self.resp, &self.events);
        let protocols = |http: fn(&HttpStats) -> u64, resp: u64| {
            [
                (&[("protocol", "http")], http(&events.http)),
                (&[("protocol", "admin")], http(&events.admin)),
                (&[("protocol", "resp")], resp),
            ]
        };
        let open = protocols(
            |http| http.connections.load(Ordering::Relaxed) as u64,
            resp.connections.load(Ordering::Relaxed) as u64,
        );
        let mut family = out.encode_descriptor("connections", "Open connections", None, MetricType::Gauge)?;
        open.into_iter().try_for_each(|(labels, value)| gauge(&mut family, labels, value))?;
        for (name, help, counted) in [
            (
                "connections_accepted",
                "Connections accepted",
                protocols(|http| read(&http.accepted), read(&resp.accepted)),
            ),
            (
                "connections_evicted",
                "Idle connections closed for new ones",
                protocols(|http| read(&http.evicted), read(&resp.evicted)),
            ),
            (
                "tls_handshakes_failed",
                "Connections whose TLS handshake failed or timed out",
                protocols(|http| read(&http.handshakes_failed), read(&resp.handshakes_failed)),
            ),
        ] {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            counted.into_iter().try_for_each(|(labels, value)| counter(&mut family, labels, value))?;
        }
        let help = "Seconds from the arrival of RESP commands to their answers";
        let latency = resp.latency.read();
        out.encode_descriptor("resp_command_seconds", help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(latency.sum, latency.count, &latency.buckets, None)?;
        for (name, help, value) in [
            ("resp_commands", "RESP commands", read(&resp.commands)),
            ("resp_auth_failures", "Wrong passwords over RESP", read(&resp.auth_failures)),
            (
                "http_connections_refused",
                "HTTP connections refused because all slots were busy or the client had too many",
                read(&events.http.refused) + read(&events.admin.refused),
            ),
            (
                "resp_connections_refused",
                "RESP connections refused because of the bound or because the client had too many",
                read(&resp.refused),
            ),
            (
                "resp_protocol_errors",
                "RESP connections closed for malformed input",
                read(&resp.protocol_errors),
            ),
            (
                "resp_timeouts",
                "RESP connections closed because they were idle or stuck",
                read(&resp.timeouts),
            ),
        ] {
            counter(&mut out.encode_descriptor(name, help, None, MetricType::Counter)?, &[], value)?;
        }
        Ok(())
    }

    fn encode_events(&self, out: &mut DescriptorEncoder<'_>, limits: u64) -> fmt::Result {
        let events = &self.events;
        let outcomes = |ok: &AtomicU64, failed: &AtomicU64| {
            [(&[("result", "ok")], read(ok)), (&[("result", "failed")], read(failed))]
        };
        for (name, help, values) in [
            (
                "rules_reloads",
                "Reloads of the rules file, successful or rejected",
                outcomes(&events.reloads, &events.reloads_refused),
            ),
            (
                "state_writes",
                "Writes of the state file, successful or failed",
                outcomes(&events.state_writes, &events.state_writes_failed),
            ),
            (
                "certificate_loads",
                "Reloads of the certificates, successful or rejected",
                outcomes(&events.certificate_loads[0], &events.certificate_loads[1]),
            ),
            (
                "access_loads",
                "Reloads of the access file, successful or rejected",
                outcomes(&events.access_loads[0], &events.access_loads[1]),
            ),
        ] {
            let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
            values.into_iter().try_for_each(|(labels, value)| counter(&mut family, labels, value))?;
        }
        let seconds = |nanos: &AtomicU64| read(nanos) / 1_000_000_000;
        for (name, help, value) in [
            ("rules_limits", "Limits in the rules", limits),
            (
                "rules_loaded_timestamp_seconds",
                "Time when the rules were last loaded",
                seconds(&events.rules_loaded_at),
            ),
            (
                "state_written_timestamp_seconds",
                "Time when the state was last written",
                seconds(&events.state_written_at),
            ),
            ("state_bytes", "Length of the state file", read(&events.state_bytes)),
        ] {
            gauge(&mut out.encode_descriptor(name, help, None, MetricType::Gauge)?, &[], value)?;
        }
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        let mut family = out.encode_descriptor("build", "The server's version", None, MetricType::Info)?;
        family.encode_info(&build)
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn counter(family: &mut MetricEncoder<'_>, labels: Labels<'_>, value: u64) -> fmt::Result {
    if labels.is_empty() {
        return family.encode_counter::<NoLabelSet, _, u64>(&value, None);
    }
    family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

fn gauge(family: &mut MetricEncoder<'_>, labels: Labels<'_>, value: u64) -> fmt::Result {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    if labels.is_empty() {
        return family.encode_gauge(&value);
    }
    family.encode_family(&labels)?.encode_gauge(&value)
}
