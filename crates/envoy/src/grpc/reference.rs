//! The counters of envoyproxy/ratelimit under its names, for `StatsD` and for Prometheus.

use std::{collections::BTreeMap, fmt, sync::Arc};

use tidegate_service::observe::metrics::{Events, Labels, MetricKind, MetricSource, Sink, read};
use tonic::Code;

use super::GrpcStats;
use crate::descriptors::{DescriptorService, Descriptors, counts::NAMES};

/// Rules with longer names are left out, so that each line fits into a datagram.
const MAX_NAME: usize = 1_024;
const RULES: &str = "ratelimit.service.rate_limit.";
const ERRORS: &str = "ratelimit.service.call.should_rate_limit.";
const CALLS: &str = "ratelimit_server.ShouldRateLimit.total_requests";
const METHOD: Labels<'static> = &[("grpc_method", "ShouldRateLimit")];

/// Where the counters are.
pub struct Reference {
    pub rates: Arc<DescriptorService>,
    pub events: Arc<Events>,
    pub grpc: Arc<GrpcStats>,
    /// Whether files were loaded at the start, which counts there.
    pub has_files: bool,
}

impl Reference {
    /// All counters by their names in `StatsD`.
    pub fn read(&self) -> BTreeMap<String, u64> {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        let in_force = self.rates.service().in_force();
        for (domain, path, counts) in Descriptors::of(&in_force).counted() {
            let rule = cleaned(&format!("{domain}.{path}"));
            for ((name, _), count) in NAMES.iter().zip(counts).filter(|_| rule.len() <= MAX_NAME) {
                // Names that differ only in what is cleaned are one.
                *all.entry(format!("{RULES}{rule}.{name}")).or_default() += count;
            }
        }
        let [ok, over, failed] = self.grpc.requests.each_ref().map(read);
        let of_store = self.grpc.errors.count(Code::Unavailable).min(failed);
        let loads = read(&self.events.reloads) + u64::from(self.has_files);
        let others = [
            ("ratelimit.service.config_load_success".to_owned(), loads),
            (
                "ratelimit.service.config_load_error".to_owned(),
                read(&self.events.reloads_refused),
            ),
            (
                "ratelimit.service.global_shadow_mode".to_owned(),
                read(&self.rates.shadowed),
            ),
            (format!("{ERRORS}redis_error"), of_store),
            (format!("{ERRORS}service_error"), failed - of_store),
            (CALLS.to_owned(), ok + over + failed),
        ];
        all.extend(others);
        all
    }
}

/// As it replaces characters that have a meaning in `StatsD`, and the dots of IPv4 addresses.
/// Control characters are replaced, too: values may be a client's.
fn cleaned(name: &str) -> String {
    let mut cleaned = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let (part, after) =
            rest.split_at(address_length(rest.as_bytes()).unwrap_or(first.len_utf8()));
        let is_address = part.len() > first.len_utf8();
        let replaces =
            |c: char| c.is_control() || matches!(c, ':' | '|') || (is_address && c == '.');
        cleaned.push_str(&part.replace(replaces, "_"));
        rest = after;
    }
    cleaned
}

/// The length of the IPv4 address at the beginning of a text, if there is one.
fn address_length(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    for part in 0..4 {
        if part > 0 {
            (text.get(at) == Some(&b'.')).then_some(())?;
            at += 1;
        }
        let digits = text[at..]
            .iter()
            .take(3)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        (digits > 0).then_some(())?;
        at += digits;
    }
    Some(at)
}

/// The family and the labels of a name by the mapping that is usual there.
fn mapped(name: &str) -> Option<(String, Vec<(&'static str, &str)>)> {
    if let Some((rule, event)) = name
        .strip_prefix(RULES)
        .and_then(|rest| rest.rsplit_once('.'))
    {
        let labels = ["domain", "key1", "key2"]
            .into_iter()
            .zip(rule.split('.'))
            .collect();
        let is_mapped = event != "over_limit_with_local_cache";
        return is_mapped.then(|| (format!("ratelimit_service_rate_limit_{event}"), labels));
    }
    if let Some(cause) = name.strip_prefix(ERRORS) {
        return Some((
            "ratelimit_service_should_rate_limit_error".to_owned(),
            vec![("err_type", cause)],
        ));
    }
    if name == CALLS {
        return Some((
            "ratelimit_service_total_requests".to_owned(),
            METHOD.to_vec(),
        ));
    }
    Some((name.replace('.', "_"), Vec::new()))
}

impl MetricSource for Reference {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        let all = self.read();
        let mut families: BTreeMap<String, BTreeMap<_, u64>> = BTreeMap::new();
        for (name, count) in &all {
            if let Some((family, labels)) = mapped(name) {
                *families
                    .entry(family)
                    .or_default()
                    .entry(labels)
                    .or_default() += count;
            }
        }
        for (family, values) in &families {
            let values: Vec<_> = values
                .iter()
                .map(|(labels, count)| (&labels[..], *count))
                .collect();
            sink.family(
                family,
                "As in envoyproxy/ratelimit",
                MetricKind::Bare,
                &values,
            )?;
        }
        let help = "As in envoyproxy/ratelimit";
        sink.histogram(
            "ratelimit_service_response_time_seconds",
            help,
            &[(METHOD, self.grpc.latency.read())],
        )
    }
}
