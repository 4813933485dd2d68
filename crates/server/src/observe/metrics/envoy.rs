//! The counters of envoyproxy/ratelimit, by domain and rule.

use std::fmt;

use super::{Kind, Labels, Sink};
use crate::envoy::{counts::NAMES, descriptors::Descriptors};

pub(super) fn tell(sink: &mut dyn Sink, descriptors: &Descriptors) -> fmt::Result {
    let read: Vec<_> = descriptors.counted().collect();
    let labels: Vec<_> =
        read.iter().map(|(domain, path, _)| [("domain", *domain), ("rule", path.as_str())]).collect();
    for (at, (name, help)) in NAMES.iter().enumerate() {
        let name = format!("envoy_{name}");
        let values: Vec<(Labels<'_>, u64)> =
            labels.iter().zip(&read).map(|(labels, (.., counts))| (&labels[..], counts[at])).collect();
        sink.family(&name, help, Kind::Counter, &values)?;
    }
    Ok(())
}
