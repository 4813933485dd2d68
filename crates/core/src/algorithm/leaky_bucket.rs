//! Leaky bucket: admitted work starts at an even pace. Early work is delayed, or denied if it would
//! wait too long.

use core::time::Duration;

use super::{
    Algorithm, StoredState,
    gcra::{Gcra, MAX_SPAN},
    never_fits,
};
use crate::spec::{AlgorithmEntry, AlgorithmSpec, Amount, Known, Value, Wants};
use crate::{Debt, Decision, MAX_LIMIT, Nanos, Parameters, PolicyError, Quota, Standing};

/// The registry entry.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    name: "leaky-bucket",
    aliases: &[],
    options: &[Known::new("max_wait", Wants::Span)],
    limits_rate: true,
    build: |spec, amount| {
        let bucket = LeakyBucket::new(amount.quota()?);
        Ok(spec
            .span("max_wait")
            .map_or(Ok(bucket), |wait| bucket.max_wait(wait))?
            .into())
    },
};

/// One unit per `window / limit`: early work is delayed by at most the maximum wait (default: the
/// window), and denied if it would have to wait longer.
///
/// Bound: admitted units *start* at least `window / limit` apart if each waits for its delay.
/// Refunds are an exception: units that are given back after a change of the rate free the time
/// that they take at the new rate, which may be longer. The state is the same as
/// [`TokenBucket`](super::TokenBucket)'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    gcra: Gcra,
    limit: u64,
    /// The maximum wait in ticks.
    max_wait: u128,
}

impl LeakyBucket {
    /// Delays up to `quota.window()`.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        let gcra = Gcra::new(quota);
        let max_wait = u128::from(quota.window_nanos()) * u128::from(gcra.parts);
        Self {
            gcra,
            limit: quota.limit(),
            max_wait,
        }
    }

    /// Delays up to `wait` instead; zero denies all early work.
    ///
    /// # Errors
    /// [`PolicyError::WaitTooLong`] above 36 years.
    pub fn max_wait(self, wait: Duration) -> Result<Self, PolicyError> {
        let nanos = Nanos::from(wait).get();
        if nanos > MAX_SPAN / 2 {
            return Err(PolicyError::WaitTooLong);
        }
        Ok(Self {
            max_wait: u128::from(nanos) * u128::from(self.gcra.parts),
            ..self
        })
    }

    /// The highest cost that is admitted at `debt`: any cost up to the limit, while the debt is
    /// within the maximum wait.
    fn room(&self, debt: u128) -> u64 {
        if debt <= self.max_wait { self.limit } else { 0 }
    }

    /// Whether both read the same words in the same way.
    pub(crate) const fn same_layout(&self, other: &Self) -> bool {
        self.gcra.parts == other.gcra.parts
    }

    /// Carries the queue over from `old`, a state of `from`, to `new`, a fresh state: the start
    /// times that were handed out stay, and the next one comes after them, even if the queue is
    /// longer than this policy's maximum wait. New work is then denied until it would wait no
    /// longer than that.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64], now: Nanos) {
        let debt = from.gcra.debt(old, now);
        let same = if from.gcra.parts == self.gcra.parts {
            debt
        } else {
            u128::from(from.gcra.to_nanos(debt)) * u128::from(self.gcra.parts)
        };
        self.gcra.set_debt(new, now, same);
    }

    /// Records in `new`, a fresh state, that `used` units were taken at `now`; at most a window's
    /// beyond the maximum wait.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u64) {
        let most = self.max_wait + self.gcra.ticks(self.limit);
        self.gcra
            .set_debt(new, now, self.gcra.ticks(used).min(most));
    }

    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        // The interval is the window's share in lowest terms, so this is the window again.
        let window = self.gcra.to_nanos(self.gcra.ticks(self.limit.max(1)));
        let wait = (self.max_wait / u128::from(self.gcra.parts)) as u64;
        let wait = (wait != window).then_some(Value::Span(Duration::from_nanos(wait)));
        let spec = AlgorithmSpec::of(&ENTRY).with("max_wait", wait);
        (spec, Amount::Quota(Quota::of(self.limit, window)))
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        let Gcra { step, parts } = self.gcra;
        let max_wait = (self.max_wait / parts as u128) as u64;
        Parameters::LeakyBucket {
            limit: self.limit,
            step,
            parts,
            max_wait,
        }
    }
}

impl Algorithm for LeakyBucket {
    fn words(&self) -> usize {
        self.gcra.words()
    }

    #[inline]
    fn limit(&self) -> u64 {
        self.limit
    }

    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        let debt = self.gcra.debt(state, now);
        let reset = self.gcra.to_nanos(debt);
        if cost > self.limit {
            return never_fits(self.limit, self.room(debt), reset);
        }
        let standing = |room, reset_after| Standing {
            limit: self.limit,
            room,
            unit: 1,
            reset_after,
        };
        if debt > self.max_wait {
            return Decision::deny(standing(0, reset), self.gcra.to_nanos(debt - self.max_wait));
        }
        if cost == 0 {
            return Decision::allow(standing(self.room(debt), reset));
        }
        let after = debt + self.gcra.ticks(cost);
        Decision::delayed(standing(self.room(after), self.gcra.to_nanos(after)), reset)
    }

    fn record(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let debt = self.gcra.debt(state, now);
        let cost = self.gcra.ticks(cost.min(self.limit));
        // A counted denial owes at most what an admission at the maximum wait would have.
        let after = (debt + cost).min((self.max_wait + cost).max(debt));
        self.gcra.set_debt(state, now, after);
    }

    /// The limit of a leaky bucket is its maximum wait, so a state is over its limit while new work
    /// would wait longer.
    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64) {
        if cost > 0 {
            self.gcra.charge(state, now, cost);
        }
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64) {
        self.gcra.refund(state, now, cost);
    }

    fn used(&self, state: &[u64], now: Nanos) -> u64 {
        self.gcra.units(self.gcra.debt(state, now))
    }
}

impl StoredState for LeakyBucket {
    fn join(&self, state: &mut [u64], other: &[u64], _now: Nanos) {
        self.gcra.join(state, other);
    }

    fn accepts(&self, state: &[u64]) -> bool {
        self.gcra.accepts(state)
    }

    /// The limit is the wait that is left: none is left once the debt exceeds the maximum wait.
    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let waits = (self.max_wait / u128::from(self.gcra.step)).min(MAX_LIMIT.into()) as u64;
        Debt::until(self.used(state, now), waits + 1, self.gcra.end(state), now)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        self.gcra.owe(state, debt);
    }
}
