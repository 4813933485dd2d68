//! Estimates: units that are taken before the work, and corrected when the true cost is known.

use crate::{Nanos, Parameters, policy::AnyAlgorithm};

use super::{Algorithm, Policy};

/// Units that were taken for work whose cost was not yet known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The units that were taken.
    pub cost: u64,
    /// The time that was passed to the state then.
    pub taken: Nanos,
    /// Identifies the windows in which the units count, or the rate of a bucket. The holder of the
    /// state compares it: units return only where it is the same as when they were taken.
    pub place: u64,
}

impl Policy {
    /// Identifies the windows, slots or entries in which units of this policy count. Policies that
    /// differ in their limits alone have the same ones. `None` for a bucket or permits: a state
    /// that remembers no times cannot tell which units a change of the policy kept.
    #[must_use]
    pub fn place(&self) -> Option<u64> {
        // Most estimates are of a bucket, which needs no look at its numbers.
        if matches!(
            self.rule,
            AnyAlgorithm::TokenBucket(_)
                | AnyAlgorithm::LeakyBucket(_)
                | AnyAlgorithm::Concurrency(_)
        ) {
            return None;
        }
        let (kind, one, two) = match self.parameters() {
            Parameters::FixedWindow {
                window, first_hit, ..
            } => (1, window, u64::from(first_hit)),
            Parameters::CalendarWindow { calendar, .. } => {
                // Times from before a correction of the clock are in no window of after.
                let ahead = self.wall_ahead().cast_unsigned();
                let zone = calendar.zone().bytes().fold(ahead, |hash: u64, byte| {
                    hash.wrapping_mul(131).wrapping_add(byte.into())
                });
                (
                    5,
                    calendar.period().mean(),
                    zone.wrapping_mul(32).wrapping_add(calendar.starts().into()),
                )
            }
            Parameters::SlidingLog { lifetime, .. } => (2, lifetime, 0),
            Parameters::SlidingWindow { slot, span, .. } => (3, slot, u64::from(span)),
            Parameters::SlidingCounter { window, .. } => (4, window, 0),
            _ => return None,
        };
        // The finalizer of SplitMix64, once for each number.
        Some([kind, one, two].into_iter().fold(0, |hash: u64, number| {
            let mixed = hash
                .wrapping_add(number)
                .wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^ mixed >> 31
        }))
    }

    /// Whether an estimate is of permits whose hold has passed: they are free already, so their
    /// holder returns nothing.
    #[must_use]
    pub fn has_freed(&self, estimate: &Estimate, now: Nanos) -> bool {
        match &self.rule {
            AnyAlgorithm::Concurrency(permits) => permits.has_freed(estimate.taken, now),
            _ => false,
        }
    }

    /// Corrects an estimate at `now` to the `actual` cost.
    ///
    /// If less was used, the rest goes back to where the estimate counts (see
    /// [`give_back`](Self::give_back)): to its window, its slot or its log entries, if they still
    /// count; to a token bucket less what has been refilled since. A leaky bucket keeps the start
    /// times that it gave out, so nothing goes back. If more was used, the difference is
    /// [charged](Algorithm::charge) at `now`.
    ///
    /// Permits in flight are returned, all of the estimate: the work is over. Permits whose hold has
    /// passed are free already.
    ///
    /// Callers settle an estimate once, and pass an `actual` of at least its cost if its
    /// [place](Estimate::place) is another one now. They do not settle permits that were reset.
    pub fn settle(&self, state: &mut [u64], now: Nanos, estimate: Estimate, actual: u64) {
        let Estimate { cost, taken, .. } = estimate;
        if matches!(self.rule, AnyAlgorithm::Concurrency(_)) {
            self.give_back(state, now, taken, cost);
        } else if actual < cost {
            self.give_back(state, now, taken, cost - actual);
        } else {
            self.charge(state, now, actual - cost);
        }
    }
}
