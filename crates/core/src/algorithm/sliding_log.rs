//! Sliding log: the exact times of the newest `limit` admissions, in a ring.
//!
//! ```text
//! word 0: │ beyond, high 12 bits │ next slot, 20 │ beyond, low 12 │ length, 20 │     words 1..=limit: times, a ring
//! ```
//!
//! A cost of `c` fits exactly when the admission that would become the `limit + 1`-th newest has
//! left the window. That is one lookup, for any length of the log.
//!
//! *Beyond* counts the entries that a lowered limit left no room for. Their times are lost; each
//! counts as taken at the time of the oldest kept entry, which is not before its real time. The
//! count is 0 unless the ring is full.

use super::{Algorithm, StoredState, never_fits};
use crate::spec::{AlgorithmEntry, AlgorithmSpec, Amount, Known, Value, Wants};
use crate::{Debt, Decision, Nanos, Parameters, PolicyError, Quota, Standing};

/// The maximum length of a log: a million entries, 8 MB.
const MAX_ENTRIES: u32 = 1_000_000;
/// The largest value of `beyond`: it means this number of entries or more.
const MANY: u32 = 0xFF_FFFF;
const LOW_20: u64 = 0xF_FFFF;

/// A number of units, which no log has more of than 32 bits hold.
#[inline]
const fn few(units: u64) -> u32 {
    if units > u32::MAX as u64 {
        u32::MAX
    } else {
        units as u32
    }
}

/// The registry entry.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    name: "sliding-log",
    aliases: &[],
    options: &[Known::new("closed", Wants::Flag)],
    limits_rate: true,
    build: |spec, amount| {
        let log = SlidingLog::new(amount.quota()?)?;
        Ok(if spec.flag("closed") {
            log.closed()
        } else {
            log
        }
        .into())
    },
};

/// At most `limit` units in *any* window: exact.
///
/// A request admitted at `t` counts at `now` while `now − t < window`; with
/// [`closed`](Self::closed), while `now − t ≤ window`. State: `limit + 1` words. A decision looks
/// at one entry, plus a binary search for `remaining`; recording writes one entry per unit of cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    limit: u32,
    /// An entry counts while it is younger than this.
    lifetime: u64,
}

impl SlidingLog {
    /// Whether both read the same words in the same way.
    pub(crate) const fn same_layout(&self, other: &Self) -> bool {
        self.limit == other.limit
    }

    /// Half-open windows.
    ///
    /// # Errors
    /// [`PolicyError::LogTooLong`] if the limit is above 1,000,000.
    pub const fn new(quota: Quota) -> Result<Self, PolicyError> {
        if quota.limit() > MAX_ENTRIES as u64 {
            return Err(PolicyError::LogTooLong);
        }
        Ok(Self {
            limit: quota.limit() as u32,
            lifetime: quota.window_nanos(),
        })
    }

    /// Closed windows: an admission still counts when it is exactly a window old.
    #[must_use]
    pub const fn closed(self) -> Self {
        Self {
            lifetime: self.lifetime + 1,
            ..self
        }
    }

    /// The same log whose entries count for `span` longer.
    pub(crate) const fn stretched(self, span: u64) -> Self {
        Self {
            lifetime: self.lifetime + span,
            ..self
        }
    }

    /// Removes up to `cost` entries with exactly this time; newer entries stay.
    pub(crate) fn take_out(&self, state: &mut [u64], taken: Nanos, cost: u64) {
        let log = Log::read(state, self.limit);
        let newer = (1..=log.len)
            .take_while(|&rank| log.newest(rank) > taken.get())
            .count() as u32;
        let same = (newer + 1..=log.len).take_while(|&rank| log.newest(rank) == taken.get());
        let gone = same.take(few(cost) as usize).count() as u32;
        let (head, oldest) = (log.head, log.oldest());
        if gone == 0 {
            return;
        }
        // Newer entries move back over the gap, the oldest of them first.
        for rank in (1..=newer).rev() {
            state[1 + self.slot(head.next, rank + gone)] = state[1 + self.slot(head.next, rank)];
        }
        let next = self.slot(head.next, gone) as u32;
        self.write_refilled(
            state,
            Head {
                next,
                len: head.len - gone,
                ..head
            },
            oldest,
        );
    }

    /// Carries the entries over from `old`, a state of `from`, to `new`, a fresh state: the newest
    /// with their times, and the number of the rest.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64]) {
        let log = Log::read(old, from.limit);
        self.carry_some(new, log, log.len, log.beyond);
    }

    /// [`carry`](Self::carry) without the entries that no longer count in `from` at `now`.
    pub(super) fn carry_counting(&self, new: &mut [u64], from: &Self, old: &[u64], now: Nanos) {
        let log = Log::read(old, from.limit);
        let now = log.no_earlier_than_newest(now);
        let counting = from.counting(log, now);
        let beyond = from.counting_beyond(log, counting, now);
        self.carry_some(new, log, counting, beyond);
    }

    /// Carries the newest `len` entries of a log over, and those beyond.
    fn carry_some(&self, new: &mut [u64], log: Log<'_>, len: u32, beyond: u32) {
        let total = u64::from(len) + u64::from(beyond);
        if total == 0 {
            return;
        }
        if self.limit == 0 {
            new[1] = if len > 0 { log.newest(1) } else { log.oldest() };
        }
        let kept = total.min(self.limit.into()) as u32;
        for rank in 1..=kept {
            new[1 + (kept - rank) as usize] = if rank <= len {
                log.newest(rank)
            } else {
                log.oldest()
            };
        }
        let beyond = if beyond == MANY {
            MANY.into()
        } else {
            total - u64::from(kept)
        };
        self.write_full(new, kept, beyond);
    }

    /// Records in `new`, a fresh state, that `used` units were taken at `now`.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u64) {
        let kept = few(used).min(self.limit);
        new[1..=(kept as usize).max(1)].fill(now.get());
        self.write_full(new, kept, used - u64::from(kept));
    }

    /// The head of a ring that was filled from its first slot on.
    fn write_full(&self, state: &mut [u64], kept: u32, beyond: u64) {
        let next = if kept == self.limit { 0 } else { kept };
        let beyond = u32::try_from(beyond).unwrap_or(MANY).min(MANY);
        let beyond = if kept == self.limit { beyond } else { 0 };
        state[0] = Head {
            next,
            len: kept,
            beyond,
        }
        .word();
    }

    /// Writes the head after entries were removed: entries beyond fill the gaps, with the time of
    /// the oldest entry.
    fn write_refilled(&self, state: &mut [u64], mut head: Head, oldest: u64) {
        while head.beyond > 0 && head.len < self.limit {
            head.len += 1;
            head.beyond -= u32::from(head.beyond < MANY);
            state[1 + self.slot(head.next, head.len)] = oldest;
        }
        state[0] = head.word();
    }

    /// The slot of the entry of this rank.
    const fn slot(&self, next: u32, rank: u32) -> usize {
        (if next >= rank {
            next - rank
        } else {
            next + (self.limit - rank)
        }) as usize
    }

    /// How many entries beyond still count at `now`, if `counting` entries do: they expire with the
    /// oldest entry.
    fn counting_beyond(&self, log: Log<'_>, counting: u32, now: u64) -> u32 {
        let counts = log.beyond > 0
            && counting == log.len
            && now.saturating_sub(log.oldest()) < self.lifetime;
        if counts { log.beyond } else { 0 }
    }

    /// How many entries still count at `now`.
    fn counting(&self, log: Log<'_>, now: u64) -> u32 {
        let (mut counting, mut dead) = (0, log.len + 1);
        // Entries are older the higher their rank: search for the first expired rank.
        while dead - counting > 1 {
            let rank = counting + (dead - counting) / 2;
            if now - log.newest(rank) < self.lifetime {
                counting = rank;
            } else {
                dead = rank;
            }
        }
        counting
    }

    /// The time from `now`, which may be before the newest entry, until nothing counts.
    fn reset(&self, log: Log<'_>, now: Nanos) -> u64 {
        let newest = match (log.len, log.beyond) {
            (0, 0) => return 0,
            (0, _) => log.oldest(),
            _ => log.newest(1),
        };
        (newest + self.lifetime).saturating_sub(now.get())
    }

    /// Drops `count` entries that still count: the oldest of those from `taken` or later, and then
    /// the oldest of all. An entry may have a later time than its holder knows, as time never runs
    /// backwards.
    pub(super) fn release(&self, state: &mut [u64], now: Nanos, taken: Nanos, count: u64) {
        let log = Log::read(state, self.limit);
        let now = log.no_earlier_than_newest(now);
        let len = self.counting(log, now);
        let mut beyond = self.counting_beyond(log, len, now);
        let (mut next, mut left, oldest) = (log.next, few(count), log.oldest());
        // Entries beyond are the oldest, and have the time of the oldest one that is kept.
        let mut drop_beyond = |left: &mut u32| {
            let gone = beyond.min(*left);
            *left -= gone;
            beyond -= if beyond == MANY { 0 } else { gone };
            beyond
        };
        let no_older = Self::since(log, len, taken.get());
        if no_older == len {
            drop_beyond(&mut left);
        }
        let gone = left.min(no_older);
        left -= gone;
        let (newer, older) = (no_older - gone, len - no_older);
        if gone > 0 && older <= newer {
            // The older entries move up to the newer ones.
            for rank in no_older + 1..=len {
                state[1 + self.slot(next, rank - gone)] = state[1 + self.slot(next, rank)];
            }
        } else if gone > 0 {
            // The newer ones move back, the oldest of them first.
            for rank in (1..=newer).rev() {
                state[1 + self.slot(next, rank + gone)] = state[1 + self.slot(next, rank)];
            }
            next = self.slot(next, gone) as u32;
        }
        let beyond = drop_beyond(&mut left);
        let len = (len - gone).saturating_sub(left);
        self.write_refilled(state, Head { next, len, beyond }, oldest);
    }

    /// How many of the newest `len` entries are of this time or newer.
    fn since(log: Log<'_>, len: u32, time: u64) -> u32 {
        let (mut inside, mut beyond) = (0, len + 1);
        while beyond - inside > 1 {
            let rank = inside + (beyond - inside) / 2;
            if log.newest(rank) >= time {
                inside = rank;
            } else {
                beyond = rank;
            }
        }
        inside
    }

    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        // In practice, no other window ends one nanosecond after a microsecond.
        let closed = self.lifetime > 1 && self.lifetime % 1_000 == 1;
        let spec = AlgorithmSpec::of(&ENTRY).with("closed", closed.then_some(Value::Flag(true)));
        (
            spec,
            Amount::Quota(Quota::of(
                self.limit.into(),
                self.lifetime - u64::from(closed),
            )),
        )
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        Parameters::SlidingLog {
            limit: self.limit as u64,
            lifetime: self.lifetime,
        }
    }

    /// How long an entry counts.
    pub(crate) const fn lifetime(&self) -> u64 {
        self.lifetime
    }
}

/// The first word, decoded.
#[derive(Clone, Copy)]
struct Head {
    next: u32,
    len: u32,
    beyond: u32,
}

impl Head {
    #[inline]
    const fn read(word: u64) -> Self {
        let beyond = (word >> 20 & 0xFFF | word >> 52 << 12) as u32;
        Self {
            next: (word >> 32 & LOW_20) as u32,
            len: (word & LOW_20) as u32,
            beyond,
        }
    }

    #[inline]
    const fn word(self) -> u64 {
        let beyond = self.beyond as u64;
        beyond >> 12 << 52 | (self.next as u64) << 32 | (beyond & 0xFFF) << 20 | self.len as u64
    }
}

/// A state, decoded.
#[derive(Clone, Copy)]
struct Log<'a> {
    times: &'a [u64],
    head: Head,
    /// If the limit is 0, the time of the entries beyond.
    spare: u64,
}

impl core::ops::Deref for Log<'_> {
    type Target = Head;

    #[inline]
    fn deref(&self) -> &Head {
        &self.head
    }
}

impl<'a> Log<'a> {
    #[inline]
    fn read(state: &'a [u64], limit: u32) -> Self {
        Self {
            times: &state[1..=limit as usize],
            head: Head::read(state[0]),
            spare: state[1],
        }
    }

    /// The time of the entry of this rank; 1 is the newest. The rank is at most `len`.
    #[inline]
    fn newest(&self, rank: u32) -> u64 {
        let slots = self.times.len() as u32;
        let at = if self.next >= rank {
            self.next - rank
        } else {
            self.next + (slots - rank)
        };
        self.times[at as usize]
    }

    /// The time of the oldest entry, which is also the time of the entries beyond.
    fn oldest(&self) -> u64 {
        if self.len == 0 {
            self.spare
        } else {
            self.newest(self.len)
        }
    }

    /// Time never runs backwards: a time before the newest entry counts as that entry's time.
    #[inline]
    fn no_earlier_than_newest(&self, now: Nanos) -> u64 {
        if self.len == 0 {
            now.get()
        } else {
            now.get().max(self.newest(1))
        }
    }
}

impl Algorithm for SlidingLog {
    fn words(&self) -> usize {
        // At least two: a one-word state must leave its top bit clear.
        1 + (self.limit as usize).max(1)
    }

    #[inline]
    fn limit(&self) -> u64 {
        self.limit.into()
    }

    #[inline]
    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        let log = Log::read(state, self.limit);
        let standing = |room: u32, reset_after| Standing {
            limit: self.limit.into(),
            room: room.into(),
            unit: 1,
            reset_after,
        };
        let asked = now;
        let now = log.no_earlier_than_newest(now);
        let cost = few(cost);
        if cost > self.limit {
            let room = self.limit - self.counting(log, now);
            return never_fits(self.limit.into(), room.into(), self.reset(log, asked));
        }
        if cost == 0 && log.beyond > 0 {
            let counting = self.counting(log, now);
            if self.counting_beyond(log, counting, now) > 0 {
                // The entries beyond have the time of the oldest one that is kept.
                let wait = log.oldest() + self.lifetime - asked.get();
                return Decision::deny(standing(0, self.reset(log, asked)), wait);
            }
        }
        // The rank of the entry that must have expired for the cost to fit.
        let rank = self.limit - cost + 1;
        if cost > 0 && rank <= log.len {
            let age = now - log.newest(rank);
            if age < self.lifetime {
                let room = self.limit - self.counting(log, now);
                // Measured on the caller's clock, which may be behind the log's.
                let wait = self.lifetime - age + (now - asked.get());
                return Decision::deny(standing(room, self.reset(log, asked)), wait);
            }
        }
        let room = self.limit - self.counting(log, now) - cost;
        let reset = if cost == 0 {
            self.reset(log, asked)
        } else {
            self.lifetime + (now - asked.get())
        };
        Decision::allow(standing(room, reset))
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u64) {
        if self.limit == 0 {
            return;
        }
        let (log, cost) = (Log::read(state, self.limit), few(cost));
        let now = log.no_earlier_than_newest(now);
        let Head {
            mut next,
            len,
            mut beyond,
        } = log.head;
        if beyond > 0 {
            beyond = self.counting_beyond(log, self.counting(log, now), now);
        }
        for _ in 0..cost.min(self.limit) {
            state[1 + next as usize] = now;
            next = if next + 1 == self.limit { 0 } else { next + 1 };
        }
        state[0] = Head {
            next,
            len: len.saturating_add(cost).min(self.limit),
            beyond,
        }
        .word();
    }

    /// The units that the ring has no room for count as taken at the oldest time that is kept, so a
    /// cost of 0 waits up to the time between two admissions longer than it must. Every other cost
    /// is decided exactly.
    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64) {
        if cost > 0 {
            let log = Log::read(state, self.limit);
            let time = log.no_earlier_than_newest(now);
            let counting = self.counting(log, time);
            let before = self.counting_beyond(log, counting, time);
            let total = (u64::from(counting) + u64::from(before)).saturating_add(cost);
            let beyond = if before == MANY {
                MANY.into()
            } else {
                total.saturating_sub(self.limit.into())
            };
            self.record(state, now, cost);
            if self.limit == 0 {
                state[1] = time;
            }
            let head = Head::read(state[0]);
            state[0] = Head {
                beyond: u32::try_from(beyond).unwrap_or(MANY).min(MANY),
                ..head
            }
            .word();
        }
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let log = Log::read(state, self.limit);
        let now = log.no_earlier_than_newest(now);
        let counting = self.counting(log, now);
        let beyond = self.counting_beyond(log, counting, now);
        let cost = few(cost);
        let taken = cost.min(counting);
        let (head, oldest) = (log.head, log.oldest());
        // Entries beyond were taken before all others, so they are returned last.
        let left = if beyond == MANY {
            MANY
        } else {
            beyond - (cost - taken).min(beyond)
        };
        if taken > 0 || left != head.beyond {
            let next = if taken > 0 {
                self.slot(head.next, taken) as u32
            } else {
                head.next
            };
            self.write_refilled(
                state,
                Head {
                    next,
                    len: head.len - taken,
                    beyond: left,
                },
                oldest,
            );
        }
    }

    fn used(&self, state: &[u64], now: Nanos) -> u64 {
        let log = Log::read(state, self.limit);
        let now = log.no_earlier_than_newest(now);
        let counting = self.counting(log, now);
        match self.counting_beyond(log, counting, now) {
            MANY => u64::MAX,
            beyond => u64::from(counting) + u64::from(beyond),
        }
    }
}

impl StoredState for SlidingLog {
    fn join(&self, state: &mut [u64], other: &[u64], _now: Nanos) {
        // Rank by rank the newer of the two: then every window holds at least as many as in either.
        // Both rings are walked from their newest entry back, so each rank is read before its slot
        // is written.
        let theirs = Log::read(other, self.limit);
        let mine = Log::read(state, self.limit);
        let (next, my_len) = (mine.next, mine.len);
        let len = my_len.max(theirs.len);
        let beyond = if mine.beyond.max(theirs.beyond) == MANY {
            MANY
        } else {
            (my_len + mine.beyond).max(theirs.len + theirs.beyond) - len
        };
        if self.limit == 0 {
            state[1] = mine.spare.max(theirs.spare);
        }
        for rank in 1..=len {
            let mine = if rank <= my_len {
                Log::read(state, self.limit).newest(rank)
            } else {
                0
            };
            let their = if rank <= theirs.len {
                theirs.newest(rank)
            } else {
                0
            };
            let at = if next >= rank {
                next - rank
            } else {
                next + (self.limit - rank)
            };
            state[1 + at as usize] = mine.max(their);
        }
        // Where nothing is kept beyond a ring that is not full, as with none of the two before.
        state[0] = Head {
            next,
            len,
            beyond: if len == self.limit { beyond } else { 0 },
        }
        .word();
    }

    fn accepts(&self, state: &[u64]) -> bool {
        if state.len() != self.words() {
            return false;
        }
        let head = Head::read(state[0]);
        let beyond_is_told = head.beyond == 0 || head.len == self.limit;
        if head.next >= self.limit.max(1) || !beyond_is_told || state[1] > Nanos::MAX.get() {
            return false;
        }
        let log = Log::read(state, self.limit);
        let times = (1..=log.len.min(self.limit)).map(|rank| log.newest(rank));
        log.len <= self.limit
            && times.clone().all(|t| t <= Nanos::MAX.get())
            && times.rev().is_sorted()
    }

    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let used = self.used(state, now);
        let log = Log::read(state, self.limit);
        let end = match (used, log.len) {
            (0, _) => 0,
            // A limit of 0 keeps only entries beyond.
            (_, 0) => log.spare + self.lifetime,
            _ => log.newest(1) + self.lifetime,
        };
        Debt::until(used, self.limit(), end, now)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        let newest = Nanos::new(debt.end().saturating_sub(self.lifetime));
        self.keep(state, newest, debt.share.units(self.limit()));
    }
}
