//! The counters of envoyproxy/ratelimit, by domain and rule.

use std::fmt;

use super::{Descriptors, counts::NAMES};
use crate::observe::metrics::{MetricKind, Sink};

pub(in crate::decide) fn report(sink: &mut dyn Sink, descriptors: &Descriptors) -> fmt::Result {
    let read: Vec<_> = descriptors.counted().collect();
    for (at, (name, help)) in NAMES.iter().enumerate() {
        let values = read.iter().map(|(domain, path, counts)| {
            ([("domain", *domain), ("rule", path.as_str())], counts[at])
        });
        sink.labelled(&format!("envoy_{name}"), help, MetricKind::Counter, values)?;
    }
    Ok(())
}
