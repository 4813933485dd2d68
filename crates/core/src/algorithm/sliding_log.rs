//! Sliding log: the exact times of the newest `limit` admissions, in a ring.
//!
//! ```text
//! word 0: next slot (high 32 bits), length (low 32)     words 1..=limit: times, a ring
//! ```
//!
//! A cost of `c` fits exactly when the admission that would become the `limit + 1`-th newest has left the window: one
//! look, however many are kept.

use super::{Algorithm, never_fits};
use crate::{Debt, Decision, Nanos, Parameters, PolicyError, Quota};

/// The longest log that one state may be: a million entries, 8 MB.
const MAX_ENTRIES: u32 = 1_000_000;

/// At most `limit` in *any* window: exact.
///
/// A request admitted at `t` counts at `now` while `now − t < window`; with [`closed`](Self::closed), while
/// `now − t ≤ window`. State: `limit + 1` words. A decision looks at one entry, plus a binary search for `remaining`;
/// recording writes one entry a unit of cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u32,
    /// An entry counts while it is younger than this.
    lifetime: u64,
}

impl SlidingLog {
    /// Half-open windows.
    ///
    /// # Errors
    /// [`PolicyError::LogTooLong`] for a limit above 1,000,000.
    pub const fn new(quota: Quota) -> Result<Self, PolicyError> {
        if quota.limit() > MAX_ENTRIES {
            return Err(PolicyError::LogTooLong);
        }
        Ok(Self { limit: quota.limit(), lifetime: quota.window_nanos() })
    }

    /// Closed windows: an admission still counts when it is exactly a window old.
    #[must_use]
    pub const fn closed(self) -> Self {
        Self { lifetime: self.lifetime + 1, ..self }
    }

    /// The same log whose entries count for `span` longer.
    pub(crate) const fn stretched(self, span: u64) -> Self {
        Self { lifetime: self.lifetime + span, ..self }
    }

    /// Takes out up to `cost` entries of exactly this time; those that are newer stay.
    pub(crate) fn take_out(&self, state: &mut [u64], taken: Nanos, cost: u32) {
        let log = Log::read(state, self.limit);
        let newer = (1..=log.len).take_while(|&rank| log.newest(rank) > taken.get()).count() as u32;
        let same = (newer + 1..=log.len).take_while(|&rank| log.newest(rank) == taken.get());
        let gone = same.take(cost as usize).count() as u32;
        let (next, len) = (log.next, log.len - gone);
        let slot = |rank: u32| if next >= rank { next - rank } else { next + (self.limit - rank) };
        if gone == 0 {
            return;
        }
        // The newer ones move back over the gap, the oldest of them first.
        for rank in (1..=newer).rev() {
            state[1 + slot(rank + gone) as usize] = state[1 + slot(rank) as usize];
        }
        write_head(state, slot(gone), len);
    }

    /// Copies into `new` the newest entries of `old`, a state of `from`.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64]) {
        let log = Log::read(old, from.limit);
        for rank in (1..=log.len.min(self.limit)).rev() {
            self.record(new, Nanos::new(log.newest(rank)), 1);
        }
    }

    /// How many entries still count at `now`.
    fn live(&self, log: Log<'_>, now: u64) -> u32 {
        let (mut live, mut dead) = (0, log.len + 1);
        // Entries grow older with their rank: search for the first dead rank.
        while dead - live > 1 {
            let rank = live + (dead - live) / 2;
            if now - log.newest(rank) < self.lifetime {
                live = rank;
            } else {
                dead = rank;
            }
        }
        live
    }

    fn reset(&self, log: Log<'_>, now: u64) -> u64 {
        if log.len == 0 { 0 } else { (log.newest(1) + self.lifetime).saturating_sub(now) }
    }

    /// Forgets the `count` oldest entries that still count (a permit comes back).
    pub(super) fn forget_oldest(&self, state: &mut [u64], now: Nanos, count: u32) {
        let log = Log::read(state, self.limit);
        let live = self.live(log, log.no_earlier_than_newest(now));
        let (next, len) = (log.next, live.saturating_sub(count));
        write_head(state, next, len);
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        Parameters::SlidingLog { limit: self.limit, lifetime: self.lifetime }
    }

    /// How long an entry counts.
    pub(crate) const fn lifetime(&self) -> u64 {
        self.lifetime
    }
}

/// A state, read.
#[derive(Clone, Copy)]
struct Log<'a> {
    times: &'a [u64],
    next: u32,
    len: u32,
}

impl<'a> Log<'a> {
    #[inline]
    fn read(state: &'a [u64], limit: u32) -> Self {
        Self { times: &state[1..=limit as usize], next: (state[0] >> 32) as u32, len: state[0] as u32 }
    }

    /// The time of the entry of this rank; 1 is the newest. The rank is at most `len`.
    #[inline]
    fn newest(&self, rank: u32) -> u64 {
        let slots = self.times.len() as u32;
        let at = if self.next >= rank { self.next - rank } else { self.next + (slots - rank) };
        self.times[at as usize]
    }

    /// Time never runs backwards: an older time is the newest entry's.
    #[inline]
    fn no_earlier_than_newest(&self, now: Nanos) -> u64 {
        if self.len == 0 { now.get() } else { now.get().max(self.newest(1)) }
    }
}

#[inline]
fn write_head(state: &mut [u64], next: u32, len: u32) {
    state[0] = u64::from(next) << 32 | u64::from(len);
}

impl Algorithm for SlidingLog {
    fn words(&self) -> usize {
        // At least two: a one-word state must leave its top bit clear.
        1 + (self.limit as usize).max(1)
    }

    #[inline]
    fn limit(&self) -> u32 {
        self.limit
    }

    #[inline]
    fn check(&self, state: &[u64], now: Nanos, cost: u32) -> Decision {
        let log = Log::read(state, self.limit);
        let now = log.no_earlier_than_newest(now);
        if cost > self.limit {
            let room = self.limit - self.live(log, now);
            return never_fits(self.limit, u64::from(room), self.reset(log, now));
        }
        // The rank of the entry that must be dead for the cost to fit.
        let rank = self.limit - cost + 1;
        if cost > 0 && rank <= log.len {
            let age = now - log.newest(rank);
            if age < self.lifetime {
                let room = self.limit - self.live(log, now);
                let wait = self.lifetime - age;
                return Decision::deny(self.limit, wait, u64::from(room), 1, self.reset(log, now));
            }
        }
        let room = self.limit - self.live(log, now) - cost;
        let reset = if cost == 0 { self.reset(log, now) } else { self.lifetime };
        Decision::allow(self.limit, u64::from(room), 1, reset)
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u32) {
        if self.limit == 0 {
            return;
        }
        let log = Log::read(state, self.limit);
        let now = log.no_earlier_than_newest(now);
        let (mut next, len) = (log.next, log.len);
        for _ in 0..cost.min(self.limit) {
            state[1 + next as usize] = now;
            next = if next + 1 == self.limit { 0 } else { next + 1 };
        }
        write_head(state, next, len.saturating_add(cost).min(self.limit));
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u32) {
        let log = Log::read(state, self.limit);
        let taken = cost.min(self.live(log, log.no_earlier_than_newest(now)));
        if taken > 0 {
            let next = if log.next >= taken { log.next - taken } else { log.next + (self.limit - taken) };
            let len = log.len - taken;
            write_head(state, next, len);
        }
    }

    fn join(&self, state: &mut [u64], other: &[u64], _now: Nanos) {
        // Rank by rank the newer of the two: then every window holds at least as many as in either. Both rings are
        // walked from their newest entry back, so each rank is read before its slot is written.
        let theirs = Log::read(other, self.limit);
        let mine = Log::read(state, self.limit);
        let (next, my_len) = (mine.next, mine.len);
        let len = my_len.max(theirs.len);
        for rank in 1..=len {
            let mine = if rank <= my_len { Log::read(state, self.limit).newest(rank) } else { 0 };
            let their = if rank <= theirs.len { theirs.newest(rank) } else { 0 };
            let at = if next >= rank { next - rank } else { next + (self.limit - rank) };
            state[1 + at as usize] = mine.max(their);
        }
        write_head(state, next, len);
    }

    fn accepts(&self, state: &[u64]) -> bool {
        if state.len() != self.words() || state[0] >> 32 >= u64::from(self.limit.max(1)) {
            return false;
        }
        let log = Log::read(state, self.limit);
        let times = (1..=log.len.min(self.limit)).map(|rank| log.newest(rank));
        log.len <= self.limit && times.clone().all(|t| t <= Nanos::MAX.get()) && times.rev().is_sorted()
    }

    fn used(&self, state: &[u64], now: Nanos) -> u32 {
        let log = Log::read(state, self.limit);
        self.live(log, log.no_earlier_than_newest(now))
    }

    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let used = self.used(state, now);
        let log = Log::read(state, self.limit);
        let end = if used > 0 { log.newest(1) + self.lifetime } else { 0 };
        Debt::until(used, self.limit, end, now)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        let newest = Nanos::new(debt.end().saturating_sub(self.lifetime));
        self.record(state, newest, debt.share.units(self.limit));
    }
}
