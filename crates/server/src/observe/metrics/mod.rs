//! The server's metrics for Prometheus. Every label has few values (limits, outcomes, routes) and
//! never a key.

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

use crate::observe::webhook::WebhookStats;

#[cfg(feature = "grpc")]
mod grpc;
mod process;
mod resp;
mod sentinel;
mod source;
mod spoe;
mod text;
#[cfg(feature = "grpc")]
mod xds;

#[cfg(all(feature = "grpc", feature = "otlp"))]
pub(crate) use self::grpc::CODES;
#[cfg(feature = "grpc")]
pub(crate) use self::grpc::GrpcStats;
pub(crate) use self::resp::RespStats;
pub(crate) use self::sentinel::{DashboardStats, SentinelStats};
pub(crate) use self::spoe::SpoeStats;
#[cfg(feature = "grpc")]
pub(crate) use self::xds::XdsStats;
use source::Scraped;
pub(crate) use source::{Labels, MetricKind, MetricSource, Sink};
pub(crate) use text::in_format;

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
    /// The families of a listener that has its own: `prefix` begins their names, and `protocol` is
    /// for people.
    fn report(&self, sink: &mut dyn Sink, prefix: &str, protocol: &str) -> fmt::Result {
        let open = self.open.load(Ordering::Relaxed) as u64;
        let help = format!("Open {protocol} connections");
        sink.gauge(&format!("{prefix}_connections"), &help, open)?;
        let mut count = |event: &str, help: &str, counted| {
            let help = format!("{protocol} connections {help}");
            sink.count(
                &format!("{prefix}_connections_{event}"),
                &help,
                read(counted),
            )
        };
        count("accepted", "accepted", &self.accepted)?;
        let help = "refused because all slots were busy or the client had too many";
        count("refused", help, &self.refused)?;
        let help = format!("Idle {protocol} connections closed for new ones");
        sink.count(
            &format!("{prefix}_connections_evicted"),
            &help,
            read(&self.evicted),
        )
    }
}

impl Events {
    pub fn set_rejected(&self, problems: Vec<String>) {
        *self.rejected.lock().unwrap_or_else(PoisonError::into_inner) = problems;
    }

    /// The known problems of the rules file.
    pub fn rejected(&self) -> Vec<String> {
        self.rejected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// All metrics of one server.
pub(crate) struct Metrics {
    registry: Registry,
    /// Metrics whose names have no prefix.
    process: Registry,
    /// The counters, read at a scrape, except those that OpenTelemetry has in another form.
    pub sources: Vec<Arc<dyn MetricSource>>,
    #[cfg(feature = "grpc")]
    pub grpc: Arc<GrpcStats>,
}

impl Metrics {
    pub fn new(events: Arc<Events>, resp: Arc<RespStats>) -> Self {
        let mut process = Registry::default();
        process.register_collector(Box::new(process::Process));
        let mut metrics = Self {
            registry: Registry::with_prefix("tidegate"),
            process,
            sources: Vec::new(),
            #[cfg(feature = "grpc")]
            grpc: Arc::default(),
        };
        metrics.add(Arc::new(Counted { events, resp }));
        metrics
    }

    /// Adds counters for Prometheus alone: OpenTelemetry has them in another form.
    pub fn add_to_scrapes(&mut self, source: Arc<dyn MetricSource>) {
        self.registry.register_collector(Box::new(Scraped(source)));
    }

    pub fn add(&mut self, source: Arc<dyn MetricSource>) {
        self.add_to_scrapes(Arc::clone(&source));
        self.sources.push(source);
    }

    /// Adds the counters of gRPC.
    #[cfg(feature = "grpc")]
    pub fn add_grpc(&mut self, stats: Arc<GrpcStats>) {
        self.grpc = Arc::clone(&stats);
        self.add(stats);
    }

    /// Adds the counters of envoyproxy/ratelimit under its names, which have no prefix.
    #[cfg(feature = "grpc")]
    pub fn add_reference(&mut self, reference: Arc<dyn MetricSource>) {
        self.process
            .register_collector(Box::new(Scraped(reference)));
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

    /// The metrics of the limits that `covers` selects, and no others: neither names nor counts of
    /// other limits, rules and programs.
    pub fn encode_covered(&self, covers: impl Fn(&str) -> bool) -> String {
        let keeps = |line: &&str| {
            line.starts_with('#') || limit_of(line).is_some_and(|limit| covers(&limit))
        };
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

/// The events of a server, and the connections of HTTP and RESP.
struct Counted {
    events: Arc<Events>,
    resp: Arc<RespStats>,
}

impl MetricSource for Counted {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        self.report_connections(sink)?;
        self.report_events(sink)
    }
}

type Count = fn(&ConnectionStats) -> u64;

impl Counted {
    fn report_connections(&self, sink: &mut dyn Sink) -> fmt::Result {
        let (resp, events) = (&self.resp, &self.events);
        let protocols = [
            ("http", &*events.http),
            ("admin", &*events.admin),
            ("resp", &resp.connections),
        ];
        let mut each = |name: &str, help: &str, kind, read: Count| {
            let counted = protocols
                .iter()
                .map(|(protocol, stats)| ([("protocol", *protocol)], read(stats)));
            sink.labelled(name, help, kind, counted)
        };
        let open: Count = |stats| stats.open.load(Ordering::Relaxed) as u64;
        each("connections", "Open connections", MetricKind::Gauge, open)?;
        each(
            "connections_accepted",
            "Connections accepted",
            MetricKind::Counter,
            |stats| read(&stats.accepted),
        )?;
        let help = "Idle connections closed for new ones";
        each("connections_evicted", help, MetricKind::Counter, |stats| {
            read(&stats.evicted)
        })?;
        let help = "Connections whose TLS handshake failed or timed out";
        each(
            "tls_handshakes_failed",
            help,
            MetricKind::Counter,
            |stats| read(&stats.handshakes_failed),
        )?;
        let help = "Seconds from the arrival of RESP commands to their answers";
        sink.histogram("resp_command_seconds", help, &[(&[], resp.latency.read())])?;
        sink.count("resp_commands", "RESP commands", read(&resp.commands))?;
        sink.count(
            "resp_auth_failures",
            "Wrong passwords over RESP",
            read(&resp.auth_failures),
        )?;
        let help =
            "HTTP connections refused because all slots were busy or the client had too many";
        let refused = read(&events.http.refused) + read(&events.admin.refused);
        sink.count("http_connections_refused", help, refused)?;
        let help =
            "RESP connections refused because of the bound or because the client had too many";
        sink.count(
            "resp_connections_refused",
            help,
            read(&resp.connections.refused),
        )?;
        let help = "RESP connections closed for malformed input";
        sink.count("resp_protocol_errors", help, read(&resp.protocol_errors))?;
        let help = "RESP connections closed because they were idle or stuck";
        sink.count("resp_timeouts", help, read(&resp.timeouts))
    }

    fn report_events(&self, sink: &mut dyn Sink) -> fmt::Result {
        let events = &self.events;
        let mut outcomes = |name: &str, help: &str, [ok, failed]: [&AtomicU64; 2]| {
            let counts = [
                ([("result", "ok")], read(ok)),
                ([("result", "failed")], read(failed)),
            ];
            sink.labelled(name, help, MetricKind::Counter, counts)
        };
        let help = "Reloads of the rules file, successful or rejected";
        outcomes(
            "rules_reloads",
            help,
            [&events.reloads, &events.reloads_refused],
        )?;
        let help = "Writes of the state file, successful or failed";
        outcomes(
            "state_writes",
            help,
            [&events.state_writes, &events.state_writes_failed],
        )?;
        let help = "Reloads of the certificates, successful or rejected";
        outcomes(
            "certificate_loads",
            help,
            events.certificate_loads.each_ref(),
        )?;
        let help = "Reloads of the access file, successful or rejected";
        outcomes("access_loads", help, events.access_loads.each_ref())?;
        let WebhookStats {
            sent,
            failed,
            dropped,
        } = &*events.webhook;
        let posts = [("sent", sent), ("failed", failed), ("dropped", dropped)];
        let posts = posts.map(|(result, count)| ([("result", result)], read(count)));
        let help = "Events of thresholds that the webhook took, attempts that failed, and events that were dropped";
        sink.labelled("webhook_events", help, MetricKind::Counter, posts)?;
        let seconds = |nanos: &AtomicU64| read(nanos) / 1_000_000_000;
        let help = "Time when the rules were last loaded";
        sink.gauge(
            "rules_loaded_timestamp_seconds",
            help,
            seconds(&events.rules_loaded_at),
        )?;
        let help = "Time when the state was last written";
        sink.gauge(
            "state_written_timestamp_seconds",
            help,
            seconds(&events.state_written_at),
        )?;
        sink.gauge(
            "state_bytes",
            "Length of the state file",
            read(&events.state_bytes),
        )?;
        let build: Labels<'_> = &[("version", env!("CARGO_PKG_VERSION"))];
        sink.family(
            "build",
            "The server's version",
            MetricKind::Info,
            &[(build, 1)],
        )
    }
}

pub(crate) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
