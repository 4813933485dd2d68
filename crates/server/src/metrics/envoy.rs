//! The counters of envoyproxy/ratelimit, by domain and rule.

use std::fmt;

use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};

use super::counter;
use crate::envoy::{counts::NAMES, descriptors::Descriptors};

pub(super) fn encode(out: &mut DescriptorEncoder<'_>, descriptors: &Descriptors) -> fmt::Result {
    let read: Vec<_> = descriptors.counted().collect();
    if read.is_empty() {
        return Ok(());
    }
    for (at, (name, help)) in NAMES.iter().enumerate() {
        let name = format!("envoy_{name}");
        let mut family = out.encode_descriptor(&name, help, None, MetricType::Counter)?;
        for (domain, path, counts) in &read {
            counter(&mut family, &[("domain", domain), ("rule", path)], counts[at])?;
        }
    }
    Ok(())
}
