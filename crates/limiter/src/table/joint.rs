//! Several states of several tables, locked together for one decision over all of them.

use smallvec::{SmallVec, smallvec};
use tidegate_core::{Nanos, StoredState};

use super::{Full, KeyFound, NoRoom, Table, Tag, memory::Bucket, room::Pair};

/// The number of states that need no allocation.
const INLINE: usize = 6;

/// A state that a joint decision needs.
#[derive(Clone, Copy)]
pub struct Wanted<'a, A> {
    /// The table that holds it.
    pub table: &'a Table,
    /// The algorithm of its words.
    pub algorithm: &'a A,
    /// The key's tag.
    pub tag: Tag,
    /// The table's rank if several tables are locked: lower ones first.
    pub rank: Rank,
}

/// A table's place in the global order of locks: its limiter, and within it the table.
pub type Rank = (usize, u64);

/// A bucket's place in that order: its table's, then its address.
type Position = (Rank, usize);

/// Where a state is.
#[derive(Clone, Copy)]
enum Spot {
    /// In this bucket and cell. The key may be new.
    Cell(usize, usize, KeyFound),
    /// Only in a record: see [`OnRecord`].
    Record(usize),
}

/// The state of a key for which the table has no cell, but a record. It is changed here, and
/// [closing](Joint::close) writes the record.
struct OnRecord {
    /// The position of the request that came first for it.
    at: usize,
    before: SmallVec<[u64; 16]>,
    state: SmallVec<[u64; 16]>,
}

/// The states, locked until this is dropped.
pub struct Joint<'a> {
    buckets: SmallVec<[Bucket<'a>; 2 * INLINE]>,
    /// For each requested state: where it is, or the time until which it is refused.
    cells: SmallVec<[Result<Spot, Nanos>; INLINE]>,
    records: Vec<OnRecord>,
}

impl<'a> Joint<'a> {
    /// Locks every requested state, and adds new keys. The same key of one table may be requested
    /// twice; it is one state. A new key may be refused instead
    /// ([`WhenFull::Deny`](super::WhenFull::Deny), or a closed table): see [`state`](Self::state).
    /// A key that has a record is not new.
    ///
    /// # Errors
    /// [`Full`] if a table is too small to hold all requested keys at the same time.
    pub fn lock<A: StoredState>(wanted: &[Wanted<'a, A>], now: Nanos) -> Result<Self, Full> {
        // One order for all threads, so that none wait in a circle: by the table's rank, then by
        // the address of the lock.
        let mut places: SmallVec<[(Position, &Table, usize, usize); 2 * INLINE]> = SmallVec::new();
        for want in wanted {
            let buckets = want.table.memory.layout.buckets;
            for index in [want.tag.first(buckets), want.tag.second(buckets)] {
                want.table.stretches.touch(index);
                places.push((position(want, index), want.table, index, places.len()));
            }
        }
        places.sort_unstable_by_key(|&(position, ..)| position);
        let mut joint = Self {
            buckets: SmallVec::new(),
            cells: SmallVec::new(),
            records: Vec::new(),
        };
        // Of each place in the order of the requests: its locked bucket, which it may share.
        let mut locked: SmallVec<[usize; 2 * INLINE]> = smallvec![0; places.len()];
        let mut last = None;
        for &(position, table, index, place) in &places {
            if last != Some(position) {
                joint.buckets.push(table.memory.lock(index));
                last = Some(position);
            }
            locked[place] = joint.buckets.len() - 1;
        }
        // The other keys of this decision must not be evicted for one of them.
        let mut pinned: SmallVec<[Tag; INLINE]> = wanted.iter().map(|want| want.tag).collect();
        pinned.sort_unstable();
        for (at, pair) in locked.chunks_exact(2).enumerate() {
            let want = &wanted[at];
            let cell = match joint.find_or_add((pair[0], pair[1]), want, &pinned, now) {
                Ok((bucket, cell, found)) => Ok(Spot::Cell(bucket, cell, found)),
                Err(no_room) => match (joint.find_record(wanted, at, now), no_room) {
                    (Some(record), _) => Ok(Spot::Record(record)),
                    (None, NoRoom::Refused(until)) => {
                        want.table.counters.refused.add(1);
                        Err(until)
                    }
                    (None, NoRoom::Pinned) => return Err(Full),
                },
            };
            joint.cells.push(cell);
        }
        Ok(joint)
    }

    /// The state in a key's record, as it is requested at this position.
    #[cold]
    fn find_record<A: StoredState>(
        &mut self,
        wanted: &[Wanted<'a, A>],
        at: usize,
        now: Nanos,
    ) -> Option<usize> {
        let Wanted {
            table,
            algorithm,
            tag,
            ..
        } = wanted[at];
        if !table.is_open() {
            return None;
        }
        let is_same = |record: &OnRecord| {
            let other = &wanted[record.at];
            std::ptr::eq(other.table, table) && other.tag == tag
        };
        if let Some(known) = self.records.iter().position(is_same) {
            return Some(known);
        }
        let debt = table.records.look(table.records.spot(tag), now)?;
        let mut state = table.fresh();
        algorithm.owe(&mut state, debt);
        table.counters.untracked.add(1);
        self.records.push(OnRecord {
            at,
            before: state.clone(),
            state,
        });
        Some(self.records.len() - 1)
    }

    /// Writes the records of keys without a cell. Call it when the decision is made: without it
    /// their changes are lost.
    pub fn close<A: StoredState>(&mut self, wanted: &[Wanted<'a, A>], now: Nanos) {
        for OnRecord { at, before, state } in self.records.drain(..) {
            let want = &wanted[at];
            if before == state {
                continue;
            }
            let debt = want.algorithm.debt(&state, now);
            let records = &want.table.records;
            let written = records.update(records.spot(want.tag), now, |_| Some((debt, ())));
            // Another key's record may have taken its place since.
            if written.is_none()
                && let Some(debt) = debt
            {
                want.table.keep(want.tag, debt, now);
            }
        }
    }

    fn find_or_add<A: StoredState>(
        &mut self,
        (first, second): (usize, usize),
        want: &Wanted<'_, A>,
        pinned: &[Tag],
        now: Nanos,
    ) -> Result<(usize, usize, KeyFound), NoRoom> {
        let &Wanted {
            table,
            algorithm,
            tag,
            ..
        } = want;
        let mut pair = if first == second {
            Pair::new(&mut self.buckets[first], None)
        } else {
            let both = self.buckets.get_disjoint_mut([first, second]);
            let Ok([one, two]) = both else {
                return Err(NoRoom::Pinned);
            };
            Pair::new(one, Some(two))
        };
        let (place, found) = match pair.find(tag) {
            Some(place) => (place, KeyFound::Known),
            None if table.is_open() => (
                table.make_room(algorithm, &mut pair, tag, now, pinned)?,
                KeyFound::New,
            ),
            // On the next attempt the caller finds the table that replaced this one.
            None => return Err(NoRoom::Refused(now)),
        };
        Ok((if place.second { second } else { first }, place.cell, found))
    }

    /// The words of the state that was requested at this position, and whether its key is new.
    ///
    /// # Errors
    /// If the key was refused: the time from which it would be added.
    ///
    /// # Panics
    /// If nothing was requested at this position.
    pub fn state(&mut self, at: usize) -> Result<(&mut [u64], KeyFound), Nanos> {
        Ok(match self.cells[at]? {
            Spot::Cell(bucket, cell, found) => (self.buckets[bucket].state(cell), found),
            Spot::Record(record) => (&mut self.records[record].state, KeyFound::Known),
        })
    }
}

fn position<A>(want: &Wanted<'_, A>, index: usize) -> Position {
    (
        want.rank,
        std::ptr::from_ref(want.table.memory.line(index).lock()) as usize,
    )
}
