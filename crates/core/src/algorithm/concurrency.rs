//! Concurrency: permits in flight.

use core::time::Duration;

use super::{Algorithm, SlidingLog, never_fits};
use crate::{Debt, Decision, Lasts, Nanos, Parameters, PolicyError, Quota, Share};

/// At most `limit` permits out at any instant; a permit comes back by a refund.
///
/// With a longest hold a permit that is never given back (its holder died) comes back by itself that long after it
/// was taken; the state is then a log of when each permit was taken. Without one the state is a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u32,
    held: Option<SlidingLog>,
}

impl Concurrency {
    /// Permits that only a refund brings back.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { limit, held: None }
    }

    /// Permits that also come back `hold` after they were taken.
    ///
    /// # Errors
    /// For a hold of zero or above [`MAX_WINDOW`](crate::MAX_WINDOW), or a limit above 1,000,000.
    pub fn hold(self, hold: Duration) -> Result<Self, PolicyError> {
        let quota = Quota::new(self.limit, hold).map_err(PolicyError::Quota)?;
        Ok(Self { held: Some(SlidingLog::new(quota)?), ..self })
    }

    /// Writes into `new`, a fresh state, the permits that are out by `old`, a state of `from`: all of them, above the
    /// limit too.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64], now: Nanos) {
        match (self.held, from.held) {
            (Some(log), Some(other)) => log.carry(new, &other, old),
            _ => self.keep(new, now, from.used(old, now)),
        }
    }

    /// Writes into `new`, a fresh state, that `used` permits were taken at `now`.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u32) {
        match self.held {
            Some(log) => log.keep(new, now, used),
            None => new[0] = used.into(),
        }
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        let hold = match &self.held {
            Some(log) => Some(log.lifetime()),
            None => None,
        };
        Parameters::Concurrency { limit: self.limit, hold }
    }
}

impl Algorithm for Concurrency {
    fn words(&self) -> usize {
        self.held.map_or(1, |log| log.words())
    }

    #[inline]
    fn limit(&self) -> u32 {
        self.limit
    }

    fn check(&self, state: &[u64], now: Nanos, cost: u32) -> Decision {
        if let Some(log) = self.held {
            return log.check(state, now, cost);
        }
        let limit = u64::from(self.limit);
        let room = limit.saturating_sub(state[0]);
        // Nobody knows when a permit comes back.
        let reset = |out: u64| if out == 0 { 0 } else { u64::MAX };
        if u64::from(cost) <= room || cost == 0 {
            Decision::allow(self.limit, room - u64::from(cost), 1, reset(state[0] + u64::from(cost)))
        } else {
            never_fits(self.limit, room, reset(state[0]))
        }
    }

    fn record(&self, state: &mut [u64], now: Nanos, cost: u32) {
        match self.held {
            Some(log) => log.record(state, now, cost),
            None => state[0] = (state[0] + u64::from(cost)).min(u64::from(self.limit).max(state[0])),
        }
    }

    /// A permit comes back: the one that was taken first, of those that are out.
    fn refund(&self, state: &mut [u64], now: Nanos, cost: u32) {
        match self.held {
            Some(log) => log.forget_oldest(state, now, cost),
            None => state[0] = state[0].saturating_sub(u64::from(cost)),
        }
    }

    /// Without a hold the permits of both are out, whoever asked for them.
    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos) {
        match self.held {
            Some(log) => log.join(state, other, now),
            None => state[0] = state[0].max(other[0]),
        }
    }

    fn accepts(&self, state: &[u64]) -> bool {
        match self.held {
            Some(log) => log.accepts(state),
            None => state.len() == 1 && u32::try_from(state[0]).is_ok(),
        }
    }

    fn used(&self, state: &[u64], now: Nanos) -> u32 {
        match self.held {
            Some(log) => log.used(state, now),
            None => u32::try_from(state[0]).unwrap_or(u32::MAX),
        }
    }

    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        if let Some(log) = self.held {
            return log.debt(state, now);
        }
        let out = self.used(state, now);
        Some(Debt { share: Share::of(out, self.limit)?, lasts: Lasts::UntilReturned(out) })
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        match (self.held, debt.lasts) {
            (Some(log), _) => log.owe(state, debt),
            (None, Lasts::UntilReturned(out)) => state[0] = out.into(),
            // No debt of this algorithm.
            (None, Lasts::Until(_)) => state[0] = debt.share.units(self.limit).into(),
        }
    }
}
