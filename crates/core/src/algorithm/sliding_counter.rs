//! Sliding counter: two counts. The previous window's count is weighted by how much of it the
//! sliding window still covers.

use super::{Algorithm, StoredState, never_fits};
use crate::spec::{AlgorithmEntry, AlgorithmSpec, Amount};
use crate::{Debt, Decision, MOST_USED, Nanos, Parameters, Quota, Standing};

/// The registry entry.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    name: "sliding-counter",
    aliases: &[],
    options: &[],
    limits_rate: true,
    build: |_, amount| Ok(SlidingCounter::new(amount.quota()?).into()),
};

/// An approximation of the sliding log with two counts:
/// `previous × (window − elapsed) / window + current`. Windows are aligned to the clock's origin,
/// and the comparison is exact (no rounding).
///
/// Bound: about `2 × limit` in any window in the worst case, when all requests of the previous
/// window came at its end. State: the current window's start, and both counts in one word, or in
/// two for a limit above 4,294,967,295.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingCounter {
    limit: u64,
    window: u64,
}

/// The two counts at some time, and how much of the current window has passed.
#[derive(Clone, Copy)]
struct View {
    previous: u64,
    current: u64,
    elapsed: u64,
}

impl SlidingCounter {
    /// A counter for this quota.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self {
            limit: quota.limit(),
            window: quota.window_nanos(),
        }
    }

    /// Whether each count has a word, instead of half of one.
    const fn is_wide(&self) -> bool {
        self.limit > u32::MAX as u64
    }

    /// The highest count.
    const fn most(&self) -> u64 {
        if self.is_wide() {
            MOST_USED
        } else {
            u32::MAX as u64
        }
    }

    /// Whether both read the same words in the same way.
    pub(crate) const fn same_layout(&self, other: &Self) -> bool {
        self.same_windows(other) && self.is_wide() == other.is_wide()
    }

    pub(crate) const fn same_windows(&self, other: &Self) -> bool {
        self.window == other.window
    }

    /// The rest of the window that contains `now`: units taken now count in that window alone. Zero
    /// if `now` is before the state's newest window, because the units count in the newest.
    pub(crate) fn window_left(&self, state: &[u64], now: Nanos) -> u64 {
        if now.get() < state[0] {
            0
        } else {
            self.window - now.get() % self.window
        }
    }

    /// Returns units that were taken at `taken` to the window in which they were counted.
    pub(crate) fn give_back(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u64) {
        let mut view = self.view(state, now);
        let start = now.get().max(state[0]) - view.elapsed;
        let count = if taken.get() >= start {
            &mut view.current
        } else if start - taken.get() <= self.window {
            &mut view.previous
        } else {
            return;
        };
        *count = count.saturating_sub(cost);
        self.write(state, now, view);
    }

    /// The previous count and the current one, as written.
    #[inline]
    const fn counts(&self, state: &[u64]) -> (u64, u64) {
        if self.is_wide() {
            (state[1], state[2])
        } else {
            (state[1] >> 32, state[1] & 0xFFFF_FFFF)
        }
    }

    /// Writes counts that are at most the highest one.
    #[inline]
    const fn set_counts(&self, state: &mut [u64], previous: u64, current: u64) {
        if self.is_wide() {
            (state[1], state[2]) = (previous, current);
        } else {
            state[1] = previous << 32 | current;
        }
    }

    /// Carries both counts over from `old`, a state of `from` with the same windows, to `new`, a
    /// fresh state.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64]) {
        new[0] = old[0];
        let (previous, current) = from.counts(old);
        // A full count stands for any number, unless it is the limit.
        let is_full = |count| count == from.most() && from.limit < count;
        let kept = |count: u64| {
            if is_full(count) {
                self.most()
            } else {
                count.min(self.most())
            }
        };
        self.set_counts(new, kept(previous), kept(current));
    }

    #[inline]
    fn view(&self, state: &[u64], now: Nanos) -> View {
        let (previous, current) = self.counts(state);
        // If the clock went back, the time is the start of the newest window.
        let since = now.get().saturating_sub(state[0]);
        if since < self.window {
            View {
                previous,
                current,
                elapsed: since,
            }
        } else if since - self.window < self.window {
            View {
                previous: current,
                current: 0,
                elapsed: since - self.window,
            }
        } else {
            View {
                previous: 0,
                current: 0,
                elapsed: since % self.window,
            }
        }
    }

    /// `previous × (window − elapsed)`, in units × nanoseconds.
    #[inline]
    fn weighted(&self, view: View) -> u128 {
        u128::from(view.previous) * u128::from(self.window - view.elapsed)
    }

    /// How many more units the exact comparison admits.
    #[inline]
    fn room(&self, view: View) -> u64 {
        let left = self.limit.saturating_sub(view.current);
        if view.previous == 0 {
            return left;
        }
        left.saturating_sub(self.ceil_weight(view))
    }

    #[inline]
    fn is_over(&self, view: View) -> bool {
        view.current + self.ceil_weight(view) > self.limit
    }

    /// The weighted previous count, rounded up: the number of whole units that it blocks.
    #[inline]
    fn ceil_weight(&self, view: View) -> u64 {
        let weighted = self.weighted(view);
        match u64::try_from(weighted) {
            Ok(weighted) => weighted.div_ceil(self.window),
            Err(_) => weighted.div_ceil(u128::from(self.window)) as u64,
        }
    }

    /// How far `now` lies before the state's newest window; such a time counts as the start of that
    /// window.
    #[inline]
    const fn behind(state: &[u64], now: Nanos) -> u64 {
        state[0].saturating_sub(now.get())
    }

    /// Records in `new`, a fresh state, that `used` units were taken at `now`.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u64) {
        let view = View {
            previous: 0,
            current: used.min(self.most()),
            elapsed: now.get() % self.window,
        };
        self.write(new, now, view);
    }

    /// The time until `cost` fits with no other traffic.
    fn wait_for(&self, view: View, cost: u64) -> u64 {
        let goal = self.limit - cost;
        if view.current <= goal {
            let wait = self.elapsed_for(view.previous, goal - view.current);
            if wait < self.window {
                return wait - view.elapsed;
            }
        }
        // Not in this window: in the next one the current count becomes the previous one.
        self.window - view.elapsed + self.elapsed_for(view.current, goal)
    }

    /// The smallest elapsed time at which `previous`, weighted, is at most `room`.
    fn elapsed_for(&self, previous: u64, room: u64) -> u64 {
        if previous <= room {
            return 0;
        }
        let covered = u128::from(room) * u128::from(self.window) / u128::from(previous);
        self.window - covered as u64
    }

    fn reset(&self, view: View) -> u64 {
        match (view.current, view.previous) {
            (0, 0) => 0,
            (0, _) => self.window - view.elapsed,
            _ => 2 * self.window - view.elapsed,
        }
    }

    #[inline]
    fn write(&self, state: &mut [u64], now: Nanos, view: View) {
        if now.get() > state[0] {
            state[0] = now.get() - view.elapsed;
        }
        self.set_counts(state, view.previous, view.current);
    }

    fn peek_view(&self, view: View, state: &[u64], now: Nanos, cost: u64) -> Decision {
        let room = self.room(view);
        // Measured on the caller's clock.
        let reset = |view| match self.reset(view) {
            0 => 0,
            reset => reset + Self::behind(state, now),
        };
        let standing = |room, reset_after| Standing {
            limit: self.limit,
            room,
            unit: 1,
            reset_after,
        };
        if cost <= room && (cost > 0 || !self.is_over(view)) {
            let after = View {
                current: view.current + cost,
                ..view
            };
            Decision::allow(standing(room - cost, reset(after)))
        } else if cost > self.limit {
            never_fits(self.limit, room, reset(view))
        } else {
            let wait = self.wait_for(view, cost) + Self::behind(state, now);
            Decision::deny(standing(room, reset(view)), wait)
        }
    }

    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        (
            AlgorithmSpec::of(&ENTRY),
            Amount::Quota(Quota::of(self.limit, self.window)),
        )
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        Parameters::SlidingCounter {
            limit: self.limit,
            window: self.window,
        }
    }
}

impl Algorithm for SlidingCounter {
    fn words(&self) -> usize {
        if self.is_wide() { 3 } else { 2 }
    }

    #[inline]
    fn limit(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        self.peek_view(self.view(state, now), state, now, cost)
    }

    #[inline]
    fn decide(&self, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
        let view = self.view(state, now);
        let room = self.room(view);
        if cost == 0 || cost > room {
            return self.peek_view(view, state, now, cost);
        }
        // The current count is above zero, so it counts for two windows.
        let reset_after = 2 * self.window - view.elapsed + Self::behind(state, now);
        self.write(
            state,
            now,
            View {
                current: view.current + cost,
                ..view
            },
        );
        Decision::allow(Standing {
            limit: self.limit,
            room: room - cost,
            unit: 1,
            reset_after,
        })
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let mut view = self.view(state, now);
        let added = view.current.saturating_add(cost).min(self.limit);
        view.current = view.current.max(added);
        self.write(state, now, view);
    }

    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64) {
        if cost > 0 {
            let mut view = self.view(state, now);
            view.current = view.current.saturating_add(cost).min(self.most());
            self.write(state, now, view);
        }
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let mut view = self.view(state, now);
        let from_current = view.current.min(cost);
        view.current -= from_current;
        view.previous = view.previous.saturating_sub(cost - from_current);
        self.write(state, now, view);
    }

    fn used(&self, state: &[u64], now: Nanos) -> u64 {
        let view = self.view(state, now);
        view.current + self.ceil_weight(view)
    }
}

impl StoredState for SlidingCounter {
    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos) {
        let newest = now.max(Nanos::new(state[0])).max(Nanos::new(other[0]));
        let (mine, theirs) = (self.view(state, newest), self.view(other, newest));
        let view = View {
            previous: mine.previous.max(theirs.previous),
            current: mine.current.max(theirs.current),
            elapsed: mine.elapsed,
        };
        self.write(state, newest, view);
    }

    fn accepts(&self, state: &[u64]) -> bool {
        let (previous, current) = if state.len() == self.words() {
            self.counts(state)
        } else {
            return false;
        };
        state[0] <= Nanos::MAX.get() && previous.max(current) <= self.most()
    }

    /// If all units that count are in the previous window, the debt is that window's whole count:
    /// its end determines how much of the count still weighs.
    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let view = self.view(state, now);
        let start = now.get().max(state[0]) - view.elapsed;
        let (used, windows) = if view.current > 0 {
            (view.current + self.ceil_weight(view), 2)
        } else {
            (view.previous, 1)
        };
        Debt::until(used, self.limit, start + windows * self.window, now)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        // Windows begin at multiples of their length, even if the debt's end was rounded up.
        let end = debt.end() - debt.end() % self.window;
        state[0] = end.saturating_sub(2 * self.window);
        self.set_counts(state, 0, debt.share.units(self.limit).min(self.most()));
    }
}
