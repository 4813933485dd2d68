//! Fixed window: a count that restarts with each window.

use super::{Algorithm, never_fits};
use crate::spec::{AlgorithmEntry, AlgorithmSpec, Amount, Known, Value, Wants};
use crate::{Debt, Decision, Nanos, Parameters, Quota, Standing};

/// The registry entry.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    name: "fixed-window",
    aliases: &[],
    options: &[Known::new("first_hit", Wants::Flag)],
    limits_rate: true,
    build: |spec, amount| {
        let windows = FixedWindow::new(amount.quota()?);
        Ok(if spec.flag("first_hit") { windows.first_hit() } else { windows }.into())
    },
};

/// `limit` units in each window. Windows are aligned to the clock's origin, or each begins at its first admitted request.
///
/// Bound: `2 × limit` in any window's length (the end of one window and the start of the next).
/// State: the window's start, the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u32,
    window: u64,
    first_hit: bool,
}

impl FixedWindow {
    /// Aligned windows.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { limit: quota.limit(), window: quota.window_nanos(), first_hit: false }
    }

    /// A window starts at the first admitted request and ends a window's length later.
    #[must_use]
    pub const fn first_hit(self) -> Self {
        Self { first_hit: true, ..self }
    }

    pub(crate) const fn same_windows(&self, other: &Self) -> bool {
        self.window == other.window && self.first_hit == other.first_hit
    }

    /// How much of the window that contains `now` is left: units taken now count in that window alone. Zero if windows begin
    /// with the first hit and none has begun, because a window must begin with a unit that is used at once.
    pub(crate) fn window_left(&self, state: &[u64], now: Nanos) -> u64 {
        let (count, left) = self.current(state, now);
        if self.first_hit && count == 0 { 0 } else { left }
    }

    /// Returns units that were taken at `taken`, unless that window has ended.
    pub(crate) fn give_back(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u32) {
        if taken.get() >= state[0] {
            self.refund(state, now, cost);
        }
    }

    /// Records in `new`, a fresh state, that `used` units were taken at `now`.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u32) {
        new[0] = if self.first_hit { now.get() } else { now.get() - now.get() % self.window };
        new[1] = used.into();
    }

    /// The count at `now`, and how long it stays valid.
    #[inline]
    fn current(&self, state: &[u64], now: Nanos) -> (u64, u64) {
        let (start, count) = (state[0], state[1]);
        let end = start + self.window;
        if now.get() >= end || (self.first_hit && count == 0) {
            let left = if self.first_hit { self.window } else { self.window - now.get() % self.window };
            (0, left)
        } else {
            (count, end - now.get())
        }
    }

    /// Begins the window of `now` if nothing counts yet.
    #[inline]
    fn begin(&self, state: &mut [u64], now: Nanos, count: u64) {
        if count == 0 {
            // If the clock went back, the newest window remains current.
            let start = if self.first_hit { now.get() } else { now.get() - now.get() % self.window };
            state[0] = state[0].max(start);
        }
    }

    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        let spec = AlgorithmSpec::of(&ENTRY).with("first_hit", self.first_hit.then_some(Value::Flag(true)));
        (spec, Amount::Quota(Quota::of(self.limit, self.window)))
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        Parameters::FixedWindow { limit: self.limit, window: self.window, first_hit: self.first_hit }
    }
}

impl Algorithm for FixedWindow {
    fn words(&self) -> usize {
        2
    }

    #[inline]
    fn limit(&self) -> u32 {
        self.limit
    }

    #[inline]
    fn check(&self, state: &[u64], now: Nanos, cost: u32) -> Decision {
        let (count, left) = self.current(state, now);
        let limit = u64::from(self.limit);
        let room = limit.saturating_sub(count);
        let reset = |count: u64| if count == 0 { 0 } else { left };
        let standing = |room, reset_after| Standing { limit: self.limit, room, unit: 1, reset_after };
        if cost > self.limit {
            never_fits(self.limit, room, reset(count))
        } else if count + u64::from(cost) <= limit {
            Decision::allow(standing(room - u64::from(cost), reset(count + u64::from(cost))))
        } else {
            Decision::deny(standing(room, reset(count)), left)
        }
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u32) {
        let (count, _) = self.current(state, now);
        if cost > 0 {
            self.begin(state, now, count);
        }
        state[1] = count.max((count + u64::from(cost)).min(u64::from(self.limit)));
    }

    fn charge(&self, state: &mut [u64], now: Nanos, cost: u32) {
        let (count, _) = self.current(state, now);
        if cost > 0 {
            self.begin(state, now, count);
            state[1] = (count + u64::from(cost)).min(u32::MAX.into());
        }
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u32) {
        let (count, _) = self.current(state, now);
        if count > 0 {
            state[1] = count.saturating_sub(u64::from(cost));
        }
    }

    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos) {
        let (mine, my_left) = self.current(state, now);
        let (theirs, their_left) = self.current(other, now);
        if theirs == 0 {
            return;
        }
        // The later end and the higher count deny everything that either state would.
        state[0] = if mine == 0 || their_left > my_left { other[0] } else { state[0] };
        state[1] = mine.max(theirs);
    }

    fn accepts(&self, state: &[u64]) -> bool {
        state.len() == 2 && state[0] <= Nanos::MAX.get() && u32::try_from(state[1]).is_ok()
    }

    fn used(&self, state: &[u64], now: Nanos) -> u32 {
        u32::try_from(self.current(state, now).0).unwrap_or(u32::MAX)
    }

    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let (_, left) = self.current(state, now);
        Debt::until(self.used(state, now), self.limit, now.get() + left, now)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        // An aligned window ends at a multiple of its length, even if the debt's end was rounded up.
        let end = if self.first_hit { debt.end() } else { debt.end() - debt.end() % self.window };
        state[0] = end.saturating_sub(self.window);
        state[1] = debt.share.units(self.limit).into();
    }
}
