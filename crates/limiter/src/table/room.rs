//! Making room for a new key, in this order: an empty cell of its two buckets; one whose state has recovered; one whose
//! key can move to its other bucket (where up to four further keys may move in turn); and last the one that recovers first, whose debt is kept.
//!
//! Why a limited key is never reset: a cell that has not recovered leaves a bucket only into another bucket or into its
//! debt cell, in both cases while this bucket is locked; and a key that is in neither of its buckets starts from its
//! debt cell.

use tidegate_core::{Algorithm, Nanos};

use super::{Full, Table, Tag, layout::MOST_CELLS, memory::Bucket};

/// How many further buckets are tried for a victim when a key's own are empty but the bound is reached.
const FURTHER: usize = 64;

/// How many keys may move in a row to make room for one.
const LONGEST_CHAIN: usize = 4;

/// A cell of a key's two buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub second: bool,
    pub cell: usize,
}

/// A key's two buckets, locked; the second is missing where both are the same.
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
    fn find_tag(&mut self, tag: u64) -> Option<Place> {
        let first = self.first.find(tag).map(|cell| Place { second: false, cell });
        first.or_else(|| self.second.as_mut()?.find(tag).map(|cell| Place { second: true, cell }))
    }

    pub fn find(&mut self, tag: Tag) -> Option<Place> {
        self.find_tag(tag.get())
    }

    pub fn state(&mut self, place: Place) -> &mut [u64] {
        self.bucket(place.second).state(place.cell)
    }

    pub fn clear(&mut self, place: Place) {
        self.set_tag(place, 0);
    }

    fn tag(&mut self, place: Place) -> u64 {
        self.bucket(place.second).tag(place.cell)
    }

    fn set_tag(&mut self, place: Place, tag: u64) {
        self.bucket(place.second).set_tag(place.cell, tag);
    }

    /// The places in use by keys that are not pinned.
    fn occupied(&mut self, pinned: &[Tag]) -> Places {
        let mut places = [None; 2 * MOST_CELLS];
        let mut n = 0;
        for second in [false, true] {
            if second && self.second.is_none() {
                break;
            }
            let bucket = self.bucket(second);
            for cell in 0..bucket.cells() {
                let tag = bucket.tag(cell);
                if tag != 0 && !pinned.contains(&Tag::new(tag)) {
                    places[n] = Some(Place { second, cell });
                    n += 1;
                }
            }
        }
        places.into_iter().flatten()
    }
}

/// Places by value, so that the pair stays free to be changed.
type Places = std::iter::Flatten<std::array::IntoIter<Option<Place>, { 2 * MOST_CELLS }>>;

impl Table {
    /// Gives `tag`, which is in neither bucket, a cell with its starting state.
    pub(crate) fn make_room(
        &self,
        algorithm: &impl Algorithm,
        pair: &mut Pair<'_, '_>,
        tag: Tag,
        now: Nanos,
        pinned: &[Tag],
    ) -> Result<Place, Full> {
        let place = self.free_place(algorithm, pair, now, pinned)?;
        pair.set_tag(place, tag.get());
        let state = pair.state(place);
        state.fill(0);
        if self.debts.inherit(algorithm, tag, state, now) {
            self.counters.inherited.add(1);
        }
        let before = self.counters.added.next();
        // A thirty-second of the bound has come: most small pages of the table are in use.
        if before >= self.max_keys / 32 && self.memory.may_enlarge_pages() {
            self.memory.enlarge_next_pages();
        }
        Ok(place)
    }

    /// A cell without a key; the new key is already counted.
    fn free_place(
        &self,
        algorithm: &impl Algorithm,
        pair: &mut Pair<'_, '_>,
        now: Nanos,
        pinned: &[Tag],
    ) -> Result<Place, Full> {
        let below_bound = self.counters.keys.add_up_to(self.max_keys);
        let empty = pair.find_tag(0);
        if below_bound && let Some(place) = empty {
            return Ok(place);
        }
        if let Some(place) = pair.occupied(pinned).find(|&at| algorithm.is_recovered(pair.state(at), now)) {
            self.counters.reclaimed.add(1);
            if below_bound {
                self.counters.keys.sub(1);
            }
            return Ok(place);
        }
        if below_bound {
            if let Some(place) = self.displace(pair, pinned) {
                return Ok(place);
            }
            self.counters.keys.sub(1);
        }
        // From here on one key goes for the one that comes.
        let owes = |pair: &mut Pair<'_, '_>, at| algorithm.check(pair.state(at), now, 0).reset_after_nanos();
        if let Some(victim) = pair.occupied(pinned).min_by_key(|&at| owes(pair, at)) {
            let tag = Tag::new(pair.tag(victim));
            self.debts.keep(algorithm, tag, pair.state(victim), now);
            self.counters.evicted.add(1);
            return Ok(victim);
        }
        let place = empty.ok_or(Full)?;
        if self.evict_elsewhere(algorithm, now) { Ok(place) } else { Err(Full) }
    }

    /// Moves one key of the pair to its other bucket, and there another one if need be.
    fn displace(&self, pair: &mut Pair<'_, '_>, pinned: &[Tag]) -> Option<Place> {
        // The shortest chain first: it touches the fewest buckets.
        (0..=LONGEST_CHAIN).find_map(|chain| {
            pair.occupied(pinned).find(|place| self.vacate(pair.bucket(place.second), place.cell, chain))
        })
    }

    /// Moves the key of a cell to its other bucket, where up to `chain` further keys may move for it. Buckets on the way
    /// are only tried, so that nobody waits in a circle; one of the chain itself is locked and fails the try.
    fn vacate(&self, bucket: &mut Bucket<'_>, cell: usize, chain: usize) -> bool {
        let buckets = self.memory.layout.buckets;
        let tag = Tag::new(bucket.tag(cell));
        let (first, second) = (tag.first(buckets), tag.second(buckets));
        let other = if first == bucket.index() { second } else { first };
        let Some(mut other) = self.memory.try_lock(other) else { return false };
        let free = match other.find(0) {
            None if chain > 0 => (0..other.cells()).find(|&at| self.vacate(&mut other, at, chain - 1)),
            free => free,
        };
        let Some(free) = free else { return false };
        other.set_tag(free, tag.get());
        other.state(free).copy_from_slice(bucket.state(cell));
        true
    }

    /// The bound is reached, and this key's own buckets hold nobody who could go: somebody else goes.
    fn evict_elsewhere(&self, algorithm: &impl Algorithm, now: Nanos) -> bool {
        for _ in 0..FURTHER {
            let Some(mut bucket) = self.next_to_sweep() else { continue };
            let Some(cell) = (0..bucket.cells()).find(|&cell| bucket.tag(cell) != 0) else { continue };
            let tag = Tag::new(bucket.tag(cell));
            if algorithm.is_recovered(bucket.state(cell), now) {
                self.counters.reclaimed.add(1);
            } else {
                self.debts.keep(algorithm, tag, bucket.state(cell), now);
                self.counters.evicted.add(1);
            }
            bucket.set_tag(cell, 0);
            return true;
        }
        false
    }

    /// The next bucket in turn, if nobody is in it.
    fn next_to_sweep(&self) -> Option<Bucket<'_>> {
        let turn = self.sweep.next() % self.memory.layout.buckets as u64;
        self.memory.try_lock(turn as usize)
    }

    /// Reclaims what has recovered in one bucket, in turn: the table's share of work for each new key.
    ///
    /// Only where room is getting scarce: below that, whoever comes back finds its state instead of making a new one.
    pub(crate) fn sweep_one(&self, algorithm: &impl Algorithm, now: Nanos) {
        if self.counters.keys.get() <= self.max_keys / 8 * 7 {
            return;
        }
        let Some(mut bucket) = self.next_to_sweep() else { return };
        for cell in 0..self.memory.layout.cells {
            if bucket.tag(cell) != 0 && algorithm.is_recovered(bucket.state(cell), now) {
                bucket.set_tag(cell, 0);
                self.counters.keys.sub(1);
                self.counters.reclaimed.add(1);
            }
        }
    }
}
