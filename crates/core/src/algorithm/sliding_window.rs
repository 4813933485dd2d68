//! Sliding window over slots: the window is divided into `k` slots with one count each.
//!
//! ```text
//! word 0: start of the newest slot     words 1..: the sum, then the slots' counts, newest first
//!                                                 (8, 16, 32 or 64 bits each, as the limit needs; the highest:
//!                                                 this many, or more, which only a lowered limit or a charge leaves)
//!
//!   strict, k = 4 │ 4 │ 3 │ 2 │ 1 │ now…│     k full slots behind the current one, and the current: never less
//!                                             than a whole window, so never over
//!   balanced      │   │ 3 │ 2 │ 1 │ now…│     k − 1 behind: between 1 − 1/k and 1 window
//! ```
//!
//! Weighting or dropping the oldest slot would break the bound: a client that knows the slots could
//! use the whole limit at the end of one slot and again right after that slot was dropped.

use super::{Algorithm, StoredState, never_fits};
use crate::spec::{AlgorithmEntry, AlgorithmSpec, Amount, Known, Value, Wants};
use crate::{Debt, Decision, MOST_USED, Nanos, Parameters, PolicyError, Quota, Standing};

/// The maximum number of slots in a window.
const MAX_SLOTS: u32 = 3_600;
/// The default number of slots.
const DEFAULT_SLOTS: u32 = 10;

/// The registry entry.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    name: "sliding-window",
    aliases: &[],
    options: &[
        Known::new("slots", Wants::count(1, MAX_SLOTS as u64)),
        Known::new("mode", Wants::OneOf(&["strict", "balanced"])),
    ],
    limits_rate: true,
    build: |spec, amount| {
        let mut window = SlidingWindow::new(amount.quota()?);
        if let Some(slots) = spec.count("slots") {
            window = window.slots(u32::try_from(slots).unwrap_or(u32::MAX))?;
        }
        Ok(if spec.has_word("mode", "balanced") {
            window.balanced()
        } else {
            window
        }
        .into())
    },
};

/// At most `limit` over the slots of a window.
///
/// Bound, strict (the default): `limit` in any window. It denies some requests that an exact log
/// would admit, because a request counts for up to a slot longer than the window. If demand always
/// exceeds the limit, as with a queue of waiters, it therefore admits `limit × k / (k + 1)` in a
/// window: 909 of 1,000 with ten slots, 990 with a hundred. Balanced: `limit` in any
/// `window × (1 − 1/k)`, up to `2 × limit` in a window. A slot is `window / k`, rounded up to a
/// nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    limit: u64,
    window: u64,
    slots: u32,
    slot: u64,
    /// How many slots count, including the current one.
    span: usize,
    /// Whether a count has at least 32 bits.
    wide: bool,
    /// Bits of a count, as a power of two: no count, and no sum, is above the limit.
    lane_bits: u32,
    /// The limit, if the sum and the newest count share a word; otherwise 0.
    limit_in_word: u64,
}

impl SlidingWindow {
    /// Ten slots, strict.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self::with(
            quota.limit(),
            quota.window_nanos(),
            DEFAULT_SLOTS,
            true,
            false,
        )
    }

    /// Divides the window into `slots` instead. More slots are closer to an exact log and take up
    /// to 4 bytes each (8 for a limit above 4,294,967,295).
    ///
    /// # Errors
    /// [`PolicyError::Slots`] if the number is 0, above 3,600, or above the number of nanoseconds
    /// in the window.
    pub const fn slots(self, slots: u32) -> Result<Self, PolicyError> {
        if slots == 0 || slots > MAX_SLOTS || slots as u64 > self.window {
            return Err(PolicyError::Slots);
        }
        Ok(Self::with(
            self.limit,
            self.window,
            slots,
            self.is_strict(),
            self.wide,
        ))
    }

    /// Counts the current slot and the `k − 1` before it.
    #[must_use]
    pub const fn balanced(self) -> Self {
        Self::with(self.limit, self.window, self.slots, false, self.wide)
    }

    /// Counts with at least 32 bits each, whatever the limit is: windows with limits up to
    /// 4,294,967,295 then decide on the same states.
    #[must_use]
    pub const fn wide(self) -> Self {
        let strict = self.is_strict();
        Self::with(self.limit, self.window, self.slots, strict, true)
    }

    const fn with(limit: u64, window: u64, slots: u32, strict: bool, wide: bool) -> Self {
        let span = slots as usize + strict as usize;
        let lane_bits = match limit {
            0..=0xFE if !wide => 3,
            0..=0xFFFE if !wide => 4,
            0..=0xFFFF_FFFF => 5,
            _ => 6,
        };
        let limit_in_word = if lane_bits < 6 { limit } else { 0 };
        Self {
            limit,
            window,
            slots,
            slot: window.div_ceil(slots as u64),
            span,
            wide,
            lane_bits,
            limit_in_word,
        }
    }

    pub(crate) const fn same_slots(&self, other: &Self) -> bool {
        self.slot == other.slot && self.span == other.span
    }

    /// Whether both read the same words in the same way.
    pub(crate) fn same_layout(&self, other: &Self) -> bool {
        self.same_slots(other) && self.lane_bits == other.lane_bits
    }

    const fn is_strict(&self) -> bool {
        self.span > self.slots as usize
    }

    /// The rest of the slot that contains `now`: units taken now count in that slot alone. Zero if
    /// `now` is before the state's newest slot, because the units count in the newest.
    pub(crate) fn slot_left(&self, state: &[u64], now: Nanos) -> u64 {
        if now.get() < state[0] {
            0
        } else {
            self.slot - now.get() % self.slot
        }
    }

    /// Returns units that were taken at `taken` to the slot in which they were counted.
    pub(crate) fn give_back(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u64) {
        self.turn(state, now);
        let behind = state[0].saturating_sub(taken.get()).div_ceil(self.slot);
        let Some(at) = usize::try_from(behind).ok().filter(|&at| at < self.span) else {
            return;
        };
        let gone = self.take_back(state, at, cost);
        self.set_sum(state, self.stored_sum(state).saturating_sub(gone));
    }

    /// The word and the shift of a lane: lane 0 is the sum, lane 1 the newest slot.
    #[inline]
    const fn lane(&self, at: usize) -> (usize, usize) {
        let lanes_of_word = 6 - self.lane_bits;
        (
            1 + (at >> lanes_of_word),
            (at & ((1 << lanes_of_word) - 1)) << self.lane_bits,
        )
    }

    #[inline]
    const fn mask(&self) -> u64 {
        u64::MAX >> (64 - (1 << self.lane_bits))
    }

    /// The highest count.
    #[inline]
    fn most(&self) -> u64 {
        self.mask().min(MOST_USED)
    }

    #[inline]
    fn get(&self, state: &[u64], lane: usize) -> u64 {
        let (word, shift) = self.lane(lane);
        state[word] >> shift & self.mask()
    }

    #[inline]
    fn set(&self, state: &mut [u64], lane: usize, value: u64) {
        let (word, shift) = self.lane(lane);
        state[word] = state[word] & !(self.mask() << shift) | value << shift;
    }

    #[inline]
    fn stored_sum(&self, state: &[u64]) -> u64 {
        self.get(state, 0)
    }

    /// The count of the slot that is `at` slots older than the newest.
    #[inline]
    fn count(&self, state: &[u64], at: usize) -> u64 {
        self.get(state, at + 1)
    }

    #[inline]
    fn set_count(&self, state: &mut [u64], at: usize, count: u64) {
        self.set(state, at + 1, count);
    }

    /// Whether a lane is full: the true count may be higher.
    #[inline]
    fn is_full(&self, count: u64) -> bool {
        // A limit equal to the highest possible count is reached but never exceeded.
        count == self.most() && self.limit < count
    }

    /// Writes the sum. It is counted again if the stored one may stand for more.
    fn set_sum(&self, state: &mut [u64], sum: u64) {
        let full = self.is_full(self.stored_sum(state));
        let sum = if full {
            self.total(state, self.span)
        } else {
            sum
        };
        self.set(state, 0, sum.min(self.most()));
    }

    /// Removes up to `cost` from a slot's count and returns how much. A full count stays, because
    /// its true value is unknown.
    fn take_back(&self, state: &mut [u64], at: usize, cost: u64) -> u64 {
        let here = self.count(state, at);
        let gone = here.min(cost);
        if !self.is_full(here) {
            self.set_count(state, at, here - gone);
        }
        gone
    }

    /// The sum of the newest `slots` slots.
    #[cold]
    fn total(&self, state: &[u64], slots: usize) -> u64 {
        (0..slots).fold(0, |sum: u64, at| sum.saturating_add(self.count(state, at)))
    }

    /// Carries the slots over from `old`, a state of `from` with the same slots, to `new`, a fresh
    /// state: all units used, including those above the limit, as far as a count has bits. A count
    /// with too few bits is full and stands for any number.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64]) {
        new[0] = old[0];
        for at in 0..self.span {
            let count = from.count(old, at);
            // The true number is unknown, so the count stays full until its slot leaves, whichever
            // limits come next.
            let most = if from.is_full(count) {
                self.most()
            } else {
                count
            };
            let room = if self.limit == self.most() {
                self.most() - self.total(new, at)
            } else {
                self.most()
            };
            self.set_count(new, at, most.min(room));
        }
        self.set(new, 0, self.total(new, self.span).min(self.most()));
    }

    /// Records in `new`, a fresh state, that `used` units were taken at `now`.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u64) {
        let used = used.min(self.most());
        new[0] = now.get() - now.get() % self.slot;
        self.set(new, 0, used);
        self.set_count(new, 0, used);
    }

    /// An upper bound on the units in use: unbounded if a count is full.
    pub(crate) fn at_most(&self, state: &[u64], now: Nanos) -> u64 {
        let counting = self.span - self.turned(state, now);
        let full = (0..counting).any(|at| self.is_full(self.count(state, at)));
        if full {
            u64::MAX
        } else {
            self.used(state, now)
        }
    }

    /// How many slots have begun since the state was written; the full span means that nothing
    /// counts.
    #[inline]
    fn turned(&self, state: &[u64], now: Nanos) -> usize {
        let since = now.get().saturating_sub(state[0]);
        if since < self.slot {
            0
        } else {
            usize::try_from(since / self.slot).map_or(self.span, |turned| turned.min(self.span))
        }
    }

    /// The sum of what still counts after `turned` slots.
    #[inline]
    fn sum(&self, state: &[u64], turned: usize) -> u64 {
        let stored = self.stored_sum(state);
        if self.is_full(stored) {
            return self.total(state, self.span - turned).min(self.most());
        }
        let gone: u64 = (self.span - turned..self.span)
            .map(|at| self.count(state, at))
            .sum();
        stored - gone
    }

    /// The time from `now` until the slot that is `at` slots older than the newest (as written) no
    /// longer counts.
    #[inline]
    fn leaves_in(&self, state: &[u64], now: Nanos, at: usize) -> u64 {
        (state[0] + (self.span - at) as u64 * self.slot).saturating_sub(now.get())
    }

    /// The time until the sum is at most `goal`: the slots leave one by one, oldest first.
    fn wait_for(&self, state: &[u64], now: Nanos, goal: u64) -> u64 {
        let stored = self.stored_sum(state);
        let mut sum = if self.is_full(stored) {
            self.total(state, self.span)
        } else {
            stored
        };
        for at in (0..self.span).rev() {
            if sum <= goal {
                // Slot `at + 1` was the last that had to leave.
                return self.leaves_in(state, now, at + 1);
            }
            sum -= self.count(state, at);
        }
        self.leaves_in(state, now, 0)
    }

    fn reset(&self, state: &[u64], now: Nanos) -> u64 {
        // The newest slot that is not empty is the last to leave.
        let newest = (0..self.span).find(|&at| self.count(state, at) > 0);
        newest.map_or(0, |at| self.leaves_in(state, now, at))
    }

    /// Advances the state's slots to `now`.
    #[inline]
    fn turn(&self, state: &mut [u64], now: Nanos) {
        let turned = self.turned(state, now);
        if turned == 0 {
            return;
        }
        if turned == self.span {
            state[1..self.words()].fill(0);
            state[0] = now.get() - now.get() % self.slot;
            return;
        }
        let sum = self.sum(state, turned);
        self.set(state, 0, sum);
        for at in (turned..self.span).rev() {
            self.set_count(state, at, self.count(state, at - turned));
        }
        for at in 0..turned {
            self.set_count(state, at, 0);
        }
        state[0] += turned as u64 * self.slot;
    }

    /// Adds to the newest slot and drops the oldest units beyond the limit: only the newest `limit`
    /// units determine when a cost fits.
    #[inline]
    fn add(&self, state: &mut [u64], cost: u64) {
        let sum = self.stored_sum(state);
        let cost = cost.min(self.limit);
        let mut beyond = cost.saturating_sub(self.limit.saturating_sub(sum));
        self.set(state, 0, sum.saturating_add(cost).min(self.limit.max(sum)));
        for at in (0..self.span).rev() {
            if beyond == 0 {
                break;
            }
            beyond -= self.take_back(state, at, beyond);
        }
        let newest = self.count(state, 0) + cost;
        self.set_count(state, 0, newest.min(self.most()));
    }

    /// Takes a cost that fits while the newest slot lasts: what [`decide`](Algorithm::decide)
    /// mostly does, in a few instructions. Only two counts change, the sum and that of the newest
    /// slot, and both are in one word. `None` says nothing, and leaves the state as it was.
    #[inline]
    pub(crate) fn take_in_slot(
        &self,
        state: &mut [u64],
        now: Nanos,
        cost: u64,
    ) -> Option<Decision> {
        let [start, counts, ..] = state else {
            return None;
        };
        let limit = self.limit_in_word;
        // Signed: a cost beyond 63 bits is below zero, and so is the room of a sum that is above
        // the limit.
        let room = limit.cast_signed() - (*counts & self.mask()).cast_signed();
        // A full sum is above the limit. Below it the sum is that of the slots, so no count
        // outgrows its bits.
        if cost.cast_signed() <= 0
            || cost.cast_signed() > room
            || now.get().saturating_sub(*start) >= self.slot
        {
            return None;
        }
        *counts += cost | cost << (1 << self.lane_bits);
        let reset = *start + self.span as u64 * self.slot - now.get();
        Some(Decision::allow(Standing {
            limit,
            room: room.cast_unsigned() - cost,
            unit: 1,
            reset_after: reset,
        }))
    }

    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        let spec = AlgorithmSpec::of(&ENTRY)
            .with(
                "slots",
                (self.slots != DEFAULT_SLOTS).then_some(Value::Count(self.slots.into())),
            )
            .with(
                "mode",
                (!self.is_strict()).then_some(Value::Word("balanced")),
            );
        (spec, Amount::Quota(Quota::of(self.limit, self.window)))
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        let Self {
            limit,
            window,
            slots,
            slot,
            ..
        } = *self;
        Parameters::SlidingWindow {
            limit,
            window,
            slots,
            slot,
            span: self.span as u32,
        }
    }
}

impl Algorithm for SlidingWindow {
    fn words(&self) -> usize {
        // The last lane's word, and the start's.
        self.lane(self.span).0 + 1
    }

    #[inline]
    fn limit(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        let turned = self.turned(state, now);
        let sum = if turned == 0 {
            self.stored_sum(state)
        } else {
            self.sum(state, turned)
        };
        let room = self.limit.saturating_sub(sum);
        let standing = |room: u64, reset_after| Standing {
            limit: self.limit,
            room,
            unit: 1,
            reset_after,
        };
        if cost > self.limit {
            return never_fits(self.limit, room, self.reset(state, now));
        }
        if cost == 0 && sum <= self.limit {
            return Decision::allow(standing(room, self.reset(state, now)));
        }
        if cost > room || cost == 0 {
            let wait = self.wait_for(state, now, self.limit - cost);
            return Decision::deny(standing(room, self.reset(state, now)), wait);
        }
        // The slot that contains `now` counts for the whole span.
        let start = if turned == 0 {
            state[0]
        } else if turned == self.span {
            now.get() - now.get() % self.slot
        } else {
            state[0] + turned as u64 * self.slot
        };
        let reset = start + self.span as u64 * self.slot - now.get();
        Decision::allow(standing(room - cost, reset))
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u64) {
        self.turn(state, now);
        self.add(state, cost);
    }

    #[inline]
    fn decide(&self, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
        if let Some(admitted) = self.take_in_slot(state, now, cost) {
            return admitted;
        }
        // A denial changes nothing: if the clock goes back, the units that had left by then count
        // again.
        let decision = self.peek(state, now, cost);
        if cost > 0 && decision.is_allowed() {
            self.record(state, now, cost);
        }
        decision
    }

    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64) {
        if cost == 0 {
            return;
        }
        self.turn(state, now);
        // The highest limit cannot be exceeded.
        let most = if self.limit == self.most() {
            self.most() - self.stored_sum(state)
        } else {
            self.most()
        };
        let newest = self.count(state, 0) + cost.min(most);
        self.set_count(state, 0, newest.min(self.most()));
        self.set(state, 0, self.total(state, self.span).min(self.most()));
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64) {
        self.turn(state, now);
        let (sum, mut left) = (self.stored_sum(state), cost);
        for at in 0..self.span {
            left -= self.take_back(state, at, left);
        }
        self.set_sum(state, sum.saturating_sub(cost));
    }

    fn used(&self, state: &[u64], now: Nanos) -> u64 {
        self.sum(state, self.turned(state, now))
    }
}

impl StoredState for SlidingWindow {
    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos) {
        // Bring this state to the later start of the two, then take the larger count slot by slot.
        let newest = Nanos::new(other[0].max(now.get()));
        self.turn(state, newest);
        let behind = usize::try_from(state[0].saturating_sub(other[0]).div_ceil(self.slot))
            .map_or(self.span, |behind| behind.min(self.span));
        // Newest first: only the newest `limit` units determine when a cost fits.
        let bound = self
            .limit
            .max(self.stored_sum(state))
            .max(self.stored_sum(other));
        let mut sum = 0_u64;
        for at in 0..self.span {
            let theirs = if at >= behind {
                self.count(other, at - behind)
            } else {
                0
            };
            let most = self.count(state, at).max(theirs);
            let most = if self.is_full(bound) {
                most
            } else {
                most.min(bound - sum)
            };
            self.set_count(state, at, most);
            sum = sum.saturating_add(most);
        }
        self.set(state, 0, sum.min(self.most()));
    }

    fn accepts(&self, state: &[u64]) -> bool {
        if state.len() != self.words() || state[0] > Nanos::MAX.get() {
            return false;
        }
        let (sum, total) = (self.stored_sum(state), self.total(state, self.span));
        let fits = (0..=self.span).all(|lane| self.get(state, lane) <= self.most());
        fits && (total == sum || (self.is_full(sum) && total > sum))
    }

    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let newest = (0..self.span).find(|&at| self.count(state, at) > 0)?;
        let end = state[0] + (self.span - newest) as u64 * self.slot;
        Debt::until(self.at_most(state, now), self.limit, end, now)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        // Slots begin at multiples of their length, even if the debt's end was rounded up.
        let end = debt.end() - debt.end() % self.slot;
        state[0] = end.saturating_sub(self.span as u64 * self.slot);
        let units = debt.share.units(self.limit).min(self.most());
        self.set(state, 0, units);
        self.set_count(state, 0, units);
    }
}
