//! The server's metrics for Prometheus. Every label has few values (limits, outcomes, routes) and
//! never a key.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};

use crate::reached::WebhookStats;

mod process;
mod source;
mod text;

use source::Scraped;
pub use source::{Labels, MetricKind, MetricSource, Sink};
pub use text::Rendering;

/// Events other than decisions. Relaxed counters: a scrape needs no exact moment.
#[derive(Debug, Default)]
pub struct Events {
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
pub struct ConnectionStats {
    pub open: AtomicUsize,
    pub accepted: AtomicU64,
    /// Idle connections that were closed for new ones.
    pub evicted: AtomicU64,
    /// New connections that were refused because no idle one could be closed.
    pub refused: AtomicU64,
    /// Connections whose TLS handshake failed or timed out.
    pub handshakes_failed: AtomicU64,
    /// Responses whose client had closed its side of the connection before they were written.
    pub unawaited: AtomicU64,
}

impl ConnectionStats {
    /// The families of a listener that has its own: `prefix` begins their names, and `protocol` is
    /// for people.
    pub fn report(&self, sink: &mut dyn Sink, prefix: &str, protocol: &str) -> fmt::Result {
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
        *self.rejected.lock() = problems;
    }

    /// The known problems of the rules file.
    pub fn rejected(&self) -> Vec<String> {
        self.rejected.lock().clone()
    }
}

/// All metrics of one server.
pub struct Metrics {
    registry: Registry,
    /// Metrics whose names have no prefix.
    process: Registry,
    /// The counters, read at a scrape, except those that OpenTelemetry has in another form.
    pub sources: Vec<Arc<dyn MetricSource>>,
}

impl Metrics {
    /// The metrics of the process.
    #[allow(clippy::new_without_default, reason = "it is not empty")]
    pub fn new() -> Self {
        let mut process = Registry::default();
        process.register_collector(Box::new(process::Process));
        Self {
            registry: Registry::with_prefix("tidegate"),
            process,
            sources: Vec::new(),
        }
    }

    /// Adds counters for Prometheus alone: OpenTelemetry has them in another form.
    pub fn add_to_scrapes(&mut self, source: Arc<dyn MetricSource>) {
        self.registry.register_collector(Box::new(Scraped(source)));
    }

    pub fn add(&mut self, source: Arc<dyn MetricSource>) {
        self.add_to_scrapes(Arc::clone(&source));
        self.sources.push(source);
    }

    /// Adds counters for Prometheus alone, whose names have no prefix.
    pub fn add_without_prefix(&mut self, source: Arc<dyn MetricSource>) {
        self.process.register_collector(Box::new(Scraped(source)));
    }

    /// All metrics as they are now.
    pub fn render(&self) -> Rendering {
        let mut text = String::new();
        // Writing to a `String` does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        let _ = encode_registry(&mut text, &self.process);
        let _ = encode_eof(&mut text);
        Rendering::new(text)
    }
}

/// The metrics of the limits that `covers` selects, and no others: neither names nor counts of other
/// limits, rules and programs.
pub fn covered(text: &str, covers: impl Fn(&str) -> bool) -> String {
    let keeps =
        |line: &&str| line.starts_with('#') || limit_of(line).is_some_and(|limit| covers(&limit));
    text.split_inclusive('\n').filter(keeps).collect()
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

pub fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
