//! Events of keys that have used a share of their limit: one for each key, threshold and period.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tidegate_core::{Decision, DenialReason, Nanos};

use crate::observe::reached::Reached;

/// Called by a limit with each event.
pub type OnThreshold = Arc<dyn Fn(Reached) + Send + Sync>;

/// The maximum number of events that are remembered. Beyond that, events of other keys are left out
/// until some periods have ended, and up to a second longer.
const MOST: usize = 1 << 16;
/// The time between two searches for periods that have ended. A search looks at all events, so a
/// flood of keys must not cause one for each request.
const PAUSE: Nanos = Nanos::from_secs(1);

/// The events of a limit's keys.
#[derive(Default)]
pub struct Thresholds(Mutex<Events>);

#[derive(Default)]
struct Events {
    /// By the key's hash and the percentage: when the period ends in which it was reached.
    reached: HashMap<(u64, u8), Nanos>,
    /// When periods that have ended may be searched again.
    search_at: Nanos,
    /// By percentage.
    counts: BTreeMap<u8, u64>,
}

impl Events {
    /// Whether there is room for another one. Forgets those whose periods have ended.
    fn has_room(&mut self, now: Nanos) -> bool {
        if self.reached.len() >= MOST && self.search_at <= now {
            self.search_at = now.saturating_add(PAUSE);
            self.reached.retain(|_, until| now < *until);
        }
        self.reached.len() < MOST
    }
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
        let mut events = self.0.lock();
        for &percent in percentages {
            if !is_reached(percent) {
                continue;
            }
            let known = events.reached.get(&(tag, percent));
            if known.is_some_and(|until| now < *until) {
                continue;
            }
            if known.is_none() && !events.has_room(now) {
                continue;
            }
            let until = now.saturating_add(Nanos::new(decision.reset_after_nanos()));
            events.reached.insert((tag, percent), until);
            *events.counts.entry(percent).or_default() += 1;
            event(percent, used);
        }
    }

    /// The number of events for each percentage.
    pub fn counts(&self) -> BTreeMap<u8, u64> {
        self.0.lock().counts.clone()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm as _, Policy, Quota};

    use super::*;

    #[test]
    fn a_flood_of_keys_searches_for_ended_periods_once_a_second() {
        let thresholds = Thresholds::default();
        let policy = Policy::token_bucket(Quota::per_minute(2));
        // Whether the first request of a key is an event.
        let is_seen = |key: usize, now: Nanos| {
            let mut state = vec![0; policy.words()];
            let decision = policy.decide(&mut state, now, 1);
            let mut events = 0;
            thresholds.see(&[50], key as u64, &decision, now, |_, _| events += 1);
            events == 1
        };
        let begin = Nanos::from_secs(1_000);
        // A period lasts for half a minute. Those of these keys end within two seconds.
        for key in 0..MOST {
            let later = Nanos::new(key as u64 * 2_000_000_000 / MOST as u64);
            assert!(is_seen(key, begin.saturating_add(later)));
        }
        let at = |ms: u64| begin.saturating_add(Nanos::new((30_000 + ms) * 1_000_000));
        assert!(!is_seen(MOST, Nanos::new(at(0).get() - 1)), "it is full");
        // The first periods have ended, but a search was less than a second ago.
        assert!(!is_seen(MOST + 1, at(900)));
        // Now those of half of the keys, and of one more, have.
        for key in 0..=MOST / 2 {
            assert!(is_seen(2 * MOST + key, at(1_000)), "{key}");
        }
        assert!(!is_seen(4 * MOST, at(1_500)));
        assert!(is_seen(5 * MOST, at(2_000)));
    }
}
