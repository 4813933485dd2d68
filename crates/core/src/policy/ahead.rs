//! Units that are taken before they are used: what each algorithm needs so that its bound holds at
//! the times of use.
//!
//! A client takes units from a shared state at time `t` and uses them a little later, at `u`. The
//! state counts them at `t`; an observer of the uses counts them at `u`. The bound holds for both.
//! Each algorithm has its own reason:
//!
//! * Fixed window, sliding window, sliding counter: the state does not distinguish times within a
//!   window (a slot). Units that are used before the end of the window (the slot) in which they
//!   were taken change nothing.
//! * Sliding log: each entry counts for `slack` longer. Uses in a window `[x, x + W)` were taken in
//!   `[x − slack, x + W)`, which is no longer than the stretched log covers.
//! * Token bucket: the bucket is smaller by what refills during the slack. Uses in `[x, y]` were
//!   taken in `[x − slack, y]`: at most `burst − refill(slack) + refill(y − x + slack)`, which is
//!   what the full bucket admits in `[x, y]`.
//!
//! The rest cannot be taken ahead. A leaky bucket hands out start times, and a start time cannot be
//! kept for later. Permits in flight are held until they are returned, not used up. A policy that
//! counts denials, or blocks a key for them, must see each denial. A cost above the limit that waits
//! gets a start time.

use crate::{Nanos, policy::AnyAlgorithm};

use super::{Algorithm, Policy};

impl Policy {
    /// The policy by which a shared state must decide so that units may be used up to a slack after
    /// they were taken, and that slack. The slack is at most the requested one, and at most a
    /// sixteenth of a log's window or of a bucket's fill time. Returns `None` if the algorithm
    /// cannot take units ahead (see the module).
    ///
    /// This policy admits, at the time of use, all units that are used within the slack and within
    /// [`counted_alike_for`](Self::counted_alike_for).
    #[must_use]
    pub fn ahead(&self, slack: Nanos) -> Option<(Self, Nanos)> {
        let sees_each = self.count_denied || self.penalty.is_some() || self.waits_for_oversize();
        if sees_each || slack == Nanos::ZERO || self.limit() == 0 {
            return None;
        }
        let (rule, slack) = match self.rule {
            AnyAlgorithm::FixedWindow(_)
            | AnyAlgorithm::SlidingWindow(_)
            | AnyAlgorithm::SlidingCounter(_) => (self.rule, slack.get()),
            AnyAlgorithm::SlidingLog(log) => {
                let slack = slack.get().min(log.lifetime() / 16);
                (AnyAlgorithm::SlidingLog(log.stretched(slack)), slack)
            }
            AnyAlgorithm::TokenBucket(bucket) => {
                let (less, slack) = bucket.kept_back(slack.get())?;
                (AnyAlgorithm::TokenBucket(less), slack)
            }
            AnyAlgorithm::LeakyBucket(_) | AnyAlgorithm::Concurrency(_) => return None,
        };
        (slack > 0).then_some((Self::new(rule), Nanos::new(slack)))
    }

    /// How long after `now` units taken at `now` still count the same as if they were taken when
    /// they are used: the rest of the window or slot. Zero if `now` is before the state's newest
    /// time, or if no `first-hit` window has begun. [`Nanos::MAX`] if the algorithm has neither
    /// windows nor slots.
    #[must_use]
    pub fn counted_alike_for(&self, state: &[u64], now: Nanos) -> Nanos {
        let (state, _) = self.split(state);
        match &self.rule {
            AnyAlgorithm::FixedWindow(window) => Nanos::new(window.window_left(state, now)),
            AnyAlgorithm::SlidingWindow(window) => Nanos::new(window.slot_left(state, now)),
            AnyAlgorithm::SlidingCounter(counter) => Nanos::new(counter.window_left(state, now)),
            _ => Nanos::MAX,
        }
    }

    /// Returns units that were taken at `taken` (the time that was passed to the state then) and
    /// never used. The state is then as if they had not been taken, or stricter.
    /// [`refund`](Algorithm::refund) returns what was taken last; `give_back` may be called late,
    /// after others have taken units.
    ///
    /// Callers must not return more than was taken at that time.
    pub fn give_back(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u64) {
        let (state, _) = self.split_mut(state);
        match &self.rule {
            AnyAlgorithm::FixedWindow(window) => window.give_back(state, now, taken, cost),
            AnyAlgorithm::SlidingLog(log) => log.take_out(state, taken, cost),
            AnyAlgorithm::SlidingWindow(window) => window.give_back(state, now, taken, cost),
            AnyAlgorithm::SlidingCounter(counter) => counter.give_back(state, now, taken, cost),
            AnyAlgorithm::TokenBucket(bucket) => bucket.give_back(state, now, taken, cost),
            AnyAlgorithm::LeakyBucket(_) => {}
            AnyAlgorithm::Concurrency(permits) => permits.give_back(state, now, taken, cost),
        }
    }
}
