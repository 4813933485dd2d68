//! Making room for a new key, in this order: an empty cell of its two buckets; a cell whose state
//! has recovered; a cell whose key can move to its other bucket (where up to four further keys may
//! move in turn); and last the cell of the key that would lose least, which leaves a record: the
//! smallest share of its limit used, then the earliest end.
//!
//! Why a limited key is never reset: a cell that has not recovered leaves a bucket only for another
//! bucket or for its record, in both cases while this bucket is locked; and a key that is in
//! neither of its buckets takes its record. Only [`Records::put`](super::records::Records::put)
//! forgets anything; it defines what is forgotten first.

use smallvec::SmallVec;
use tidegate_core::{Debt, Nanos, StoredState};

use super::{
    NoRoom, Table, Tag, WhenFull, layout::MOST_CELLS, memory::Bucket, record::Spot, records::Put,
};

/// How many further buckets are tried for a victim if a key's own are empty but the bound is
/// reached.
const FURTHER: usize = 64;

/// How many keys may move in a row to make room for one.
const LONGEST_CHAIN: usize = 4;

/// A cell of a key's two buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairCell {
    pub second: bool,
    pub cell: usize,
}

/// A key's two buckets, locked; without a second one if both are the same.
pub(crate) struct Pair<'p, 'a> {
    first: &'p mut Bucket<'a>,
    second: Option<&'p mut Bucket<'a>>,
}

impl<'p, 'a> Pair<'p, 'a> {
    pub fn new(first: &'p mut Bucket<'a>, second: Option<&'p mut Bucket<'a>>) -> Self {
        Self { first, second }
    }

    fn bucket(&mut self, second: bool) -> &mut Bucket<'a> {
        match &mut self.second {
            Some(bucket) if second => bucket,
            _ => self.first,
        }
    }

    /// The cell with this tag (0: an empty one).
    fn find_tag(&mut self, tag: u64) -> Option<PairCell> {
        let first = self.first.find(tag).map(|cell| PairCell {
            second: false,
            cell,
        });
        first.or_else(|| {
            self.second
                .as_mut()?
                .find(tag)
                .map(|cell| PairCell { second: true, cell })
        })
    }

    pub fn find(&mut self, tag: Tag) -> Option<PairCell> {
        self.find_tag(tag.get())
    }

    pub fn state(&mut self, place: PairCell) -> &mut [u64] {
        self.bucket(place.second).state(place.cell)
    }

    pub fn index(&mut self, place: PairCell) -> usize {
        self.bucket(place.second).index()
    }

    pub fn clear(&mut self, place: PairCell) {
        self.set_tag(place, 0);
    }

    fn tag(&mut self, place: PairCell) -> u64 {
        self.bucket(place.second).tag(place.cell)
    }

    fn set_tag(&mut self, place: PairCell, tag: u64) {
        self.bucket(place.second).set_tag(place.cell, tag);
    }

    /// The occupied places of keys that are not pinned. The pinned ones are sorted.
    fn occupied(&mut self, pinned: &[Tag]) -> PairCells {
        let mut places = [None; 2 * MOST_CELLS];
        let mut n = 0;
        for second in [false, true] {
            if second && self.second.is_none() {
                break;
            }
            let bucket = self.bucket(second);
            for cell in 0..bucket.cells() {
                let tag = bucket.tag(cell);
                if tag != 0 && pinned.binary_search(&Tag::new(tag)).is_err() {
                    places[n] = Some(PairCell { second, cell });
                    n += 1;
                }
            }
        }
        places.into_iter().flatten()
    }
}

/// Some cells of a pair by value, so that the pair can be changed.
type PairCells = std::iter::Flatten<std::array::IntoIter<Option<PairCell>, { 2 * MOST_CELLS }>>;

impl Table {
    /// Gives `tag`, which is in neither bucket, a cell with its initial state: a fresh one, or the
    /// one of its record.
    pub(crate) fn make_room(
        &self,
        algorithm: &impl StoredState,
        pair: &mut Pair<'_, '_>,
        tag: Tag,
        now: Nanos,
        pinned: &[Tag],
    ) -> Result<PairCell, NoRoom> {
        let spot = self.records.spot(tag);
        self.records.prefetch(spot);
        let place = self.free_place(algorithm, pair, spot, now, pinned)?;
        pair.set_tag(place, tag.get());
        let state = pair.state(place);
        state.fill(0);
        if let Some(debt) = self.records.take(spot, now) {
            algorithm.owe(state, debt);
            self.counters.returned.add(1);
        }
        let before = self.counters.added.next();
        // A thirty-second of the bound is reached: most small pages of the table are in use.
        if before >= self.max_keys / 32 && self.memory.may_enlarge_pages() {
            self.memory.enlarge_next_pages();
        }
        Ok(place)
    }

    /// A cell without a key, or whose key was evicted for the new one; the new key is already
    /// counted.
    fn free_place(
        &self,
        algorithm: &impl StoredState,
        pair: &mut Pair<'_, '_>,
        comes: Spot,
        now: Nanos,
        pinned: &[Tag],
    ) -> Result<PairCell, NoRoom> {
        let below_bound = self.counters.keys.add_up_to(self.max_keys);
        let empty = pair.find_tag(0);
        if below_bound && let Some(place) = empty {
            self.stretches.add(pair.index(place));
            return Ok(place);
        }
        let mut least = None;
        for at in pair.occupied(pinned) {
            let Some(debt) = algorithm.debt(pair.state(at), now) else {
                self.counters.reclaimed.add(1);
                if below_bound {
                    self.counters.keys.sub(1);
                }
                return Ok(at);
            };
            if least.is_none_or(|(least, _)| debt < least) {
                least = Some((debt, at));
            }
        }
        if below_bound {
            if let Some(place) = self.displace(pair, pinned) {
                self.stretches.add(pair.index(place));
                return Ok(place);
            }
            self.counters.keys.sub(1);
        }
        // From here on one key is evicted for the new one.
        if let Some((debt, victim)) = least {
            let gone = Tag::new(pair.tag(victim));
            return match self.evict(gone, debt, comes, now) {
                Ok(()) => Ok(victim),
                Err(until) => Err(NoRoom::Refused(Self::soonest(algorithm, pair, until, now))),
            };
        }
        let place = empty.ok_or(NoRoom::Pinned)?;
        self.evict_elsewhere(algorithm, comes, now)?;
        self.stretches.add(pair.index(place));
        Ok(place)
    }

    /// Leaves a record of an evicted key. If an exhausted key's record would have to be forgotten,
    /// which is not allowed, the key stays: the error contains the time when the first of those
    /// ends.
    fn evict(&self, gone: Tag, debt: Debt, comes: Spot, now: Nanos) -> Result<(), Nanos> {
        let keep_exhausted = self.when_full == WhenFull::Deny;
        match self.records.put(
            self.records.spot(gone),
            debt,
            now,
            Some(comes),
            keep_exhausted,
        ) {
            Put::Kept => {}
            Put::Forgot(debt) => self.counters.forget(debt.share),
            Put::Refused(until) => return Err(until),
        }
        self.counters.evicted.add(1);
        Ok(())
    }

    /// Until when a step on this key would be [refused](super::Refused::Full), if it is new here
    /// and the table keeps exhausted keys: for a look, which adds no key. It may miss a refusal
    /// where a key or a record could move, which only a step tries.
    pub(crate) fn refuses(
        &self,
        algorithm: &impl StoredState,
        tag: Tag,
        now: Nanos,
    ) -> Option<Nanos> {
        if !self.denies_when_full() {
            return None;
        }
        let (mut first, mut second) = self.both_of(tag);
        let mut pair = Pair::new(&mut first, second.as_mut());
        let comes = self.records.spot(tag);
        let has_room = self.counters.keys.get() < self.max_keys && pair.find_tag(0).is_some();
        if has_room || pair.find(tag).is_some() || self.records.look(comes, now).is_some() {
            return None;
        }
        let mut least = None;
        for at in pair.occupied(&[]) {
            let debt = algorithm.debt(pair.state(at), now)?;
            if least.is_none_or(|(least, _)| debt < least) {
                least = Some((debt, at));
            }
        }
        let (debt, victim) = least?;
        let gone = Tag::new(pair.tag(victim));
        let until = self
            .records
            .would_refuse(self.records.spot(gone), debt, now, comes)?;
        Some(Self::soonest(algorithm, &mut pair, until, now))
    }

    /// When a cell of a pair can be evicted at the latest, or a record ends.
    fn soonest(
        algorithm: &impl StoredState,
        pair: &mut Pair<'_, '_>,
        until: Nanos,
        now: Nanos,
    ) -> Nanos {
        let mut soonest = until;
        for at in pair.occupied(&[]) {
            let state = pair.state(at);
            let answer = algorithm.peek(state, now, 1);
            let Some(wait) = answer.retry_after() else {
                continue;
            };
            // A key that has anything left replaces no exhausted record.
            let mut gives_way = now.saturating_add(Nanos::from(wait));
            if algorithm
                .debt(state, gives_way)
                .is_some_and(|debt| debt.share.is_exhausted())
            {
                gives_way = now.saturating_add(Nanos::new(answer.reset_after_nanos()));
            }
            soonest = soonest.min(gives_way);
        }
        soonest
    }

    /// Moves one key of the pair to its other bucket, and further keys if needed.
    fn displace(&self, pair: &mut Pair<'_, '_>, pinned: &[Tag]) -> Option<PairCell> {
        // The shortest chain first, because it touches the fewest buckets.
        (0..=LONGEST_CHAIN).find_map(|chain| {
            pair.occupied(pinned)
                .find(|place| self.vacate(pair.bucket(place.second), place.cell, chain))
        })
    }

    /// Moves the key of a cell to its other bucket, where up to `chain` further keys may move for
    /// it. Buckets on the way are only tried, so that no threads wait in a circle; a bucket of the
    /// chain itself is locked and fails the attempt.
    fn vacate(&self, bucket: &mut Bucket<'_>, cell: usize, chain: usize) -> bool {
        let buckets = self.memory.layout.buckets;
        let tag = Tag::new(bucket.tag(cell));
        let (first, second) = (tag.first(buckets), tag.second(buckets));
        let other = if first == bucket.index() {
            second
        } else {
            first
        };
        let Some(mut other) = self.memory.try_lock(other) else {
            return false;
        };
        let free = match other.find(0) {
            None if chain > 0 => {
                (0..other.cells()).find(|&at| self.vacate(&mut other, at, chain - 1))
            }
            free => free,
        };
        let Some(free) = free else { return false };
        other.set_tag(free, tag.get());
        other.state(free).copy_from_slice(bucket.state(cell));
        self.stretches.touch(other.index());
        self.stretches.add(other.index());
        self.stretches.sub(bucket.index());
        true
    }

    /// Evicts another key, because the bound is reached and this key's own buckets hold no key that
    /// could be evicted.
    fn evict_elsewhere(
        &self,
        algorithm: &impl StoredState,
        comes: Spot,
        now: Nanos,
    ) -> Result<(), NoRoom> {
        let mut refused = None;
        for _ in 0..FURTHER {
            let Some(mut bucket) = self.next_to_sweep() else {
                continue;
            };
            let used = (0..bucket.cells())
                .filter(|&cell| bucket.tag(cell) != 0)
                .collect::<SmallVec<[usize; MOST_CELLS]>>();
            let debt = |cell: &usize| algorithm.debt(bucket.state(*cell), now);
            // No debt comes before any debt.
            let Some((debt, cell)) = used.iter().map(debt).zip(&used).min() else {
                continue;
            };
            match debt.map_or(Ok(()), |debt| {
                self.evict(Tag::new(bucket.tag(*cell)), debt, comes, now)
            }) {
                Ok(()) => {}
                Err(until) => {
                    refused = Some(refused.map_or(until, |first: Nanos| first.min(until)));
                    continue;
                }
            }
            if debt.is_none() {
                self.counters.reclaimed.add(1);
            }
            bucket.set_tag(*cell, 0);
            self.stretches.sub(bucket.index());
            return Ok(());
        }
        Err(refused.map_or(NoRoom::Pinned, NoRoom::Refused))
    }

    /// The next bucket in turn, if it is not locked.
    fn next_to_sweep(&self) -> Option<Bucket<'_>> {
        let turn = self.sweep.next() % self.memory.layout.buckets as u64;
        self.memory.try_lock(turn as usize)
    }

    /// Reclaims recovered states in one bucket, in turn: the table's share of work for each new
    /// key.
    ///
    /// Only if room is scarce: otherwise, keys that return find their state instead of creating a
    /// new one.
    pub(crate) fn sweep_one(&self, algorithm: &impl StoredState, now: Nanos) {
        if self.counters.keys.get() <= self.max_keys / 8 * 7 {
            return;
        }
        let Some(mut bucket) = self.next_to_sweep() else {
            return;
        };
        for cell in 0..self.memory.layout.cells {
            if bucket.tag(cell) != 0 && algorithm.is_recovered(bucket.state(cell), now) {
                bucket.set_tag(cell, 0);
                self.stretches.sub(bucket.index());
                self.counters.keys.sub(1);
                self.counters.reclaimed.add(1);
            }
        }
    }
}
