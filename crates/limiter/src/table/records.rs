//! The debts of evicted keys, one record each.
//!
//! ```text
//! key ─ tag ─┬─► a bucket of the first half  │ lock, base │ record │ record │ record │ … 7 │   one cache line
//!            └─► one of the second half      │ lock, base │ record │ record │ record │ … 7 │
//! ```
//!
//! * An evicted key leaves a record in the emptier of its two buckets. If both are full, one of
//!   their records moves to its other bucket. If none can move, the record that would lose least is
//!   forgotten: the smallest share of its limit used, then the earliest end.
//! * A key that returns takes its record back. A record whose end has passed counts as none.
//! * There are 4.375 records for each key of the bound, in 40 bytes. They are mapped with the table
//!   and become resident when keys are evicted.
//!
//! A bucket's base is the time from which its records' ends are counted (see
//! [`record`](super::record)); it advances as records are added. Locks: a thread that holds a key's
//! two buckets here also holds its buckets in the table; further ones are only tried. A thread that
//! holds one of these buckets locks nothing of a table, except for the records of another table to
//! which these move.

use tidegate_core::{Debt, Lasts, Nanos};

use super::{
    BuildError, Tag,
    layout::TableLayout,
    memory::{Bucket, Memory},
    record::{Spot, decode, encode, print_of},
    stats::Counter,
    stretches::Stretches,
};

/// The number of records in a bucket.
const EACH: usize = 7;

/// The number of buckets per eight keys of the bound: 40 bytes per key.
const BUCKETS_FOR_EIGHT: usize = 5;

/// Additional buckets, because in a small table chance could fill a key's two.
const SLACK: usize = 16;

pub(crate) struct Records {
    memory: Memory,
    half: usize,
    stretches: Stretches,
    /// Records in use, including those that have ended since they were last seen.
    count: Counter,
}

/// The result of storing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Kept,
    /// This record had to be forgotten for it. It may be the new one itself.
    Forgot(Debt),
    /// Only an exhausted key's record could have been forgotten, which was not allowed. The first
    /// of them ends at this time.
    Refused(Nanos),
}

/// A key's two buckets, locked.
struct Pair<'a>([Bucket<'a>; 2]);

/// A place in a pair of buckets.
type PairSlot = (usize, usize);

/// The contents of a pair of buckets, as seen from one key.
#[derive(Default)]
struct Survey {
    /// The key's own record.
    own: Option<(PairSlot, Debt)>,
    /// The number of free places on each side, and one of them.
    free: [(usize, usize); 2],
    /// The record of another key that would lose least.
    least: Option<(Debt, PairSlot)>,
    first_end: Option<Nanos>,
}

impl Records {
    pub fn new(max_keys: usize) -> Result<Self, BuildError> {
        let buckets = max_keys
            .checked_mul(BUCKETS_FOR_EIGHT)
            .ok_or(BuildError::TooLarge)?
            / 8;
        let half = usize::midpoint(buckets, SLACK.min(max_keys)).max(1);
        // One cell per bucket, whose tag is the base and whose state is the records.
        let layout = TableLayout {
            words: EACH,
            cells: 1,
            stride: EACH + 1,
            first_state: 1,
            buckets: 2 * half,
        };
        let stretches = Stretches::new(&layout);
        Ok(Self {
            memory: Memory::new(layout)?,
            half,
            stretches,
            count: Counter::default(),
        })
    }

    pub fn bytes(&self) -> usize {
        self.memory.layout.bytes()
    }

    /// Records in use, including those that have ended since they were last seen.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    pub const fn half(&self) -> usize {
        self.half
    }

    #[inline]
    pub fn spot(&self, tag: Tag) -> Spot {
        Spot::of(tag, self.half)
    }

    /// Whether a key may have a record: false as long as no record was ever stored near its places.
    #[inline]
    fn may_hold(&self, at: Spot) -> bool {
        // A key's record was stored in one of its two buckets, and a thread that asks for the key
        // has locked it in the table since: that orders this mark before the check. Marks stay, so
        // it does not matter where the record is by now.
        self.stretches.is_touched(at.first) || self.stretches.is_touched(at.second(self.half))
    }

    /// Starts fetching a key's buckets into the cache.
    #[inline]
    pub fn prefetch(&self, at: Spot) {
        if self.may_hold(at) {
            self.memory.prefetch(at.first);
            self.memory.prefetch(at.second(self.half));
        }
    }

    fn lock(&self, at: Spot) -> Pair<'_> {
        // The first half comes before the second: one order for all threads.
        Pair([
            self.memory.lock(at.first),
            self.memory.lock(at.second(self.half)),
        ])
    }

    /// Removes and returns a key's record.
    pub fn take(&self, at: Spot, now: Nanos) -> Option<Debt> {
        if !self.may_hold(at) {
            return None;
        }
        let mut pair = self.lock(at);
        let (slot, debt) = pair.find(at.print)?;
        pair.set(slot, 0);
        self.count.sub(1);
        (!debt.is_over(now)).then_some(debt)
    }

    /// A look at a key's record.
    pub fn look(&self, at: Spot, now: Nanos) -> Option<Debt> {
        if !self.may_hold(at) {
            return None;
        }
        let (_, debt) = self.lock(at).find(at.print)?;
        (!debt.is_over(now)).then_some(debt)
    }

    /// Stores a record; the record at `spare` is not forgotten for it. If the key has a record
    /// already, the two are joined. With `keep_exhausted` no exhausted key's record is forgotten,
    /// and the new one may be refused.
    pub fn put(
        &self,
        at: Spot,
        debt: Debt,
        now: Nanos,
        spare: Option<Spot>,
        keep_exhausted: bool,
    ) -> Put {
        self.stretches.touch(at.first);
        self.stretches.touch(at.second(self.half));
        let mut pair = self.lock(at);
        let survey = self.survey(&mut pair, at, now, spare);
        if let Some((slot, own)) = survey.own {
            pair.write(slot, at.print, debt.join(own), now);
            return Put::Kept;
        }
        if let Some(slot) = survey.free().or_else(|| self.displace(&mut pair, at, now)) {
            pair.write(slot, at.print, debt, now);
            let before = self.count.next();
            if before >= (self.memory.layout.buckets / 8) as u64 && self.memory.may_enlarge_pages()
            {
                self.memory.enlarge_next_pages();
            }
            return Put::Kept;
        }
        match survey.least {
            Some((least, _)) if keep_exhausted && least.min(debt).share.is_exhausted() => {
                Put::Refused(survey.soonest(debt))
            }
            Some((least, slot)) if least < debt => {
                pair.write(slot, at.print, debt, now);
                Put::Forgot(least)
            }
            // The new record itself would lose least, or all others must be kept.
            _ => Put::Forgot(debt),
        }
    }

    /// When the first exhausted record near `at` ends, if [`put`](Self::put) with `keep_exhausted`
    /// would refuse this record now. `None` also if moving another record might make room.
    pub fn would_refuse(&self, at: Spot, debt: Debt, now: Nanos, spare: Spot) -> Option<Nanos> {
        if !self.is_crowded() {
            return None;
        }
        let mut pair = self.lock(at);
        let survey = self.survey(&mut pair, at, now, Some(spare));
        let (least, _) = survey.least?;
        let is_kept = survey.own.is_some()
            || survey.free().is_some()
            || !least.min(debt).share.is_exhausted();
        (!is_kept).then(|| survey.soonest(debt))
    }

    /// Whether nearly all places are in use.
    fn is_crowded(&self) -> bool {
        let places = (self.memory.layout.buckets * EACH) as u64;
        self.count.get() > places / 16 * 15
    }

    /// One atomic step on a key's record, if it has one: `step` gets the debt and returns the new
    /// debt.
    pub fn update<R>(
        &self,
        at: Spot,
        now: Nanos,
        step: impl FnOnce(Debt) -> Option<(Option<Debt>, R)>,
    ) -> Option<R> {
        if !self.may_hold(at) {
            return None;
        }
        let mut pair = self.lock(at);
        let (slot, debt) = pair.find(at.print).filter(|(_, debt)| !debt.is_over(now))?;
        let (debt, result) = step(debt)?;
        if let Some(debt) = debt {
            pair.write(slot, at.print, debt, now);
        } else {
            pair.set(slot, 0);
            self.count.sub(1);
        }
        Some(result)
    }

    /// Examines a pair, and drops what has ended.
    fn survey(&self, pair: &mut Pair<'_>, at: Spot, now: Nanos, spare: Option<Spot>) -> Survey {
        let mut survey = Survey::default();
        let spared =
            |index, print| spare.is_some_and(|spare| spare == Spot::found(index, print, self.half));
        for side in 0..2 {
            let index = pair.0[side].index();
            for cell in 0..EACH {
                let slot = (side, cell);
                let word = pair.word(slot);
                let debt = decode(word, pair.base(side));
                let Some(debt) = debt.filter(|debt| !debt.is_over(now)) else {
                    if word != 0 {
                        pair.set(slot, 0);
                        self.count.sub(1);
                    }
                    survey.free[side].0 += 1;
                    survey.free[side].1 = cell;
                    continue;
                };
                if print_of(word) == at.print {
                    survey.own = Some((slot, debt));
                    continue;
                }
                if let Lasts::Until(end) = debt.lasts {
                    survey.first_end = Some(survey.first_end.map_or(end, |first| first.min(end)));
                }
                if survey.least.is_none_or(|(least, _)| debt < least)
                    && !spared(index, print_of(word))
                {
                    survey.least = Some((debt, slot));
                }
            }
        }
        survey
    }

    /// Moves one record of a pair to its other bucket, if that has room and is not locked. If
    /// nearly all places are in use, the search is not worth its cost.
    fn displace(&self, pair: &mut Pair<'_>, at: Spot, now: Nanos) -> Option<PairSlot> {
        if self.is_crowded() {
            return None;
        }
        let indices = [at.first, at.second(self.half)];
        for side in 0..2 {
            for cell in 0..EACH {
                let word = pair.word((side, cell));
                let Some(debt) = decode(word, pair.base(side)) else {
                    continue;
                };
                let spot = Spot::found(indices[side], print_of(word), self.half);
                let other = spot.other(indices[side], self.half);
                if indices.contains(&other) {
                    continue;
                }
                let Some(mut bucket) = self.memory.try_lock(other) else {
                    continue;
                };
                let base = bucket.tag(0);
                let free = bucket
                    .state(0)
                    .iter()
                    .position(|&word| decode(word, base).is_none_or(|debt| debt.is_over(now)));
                let Some(free) = free else { continue };
                self.stretches.touch(other);
                if bucket.state(0)[free] != 0 {
                    self.count.sub(1);
                }
                write(&mut bucket, free, spot.print, debt, now);
                pair.set((side, cell), 0);
                return Some((side, cell));
            }
        }
        None
    }

    /// Visits the records of the next touched stretch from this one on, locking one bucket at a
    /// time. Returns the stretch after it, or `None` at the end. A record for which `visit` returns
    /// false is dropped.
    pub fn walk(&self, from: usize, mut visit: impl FnMut(Spot, Debt) -> bool) -> Option<usize> {
        let (buckets, next) = self.stretches.next_touched(from)?;
        for index in buckets {
            let mut bucket = self.memory.lock(index);
            let base = bucket.tag(0);
            for cell in 0..EACH {
                let word = bucket.state(0)[cell];
                let Some(debt) = decode(word, base) else {
                    continue;
                };
                if !visit(Spot::found(index, print_of(word), self.half), debt) {
                    bucket.state(0)[cell] = 0;
                    self.count.sub(1);
                }
            }
        }
        Some(next)
    }

    /// The spots that a record of a table with another number of buckets may have here: those of
    /// all keys that could have had that spot there.
    pub fn spots_of(&self, there: Spot, half: usize) -> impl Iterator<Item = Spot> {
        let scale =
            |first: usize| (first as u128 * self.half as u128 / half.max(1) as u128) as usize;
        let last =
            ((there.first as u128 + 1) * self.half as u128).div_ceil(half.max(1) as u128) as usize;
        (scale(there.first)..last.min(self.half)).map(move |first| Spot {
            first,
            print: there.print,
        })
    }

    /// Returns the memory to the system.
    ///
    /// # Safety
    /// No thread may store a record any more.
    #[allow(unsafe_code)]
    pub unsafe fn release(&self) {
        // SAFETY: no thread writes to a bucket.
        unsafe { self.memory.release(self.stretches.touched()) };
    }
}

impl Survey {
    /// When the first of these records ends, or this one.
    fn soonest(&self, debt: Debt) -> Nanos {
        let own_end = match debt.lasts {
            Lasts::Until(end) => end,
            Lasts::UntilReturned(_) => Nanos::MAX,
        };
        self.first_end.unwrap_or(Nanos::MAX).min(own_end)
    }

    /// A free place on the emptier side.
    fn free(&self) -> Option<PairSlot> {
        let side = usize::from(self.free[1].0 > self.free[0].0);
        (self.free[side].0 > 0).then_some((side, self.free[side].1))
    }
}

impl Pair<'_> {
    fn base(&mut self, side: usize) -> u64 {
        self.0[side].tag(0)
    }

    fn word(&mut self, (side, cell): PairSlot) -> u64 {
        self.0[side].state(0)[cell]
    }

    fn set(&mut self, (side, cell): PairSlot, word: u64) {
        self.0[side].state(0)[cell] = word;
    }

    fn find(&mut self, print: u32) -> Option<(PairSlot, Debt)> {
        for side in 0..2 {
            let base = self.base(side);
            let at = self.0[side]
                .state(0)
                .iter()
                .position(|&word| word != 0 && print_of(word) == print);
            if let Some(cell) = at {
                return Some(((side, cell), decode(self.word((side, cell)), base)?));
            }
        }
        None
    }

    fn write(&mut self, (side, cell): PairSlot, print: u32, debt: Debt, now: Nanos) {
        write(&mut self.0[side], cell, print, debt, now);
    }
}

/// Writes a record. If the base is further back than the end is ahead, the base advances, so that
/// ends stay precise; if time went back, so does the base.
fn write(bucket: &mut Bucket<'_>, cell: usize, print: u32, debt: Debt, now: Nanos) {
    let base = bucket.tag(0);
    bucket.state(0)[cell] = 0;
    if let Lasts::Until(end) = debt.lasts {
        let is_far_back = now.get().saturating_sub(base) > end.saturating_since(now).get();
        if is_far_back || end.get() < base {
            rebase(bucket, now.min(end).get());
        }
    }
    let base = bucket.tag(0);
    bucket.state(0)[cell] = encode(print, debt, base);
}

/// Counts a bucket's ends from another base.
fn rebase(bucket: &mut Bucket<'_>, to: u64) {
    let base = bucket.tag(0);
    for word in bucket.state(0) {
        if let Some(debt) = decode(*word, base) {
            *word = encode(print_of(*word), debt, to);
        }
    }
    bucket.set_tag(0, to);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{sync::Arc, thread};
    use tidegate_core::{Lasts, Share};

    use super::*;

    #[test]
    fn a_record_that_moves_is_never_missed() {
        let debt = |share| Debt {
            share: Share::new(share).unwrap(),
            lasts: Lasts::Until(Nanos::from_secs(60)),
        };
        let now = Nanos::from_secs(9);
        loom::model(move || {
            let records = Arc::new(Records::new(4).unwrap());
            let half = records.half();
            // Two prints that share the bucket of the first half, and not that of the second.
            let spot = |print: u32| Spot {
                first: 0,
                print: print << 26 | print,
            };
            let same = |spot: Spot| spot.second(half) == Spot { first: 0, print: 0 }.second(half);
            let (mine, others): (Vec<Spot>, Vec<Spot>) =
                (0..4).map(spot).partition(|&spot| same(spot));
            let (filled, moved) = (mine[0], others[0]);
            assert!(!same(moved));
            // Both buckets of `filled` are full; one of the records could go to its other bucket.
            let own = |at: u32| Spot {
                first: 0,
                print: at + 1,
            };
            for at in 0..13 {
                assert!(same(own(at)));
                assert_eq!(records.put(own(at), debt(9), now, None, false), Put::Kept);
                if at == 6 {
                    assert_eq!(records.put(moved, debt(8), now, None, false), Put::Kept);
                }
            }
            let putting = {
                let records = records.clone();
                thread::spawn(move || records.put(filled, debt(7), now, None, false))
            };
            let found = records.take(moved, now);
            assert_eq!(found.map(|debt| debt.share), Share::new(8));
            assert_eq!(putting.join().unwrap(), Put::Kept);
            assert_eq!(records.take(moved, now), None);
            assert_eq!(
                records.take(filled, now).map(|debt| debt.share),
                Share::new(7)
            );
        });
    }
}
