//! Units that are taken ahead of their use: what each algorithm needs so that its bound holds for the moments of use.
//!
//! Somebody takes units from a shared state at `t` and uses them at `u`, a little later. The state counts them at `t`;
//! whoever watches the uses counts them at `u`. Both agree on the bound, each algorithm for a reason of its own:
//!
//! * Fixed window, sliding window, sliding counter: the state tells no times within a window (a slot) apart. Units that
//!   are used before the window (the slot) of their taking ends change nothing.
//! * Sliding log: entries count for the slack longer. Uses in a window `[x, x + W)` were taken in
//!   `[x − slack, x + W)`, which is no longer than what the stretched log looks at.
//! * Token bucket: the bucket is smaller by what refills in the slack. Uses in `[x, y]` were taken in `[x − slack, y]`:
//!   at most `burst − refill(slack) + refill(y − x + slack)`, which is what the full bucket admits in `[x, y]`.
//! * Leaky bucket: it hands out moments at which to start, and a moment cannot be kept. Permits in flight are held until
//!   they are given back, not used up. A policy that counts denials must see each. None of them is taken ahead.

use crate::{Nanos, policy::Rule};

use super::{Algorithm, Policy};

impl Policy {
    /// The policy by which a shared state must decide so that units may be used up to a slack after they were taken, and
    /// that slack: at most the one asked for, and at most a sixteenth of a log's window or of the time in which a bucket
    /// fills. `None` where nothing can be taken ahead (see the module).
    ///
    /// Whatever is used within the slack, and within [`counted_alike_for`](Self::counted_alike_for), is admitted by this
    /// policy at the moment of its use.
    #[must_use]
    pub fn ahead(&self, slack: Nanos) -> Option<(Self, Nanos)> {
        if self.count_denied || slack == Nanos::ZERO || self.limit() == 0 {
            return None;
        }
        let (rule, slack) = match self.rule {
            Rule::FixedWindow(_) | Rule::SlidingWindow(_) | Rule::SlidingCounter(_) => {
                (self.rule, slack.get())
            }
            Rule::SlidingLog(log) => {
                let slack = slack.get().min(log.lifetime() / 16);
                (Rule::SlidingLog(log.stretched(slack)), slack)
            }
            Rule::TokenBucket(bucket) => {
                let (less, slack) = bucket.kept_back(slack.get())?;
                (Rule::TokenBucket(less), slack)
            }
            Rule::LeakyBucket(_) | Rule::Concurrency(_) => return None,
        };
        (slack > 0).then_some((Self::new(rule), Nanos::new(slack)))
    }

    /// For how long after `now` units taken at `now` are counted as they would be if they were taken when they are used:
    /// the rest of the window or slot. Nothing for a time before the state's newest one, or where a `first-hit` window
    /// has not begun; [`Nanos::MAX`] where the algorithm has neither windows nor slots.
    #[must_use]
    pub fn counted_alike_for(&self, state: &[u64], now: Nanos) -> Nanos {
        match &self.rule {
            Rule::FixedWindow(window) => Nanos::new(window.window_left(state, now)),
            Rule::SlidingWindow(window) => Nanos::new(window.slot_left(state, now)),
            Rule::SlidingCounter(counter) => Nanos::new(counter.window_left(state, now)),
            _ => Nanos::MAX,
        }
    }

    /// Gives back units that were taken at `taken` (the time that the state was given then) and never used: the state
    /// is then as if they had not been taken, or stricter. Other than [`refund`](Algorithm::refund), which takes back
    /// what was taken last, it may come late and after others have taken.
    ///
    /// More than was taken at that time must not be given back.
    pub fn give_back(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u32) {
        match &self.rule {
            Rule::FixedWindow(window) => window.give_back(state, now, taken, cost),
            Rule::SlidingLog(log) => log.take_out(state, taken, cost),
            Rule::SlidingWindow(window) => window.give_back(state, now, taken, cost),
            Rule::SlidingCounter(counter) => counter.give_back(state, now, taken, cost),
            Rule::TokenBucket(bucket) => bucket.give_back(state, now, taken, cost),
            Rule::LeakyBucket(_) => {}
            Rule::Concurrency(permits) => permits.refund(state, now, cost),
        }
    }

    /// Takes `cost` that has been admitted elsewhere, whether it fits or not. What a bucket has no room for is owed;
    /// [`record`](Algorithm::record) would forget it.
    pub fn charge(&self, state: &mut [u64], now: Nanos, cost: u32) {
        match &self.rule {
            Rule::TokenBucket(bucket) => bucket.bottomless().record(state, now, cost),
            _ => self.record(state, now, cost),
        }
    }
}
