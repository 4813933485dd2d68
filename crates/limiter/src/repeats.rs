//! The first answers to requests with an id, so that a repeated request gets the same answer and
//! takes nothing.
//!
//! ```
//! use tidegate_limiter::{Clock, KeyedLimiter, Policy, repeats::Repeats};
//!
//! let limiter = KeyedLimiter::new(Policy::fixed_window("10/1h".parse()?))?;
//! let repeats = Repeats::default();
//! for _ in 0..3 {
//!     let now = limiter.clock().now();
//!     let mark = repeats.mark(b"5f1c2a9e", [("calls", "alice".as_bytes(), 4)]);
//!     let decision = repeats.once(mark, now, || Some(limiter.at(now).acquire("alice", 4)));
//!     assert_eq!(decision.map(|first| first.remaining()), Some(6));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!   heads, by the tag's hash          answers (a ring in the order of time)
//!   ┌────────────────┬─ ─             ┌────────┬────────┬────────┬─ ─
//!   │ number, filter │     ──────────► │ oldest │  ...   │ newest │
//!   └────────────────┴─ ─             └────▲───┴────────┴───┬────┴─ ─
//!                                          └── link to an ──┘
//!                                           older answer of
//!                                            the same head
//! ```
//!
//! Nothing is ever removed from a chain of answers: it ends at the first link to an answer that was
//! forgotten, because links lead to older answers only. Most requests are new, and their search
//! ends at the head, whose filter says which tags its chain may have. So a new id costs one access
//! to memory that is not in the cache.
//!
//! An answer is 40 bytes in the ring, and 4 in the heads when the ring is full. Memory becomes
//! resident as answers come. A full ring forgets its oldest answer before the time is over.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::{Decision, DenialReason, Nanos, Standing};

use crate::HashKeys;

/// The longest id, in bytes.
pub const MAX_ID_BYTES: usize = 128;
/// For how many seconds an answer is remembered; up to one more, because times are whole seconds.
pub const REMEMBERED_SECONDS: u64 = 60;

const SHARDS: usize = 64;
/// The number of answers in a shard, and of heads; a power of two.
const ROOM: usize = 1 << 14;
/// The bits of a tag that choose the head.
const HEAD_BITS: u32 = ROOM.trailing_zeros();

/// The maximum number of answers that are remembered.
pub const MOST_REMEMBERED: usize = SHARDS * ROOM;

/// Identifies a question with an id: a hash with secret keys of the id, and of the names, keys and
/// costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// The first answers. They take 44 bytes each, and there are at most [`MOST_REMEMBERED`].
#[derive(Debug)]
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
    #[must_use]
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
        // The tag has 63 bits; the heads use the lower ones.
        let at = (mark.0 >> (63 - SHARDS.trailing_zeros())) as usize % SHARDS;
        // No step panics midway.
        self.shards[at]
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
    ///
    /// # Errors
    /// Those of `decide`.
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
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    /// How many answers were forgotten before their time, because there were too many.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// How many answers are remembered.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is a figure for metrics")]
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
///
/// Answers are numbered by 16 bits, which run over; the lower bits are an answer's place in the
/// ring. Those of the latest `len` numbers are remembered.
#[derive(Debug, Default)]
struct Shard {
    /// The number of the newest answer of each head, below the filter of its chain.
    heads: Vec<u32>,
    ring: Vec<Kept>,
    /// The number of the next answer.
    next: u16,
    len: usize,
    /// The newest second that was seen.
    second: u64,
}

impl Shard {
    /// The second of a time that does not run backwards. Older answers are forgotten.
    fn at(&mut self, now: Nanos) {
        let second = now.get() / 1_000_000_000;
        if second <= self.second {
            return;
        }
        if second - self.second > REMEMBERED_SECONDS {
            self.len = 0;
        }
        self.second = second;
        // So no answer is older than 2⁸ seconds, of which it keeps the time.
        while self.len > 0 && self.ring[self.oldest()].age(second) > REMEMBERED_SECONDS {
            self.len -= 1;
        }
        if self.len == 0 {
            // A quiet server uses the same memory again.
            self.next = 0;
        }
    }

    /// The place of the oldest answer in the ring.
    fn oldest(&self) -> usize {
        usize::from(self.next).wrapping_sub(self.len) % ROOM
    }

    /// How many answers came since one with this number, itself included; `None` if it is
    /// forgotten.
    fn since(&self, number: u16) -> Option<u16> {
        // Zero stands for 2¹⁶.
        let since = self.next.wrapping_sub(number);
        (since != 0 && usize::from(since) <= self.len).then_some(since)
    }

    fn get(&self, tag: u64) -> Option<Decision> {
        let head = *self.heads.get(tag as usize % ROOM)?;
        if head & filter(tag) == 0 {
            return None;
        }
        let mut number = head as u16;
        let mut since = self.since(number)?;
        loop {
            let kept = &self.ring[usize::from(number) % ROOM];
            if kept.is_of(tag) {
                return Some(kept.decision());
            }
            number = kept.link();
            // A link to an answer that was forgotten may be the number of a newer one now.
            since = self.since(number).filter(|&older| older > since)?;
        }
    }

    fn get_all(&self, mark: Mark, parts: usize) -> Option<Vec<Decision>> {
        tags(mark).take(parts).map(|tag| self.get(tag)).collect()
    }

    /// Remembers an answer. Returns whether the oldest was forgotten for it.
    fn add(&mut self, tag: u64, decision: &Decision) -> bool {
        if self.ring.is_empty() {
            self.heads = vec![0; ROOM];
            self.ring = vec![Kept::default(); ROOM];
        }
        let number = self.next;
        let head = self.heads[tag as usize % ROOM];
        let (link, others) = match self.since(head as u16) {
            Some(_) => (head as u16, head >> 16 << 16),
            // An answer that links to itself is the last of its chain.
            None => (number, 0),
        };
        self.heads[tag as usize % ROOM] = u32::from(number) | others | filter(tag);
        self.ring[usize::from(number) % ROOM] = Kept::new(tag, self.second, link, decision);
        self.next = number.wrapping_add(1);
        let is_full = self.len == ROOM;
        self.len += usize::from(!is_full);
        is_full
    }
}

/// The bit of a tag in the filter of its head.
const fn filter(tag: u64) -> u32 {
    1 << (16 + (tag >> HEAD_BITS) % 16)
}

/// An answer in five words: the tag without the bits of its head, its second (8 bits) and its
/// verdict (4); the limit and a byte of the link; the remaining units and the other byte; the wait;
/// the time until the limit is unused.
#[derive(Clone, Copy, Debug, Default)]
struct Kept([u64; 5]);

impl Kept {
    fn new(tag: u64, second: u64, link: u16, decision: &Decision) -> Self {
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
                    .unwrap_or(0) as u64
            }
        };
        let [one, other] = link.to_le_bytes().map(u64::from);
        Self([
            tag >> HEAD_BITS | (second & 0xFF) << SECOND_AT | verdict << VERDICT_AT,
            decision.limit().min(MAX_UNITS) | one << UNIT_BITS,
            decision.remaining().min(MAX_UNITS) | other << UNIT_BITS,
            wait,
            decision.reset_after_nanos(),
        ])
    }

    fn is_of(&self, tag: u64) -> bool {
        (self.0[0] ^ tag >> HEAD_BITS) << (64 - SECOND_AT) == 0
    }

    fn age(&self, second: u64) -> u64 {
        second.wrapping_sub(self.0[0] >> SECOND_AT) & 0xFF
    }

    fn link(&self) -> u16 {
        let byte = |word: u64| (word >> UNIT_BITS) as u8;
        u16::from_le_bytes([byte(self.0[1]), byte(self.0[2])])
    }

    fn decision(&self) -> Decision {
        let [_, limit, room, wait, reset_after] = self.0;
        let standing = Standing {
            limit: limit & MAX_UNITS,
            room: room & MAX_UNITS,
            unit: 1,
            reset_after,
        };
        let verdict = (self.0[0] >> VERDICT_AT) as usize;
        let Some(&reason) = DenialReason::ALL.get(verdict.wrapping_sub(1)) else {
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

/// Where the second is, above the bits of a tag that has 64, and the verdict above it.
const SECOND_AT: u32 = 64 - HEAD_BITS;
const VERDICT_AT: u32 = SECOND_AT + 8;
const _: () = assert!(DenialReason::ALL.len() < 1 << (64 - VERDICT_AT));

const UNIT_BITS: u32 = 56;
/// The largest number of seven bytes, above any limit.
const MAX_UNITS: u64 = (1 << UNIT_BITS) - 1;

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
