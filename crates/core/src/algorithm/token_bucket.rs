//! Token bucket: a bucket of `burst` tokens that fills by `limit` a window (GCRA).

use super::{Algorithm, gcra::Gcra, never_fits};
use crate::{Decision, Nanos, PolicyError, Quota};

/// A bucket of `burst` tokens (default: the limit) that refills evenly, one token each `window / limit`.
///
/// Bound: `burst + limit` in any window. State: one word, or two where `window / limit` is no whole number of
/// nanoseconds; exact in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    gcra: Gcra,
    burst: u32,
    /// `burst` in ticks.
    capacity: u128,
    /// `burst` in nanoseconds, rounded up.
    capacity_nanos: u64,
}

impl TokenBucket {
    /// A bucket that holds `quota.limit()` tokens.
    ///
    /// # Errors
    /// Never for a quota's own limit; see [`burst`](Self::burst).
    pub fn new(quota: Quota) -> Result<Self, PolicyError> {
        Self::with(Gcra::new(quota), quota.limit())
    }

    /// The same rate with a bucket of `burst` tokens. A burst of 0 denies everything.
    ///
    /// # Errors
    /// [`PolicyError::BurstTooLong`] when an empty bucket would take more than 73 years to fill.
    pub fn burst(self, burst: u32) -> Result<Self, PolicyError> {
        let denies_all = self.burst == 0;
        Self::with(self.gcra, if denies_all { 0 } else { burst })
    }

    /// One token each `interval` (at least a nanosecond), and a bucket of `burst`.
    ///
    /// # Errors
    /// As [`burst`](Self::burst).
    pub fn from_interval(interval: Nanos, burst: u32) -> Result<Self, PolicyError> {
        Self::with(Gcra { step: interval.get().max(1), parts: 1 }, burst)
    }

    fn with(gcra: Gcra, burst: u32) -> Result<Self, PolicyError> {
        let capacity_nanos = gcra.span(burst).ok_or(PolicyError::BurstTooLong)?;
        Ok(Self { gcra, burst, capacity: gcra.ticks(burst), capacity_nanos })
    }

    #[inline]
    fn check_whole(&self, tat: u64, now: u64, cost: u32) -> Decision {
        let debt = tat.saturating_sub(now);
        // No overflow: cost ≤ burst, so both terms are at most 2⁶².
        let after = debt + u64::from(cost) * self.gcra.step;
        if after <= self.capacity_nanos {
            return Decision::allow(self.burst, self.capacity_nanos - after, self.gcra.step, after);
        }
        let room = self.capacity_nanos.saturating_sub(debt);
        if cost == 0 {
            // More is owed than the bucket holds: the quota was lowered under it.
            return Decision::allow(self.burst, 0, 1, debt);
        }
        Decision::deny(self.burst, after - self.capacity_nanos, room, self.gcra.step, debt)
    }

    fn check_parts(&self, state: &[u64], now: Nanos, cost: u32) -> Decision {
        let debt = self.gcra.debt(state, now);
        let after = debt + self.gcra.ticks(cost);
        let units = |room: u128| (room / u128::from(self.gcra.step)) as u64;
        if cost == 0 || after <= self.capacity {
            let room = units(self.capacity.saturating_sub(after));
            return Decision::allow(self.burst, room, 1, self.gcra.to_nanos(after));
        }
        let room = units(self.capacity.saturating_sub(debt));
        let wait = self.gcra.to_nanos(after - self.capacity);
        Decision::deny(self.burst, wait, room, 1, self.gcra.to_nanos(debt))
    }
}

impl Algorithm for TokenBucket {
    fn words(&self) -> usize {
        self.gcra.words()
    }

    #[inline]
    fn limit(&self) -> u32 {
        self.burst
    }

    #[inline]
    fn check(&self, state: &[u64], now: Nanos, cost: u32) -> Decision {
        if cost > self.burst {
            let peek = self.check(state, now, 0);
            return never_fits(self.burst, peek.remaining(), peek.reset_after_nanos());
        }
        if self.gcra.parts == 1 {
            self.check_whole(state[0], now.get(), cost)
        } else {
            self.check_parts(state, now, cost)
        }
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u32) {
        let cost = cost.min(self.burst);
        if self.gcra.parts == 1 {
            let tat = state[0].max(now.get());
            let full = now.get() + self.capacity_nanos;
            state[0] = (tat + u64::from(cost) * self.gcra.step).min(full.max(tat));
        } else {
            let debt = self.gcra.debt(state, now);
            let after = (debt + self.gcra.ticks(cost)).min(self.capacity.max(debt));
            self.gcra.set_debt(state, now, after);
        }
    }

    #[inline]
    fn decide(&self, state: &mut [u64], now: Nanos, cost: u32) -> Decision {
        if self.gcra.parts == 1 && cost <= self.burst {
            // The same as below in fewer steps, as every thread on one limiter waits for this chain: at most
            // 2⁶² + 2⁶¹ + 2⁶¹, so no overflow.
            let after = state[0].max(now.get()) + u64::from(cost) * self.gcra.step - now.get();
            if after <= self.capacity_nanos {
                if cost > 0 {
                    state[0] = now.get() + after;
                }
                return Decision::allow(self.burst, self.capacity_nanos - after, self.gcra.step, after);
            }
        }
        let decision = self.check(state, now, cost);
        if cost > 0 && decision.is_allowed() {
            self.record(state, now, cost);
        }
        decision
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
}
