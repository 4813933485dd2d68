//! The limit algorithms. Each file holds one, with its state's layout, its bound and why the bound holds.

mod concurrency;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod token_bucket;

pub use concurrency::Concurrency;
pub use fixed_window::FixedWindow;
pub use leaky_bucket::LeakyBucket;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub(crate) use token_bucket::PlainBucket;
pub use token_bucket::TokenBucket;

use crate::{Debt, Decision, Nanos};

/// A limit as a pure function of state and time.
///
/// A state is [`words`](Algorithm::words) 64-bit words, all zero when fresh. Its owner must give each state to one
/// algorithm of one configuration (see [`Policy::transfer`](crate::Policy::transfer) for a change of configuration),
/// and must make one step out of reading, deciding and writing. The first word of a one-word state never has its top
/// bit set, so that a cell may keep a flag there.
///
/// A time older than the newest one that a state remembers never admits more than that newest time would.
///
/// # Panics
/// Every method may panic when the slice is shorter than [`words`](Algorithm::words).
pub trait Algorithm {
    /// How many words a state has. Fixed for one configuration.
    fn words(&self) -> usize;

    /// The highest cost that can ever be admitted: the quota's limit, or the burst where there is one.
    fn limit(&self) -> u32;

    /// What the answer to `cost` would be. Nothing is taken; for admitted work `remaining` and `reset_after` are
    /// those after taking it.
    fn check(&self, state: &[u64], now: Nanos, cost: u32) -> Decision;

    /// Takes `cost` without asking; the state saturates at its bound.
    fn record(&self, state: &mut [u64], now: Nanos, cost: u32);

    /// Gives back up to `cost` that was taken last; never more than is in use.
    fn refund(&self, state: &mut [u64], now: Nanos, cost: u32);

    /// Makes `state` at least as strict as `other` is, at every time from `now` on: whatever `state` admits after
    /// the join, both would have admitted.
    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos);

    /// Whether these words can be a state of this algorithm. Words from outside (a file, another process) must pass this
    /// before any other method sees them.
    fn accepts(&self, state: &[u64]) -> bool;

    /// How much of the limit is in use, in whole units, rounded up.
    fn used(&self, state: &[u64], now: Nanos) -> u32;

    /// What the state owes at `now`; `None` where it is as good as fresh. A store keeps this of a key that it has no room
    /// for, and chooses by it who gives way.
    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt>;

    /// Rebuilds a state from what it [owed](Self::debt), in place of a fresh one. The rebuilt state is as strict as the
    /// one that owed it, at every time, and as good as fresh when the debt ends: a debt whose share or end was rounded up
    /// is as strict as those say.
    fn owe(&self, state: &mut [u64], debt: Debt);

    /// Decides on `cost`, and takes it when admitted. A cost of 0 is a peek.
    #[inline]
    fn decide(&self, state: &mut [u64], now: Nanos, cost: u32) -> Decision {
        let decision = self.check(state, now, cost);
        if cost > 0 && decision.is_allowed() {
            self.record(state, now, cost);
        }
        decision
    }

    /// Takes as much of `cost` as is admitted now; returns how much, and the decision on that much.
    fn decide_up_to(&self, state: &mut [u64], now: Nanos, cost: u32) -> (u32, Decision) {
        let peek = self.check(state, now, 0);
        // `remaining` of a peek is by definition the highest cost that is admitted.
        let granted = u32::try_from(peek.remaining()).unwrap_or(u32::MAX).min(cost);
        if granted == 0 {
            return (0, self.check(state, now, cost.min(1)));
        }
        (granted, self.decide(state, now, granted))
    }

    /// Whether the state is as good as fresh, so that forgetting it changes nothing.
    fn is_recovered(&self, state: &[u64], now: Nanos) -> bool {
        self.check(state, now, 0).reset_after_nanos() == 0
    }
}

/// The denial of a limit of 0, or of a cost above the limit: it can never fit.
#[inline]
fn never_fits(limit: u32, room: u64, reset_after: u64) -> Decision {
    Decision::deny_for_good(limit, room, 1, reset_after)
}
