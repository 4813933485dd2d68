//! The counters of each rule for dashboards: those of envoyproxy/ratelimit. They survive a change
//! of the configuration.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
/// The maximum number of a rule's values with separate counters, if the configuration asks for
/// counters per value. Other values count with the rule itself.
const MAX_DETAILED: usize = 1_000;

/// The counters' names, as in envoyproxy/ratelimit.
pub const NAMES: [(&str, &str); 6] = [
    ("total_hits", "Hits of requests that match a rule"),
    (
        "over_limit",
        "Hits that were denied, or would have been denied without shadow mode",
    ),
    (
        "near_limit",
        "Admitted hits beyond four fifths of the limit, or the part that is set",
    ),
    (
        "over_limit_with_local_cache",
        "Hits denied by a block on this server, without asking the store",
    ),
    ("within_limit", "Admitted hits"),
    ("shadow_mode", "Hits admitted only because of shadow mode"),
];

/// The counters of one rule, or of one of its values. Relaxed throughout: they order nothing.
#[derive(Debug, Default)]
pub struct Hits([AtomicU64; NAMES.len()]);

/// The outcome of a descriptor's hits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    pub hits: u64,
    /// The hits that this limit took or denied: none if another limit denied the request.
    pub decided: u64,
    pub is_denied: bool,
    pub is_shadow: bool,
    /// Denied because this server blocks the key.
    pub is_blocked: bool,
    pub limit: u64,
    /// The units from which on hits are near the limit.
    pub near: u64,
    /// After the hits were taken.
    pub remaining: u64,
}

impl Hits {
    pub fn add(&self, fate: Fate) {
        let Fate {
            hits,
            decided,
            is_denied,
            is_shadow,
            is_blocked,
            limit,
            near: threshold,
            remaining,
        } = fate;
        let [total, over, near, blocked, within, shadow] = &self.0;
        let add = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        add(total, hits);
        if is_denied {
            add(over, decided);
            if is_blocked {
                add(blocked, decided);
            }
            if is_shadow {
                add(shadow, decided);
            }
            return;
        }
        add(within, decided);
        let used = limit.saturating_sub(remaining);
        if used > threshold {
            add(near, decided.min(used - threshold));
        }
    }

    pub fn read(&self) -> [u64; NAMES.len()] {
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }
}

/// The counters of one rule.
#[derive(Debug, Default)]
pub struct RuleCounts {
    plain: Hits,
    /// By the rule's name in metrics for these values.
    detailed: Mutex<BTreeMap<String, Arc<Hits>>>,
}

impl RuleCounts {
    /// Counts under the rule's own name, or under its name for the request's values.
    pub fn add(&self, detailed: Option<String>, fate: Fate) {
        let Some(path) = detailed else {
            return self.plain.add(fate);
        };
        let mut all = self.detailed.lock();
        let room = all.len() < MAX_DETAILED;
        let hits = match all.get(&path) {
            Some(hits) => Arc::clone(hits),
            None if room => Arc::clone(all.entry(path).or_default()),
            None => return self.plain.add(fate),
        };
        drop(all);
        hits.add(fate);
    }

    /// All counters, with their names in metrics.
    pub fn read(&self, path: &str) -> Vec<(String, [u64; NAMES.len()])> {
        let detailed = self.detailed.lock();
        let mut all: Vec<_> = detailed
            .iter()
            .map(|(path, hits)| (path.clone(), hits.read()))
            .collect();
        drop(detailed);
        all.insert(0, (path.to_owned(), self.plain.read()));
        all
    }
}
