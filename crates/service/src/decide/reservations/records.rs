//! Reservations as bytes, in cells of one size, so that a million take little memory.
//!
//! A record is its id, the time when it is due, a byte with its status and the number of its parts,
//! its time to live and its parts. A part is the number of its [source](EstimateSource), its key
//! unless the part before has the same one, and for each estimate the cost, the time, and (after
//! the first) the source. The usual part has one estimate, taken when the reservation was made:
//! only its cost is written. Numbers are [written](number) in as few bytes as they need. A record
//! that fits into one cell has all of it. The first cell of a longer one ends with the number of
//! the second cell.
//!
//! A cell has a link: in the first one of a record to another record that is due about then, in the
//! others to the record's next cell, in a free one to the next free one.

use std::{borrow::Cow, hash::BuildHasher, sync::Arc};

use hashbrown::HashTable;
use rapidhash::fast::RandomState;
use slab::Slab;
use tidegate_core::Nanos;
use tidegate_limiter::{Estimate, Estimates};

use super::{Id, Part, REMEMBERED, Reservation, Status};

/// The bytes of a record in one cell.
const CELL: usize = 44;
/// The bytes of a longer record in its first cell.
const LINKED: usize = CELL - 4;
/// The cells that are allocated at once.
const CHUNK: usize = 64;

/// Where the id ends, and the time when it is due.
const DUE: usize = 16;
const FLAGS: usize = 24;
/// In the flags above the status: the record takes several cells; its time to live is written in
/// milliseconds.
const LONG: u8 = 4;
const WHOLE: u8 = 8;
const PARTS: u8 = 4;

/// The records of one shard. A record is known by its first cell.
#[derive(Clone, Default)]
pub(super) struct Records {
    by_id: HashTable<u32>,
    cells: Cells,
    sources: Sources,
}

impl Records {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The cells in use, and all cells.
    #[cfg(test)]
    pub fn cells_used(&self) -> (u32, u32) {
        let free = std::iter::successors(self.cells.free, |&cell| self.cells.link(cell)).count();
        (self.cells.len - free as u32, self.cells.len)
    }

    /// How many sources have a number.
    #[cfg(test)]
    pub fn sources(&self) -> usize {
        self.sources.all.len()
    }

    pub fn find(&self, id: Id) -> Option<u32> {
        self.by_id
            .find(hash(id), |&head| self.id(head) == id)
            .copied()
    }

    fn id(&self, head: u32) -> Id {
        id_in(&self.cells.cell(head).bytes)
    }

    /// When it expires, or is forgotten.
    pub fn due(&self, head: u32) -> Nanos {
        due_in(&self.cells.cell(head).bytes)
    }

    pub fn status(&self, head: u32) -> Status {
        status_in(self.cells.cell(head).bytes[FLAGS])
    }

    /// The record after this one in its list.
    pub fn link(&self, head: u32) -> Option<u32> {
        self.cells.link(head)
    }

    pub fn set_link(&mut self, head: u32, to: Option<u32>) {
        self.cells.set_link(head, to);
    }

    pub fn get(&self, head: u32) -> (Id, Reservation) {
        decode(&self.cells.read(head), |number| &self.sources.all[number].0)
    }

    pub fn all(&self) -> impl Iterator<Item = (Id, Reservation)> {
        self.by_id.iter().map(|&head| self.get(head))
    }

    /// Keeps a record under a new id. Returns its first cell.
    pub fn add<L: AsRef<str>, K: AsRef<[u8]>>(
        &mut self,
        id: Id,
        new: &Reservation<&[Part<L, K>]>,
    ) -> u32 {
        let bytes = self.encode(id, new);
        let head = self.cells.take();
        self.cells.write(head, &bytes);
        let Self { by_id, cells, .. } = self;
        by_id.insert_unique(hash(id), head, |&head| hash(id_in(&cells.cell(head).bytes)));
        head
    }

    pub fn replace(&mut self, id: Id, head: u32, new: &Reservation) {
        let Reservation {
            ref parts,
            ttl,
            due,
            status,
        } = *new;
        let bytes = self.encode(
            id,
            &Reservation {
                parts: &parts[..],
                ttl,
                due,
                status,
            },
        );
        // Not before: a sweep reads all records.
        self.cells.cut(head);
        self.cells.write(head, &bytes);
    }

    /// Its link must be read before.
    pub fn forget(&mut self, head: u32) {
        let id = self.id(head);
        if let Ok(entry) = self.by_id.find_entry(hash(id), |&other| other == head) {
            entry.remove();
        }
        self.cells.cut(head);
        self.cells.free(head);
    }

    fn encode<L: AsRef<str>, K: AsRef<[u8]>>(
        &mut self,
        id: Id,
        new: &Reservation<&[Part<L, K>]>,
    ) -> Vec<u8> {
        if self.sources.all.len() >= self.sources.sweep_at {
            self.sweep();
        }
        encode(id, new, &mut self.sources)
    }

    /// Forgets the sources that no record has.
    #[cold]
    fn sweep(&mut self) {
        let mut used = vec![false; self.sources.all.capacity()];
        for &head in &self.by_id {
            decode(&self.cells.read(head), |number| {
                used[number] = true;
                &self.sources.all[number].0
            });
        }
        let Sources {
            all,
            by_value,
            sweep_at,
            ..
        } = &mut self.sources;
        all.retain(|number, _| used[number]);
        by_value.retain(|&mut number| used[number as usize]);
        *sweep_at = 2 * all.len() + 64;
    }
}

/// An id is random, so its bits are as good as their hash.
fn hash(id: Id) -> u64 {
    id.0 as u64
}

fn id_in(cell: &[u8]) -> Id {
    Id(u128::from_le_bytes(
        cell[..DUE].try_into().expect("16 bytes"),
    ))
}

fn due_in(cell: &[u8]) -> Nanos {
    Nanos::new(u64::from_le_bytes(
        cell[DUE..FLAGS].try_into().expect("8 bytes"),
    ))
}

fn status_in(flags: u8) -> Status {
    match flags & 3 {
        0 => Status::Open,
        1 => Status::Expired,
        _ => Status::Done,
    }
}

/// The time that the times of estimates are written from: about when the last one was taken.
fn base<P>(of: &Reservation<P>) -> u64 {
    let remembered = if of.status == Status::Expired {
        of.ttl.max(REMEMBERED).get()
    } else {
        0
    };
    of.due
        .get()
        .wrapping_sub(of.ttl.get())
        .wrapping_sub(remembered)
}

fn encode<L: AsRef<str>, K: AsRef<[u8]>>(
    id: Id,
    of: &Reservation<&[Part<L, K>]>,
    sources: &mut Sources,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * CELL);
    bytes.extend_from_slice(&id.0.to_le_bytes());
    bytes.extend_from_slice(&of.due.get().to_le_bytes());
    let (ttl, ms) = (of.ttl.get(), 1_000_000);
    let is_whole = ttl.is_multiple_of(ms);
    let whole = if is_whole { WHOLE } else { 0 };
    bytes.push(of.status as u8 | whole | (of.parts.len() as u8) << PARTS);
    number(&mut bytes, if is_whole { ttl / ms } else { ttl });
    let base = base(of);
    let mut key_before = None;
    for part in of.parts {
        let (limit, key) = (part.limit.as_ref(), part.key.as_ref());
        let mut source = |place| u64::from(sources.number(limit, part.is_released, place));
        let (first, count) = (part.taken.iter().next(), part.taken.iter().count());
        let is_usual = count == 1 && first.is_some_and(|first| first.taken.get() == base);
        number(
            &mut bytes,
            source(first.map_or(0, |first| first.place)) << 1 | u64::from(is_usual),
        );
        if key_before == Some(key) {
            number(&mut bytes, 0);
        } else {
            number(&mut bytes, key.len() as u64 + 1);
            bytes.extend_from_slice(key);
        }
        key_before = Some(key);
        if !is_usual {
            number(&mut bytes, count as u64);
        }
        for (at, estimate) in part.taken.iter().enumerate() {
            number(&mut bytes, estimate.cost);
            if !is_usual {
                // Small numbers for small differences of either sign.
                let before = base.wrapping_sub(estimate.taken.get()).cast_signed();
                number(&mut bytes, (before << 1 ^ before >> 63).cast_unsigned());
            }
            if at > 0 {
                number(&mut bytes, source(estimate.place));
            }
        }
    }
    if bytes.len() > CELL {
        bytes[FLAGS] |= LONG;
    }
    bytes
}

fn decode<'s>(
    bytes: &[u8],
    mut source: impl FnMut(usize) -> &'s EstimateSource,
) -> (Id, Reservation) {
    let flags = bytes[FLAGS];
    let mut rest = Rest(&bytes[FLAGS + 1..]);
    let ttl = rest.number() * if flags & WHOLE == 0 { 1 } else { 1_000_000 };
    let status = status_in(flags);
    let parts: Vec<Part> = Vec::with_capacity(usize::from(flags >> PARTS));
    let mut of = Reservation {
        parts,
        ttl: Nanos::new(ttl),
        due: due_in(bytes),
        status,
    };
    let base = base(&of);
    for _ in 0..flags >> PARTS {
        let first = rest.number();
        let (number, is_usual) = (first >> 1, first & 1 == 1);
        let &EstimateSource {
            ref limit,
            is_released,
            mut place,
        } = source(number as usize);
        let key = match (rest.number(), of.parts.last()) {
            (0, Some(before)) => before.key.clone(),
            (length, _) => rest.bytes(length.saturating_sub(1) as usize).into(),
        };
        let mut taken = Estimates::default();
        let count = if is_usual { 1 } else { rest.number() };
        for at in 0..count {
            let cost = rest.number();
            let before = if is_usual { 0 } else { rest.number() };
            let before = before >> 1 ^ (before & 1).wrapping_neg();
            if at > 0 {
                place = source(rest.number() as usize).place;
            }
            taken.add(Estimate {
                cost,
                taken: Nanos::new(base.wrapping_sub(before)),
                place,
            });
        }
        of.parts.push(Part {
            limit: Arc::clone(limit),
            key,
            taken,
            is_released,
        });
    }
    (id_in(bytes), of)
}

/// Writes seven bits in each byte, the lowest first. The last byte is below 128.
fn number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
}

struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn bytes(&mut self, count: usize) -> &'b [u8] {
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    fn number(&mut self) -> u64 {
        let length = self.0.iter().take_while(|byte| **byte >= 128).count() + 1;
        self.bytes(length)
            .iter()
            .rev()
            .fold(0, |number, byte| number << 7 | u64::from(byte & 127))
    }
}

/// What many estimates have in common: a limit, whether its units go back on expiry, and their
/// place.
#[derive(Clone)]
struct EstimateSource {
    limit: Arc<str>,
    is_released: bool,
    place: u64,
}

/// Numbers for sources. Those that no record has any longer are forgotten when the number has
/// doubled.
#[derive(Clone, Default)]
struct Sources {
    all: Slab<(EstimateSource, u64)>,
    by_value: HashTable<u32>,
    hasher: RandomState,
    sweep_at: usize,
}

impl Sources {
    fn number(&mut self, limit: &str, is_released: bool, place: u64) -> u32 {
        let Self {
            all,
            by_value,
            hasher,
            ..
        } = self;
        let hash = hasher.hash_one((limit, is_released, place));
        let same = |&number: &u32| {
            let (source, _) = &all[number as usize];
            source.place == place && source.is_released == is_released && *source.limit == *limit
        };
        if let Some(&number) = by_value.find(hash, same) {
            return number;
        }
        let number = all.insert((
            EstimateSource {
                limit: limit.into(),
                is_released,
                place,
            },
            hash,
        )) as u32;
        by_value.insert_unique(hash, number, |&number| all[number as usize].1);
        number
    }
}

/// A piece of a record.
#[derive(Clone, Copy)]
struct Cell {
    /// See the [module](self).
    link: u32,
    bytes: [u8; CELL],
}

/// The end of a list.
const NONE: u32 = u32::MAX;

/// Cells by their number. Those that are free form a list.
#[derive(Clone, Default)]
struct Cells {
    chunks: Vec<Box<[Cell]>>,
    /// How many there are, free ones too.
    len: u32,
    free: Option<u32>,
}

impl Cells {
    fn cell(&self, number: u32) -> &Cell {
        &self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    fn cell_mut(&mut self, number: u32) -> &mut Cell {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    fn link(&self, number: u32) -> Option<u32> {
        Some(self.cell(number).link).filter(|link| *link != NONE)
    }

    fn set_link(&mut self, number: u32, to: Option<u32>) {
        self.cell_mut(number).link = to.unwrap_or(NONE);
    }

    /// The cells of a record after its first one.
    fn rest(&self, head: u32) -> impl Iterator<Item = u32> {
        let bytes = &self.cell(head).bytes;
        let is_long = bytes[FLAGS] & LONG != 0;
        let second = bytes[LINKED..].try_into().map_or(NONE, u32::from_le_bytes);
        std::iter::successors(is_long.then_some(second), |&cell| self.link(cell))
    }

    fn take(&mut self) -> u32 {
        if let Some(free) = self.free {
            self.free = self.link(free);
            return free;
        }
        if (self.len as usize).is_multiple_of(CHUNK) {
            self.chunks.push(
                vec![
                    Cell {
                        link: NONE,
                        bytes: [0; CELL]
                    };
                    CHUNK
                ]
                .into(),
            );
        }
        self.len += 1;
        self.len - 1
    }

    fn free(&mut self, number: u32) {
        self.set_link(number, self.free);
        self.free = Some(number);
    }

    /// The bytes of a record, and some after them.
    fn read(&self, head: u32) -> Cow<'_, [u8]> {
        let first = &self.cell(head).bytes;
        let mut rest = self.rest(head).peekable();
        if rest.peek().is_none() {
            return Cow::Borrowed(first);
        }
        let mut bytes = first[..LINKED].to_vec();
        rest.for_each(|cell| bytes.extend_from_slice(&self.cell(cell).bytes));
        Cow::Owned(bytes)
    }

    /// Keeps the link of the first cell.
    fn write(&mut self, head: u32, bytes: &[u8]) {
        if bytes.len() <= CELL {
            self.cell_mut(head).bytes[..bytes.len()].copy_from_slice(bytes);
            return;
        }
        let (first, rest) = bytes.split_at(LINKED);
        let mut next = None;
        for part in rest.chunks(CELL).rev() {
            let cell = self.take();
            self.cell_mut(cell).bytes[..part.len()].copy_from_slice(part);
            self.set_link(cell, next);
            next = Some(cell);
        }
        let into = &mut self.cell_mut(head).bytes;
        into[..LINKED].copy_from_slice(first);
        into[LINKED..].copy_from_slice(&next.unwrap_or(NONE).to_le_bytes());
    }

    /// Frees the cells of a record after its first one.
    fn cut(&mut self, head: u32) {
        let mut rest = self.rest(head).next();
        while let Some(cell) = rest {
            rest = self.link(cell);
            self.free(cell);
        }
    }
}
