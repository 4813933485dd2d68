//! Metrics as the server counts them, for all exporters.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};

use crate::latency::LatencyRead;

/// The names and values of labels.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// The meaning of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// It only grows, and its name does not end with `_total`.
    Bare,
    /// It goes up and down.
    Gauge,
    /// It is 1, and the labels say something about the server.
    Info,
}

/// Something that has metrics.
pub trait MetricSource: Send + Sync {
    /// Reads all metrics, at about one time.
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result;
}

/// Receives metrics, one family after another, also families without values.
pub trait Sink {
    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricKind,
        values: &[(Labels<'_>, u64)],
    ) -> fmt::Result;

    /// OpenTelemetry cannot observe histograms, whose buckets are counted already: it has its own
    /// for requests.
    fn histogram(&mut self, _: &str, _: &str, _: &[(Labels<'_>, LatencyRead)]) -> fmt::Result {
        Ok(())
    }
}

impl dyn Sink + '_ {
    /// Takes a counter without labels.
    pub fn count(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.family(name, help, MetricKind::Counter, &[(&[], value)])
    }

    /// Takes a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.family(name, help, MetricKind::Gauge, &[(&[], value)])
    }

    /// Takes a family whose values have `N` labels each.
    pub fn labelled<'a, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricKind,
        values: impl IntoIterator<Item = ([(&'a str, &'a str); N], u64)>,
    ) -> fmt::Result {
        let values: Vec<_> = values.into_iter().collect();
        let values: Vec<_> = values
            .iter()
            .map(|(labels, value)| (&labels[..], *value))
            .collect();
        self.family(name, help, kind, &values)
    }
}

/// A source for Prometheus.
pub(super) struct Scraped(pub Arc<dyn MetricSource>);

impl fmt::Debug for Scraped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraped").finish_non_exhaustive()
    }
}

impl Collector for Scraped {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.report(&mut Scrape(&mut out))
    }
}

struct Scrape<'a, 'out>(&'a mut DescriptorEncoder<'out>);

impl Sink for Scrape<'_, '_> {
    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricKind,
        values: &[(Labels<'_>, u64)],
    ) -> fmt::Result {
        if values.is_empty() {
            return Ok(());
        }
        let metric = match kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Bare => MetricType::Unknown,
            MetricKind::Gauge => MetricType::Gauge,
            MetricKind::Info => MetricType::Info,
        };
        let mut family = self.0.encode_descriptor(name, help, None, metric)?;
        for (labels, value) in values {
            match (kind, labels) {
                (MetricKind::Info, labels) => family.encode_info(labels)?,
                (MetricKind::Counter, []) => {
                    family.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                }
                (MetricKind::Counter, labels) => {
                    family
                        .encode_family(labels)?
                        .encode_counter::<NoLabelSet, _, u64>(value, None)?;
                }
                (MetricKind::Gauge | MetricKind::Bare, []) => {
                    family.encode_gauge(&whole(*value))?;
                }
                (MetricKind::Gauge | MetricKind::Bare, labels) => {
                    family.encode_family(labels)?.encode_gauge(&whole(*value))?;
                }
            }
        }
        Ok(())
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        reads: &[(Labels<'_>, LatencyRead)],
    ) -> fmt::Result {
        if reads.is_empty() {
            return Ok(());
        }
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (
            labels,
            LatencyRead {
                sum,
                count,
                buckets,
            },
        ) in reads
        {
            match labels {
                [] => family.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)?,
                labels => {
                    family
                        .encode_family(labels)?
                        .encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)?;
                }
            }
        }
        Ok(())
    }
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
