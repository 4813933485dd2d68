//! Permits in flight through changes of their longest hold.

use super::{AnyAlgorithm, Estimate, Policy};
use crate::Nanos;

/// The effect of changes of a limit's policy on permits that were taken before. The limit's keeper
/// makes each change known, and asks whether a permit [has ended](Self::has_ended) before it
/// returns it.
///
/// A permit whose hold has passed is free, and stays free if a change makes the hold longer or
/// removes it. A hold that is new begins for all permits in use with the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Permits that were taken before this time had ended at a change.
    ended: Nanos,
    /// A hold counts from this time for permits that were taken before.
    from: Nanos,
}

impl Holds {
    /// The same after a change of policy at `now`.
    #[must_use]
    pub fn after(self, from: &Policy, to: &Policy, now: Nanos) -> Self {
        let mut holds = self;
        if let Some(hold) = from.hold_nanos()
            && let Some(last) = now.get().checked_sub(hold)
            && last >= self.from.get()
        {
            holds.ended = self.ended.max(Nanos::new(last.saturating_add(1)));
        }
        if from.is_concurrency() && from.hold_nanos().is_none() && to.hold_nanos().is_some() {
            holds.from = self.from.max(now);
        }
        holds
    }

    /// The changes since an earlier value.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let added = |now: Nanos, before: Nanos| if now > before { now } else { Nanos::ZERO };
        Self {
            ended: added(self.ended, earlier.ended),
            from: added(self.from, earlier.from),
        }
    }

    /// The changes of both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self {
            ended: self.ended.max(other.ended),
            from: self.from.max(other.from),
        }
    }

    /// Whether an estimate is of permits that are free already, so that their holder returns
    /// nothing.
    #[must_use]
    pub fn has_ended(self, policy: &Policy, estimate: &Estimate, now: Nanos) -> bool {
        policy.is_concurrency()
            && (estimate.taken < self.ended || policy.has_freed(&self.counted(*estimate), now))
    }

    /// The estimate as the state counts it.
    #[must_use]
    pub fn counted(self, estimate: Estimate) -> Estimate {
        Estimate {
            taken: estimate.taken.max(self.from),
            ..estimate
        }
    }
}

impl Policy {
    /// Releases permits that were taken at `taken` and are in use.
    pub(crate) fn release_permits(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u64) {
        let (state, _) = self.split_mut(state);
        if let AnyAlgorithm::Concurrency(permits) = &self.rule {
            permits.release(state, now, taken, cost);
        }
    }

    fn hold_nanos(&self) -> Option<u64> {
        match &self.rule {
            AnyAlgorithm::Concurrency(permits) => permits.hold_nanos(),
            _ => None,
        }
    }
}
