//! The counters of the streams from control planes.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tidegate_core::Nanos;
use tidegate_service::observe::metrics::{MetricKind, MetricSource, Sink, read};

/// The counters of one control plane.
#[derive(Debug, Default)]
pub struct XdsStats {
    pub url: String,
    /// Whether there is a stream.
    is_up: AtomicBool,
    /// When there was none for the first time since, in seconds since 1970.
    lost_at: AtomicU64,
    /// When the control plane last sent something, in seconds since 1970; 0 for never.
    seen_at: AtomicU64,
    /// Answers that were put in force.
    pub updates: AtomicU64,
    /// Answers that were refused.
    pub refused: AtomicU64,
}

impl XdsStats {
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            ..Self::default()
        }
    }

    /// Notes that the control plane has sent something.
    pub fn seen_up(&self, now: Nanos) {
        self.is_up.store(true, Ordering::Relaxed);
        self.seen_at
            .store(now.get() / 1_000_000_000, Ordering::Relaxed);
    }

    /// Notes that the stream ended.
    pub fn seen_down(&self, now: Nanos) {
        if self.is_up.swap(false, Ordering::Relaxed) || read(&self.lost_at) == 0 {
            self.lost_at
                .store(now.get() / 1_000_000_000, Ordering::Relaxed);
        }
    }
}

/// The counters of all control planes.
#[derive(Debug)]
pub struct ControlPlanes(pub Vec<Arc<XdsStats>>);

impl MetricSource for ControlPlanes {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        fn is_up(stats: &XdsStats) -> bool {
            stats.is_up.load(Ordering::Relaxed)
        }

        let mut each = |name: &str, help: &str, kind, value: fn(&XdsStats) -> u64| {
            let values = self
                .0
                .iter()
                .map(|stats| ([("url", &*stats.url)], value(stats)));
            sink.labelled(name, help, kind, values)
        };
        let help = "Whether there is a stream from the control plane";
        each("xds_up", help, MetricKind::Gauge, |stats| {
            is_up(stats).into()
        })?;
        let help = "Since when there has been no stream, in seconds since 1970; 0 if there is one";
        let lost_at = |stats: &XdsStats| {
            if is_up(stats) {
                0
            } else {
                read(&stats.lost_at)
            }
        };
        each(
            "xds_lost_timestamp_seconds",
            help,
            MetricKind::Gauge,
            lost_at,
        )?;
        let help = "When the control plane last sent rules, in seconds since 1970; 0 for never";
        each(
            "xds_last_answer_timestamp_seconds",
            help,
            MetricKind::Gauge,
            |stats| read(&stats.seen_at),
        )?;
        let help = "Answers of the control plane that were put in force";
        each("xds_updates", help, MetricKind::Counter, |stats| {
            read(&stats.updates)
        })?;
        let help = "Answers of the control plane that were refused";
        each("xds_refused", help, MetricKind::Counter, |stats| {
            read(&stats.refused)
        })
    }
}
