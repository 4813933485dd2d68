//! The server's metrics for Prometheus. Every label has few values (limits, outcomes, routes) and never a key.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};
use tidegate_core::DenialReason;
use tidegate_limiter::Stats;

use crate::{
    decide::{counts::CountsRead, service::Service, thresholds::WebhookStats, throttle::THROTTLE},
    edges::resp::RespStats,
    listen::tls::Tls,
};

mod envoy;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
mod process;
#[cfg(feature = "grpc")]
mod reference;
mod sentinel;
mod source;
mod spoe;
mod store;
mod text;
#[cfg(feature = "grpc")]
mod xds;

#[cfg(feature = "grpc")]
pub(crate) use self::grpc::GrpcStats;
pub(crate) use self::http::HttpStats;
#[cfg(feature = "grpc")]
pub(crate) use self::reference::Reference;
pub(crate) use self::sentinel::{DashboardStats, SentinelStats};
pub(crate) use self::spoe::SpoeStats;
#[cfg(feature = "grpc")]
pub(crate) use self::xds::XdsStats;
pub(crate) use source::{Kind, Labels, Sink, Source};
use source::{Scraped, one};
pub(crate) use text::Format;

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
    pub webhook: Arc<WebhookStats>,
    pub http: Arc<ConnectionStats>,
    pub admin: Arc<ConnectionStats>,
}

/// Connection events of one listener.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStats {
    pub open: AtomicUsize,
    pub accepted: AtomicU64,
    /// Idle connections that were closed for new ones.
    pub evicted: AtomicU64,
    /// New connections that were refused because no idle one could be closed.
    pub refused: AtomicU64,
    /// Connections whose TLS handshake failed or timed out.
    pub handshakes_failed: AtomicU64,
}

impl ConnectionStats {
    /// The families of a listener that has its own: `prefix` begins their names, and `protocol` is for people.
    fn tell(&self, sink: &mut dyn Sink, prefix: &str, protocol: &str) -> fmt::Result {
        let open = self.open.load(Ordering::Relaxed) as u64;
        let help = format!("Open {protocol} connections");
        sink.family(&format!("{prefix}_connections"), &help, Kind::Gauge, &one(open))?;
        for (event, help, counted) in [
            ("accepted", format!("{protocol} connections accepted"), &self.accepted),
            ("evicted", format!("Idle {protocol} connections closed for new ones"), &self.evicted),
            (
                "refused",
                format!(
                    "{protocol} connections refused because all slots were busy or the client had too many"
                ),
                &self.refused,
            ),
        ] {
            let name = format!("{prefix}_connections_{event}");
            sink.family(&name, &help, Kind::Counter, &one(read(counted)))?;
        }
        Ok(())
    }
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
    /// Metrics whose names have no prefix.
    process: Registry,
    /// The counters, read at a scrape.
    sources: Vec<Arc<dyn Source>>,
    pub http: Arc<HttpStats>,
    #[cfg(feature = "grpc")]
    pub grpc: Arc<GrpcStats>,
}

impl Metrics {
    pub fn new(service: Arc<Service>, events: Arc<Events>, resp: Arc<RespStats>) -> Self {
        let mut registry = Registry::with_prefix("tidegate");
        let http = Arc::new(HttpStats::default());
        registry.register_collector(Box::new(Scraped(Arc::clone(&http) as Arc<dyn Source>)));
        let mut process = Registry::default();
        process.register_collector(Box::new(process::Process));
        let mut metrics = Self {
            registry,
            process,
            sources: Vec::new(),
            http,
            #[cfg(feature = "grpc")]
            grpc: Arc::default(),
        };
        metrics.add(Arc::new(Counted { service, events, resp }));
        metrics
    }

    pub fn add(&mut self, source: Arc<dyn Source>) {
        self.registry.register_collector(Box::new(Scraped(Arc::clone(&source))));
        self.sources.push(source);
    }

    /// The sources of all metrics except those of HTTP requests.
    pub fn sources(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    /// Adds the counters of gRPC.
    #[cfg(feature = "grpc")]
    pub fn add_grpc(&mut self, stats: Arc<GrpcStats>) {
        self.grpc = Arc::clone(&stats);
        self.add(stats);
    }

    /// Adds the counters of envoyproxy/ratelimit under its names.
    #[cfg(feature = "grpc")]
    pub fn add_reference(&mut self, reference: Arc<Reference>) {
        self.process.register_collector(Box::new(Scraped(reference)));
    }

    /// Adds the counters of control planes.
    #[cfg(feature = "grpc")]
    pub fn add_xds(&mut self, stats: Vec<Arc<XdsStats>>) {
        self.add(Arc::new(xds::Counted(stats)));
    }

    /// All metrics in the text format of `OpenMetrics`.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        let _ = encode_registry(&mut text, &self.process);
        let _ = encode_eof(&mut text);
        text
    }

    /// The metrics of the limits that `covers` selects, and no others: neither names nor counts of other limits, rules and programs.
    pub fn encode_covered(&self, covers: impl Fn(&str) -> bool) -> String {
        let keeps = |line: &&str| line.starts_with('#') || limit_of(line).is_some_and(|limit| covers(&limit));
        self.encode().split_inclusive('\n').filter(keeps).collect()
    }
}

/// The limit that a line names in its labels.
fn limit_of(line: &str) -> Option<String> {
    let at = line.find("{limit=\"").or_else(|| line.find(",limit=\""))?;
    let (mut name, mut chars) = (String::new(), line[at..].chars().skip("{limit=\"".len()));
    loop {
        match chars.next()? {
            '"' => return Some(name),
            '\\' => name.push(match chars.next()? {
                'n' => '\n',
                other => other,
            }),
            other => name.push(other),
        }
    }
}

impl Source for Tls {
    fn tell(&self, sink: &mut dyn Sink) -> fmt::Result {
        let help = "When the first certificate of the server's chain expires";
        let values: Vec<_> = self.expires().map(one).into_iter().flatten().collect();
        sink.family("certificate_expires_timestamp_seconds", help, Kind::Gauge, &values)
    }
}

/// Counters of the service, which a scrape reads.
struct Counted {
    service: Arc<Service>,
    events: Arc<Events>,
    resp: Arc<RespStats>,
}

/// A metric's name, help and type, and how it is read from one limit.
type PerLimit = (&'static str, &'static str, Kind, fn(&CountsRead, &Stats) -> u64);

const PER_LIMIT: [PerLimit; 11] = [
    ("shadow_denials", "Decisions that a shadow limit would have denied", Kind::Counter, |c, _| {
        c.shadow_denied
    }),
    ("keys", "Keys of a limit in memory", Kind::Gauge, |_, s| s.keys),
    ("keys_max", "Maximum number of keys of a limit in memory", Kind::Gauge, |_, s| s.max_keys),
    ("store_bytes", "Bytes reserved for a limit's states", Kind::Gauge, |_, s| s.bytes),
    ("keys_reclaimed", "States removed because they had fully recovered", Kind::Counter, |_, s| s.reclaimed),
    ("keys_evicted", "Keys that were evicted with a debt and left a record", Kind::Counter, |_, s| s.evicted),
    ("keys_returned", "Evicted keys that returned and got their debt back", Kind::Counter, |_, s| s.returned),
    ("records", "Records of evicted keys", Kind::Gauge, |_, s| s.records),
    (
        "keys_refused",
        "Requests of new keys denied so that no exhausted key is forgotten",
        Kind::Counter,
        |_, s| s.refused,
    ),
    (
        "keys_forgotten",
        "Evicted keys whose debt was forgotten because no record with less debt was left",
        Kind::Counter,
        |_, s| s.forgotten.total(),
    ),
    (
        "keys_forgotten_exhausted",
        "Forgotten keys that had used up their limit and so got a fresh allowance",
        Kind::Counter,
        |_, s| s.forgotten.exhausted,
    ),
];

impl Source for Counted {
    fn tell(&self, sink: &mut dyn Sink) -> fmt::Result {
        let in_force = self.service.in_force();
        let all = in_force.limits();
        let throttle = self.service.throttle();
        let limits: Vec<(&str, CountsRead, Stats)> = all
            .limits()
            .iter()
            .map(|limit| (limit.spec().name.as_str(), limit.counts(), limit.limiter().stats()))
            .chain([(THROTTLE, throttle.counts().read(), throttle.limiter().stats())])
            .collect();
        let outcomes = |counts: &CountsRead| {
            [("allowed", counts.allowed), ("delayed", counts.delayed), ("denied", counts.denied)]
        };
        let decisions = limits.iter().flat_map(|(limit, counts, _)| {
            outcomes(counts).map(|(outcome, count)| ([("limit", *limit), ("outcome", outcome)], count))
        });
        sink.labelled("decisions", "Decisions by limit and outcome", Kind::Counter, decisions)?;
        let denials = limits.iter().flat_map(|(limit, counts, _)| {
            let named = move |(reason, count): (&DenialReason, u64)| {
                ([("limit", *limit), ("reason", reason.name())], count)
            };
            DenialReason::ALL.iter().zip(counts.denied_by).map(named)
        });
        // Most reasons never occur at a limit. Those that did stay in the answer, because counters never go back.
        let denials = denials.filter(|(_, count)| *count > 0);
        sink.labelled("denials", "Denials by limit and reason", Kind::Counter, denials)?;
        let reached: Vec<_> = all
            .limits()
            .iter()
            .flat_map(|limit| {
                let named = |(percent, count)| (limit.spec().name.as_str(), format!("{percent}%"), count);
                limit.threshold_events().into_iter().map(named)
            })
            .collect();
        let reached = reached
            .iter()
            .map(|(limit, percent, count)| ([("limit", *limit), ("threshold", percent.as_str())], *count));
        let help = "Keys that reached a threshold of their limit, once in each period";
        sink.labelled("threshold_events", help, Kind::Counter, reached)?;
        for (name, help, kind, read) in PER_LIMIT {
            let values =
                limits.iter().map(|(limit, counts, stats)| ([("limit", *limit)], read(counts, stats)));
            sink.labelled(name, help, kind, values)?;
        }
        let reservations = self.service.reservations().len() as u64;
        let help = "Reservations that are open or remembered";
        sink.family("reservations", help, Kind::Gauge, &one(reservations))?;
        envoy::tell(sink, in_force.descriptors())?;
        if let Some(shared) = self.service.store() {
            store::tell(sink, shared.store())?;
        }
        self.tell_connections(sink)?;
        self.tell_events(sink, all.limits().len() as u64)
    }
}

type Count = fn(&ConnectionStats) -> u64;

impl Counted {
    fn tell_connections(&self, sink: &mut dyn Sink) -> fmt::Result {
        let (resp, events) = (&self.resp, &self.events);
        let protocols = [("http", &*events.http), ("admin", &*events.admin), ("resp", &resp.connections)];
        let families: [(_, _, _, Count); 4] = [
            ("connections", "Open connections", Kind::Gauge, |stats| {
                stats.open.load(Ordering::Relaxed) as u64
            }),
            ("connections_accepted", "Connections accepted", Kind::Counter, |stats| read(&stats.accepted)),
            ("connections_evicted", "Idle connections closed for new ones", Kind::Counter, |stats| {
                read(&stats.evicted)
            }),
            (
                "tls_handshakes_failed",
                "Connections whose TLS handshake failed or timed out",
                Kind::Counter,
                |stats| read(&stats.handshakes_failed),
            ),
        ];
        for (name, help, kind, read) in families {
            let counted = protocols.iter().map(|(protocol, stats)| ([("protocol", *protocol)], read(stats)));
            sink.labelled(name, help, kind, counted)?;
        }
        let help = "Seconds from the arrival of RESP commands to their answers";
        sink.histogram("resp_command_seconds", help, &[(&[], resp.latency.read())])?;
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
                read(&resp.connections.refused),
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
            sink.family(name, help, Kind::Counter, &one(value))?;
        }
        Ok(())
    }

    fn tell_events(&self, sink: &mut dyn Sink, limits: u64) -> fmt::Result {
        let events = &self.events;
        let outcomes = |ok: &AtomicU64, failed: &AtomicU64| -> [(Labels<'static>, u64); 2] {
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
            sink.family(name, help, Kind::Counter, &values)?;
        }
        let WebhookStats { sent, failed, dropped } = &*events.webhook;
        let posts = [("sent", sent), ("failed", failed), ("dropped", dropped)];
        let posts = posts.map(|(result, count)| ([("result", result)], read(count)));
        let help =
            "Events of thresholds that the webhook took, attempts that failed, and events that were dropped";
        sink.labelled("webhook_events", help, Kind::Counter, posts)?;
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
            sink.family(name, help, Kind::Gauge, &one(value))?;
        }
        let build: Labels<'_> = &[("version", env!("CARGO_PKG_VERSION"))];
        sink.family("build", "The server's version", Kind::Info, &[(build, 1)])
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
