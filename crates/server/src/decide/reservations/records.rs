//! Reservations as bytes, in cells of one size, so that a million take little memory.
//!
//! A record is its id, the time when it is due, a byte with its status and the number of its parts, its time to live and its parts. A part is
//! the number of its [source](Source), its key, and for each estimate the cost, the time, and (after the first) the source. Numbers are
//! [written](number) in as few bytes as they need. A record that fits into one cell has all of it; each cell of a longer record ends with
//! the number of the next one.

use std::{borrow::Cow, hash::BuildHasher, sync::Arc};

use hashbrown::HashTable;
use rapidhash::fast::RandomState;
use slab::Slab;
use tidegate_core::Nanos;
use tidegate_limiter::{Estimate, Estimates};

use super::{Id, Part, REMEMBERED, Reservation, Status};

const CELL: usize = 48;
/// The bytes of a longer record in one cell.
const LINKED: usize = CELL - 4;
/// The cells that are allocated at once.
const CHUNK: usize = 64;
const NONE: u32 = u32::MAX;

/// Where the id ends, and the time when it is due.
const DUE: usize = 16;
const FLAGS: usize = 24;
/// In the flags above the status: the record takes several cells; its time to live is written in milliseconds.
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
        let free = std::iter::successors(self.cells.free, |&cell| self.cells.next(cell)).count();
        (self.cells.len - free as u32, self.cells.len)
    }

    /// How many sources have a number.
    #[cfg(test)]
    pub fn sources(&self) -> usize {
        self.sources.all.len()
    }

    pub fn find(&self, id: Id) -> Option<u32> {
        self.by_id.find(hash(id), |&head| self.id(head) == id).copied()
    }

    fn id(&self, head: u32) -> Id {
        id_in(self.cells.cell(head))
    }

    /// When it expires, or is forgotten.
    pub fn due(&self, head: u32) -> Nanos {
        due_in(self.cells.cell(head))
    }

    pub fn get(&self, head: u32) -> (Id, Reservation) {
        decode(&self.cells.read(head), |number| &self.sources.all[number].0)
    }

    pub fn all(&self) -> impl Iterator<Item = (Id, Reservation)> {
        self.by_id.iter().map(|&head| self.get(head))
    }

    /// Keeps a record under a new id. Returns its first cell.
    pub fn add<L: AsRef<str>, K: AsRef<[u8]>>(&mut self, id: Id, new: &Reservation<&[Part<L, K>]>) -> u32 {
        let head = self.cells.take();
        self.write(id, head, new);
        let Self { by_id, cells, .. } = self;
        by_id.insert_unique(hash(id), head, |&head| hash(id_in(cells.cell(head))));
        head
    }

    pub fn replace(&mut self, id: Id, head: u32, new: &Reservation) {
        self.cells.cut(head);
        let Reservation { ref parts, ttl, due, status } = *new;
        self.write(id, head, &Reservation { parts: &parts[..], ttl, due, status });
    }

    pub fn forget(&mut self, head: u32) {
        let id = self.id(head);
        if let Ok(entry) = self.by_id.find_entry(hash(id), |&other| other == head) {
            entry.remove();
        }
        self.cells.cut(head);
        self.cells.free(head);
    }

    fn write<L: AsRef<str>, K: AsRef<[u8]>>(&mut self, id: Id, head: u32, new: &Reservation<&[Part<L, K>]>) {
        if self.sources.all.len() >= self.sources.sweep_at {
            self.sweep();
        }
        let bytes = encode(id, new, &mut self.sources);
        self.cells.write(head, &bytes);
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
        let Sources { all, by_value, sweep_at, .. } = &mut self.sources;
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
    Id(u128::from_le_bytes(cell[..DUE].try_into().expect("16 bytes")))
}

fn due_in(cell: &[u8]) -> Nanos {
    Nanos::new(u64::from_le_bytes(cell[DUE..FLAGS].try_into().expect("8 bytes")))
}

/// The time that the times of estimates are written from: about when the last one was taken.
fn base<P>(of: &Reservation<P>) -> u64 {
    let remembered = if of.status == Status::Expired { of.ttl.max(REMEMBERED).get() } else { 0 };
    of.due.get().wrapping_sub(of.ttl.get()).wrapping_sub(remembered)
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
    for part in of.parts {
        let (limit, key) = (part.limit.as_ref(), part.key.as_ref());
        let mut source = |place| u64::from(sources.number(limit, part.is_released, place));
        let first = part.taken.iter().next();
        number(&mut bytes, source(first.map_or(0, |first| first.place)));
        number(&mut bytes, key.len() as u64);
        bytes.extend_from_slice(key);
        number(&mut bytes, part.taken.iter().count() as u64);
        for (at, estimate) in part.taken.iter().enumerate() {
            number(&mut bytes, estimate.cost);
            // Small numbers for small differences of either sign.
            let before = base.wrapping_sub(estimate.taken.get()).cast_signed();
            number(&mut bytes, (before << 1 ^ before >> 63).cast_unsigned());
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

fn decode<'s>(bytes: &[u8], mut source: impl FnMut(usize) -> &'s Source) -> (Id, Reservation) {
    let flags = bytes[FLAGS];
    let mut rest = Rest(&bytes[FLAGS + 1..]);
    let ttl = rest.number() * if flags & WHOLE == 0 { 1 } else { 1_000_000 };
    let status = match flags & 3 {
        0 => Status::Open,
        1 => Status::Expired,
        _ => Status::Done,
    };
    let parts = Vec::with_capacity(usize::from(flags >> PARTS));
    let mut of = Reservation { parts, ttl: Nanos::new(ttl), due: due_in(bytes), status };
    let base = base(&of);
    for _ in 0..flags >> PARTS {
        let &Source { ref limit, is_released, mut place } = source(rest.number() as usize);
        let length = rest.number() as usize;
        let key = rest.bytes(length).into();
        let mut taken = Estimates::default();
        for at in 0..rest.number() {
            let (cost, before) = (rest.number(), rest.number());
            let before = before >> 1 ^ (before & 1).wrapping_neg();
            if at > 0 {
                place = source(rest.number() as usize).place;
            }
            taken.add(Estimate { cost, taken: Nanos::new(base.wrapping_sub(before)), place });
        }
        of.parts.push(Part { limit: Arc::clone(limit), key, taken, is_released });
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
        self.bytes(length).iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 127))
    }
}

/// What many estimates have in common: a limit, whether its units go back on expiry, and their place.
#[derive(Clone)]
struct Source {
    limit: Arc<str>,
    is_released: bool,
    place: u64,
}

/// Numbers for sources. Those that no record has any longer are forgotten when the number has doubled.
#[derive(Clone, Default)]
struct Sources {
    all: Slab<(Source, u64)>,
    by_value: HashTable<u32>,
    hasher: RandomState,
    sweep_at: usize,
}

impl Sources {
    fn number(&mut self, limit: &str, is_released: bool, place: u64) -> u32 {
        let Self { all, by_value, hasher, .. } = self;
        let hash = hasher.hash_one((limit, is_released, place));
        let same = |&number: &u32| {
            let (source, _) = &all[number as usize];
            source.place == place && source.is_released == is_released && *source.limit == *limit
        };
        if let Some(&number) = by_value.find(hash, same) {
            return number;
        }
        let number = all.insert((Source { limit: limit.into(), is_released, place }, hash)) as u32;
        by_value.insert_unique(hash, number, |&number| all[number as usize].1);
        number
    }
}

/// Cells by their number. Those that are free form a list.
#[derive(Clone, Default)]
struct Cells {
    chunks: Vec<Box<[[u8; CELL]]>>,
    /// How many there are, free ones too.
    len: u32,
    free: Option<u32>,
}

impl Cells {
    fn cell(&self, number: u32) -> &[u8; CELL] {
        &self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    fn cell_mut(&mut self, number: u32) -> &mut [u8; CELL] {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    fn next(&self, number: u32) -> Option<u32> {
        let next = self.cell(number)[LINKED..].try_into().map_or(NONE, u32::from_le_bytes);
        (next != NONE).then_some(next)
    }

    fn link(&mut self, number: u32, next: Option<u32>) {
        self.cell_mut(number)[LINKED..].copy_from_slice(&next.unwrap_or(NONE).to_le_bytes());
    }

    fn take(&mut self) -> u32 {
        if let Some(free) = self.free {
            self.free = self.next(free);
            return free;
        }
        if (self.len as usize).is_multiple_of(CHUNK) {
            self.chunks.push(vec![[0; CELL]; CHUNK].into());
        }
        self.len += 1;
        self.len - 1
    }

    fn free(&mut self, number: u32) {
        self.link(number, self.free);
        self.free = Some(number);
    }

    /// The bytes of a record, and some after them if it is short.
    fn read(&self, head: u32) -> Cow<'_, [u8]> {
        let first = self.cell(head);
        if first[FLAGS] & LONG == 0 {
            return Cow::Borrowed(first);
        }
        let cells = std::iter::successors(Some(head), |&cell| self.next(cell));
        Cow::Owned(cells.flat_map(|cell| self.cell(cell)[..LINKED].iter().copied()).collect())
    }

    fn write(&mut self, head: u32, bytes: &[u8]) {
        if bytes.len() <= CELL {
            self.cell_mut(head)[..bytes.len()].copy_from_slice(bytes);
            return;
        }
        let mut parts = bytes.chunks(LINKED).peekable();
        let mut at = Some(head);
        while let (Some(cell), Some(part)) = (at, parts.next()) {
            self.cell_mut(cell)[..part.len()].copy_from_slice(part);
            at = parts.peek().map(|_| self.take());
            self.link(cell, at);
        }
    }

    /// Frees the cells of a record after its first one.
    fn cut(&mut self, head: u32) {
        if self.cell(head)[FLAGS] & LONG == 0 {
            return;
        }
        let mut rest = self.next(head);
        while let Some(cell) = rest {
            rest = self.next(cell);
            self.free(cell);
        }
    }
}
