//! Events of keys that have used a share of their limit: one for each key, threshold and period.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use tidegate_core::{Decision, DenialReason, Nanos};

use crate::observe::reached::Reached;

/// Called by a limit with each event.
pub type OnThreshold = Arc<dyn Fn(Reached) + Send + Sync>;

/// The maximum number of events that are remembered. Beyond that, events of other keys are left out
/// until some periods have ended.
const MOST: usize = 1 << 16;

/// The events of a limit's keys.
#[derive(Default)]
pub struct Thresholds(Mutex<Events>);

#[derive(Default)]
struct Events {
    /// By the key's hash and the percentage: when the period ends in which it was reached.
    reached: HashMap<(u64, u8), Nanos>,
    /// By percentage.
    counts: BTreeMap<u8, u64>,
}

impl Thresholds {
    /// Looks at a decision on a key. Passes on each of the `percentages` that the key has reached
    /// for the first time in this period, which lasts until the key has recovered: for a fixed
    /// window until its end.
    pub fn see(
        &self,
        percentages: &[u8],
        tag: u64,
        decision: &Decision,
        now: Nanos,
        mut event: impl FnMut(u8, u64),
    ) {
        // A block says nothing about the use.
        if decision.limit() == 0
            || decision
                .reason()
                .is_some_and(|reason| reason != DenialReason::Quota)
        {
            return;
        }
        let used = decision.limit().saturating_sub(decision.remaining());
        let is_reached = |percent: u8| {
            used.saturating_mul(100) >= decision.limit().saturating_mul(percent.into())
        };
        // Most decisions are below all thresholds, and take no lock.
        if !percentages.iter().any(|percent| is_reached(*percent)) {
            return;
        }
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for &percent in percentages {
            if !is_reached(percent) {
                continue;
            }
            let known = events.reached.get(&(tag, percent));
            if known.is_some_and(|until| now < *until) {
                continue;
            }
            if known.is_none() && events.reached.len() >= MOST {
                events.reached.retain(|_, until| now < *until);
                if events.reached.len() >= MOST {
                    continue;
                }
            }
            let until = now.saturating_add(Nanos::new(decision.reset_after_nanos()));
            events.reached.insert((tag, percent), until);
            *events.counts.entry(percent).or_default() += 1;
            event(percent, used);
        }
    }

    /// The number of events for each percentage.
    pub fn counts(&self) -> BTreeMap<u8, u64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .counts
            .clone()
    }
}
