//! Leaky bucket: admitted work starts at an even pace; what comes early is delayed, and denied beyond a longest wait.

use core::time::Duration;

use super::{
    Algorithm,
    gcra::{Gcra, MAX_SPAN},
    never_fits,
};
use crate::{Debt, Decision, Nanos, Parameters, PolicyError, Quota};

/// One unit each `window / limit`: early work gets a delay of at most the longest wait (default: the window), and is
/// denied beyond it.
///
/// Bound: admitted units *start* no closer than `window / limit` when each waits out its delay. State as
/// [`TokenBucket`](super::TokenBucket)'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    gcra: Gcra,
    limit: u32,
    /// The longest wait in ticks.
    max_wait: u128,
}

impl LeakyBucket {
    /// Delays up to `quota.window()`.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        let gcra = Gcra::new(quota);
        let max_wait = u128::from(quota.window_nanos()) * u128::from(gcra.parts);
        Self { gcra, limit: quota.limit(), max_wait }
    }

    /// Delays up to `wait` instead; zero denies whatever is early.
    ///
    /// # Errors
    /// [`PolicyError::WaitTooLong`] above 36 years.
    pub fn max_wait(self, wait: Duration) -> Result<Self, PolicyError> {
        let nanos = Nanos::from(wait).get();
        if nanos > MAX_SPAN / 2 {
            return Err(PolicyError::WaitTooLong);
        }
        Ok(Self { max_wait: u128::from(nanos) * u128::from(self.gcra.parts), ..self })
    }

    /// The highest cost that would be admitted at `debt`: any, up to the limit, while the debt is within the wait.
    fn room(&self, debt: u128) -> u64 {
        if debt <= self.max_wait { u64::from(self.limit) } else { 0 }
    }

    /// Writes into `new`, a fresh state, the queue of `old`, a state of `from`: the moments that have been given out stay,
    /// and the next one comes after them. A queue longer than the longest wait here is cut to that, unless it would be as
    /// long at this rate.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64], now: Nanos) {
        let debt = from.gcra.debt(old, now);
        let same = if from.gcra.parts == self.gcra.parts {
            debt
        } else {
            u128::from(from.gcra.to_nanos(debt)) * u128::from(self.gcra.parts)
        };
        let at_this_rate = self.gcra.ticks(from.gcra.units(debt));
        self.gcra.set_debt(new, now, same.min(at_this_rate.max(self.max_wait)));
    }

    /// Writes into `new`, a fresh state, that `used` units were taken at `now`; at most a window's beyond the longest wait.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u32) {
        let most = self.max_wait + self.gcra.ticks(self.limit);
        self.gcra.set_debt(new, now, self.gcra.ticks(used).min(most));
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        let Gcra { step, parts } = self.gcra;
        let max_wait = (self.max_wait / parts as u128) as u64;
        Parameters::LeakyBucket { limit: self.limit, step, parts, max_wait }
    }
}

impl Algorithm for LeakyBucket {
    fn words(&self) -> usize {
        self.gcra.words()
    }

    #[inline]
    fn limit(&self) -> u32 {
        self.limit
    }

    fn check(&self, state: &[u64], now: Nanos, cost: u32) -> Decision {
        let debt = self.gcra.debt(state, now);
        let reset = self.gcra.to_nanos(debt);
        if cost > self.limit {
            return never_fits(self.limit, self.room(debt), reset);
        }
        if cost == 0 {
            return Decision::allow(self.limit, self.room(debt), 1, reset);
        }
        if debt > self.max_wait {
            return Decision::deny(self.limit, self.gcra.to_nanos(debt - self.max_wait), 0, 1, reset);
        }
        let after = debt + self.gcra.ticks(cost);
        Decision::delayed(self.limit, reset, self.room(after), 1, self.gcra.to_nanos(after))
    }

    fn record(&self, state: &mut [u64], now: Nanos, cost: u32) {
        let debt = self.gcra.debt(state, now);
        let cost = self.gcra.ticks(cost.min(self.limit));
        // A counted denial owes at most what an admission at the longest wait would have.
        let after = (debt + cost).min((self.max_wait + cost).max(debt));
        self.gcra.set_debt(state, now, after);
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u32) {
        self.gcra.refund(state, now, cost);
    }

    fn join(&self, state: &mut [u64], other: &[u64], _now: Nanos) {
        self.gcra.join(state, other);
    }

    fn accepts(&self, state: &[u64]) -> bool {
        self.gcra.accepts(state)
    }

    fn used(&self, state: &[u64], now: Nanos) -> u32 {
        self.gcra.units(self.gcra.debt(state, now))
    }

    /// The limit is the wait that is left: nothing is, once the debt is longer than the longest wait.
    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let waits = u32::try_from(self.max_wait / u128::from(self.gcra.step)).unwrap_or(u32::MAX);
        Debt::until(self.used(state, now), waits.saturating_add(1), self.gcra.end(state), now)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        self.gcra.owe(state, debt);
    }
}
