//! The counters of envoyproxy/ratelimit, by domain and rule.

use std::fmt;

use tidegate_service::observe::metrics::{MetricKind, Sink};

use super::{Descriptors, counts::NAMES};

pub(super) fn report(sink: &mut dyn Sink, descriptors: &Descriptors) -> fmt::Result {
    let read: Vec<_> = descriptors.counted().collect();
    for (at, (name, help)) in NAMES.iter().enumerate() {
        let values = read.iter().map(|(domain, path, counts)| {
            ([("domain", *domain), ("rule", path.as_str())], counts[at])
        });
        sink.labelled(&format!("envoy_{name}"), help, MetricKind::Counter, values)?;
    }
    Ok(())
}
