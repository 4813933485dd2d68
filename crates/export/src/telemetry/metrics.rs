//! Exports what `/metrics` shows, under the same names with a dot after `tidegate`, so that both
//! lead to the same dashboards.

use std::{collections::BTreeMap, fmt, sync::Arc};

use opentelemetry::{KeyValue, metrics::Meter};
use parking_lot::Mutex;
use tidegate_service::observe::metrics::{Labels, MetricKind, MetricSource, Sink};

/// The values of all families, read together.
#[derive(Default)]
struct Readings(BTreeMap<String, Vec<(Vec<KeyValue>, u64)>>);

/// Where the instruments find their values.
struct Bridge {
    sources: Vec<Arc<dyn MetricSource>>,
    readings: Mutex<Readings>,
}

impl Bridge {
    /// The values of a family. Each reading is used once: an instrument that finds none left reads
    /// all sources again, so one collection of all instruments is one reading.
    fn take(&self, name: &str) -> Vec<(Vec<KeyValue>, u64)> {
        let mut readings = self.readings.lock();
        if let Some(values) = readings.0.remove(name) {
            return values;
        }
        *readings = Readings::default();
        for source in &self.sources {
            // This sink does not fail.
            let _ = source.report(&mut *readings);
        }
        readings.0.remove(name).unwrap_or_default()
    }
}

impl Sink for Readings {
    fn family(
        &mut self,
        name: &str,
        _: &str,
        _: MetricKind,
        values: &[(Labels<'_>, u64)],
    ) -> fmt::Result {
        let attributes = |labels: Labels<'_>| {
            labels
                .iter()
                .map(|(name, value)| KeyValue::new((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let values = values
            .iter()
            .map(|(labels, value)| (attributes(labels), *value))
            .collect();
        self.0.insert(name.to_owned(), values);
        Ok(())
    }
}

/// Makes an instrument for each family.
struct Instruments<'a> {
    meter: &'a Meter,
    bridge: &'a Arc<Bridge>,
}

impl Sink for Instruments<'_> {
    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricKind,
        _: &[(Labels<'_>, u64)],
    ) -> fmt::Result {
        let (bridge, family) = (Arc::clone(self.bridge), name.to_owned());
        let full = format!("tidegate.{name}");
        let help = help.to_owned();
        // The meter keeps the callbacks.
        match kind {
            MetricKind::Counter | MetricKind::Bare => {
                let instrument = self
                    .meter
                    .u64_observable_counter(full)
                    .with_description(help);
                instrument
                    .with_callback(move |seen| observe(&bridge, &family, |v, a| seen.observe(v, a)))
                    .build();
            }
            MetricKind::Gauge => {
                let instrument = self.meter.u64_observable_gauge(full).with_description(help);
                instrument
                    .with_callback(move |seen| observe(&bridge, &family, |v, a| seen.observe(v, a)))
                    .build();
            }
            // The resource's attributes have the version.
            MetricKind::Info => {}
        }
        Ok(())
    }
}

fn observe(bridge: &Bridge, family: &str, seen: impl Fn(u64, &[KeyValue])) {
    for (attributes, value) in bridge.take(family) {
        seen(value, &attributes);
    }
}

pub(super) fn export(meter: &Meter, sources: &[Arc<dyn MetricSource>]) {
    let bridge = Arc::new(Bridge {
        sources: sources.to_vec(),
        readings: Mutex::default(),
    });
    for source in sources {
        // This sink does not fail.
        let _ = source.report(&mut Instruments {
            meter,
            bridge: &bridge,
        });
    }
}
