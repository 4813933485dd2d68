//! The configuration in use: its domains, and the limit and counters of each rule.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock},
};

use tidegate_service::{
    decide::{
        limits::Limit,
        service::{Attached, InForce},
    },
    observe::metrics::Sink,
};

use super::counts::{NAMES, RuleCounts};
use crate::config::Domains;

/// The rules for descriptors. Replaced together with the limits.
#[derive(Debug, Default)]
pub struct Descriptors {
    pub domains: Domains,
    /// By rule number; `None` if everything is admitted.
    pub limits: Vec<Option<Arc<Limit>>>,
    /// By rule number.
    pub counts: Vec<Arc<RuleCounts>>,
}

/// Where no configuration is in force.
static NONE: LazyLock<Descriptors> = LazyLock::new(Descriptors::default);

impl Attached for Descriptors {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        super::metrics::report(sink, self)
    }
}

impl Descriptors {
    /// Those of the rules in force.
    pub fn of(in_force: &InForce) -> &Self {
        match in_force.attached() {
            Some(descriptors) => descriptors,
            None => &NONE,
        }
    }

    /// Whether there is a rule for Envoy.
    pub fn has_rules(in_force: &InForce) -> bool {
        !Self::of(in_force).domains.is_empty()
    }

    /// The domains, with `limit` to find their limits by name. Rules keep their counts from
    /// `before`.
    pub fn new<'l>(
        domains: Domains,
        limit: impl Fn(&str) -> Option<&'l Arc<Limit>>,
        before: Option<&Self>,
    ) -> Self {
        let places = before.map(|before| before.domains.rules().iter().zip(&before.counts));
        let mut counted: BTreeMap<(&str, &str), &Arc<RuleCounts>> = places
            .into_iter()
            .flatten()
            .map(|(rule, counts)| ((rule.domain.as_str(), rule.path.as_str()), counts))
            .collect();
        let rules = domains.rules();
        let limits = rules
            .iter()
            .map(|rule| limit(rule.limit.as_deref()?).cloned())
            .collect();
        let counts = rules
            .iter()
            // Two rules can have the same name in metrics; only one of them keeps its counts.
            .map(|rule| {
                counted
                    .remove(&(rule.domain.as_str(), rule.path.as_str()))
                    .cloned()
                    .unwrap_or_default()
            })
            .collect();
        Self {
            domains,
            limits,
            counts,
        }
    }

    /// The domain, the name in metrics and the counters of all rules, and of values with separate
    /// counters. Counters with the same name are added up.
    pub fn counted(&self) -> impl Iterator<Item = (&str, String, [u64; NAMES.len()])> {
        let mut all: BTreeMap<(&str, String), [u64; NAMES.len()]> = BTreeMap::new();
        for (rule, counts) in self.domains.rules().iter().zip(&self.counts) {
            for (path, read) in counts.read(&rule.path) {
                let sums = all.entry((rule.domain.as_str(), path)).or_default();
                sums.iter_mut()
                    .zip(read)
                    .for_each(|(sum, count)| *sum += count);
            }
        }
        all.into_iter()
            .map(|((domain, path), counts)| (domain, path, counts))
    }
}
