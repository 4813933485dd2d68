//! The first answers to requests with an id, so that a repeated request gets the same answer and
//! takes nothing. Limits in the store keep their answers there; this table has those of this server:
//! of limits in its memory, of blocked keys, and of the time when the store does not reply.
//!
//! ```text
//!   index (open addressing)          answers (a ring in the order of time)
//!   ┌──────┬──────┬──────┬─ ─        ┌────────┬────────┬────────┬─ ─
//!   │ place│ place│      │    ─────► │ oldest │  ...   │ newest │
//!   └──────┴──────┴──────┴─ ─        └────────┴────────┴────────┴─ ─
//! ```
//!
//! An answer is 41 bytes in the ring, and 5.1 in the index when the ring is full. Memory becomes
//! resident as answers come. A full ring forgets its oldest answer before the time is over.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::{Decision, DenialReason, Nanos, Standing};
use tidegate_limiter::HashKeys;

/// The longest id, in bytes.
pub const MAX_ID_BYTES: usize = 128;
/// For how many seconds an answer is remembered; up to one more, because times are whole seconds.
pub const REMEMBERED_SECONDS: u64 = 60;

const SHARDS: usize = 80;
/// The number of answers in a shard.
const ROOM: usize = 12_800;
/// The number of places in a shard's index, a power of two: it is full to 78 % at most, which keeps
/// searches short.
const PLACES: usize = 1 << 14;
/// The bits of a place that name an answer, from 1; the others are bits of its tag.
const SLOT_BITS: u32 = 14;

/// The maximum number of answers that are remembered.
pub const MOST_REMEMBERED: usize = SHARDS * ROOM;

/// Identifies a question with an id: a hash with secret keys of the id, and of the names, keys and
/// costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// The first answers, in shards with a lock each.
pub struct Repeats {
    hash: HashKeys,
    shards: Box<[Mutex<Shard>]>,
    repeated: AtomicU64,
    forgotten: AtomicU64,
}

/// A limit's name, a key, and a cost.
pub type Asked<'a> = (&'a str, &'a [u8], u64);

impl Default for Repeats {
    fn default() -> Self {
        Self {
            hash: HashKeys::random(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            repeated: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        }
    }
}

impl Repeats {
    /// The mark of a question.
    pub fn mark<'a>(&self, id: &[u8], asked: impl IntoIterator<Item = Asked<'a>>) -> Mark {
        let mut mark = self.hash.tag(id);
        for (limit, key, cost) in asked {
            let parts = [
                mark,
                self.hash.tag(limit.as_bytes()),
                self.hash.tag(key),
                cost,
            ];
            mark = self.hash.tag(parts.map(u64::to_le_bytes).as_flattened());
        }
        Mark(mark)
    }

    fn shard(&self, mark: Mark) -> MutexGuard<'_, Shard> {
        // The tag has 63 bits; the index uses the lower ones.
        let at = (u128::from(mark.0) * SHARDS as u128) >> 63;
        // No step panics midway.
        self.shards[at as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a decision, unless the question had an answer. No other thread answers the same
    /// question in between.
    #[inline]
    pub fn once(
        &self,
        mark: Mark,
        now: Nanos,
        decide: impl FnOnce() -> Option<Decision>,
    ) -> Option<Decision> {
        let mut shard = self.shard(mark);
        shard.at(now);
        if let Some(first) = shard.get(mark.0) {
            self.repeated.fetch_add(1, Ordering::Relaxed);
            return Some(first);
        }
        let decision = decide()?;
        self.keep(&mut shard, mark.0, &decision);
        Some(decision)
    }

    /// Makes several decisions together, unless the question had an answer.
    pub fn once_all<E>(
        &self,
        mark: Mark,
        parts: usize,
        now: Nanos,
        decide: impl FnOnce() -> Result<Vec<Decision>, E>,
    ) -> Result<Vec<Decision>, E> {
        let mut shard = self.shard(mark);
        shard.at(now);
        if let Some(first) = shard.get_all(mark, parts) {
            self.repeated.fetch_add(1, Ordering::Relaxed);
            return Ok(first);
        }
        let decisions = decide()?;
        for (decision, tag) in decisions.iter().zip(tags(mark)) {
            self.keep(&mut shard, tag, decision);
        }
        Ok(decisions)
    }

    /// The first answer to a question about this number of limits.
    pub fn first(&self, mark: Mark, parts: usize, now: Nanos) -> Option<Vec<Decision>> {
        let mut shard = self.shard(mark);
        shard.at(now);
        let first = shard.get_all(mark, parts)?;
        self.repeated.fetch_add(1, Ordering::Relaxed);
        Some(first)
    }

    /// Counts an answer that the store had kept.
    pub fn count_repeated(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }

    fn keep(&self, shard: &mut Shard, tag: u64, decision: &Decision) {
        if shard.add(tag, decision) {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets the answers that are too old.
    pub fn expire(&self, now: Nanos) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            if shard.len > 0 {
                shard.at(now);
            }
        }
    }

    /// How many repeated requests got their first answer.
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    /// How many answers were forgotten before their time, because there were too many.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// How many answers are remembered.
    pub fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).len;
        self.shards.iter().map(len).sum()
    }
}

/// The tag of each part of a question. The first is remembered first, so it is forgotten first.
fn tags(mark: Mark) -> impl Iterator<Item = u64> {
    (0..).map(move |part: u64| {
        mark.0
            .wrapping_add(part.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    })
}

/// The answers of a shard, in memory that is not resident until it is used.
#[derive(Default)]
struct Shard {
    /// Each place is 0, or bits of the tag above the number of its answer in the ring, from 1.
    index: Vec<u32>,
    ring: Vec<Kept>,
    oldest: usize,
    len: usize,
    /// The newest second that was seen.
    second: u64,
}

impl Shard {
    /// The second of a time that does not run backwards. Older answers are forgotten.
    fn at(&mut self, now: Nanos) -> u64 {
        let second = now.get() / 1_000_000_000;
        if second <= self.second {
            return self.second;
        }
        if second - self.second > REMEMBERED_SECONDS && self.len > 0 {
            self.index.fill(0);
            self.len = 0;
        }
        self.second = second;
        // So no answer is older than 2¹⁶ seconds, of which it keeps the time.
        while self.len > 0 && self.ring[self.oldest].age(second) > REMEMBERED_SECONDS {
            self.forget_oldest();
        }
        if self.len == 0 {
            // A quiet server uses the same memory again.
            self.oldest = 0;
        }
        second
    }

    fn get(&self, tag: u64) -> Option<Decision> {
        let (_, slot) = self.find(tag)?;
        Some(self.ring[slot].decision())
    }

    fn get_all(&self, mark: Mark, parts: usize) -> Option<Vec<Decision>> {
        tags(mark).take(parts).map(|tag| self.get(tag)).collect()
    }

    /// Remembers an answer. Returns whether the oldest was forgotten for it.
    fn add(&mut self, tag: u64, decision: &Decision) -> bool {
        if self.ring.is_empty() {
            self.index = vec![0; PLACES];
            self.ring = vec![Kept([0; KEPT_BYTES]); ROOM];
        }
        let is_full = self.len == ROOM;
        if is_full {
            self.forget_oldest();
        }
        let slot = (self.oldest + self.len) % ROOM;
        self.ring[slot] = Kept::new(tag, self.second, decision);
        self.len += 1;
        let mut place = tag as usize % PLACES;
        while self.index[place] != 0 {
            place = (place + 1) % PLACES;
        }
        self.index[place] = entry(tag, slot);
        is_full
    }

    /// The place of a tag in the index, and its answer in the ring.
    fn find(&self, tag: u64) -> Option<(usize, usize)> {
        let mut place = tag as usize % PLACES;
        loop {
            let found = *self.index.get(place).filter(|found| **found != 0)?;
            let slot = (found & ((1 << SLOT_BITS) - 1)) as usize - 1;
            if found == entry(tag, slot) && self.ring[slot].tag() == tag {
                return Some((place, slot));
            }
            place = (place + 1) % PLACES;
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((place, _)) = self.find(self.ring[self.oldest].tag()) {
            self.free(place);
        }
        self.oldest = (self.oldest + 1) % ROOM;
        self.len -= 1;
    }

    /// Frees a place, and moves entries behind it that a search would no longer reach.
    fn free(&mut self, mut hole: usize) {
        let mut place = hole;
        loop {
            self.index[hole] = 0;
            loop {
                place = (place + 1) % PLACES;
                let found = self.index[place];
                if found == 0 {
                    return;
                }
                let home = (found >> SLOT_BITS) as usize % PLACES;
                // Whether its home is not between the hole and its place.
                let from_home = place.wrapping_sub(home) % PLACES;
                if from_home >= place.wrapping_sub(hole) % PLACES {
                    self.index[hole] = found;
                    hole = place;
                    break;
                }
            }
        }
    }
}

/// The entry of an answer in the index.
const fn entry(tag: u64, slot: usize) -> u32 {
    (tag as u32) << SLOT_BITS | (slot as u32 + 1)
}

const KEPT_BYTES: usize = 8 + 2 + 1 + 7 + 7 + 8 + 8;

/// An answer: its tag (8 bytes), its second (2), its verdict (1), the limit and the remaining units
/// (7 each), the wait and the time until the limit is unused (8 each).
#[derive(Clone, Copy)]
struct Kept([u8; KEPT_BYTES]);

impl Kept {
    fn new(tag: u64, second: u64, decision: &Decision) -> Self {
        let wait = if decision.is_allowed() {
            nanos(decision.delay())
        } else {
            decision.retry_after().map_or(u64::MAX, nanos)
        };
        let verdict = match decision.reason() {
            None => 0,
            Some(reason) => {
                1 + DenialReason::ALL
                    .iter()
                    .position(|&known| known == reason)
                    .unwrap_or(0) as u8
            }
        };
        let mut bytes = [0; KEPT_BYTES];
        let mut at = 0;
        let mut write = |number: u64, count: usize| {
            bytes[at..at + count].copy_from_slice(&number.to_le_bytes()[..count]);
            at += count;
        };
        write(tag, 8);
        write(second, 2);
        write(verdict.into(), 1);
        write(decision.limit().min(MAX_UNITS), 7);
        write(decision.remaining().min(MAX_UNITS), 7);
        write(wait, 8);
        write(decision.reset_after_nanos(), 8);
        Self(bytes)
    }

    fn number(&self, at: usize, count: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..count].copy_from_slice(&self.0[at..at + count]);
        u64::from_le_bytes(bytes)
    }

    fn tag(&self) -> u64 {
        self.number(0, 8)
    }

    fn age(&self, second: u64) -> u64 {
        second.wrapping_sub(self.number(8, 2)) & 0xFFFF
    }

    fn decision(&self) -> Decision {
        let standing = Standing {
            limit: self.number(11, 7),
            room: self.number(18, 7),
            unit: 1,
            reset_after: self.number(33, 8),
        };
        let (verdict, wait) = (self.0[10], self.number(25, 8));
        let Some(&reason) = DenialReason::ALL.get(usize::from(verdict).wrapping_sub(1)) else {
            return Decision::delayed(standing, wait);
        };
        let denied = if wait == u64::MAX {
            Decision::deny_for_good(standing)
        } else {
            Decision::deny(standing, wait)
        };
        denied.because(reason)
    }
}

/// The largest number of seven bytes, above any limit.
const MAX_UNITS: u64 = (1 << 56) - 1;

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
