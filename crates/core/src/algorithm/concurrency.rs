//! Concurrency: permits in flight.

use core::time::Duration;

use super::{Algorithm, SlidingLog, StoredState, never_fits};
use crate::spec::{AlgorithmEntry, AlgorithmSpec, Amount, Known, Value, Wants};
use crate::{
    Debt, Decision, DenialReason, Lasts, Nanos, Parameters, PolicyError, Quota, Share, Standing,
};

/// The registry entry.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    name: "concurrency",
    aliases: &[],
    options: &[Known::new("hold", Wants::Span)],
    limits_rate: false,
    build: |spec, amount| {
        let Amount::Permits(limit) = amount else {
            return Err(PolicyError::Window);
        };
        let permits = Concurrency::new(limit);
        Ok(spec
            .span("hold")
            .map_or(Ok(permits), |hold| permits.hold(hold))?
            .into())
    },
};

/// At most `limit` permits in use at any instant; a refund releases a permit.
///
/// With a maximum hold time, a permit that is never released (its holder died) becomes free that
/// long after it was taken; the state is then a log of when each permit was taken. Without one the
/// state is a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: u32,
    held: Option<SlidingLog>,
}

impl Concurrency {
    /// Whether both read the same words in the same way.
    pub(crate) const fn same_layout(&self, other: &Self) -> bool {
        match (&self.held, &other.held) {
            (None, None) => true,
            (Some(one), Some(other)) => one.same_layout(other),
            _ => false,
        }
    }

    /// Permits that only a refund releases.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { limit, held: None }
    }

    /// Permits that also become free `hold` after they were taken.
    ///
    /// # Errors
    /// If the hold is zero or above [`MAX_WINDOW`](crate::MAX_WINDOW), or if the limit is above
    /// 1,000,000.
    pub fn hold(self, hold: Duration) -> Result<Self, PolicyError> {
        let quota = Quota::new(self.limit.into(), hold).map_err(PolicyError::Quota)?;
        Ok(Self {
            held: Some(SlidingLog::new(quota)?),
            ..self
        })
    }

    /// Carries the permits in use at `now` over from `old`, a state of `from`, to `new`, a fresh
    /// state: all of them, including those above the limit. Permits whose hold has passed stay
    /// free, however long the new hold is.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64], now: Nanos) {
        match (self.held, from.held) {
            (Some(log), Some(other)) => log.carry_counting(new, &other, old, now),
            _ => self.keep(new, now, from.used(old, now)),
        }
    }

    /// Releases permits that were taken at `taken`. Permits whose hold has passed are free already.
    pub(crate) fn give_back(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u64) {
        if !self.has_freed(taken, now) {
            self.release(state, now, taken, cost);
        }
    }

    /// Releases permits that were taken at `taken` and are in use: with a hold these and no others,
    /// so that a permit whose holder died ends at its time.
    pub(crate) fn release(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u64) {
        match self.held {
            Some(log) => log.release(state, now, taken, cost),
            None => self.refund(state, now, cost),
        }
    }

    /// The longest hold of a permit, in nanoseconds.
    pub(crate) fn hold_nanos(&self) -> Option<u64> {
        self.held.map(|log| log.lifetime())
    }

    /// Whether the hold of permits that were taken at `taken` has passed.
    pub(crate) fn has_freed(&self, taken: Nanos, now: Nanos) -> bool {
        self.hold_nanos()
            .is_some_and(|hold| now.saturating_since(taken).get() >= hold)
    }

    /// Records in `new`, a fresh state, that `used` units were taken at `now`.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u64) {
        match self.held {
            Some(log) => log.keep(new, now, used),
            None => new[0] = used.min(u32::MAX.into()),
        }
    }

    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        let hold = self
            .held
            .map(|log| Value::Span(Duration::from_nanos(log.lifetime())));
        (
            AlgorithmSpec::of(&ENTRY).with("hold", hold),
            Amount::Permits(self.limit),
        )
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        let hold = match &self.held {
            Some(log) => Some(log.lifetime()),
            None => None,
        };
        Parameters::Concurrency {
            limit: self.limit as u64,
            hold,
        }
    }
}

impl Algorithm for Concurrency {
    fn words(&self) -> usize {
        self.held.map_or(1, |log| log.words())
    }

    #[inline]
    fn limit(&self) -> u64 {
        self.limit.into()
    }

    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        if let Some(log) = self.held {
            return in_flight(log.peek(state, now, cost));
        }
        let limit = self.limit();
        let room = limit.saturating_sub(state[0]);
        let reset = |out: u64| if out == 0 { 0 } else { u64::MAX };
        let standing = |room, reset_after| Standing {
            limit,
            room,
            unit: 1,
            reset_after,
        };
        if state[0].saturating_add(cost) <= limit {
            Decision::allow(standing(room - cost, reset(state[0] + cost)))
        } else if cost > limit {
            never_fits(limit, room, reset(state[0]))
        } else {
            // It is unknown when a permit is released.
            in_flight(Decision::deny_for_good(standing(room, reset(state[0]))))
        }
    }

    fn record(&self, state: &mut [u64], now: Nanos, cost: u64) {
        match self.held {
            Some(log) => log.record(state, now, cost),
            None => {
                state[0] = state[0]
                    .saturating_add(cost)
                    .min(self.limit().max(state[0]));
            }
        }
    }

    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64) {
        if let Some(log) = self.held {
            return log.charge(state, now, cost);
        }
        state[0] = state[0].saturating_add(cost).min(u32::MAX.into());
    }

    /// Releases a permit: the oldest one in use.
    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64) {
        match self.held {
            Some(log) => log.release(state, now, Nanos::ZERO, cost),
            None => state[0] = state[0].saturating_sub(cost),
        }
    }

    fn used(&self, state: &[u64], now: Nanos) -> u64 {
        match self.held {
            Some(log) => log.used(state, now),
            None => state[0],
        }
    }
}

impl StoredState for Concurrency {
    /// Without a hold, the permits of both states are in use.
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

    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        if let Some(log) = self.held {
            return log.debt(state, now);
        }
        let share = Share::of(state[0], self.limit())?;
        Some(Debt {
            share,
            lasts: Lasts::UntilReturned(u32::try_from(state[0]).unwrap_or(u32::MAX)),
        })
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        match (self.held, debt.lasts) {
            (Some(log), _) => log.owe(state, debt),
            (None, Lasts::UntilReturned(out)) => state[0] = out.into(),
            // This algorithm makes no such debt.
            (None, Lasts::Until(_)) => {
                state[0] = debt.share.units(self.limit()).min(u32::MAX.into());
            }
        }
    }
}
/// Other work in flight, and not a quota, is why permits are denied.
fn in_flight(decision: Decision) -> Decision {
    if decision.exceeds_limit() {
        decision
    } else {
        decision.because(DenialReason::InFlight)
    }
}
