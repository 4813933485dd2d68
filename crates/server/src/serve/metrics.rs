//! The metrics of the server's events, and of the connections of HTTP and RESP.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_service::observe::{
    metrics::{ConnectionStats, Events, Labels, MetricKind, MetricSource, Sink, read},
    reached::WebhookStats,
};

use tidegate_resp::RespStats;

/// The events of a server, and the connections of HTTP and RESP.
pub(super) struct Counted {
    pub events: Arc<Events>,
    pub resp: Arc<RespStats>,
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
        let help = "HTTP answers to clients that had closed their side of the connection already; proxies that give up do";
        sink.count("http_answers_unawaited", help, read(&events.http.unawaited))?;
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
