//! A bounded table of values with their states, for hot-parameter rules.
//!
//! The table keeps a fixed number of values whole. When it is full, a new value replaces an old
//! one. The table examines a few candidates and evicts one whose share is untouched, or else the
//! one that has used the smallest part of its share. The evicted value leaves a record: the hash of
//! the value, and its state. A value that returns takes its state from its record. Records are
//! stored in buckets, several records for each value that is kept whole. A record is forgotten only
//! when its bucket is full, again the one that has used least.
//!
//! A table may instead deny new values while it would have to forget another ([`Full::Deny`]).
//!
//! As a result, invented values evict invented values, a value that has used up its share is
//! evicted last, and no value gets the state of another. The loss is bounded: a forgotten value
//! gets the units that it had used a second time.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use tidegate_core::Nanos;

use crate::{
    rules::arg::Arg,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError},
};

const SHARDS: usize = 16;
/// How many values are examined to find one to evict.
const TRIED: usize = 8;
/// Records for each value that is kept whole.
const RECORDS: usize = 4;
/// Records in a bucket.
const BUCKET: usize = 8;

/// States by value.
pub(crate) struct ValueTable<S> {
    shards: Box<[Mutex<ValueShard<S>>]>,
    /// Keyed randomly, so that clients cannot choose values that collide.
    hasher: RandomState,
    forgotten: AtomicU64,
}

struct ValueShard<S> {
    /// Indices into `kept`, by the hash of the value there.
    index: HashTable<u32>,
    kept: Vec<KeptValue<S>>,
    most: usize,
    /// Where the search for a value to evict continues.
    hand: usize,
    /// Empty until the first value is evicted.
    records: Vec<Option<EvictedValue<S>>>,
}

/// A value with its state.
struct KeptValue<S> {
    hash: u64,
    value: Arg<'static>,
    state: S,
}

/// The record of an evicted value. Its hash has 64 bits and a random key: another value has the
/// same hash with a probability of 10⁻¹⁸.
struct EvictedValue<S> {
    hash: u64,
    state: S,
    stake: Stake,
}

/// The treatment of a new value in a full table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// It forgets the value that has used least.
    Forget,
    /// It denies the new value, and forgets none that has a part of its share in use.
    Deny,
}

/// Where the state of a value is.
enum Location {
    /// Its index in `kept`.
    Kept(usize),
    /// In its record.
    Record,
}

/// The share that a value would gain by being forgotten. The value with the least is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stake {
    /// The used part of its share, in thousandths.
    pub(crate) used: u64,
    /// When its share is as good as untouched.
    pub(crate) until: Nanos,
}

/// A key that finds a value's state again, whether the value is kept whole or as a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueKey {
    hash: u64,
}

impl<S: Copy + Default> ValueTable<S> {
    pub(crate) fn new(most: usize) -> Self {
        let shards = if most < SHARDS * 8 { 1 } else { SHARDS };
        let shard = |_| {
            let most = most.div_ceil(shards);
            Mutex::new(ValueShard {
                index: HashTable::new(),
                kept: Vec::new(),
                most,
                hand: 0,
                records: Vec::new(),
            })
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            hasher: RandomState::new(),
            forgotten: AtomicU64::new(0),
        }
    }

    /// Keeps at most `most` values from now on (and up to a shard's worth more, as at creation).
    /// Excess values are evicted to their records when another value arrives.
    pub(crate) fn keep_at_most(&self, most: usize) {
        for shard in &self.shards {
            Self::lock(shard).most = most.div_ceil(self.shards.len());
        }
    }

    fn lock(shard: &Mutex<ValueShard<S>>) -> MutexGuard<'_, ValueShard<S>> {
        // Ignore poisoning: states change in single steps, so a panic leaves a consistent state.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, ValueShard<S>> {
        Self::lock(&self.shards[(hash >> 32) as usize % self.shards.len()])
    }

    /// Returns how many values with a partly used share have been forgotten since the start.
    pub(crate) fn forgotten(&self) -> u64 {
        // Relaxed: a count for people.
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Runs `change` on the state of `value`. `stake` returns the share that a value would gain by
    /// being forgotten, or `None` if its share is as good as untouched.
    ///
    /// # Errors
    /// If the table has no place for a new value ([`Full::Deny`]): the time at which the next one
    /// may be free.
    pub(crate) fn with<T>(
        &self,
        value: &Arg<'_>,
        now: Nanos,
        full: Full,
        stake: impl Fn(&Arg<'_>, &S) -> Option<Stake>,
        change: impl FnOnce(&mut S, ValueKey) -> T,
    ) -> Result<T, Nanos> {
        let hash = self.hasher.hash_one(value);
        let mut shard = self.shard(hash);
        let (place, forgotten) = shard.find_or_keep(hash, value, now, full, &stake)?;
        if forgotten > 0 {
            self.forgotten.fetch_add(forgotten, Ordering::Relaxed);
        }
        let key = ValueKey { hash };
        Ok(match (place, shard.record(hash)) {
            (Location::Record, Some(record)) => {
                let result = change(&mut record.state, key);
                record.stake = stake(value, &record.state).unwrap_or(Stake {
                    used: 0,
                    until: now,
                });
                result
            }
            (Location::Record, None) => unreachable!("the value was found in its record"),
            (Location::Kept(at), _) => change(&mut shard.kept[at].state, key),
        })
    }

    /// Runs `change` on the state of a value, unless the value was forgotten.
    pub(crate) fn at(&self, key: ValueKey, change: impl FnOnce(&mut S)) {
        let mut shard = self.shard(key.hash);
        let known = shard
            .index
            .find(key.hash, |&at| shard.kept[at as usize].hash == key.hash)
            .copied();
        if let Some(at) = known {
            change(&mut shard.kept[at as usize].state);
        } else if let Some(record) = shard.record(key.hash) {
            change(&mut record.state);
        }
    }
}

impl<S: Copy + Default> ValueShard<S> {
    /// Returns where the value's state is, and how many values were forgotten to make room for it.
    fn find_or_keep(
        &mut self,
        hash: u64,
        value: &Arg<'_>,
        now: Nanos,
        full: Full,
        stake: &impl Fn(&Arg<'_>, &S) -> Option<Stake>,
    ) -> Result<(Location, u64), Nanos> {
        if let Some(&at) = self
            .index
            .find(hash, |&at| &self.kept[at as usize].value == value)
        {
            return Ok((Location::Kept(at as usize), 0));
        }
        let mut forgotten = 0;
        while self.kept.len() > self.most
            && self.may_evict(self.kept.len() - 1, now, full, stake)
            && let Some(gone) = self.kept.pop()
        {
            self.unlist(gone.hash, self.kept.len());
            forgotten += self.record_of(&gone, now, stake);
        }
        let evicted = if self.kept.len() < self.most {
            None
        } else {
            match self.least(now, full, stake) {
                Ok(at) => Some(at),
                Err(_) if self.record(hash).is_some() => return Ok((Location::Record, forgotten)),
                Err(until) => return Err(until),
            }
        };
        let state = self.take_record(hash).unwrap_or_default();
        let new = KeptValue {
            hash,
            value: value.clone().into_owned(),
            state,
        };
        let at = if let Some(at) = evicted {
            let gone = std::mem::replace(&mut self.kept[at], new);
            self.unlist(gone.hash, at);
            forgotten += self.record_of(&gone, now, stake);
            at
        } else {
            self.kept.push(new);
            self.kept.len() - 1
        };
        let kept = &self.kept;
        self.index
            .insert_unique(hash, at as u32, |&at| kept[at as usize].hash);
        Ok((Location::Kept(at), forgotten))
    }

    /// Whether evicting a value would forget none that has a part of its share in use, or may.
    fn may_evict(
        &mut self,
        at: usize,
        now: Nanos,
        full: Full,
        stake: &impl Fn(&Arg<'_>, &S) -> Option<Stake>,
    ) -> bool {
        let KeptValue { hash, value, state } = &self.kept[at];
        if full == Full::Forget || stake(value, state).is_none() || self.records.is_empty() {
            return true;
        }
        let hash = *hash;
        self.bucket(hash)
            .iter()
            .any(|record| is_free(record.as_ref(), now))
    }

    fn unlist(&mut self, hash: u64, at: usize) {
        if let Ok(entry) = self.index.find_entry(hash, |&other| other as usize == at) {
            entry.remove();
        }
    }

    /// Returns one of the next few values: one whose share is as good as untouched, or the one with
    /// the least at stake.
    ///
    /// # Errors
    /// If none of them may be evicted: the earliest time at which the share of one is as good as
    /// untouched.
    fn least(
        &mut self,
        now: Nanos,
        full: Full,
        stake: &impl Fn(&Arg<'_>, &S) -> Option<Stake>,
    ) -> Result<usize, Nanos> {
        let (mut least, mut until): (Option<(Stake, usize)>, _) = (None, Nanos::MAX);
        for _ in 0..TRIED.min(self.kept.len()) {
            let at = self.hand % self.kept.len();
            self.hand = at + 1;
            let KeptValue { value, state, .. } = &self.kept[at];
            let Some(stake_of) = stake(value, state) else {
                return Ok(at);
            };
            until = until.min(stake_of.until);
            if least.is_none_or(|(of, _)| stake_of < of) && self.may_evict(at, now, full, stake) {
                least = Some((stake_of, at));
            }
        }
        least.map(|(_, at)| at).ok_or(until)
    }

    /// Records an evicted value. Returns how many records were forgotten.
    fn record_of(
        &mut self,
        gone: &KeptValue<S>,
        now: Nanos,
        stake: &impl Fn(&Arg<'_>, &S) -> Option<Stake>,
    ) -> u64 {
        let Some(stake) = stake(&gone.value, &gone.state) else {
            return 0;
        };
        if self.records.is_empty() {
            let buckets = (self.most * RECORDS).div_ceil(BUCKET).max(1);
            self.records.resize_with(buckets * BUCKET, || None);
        }
        let record = EvictedValue {
            hash: gone.hash,
            state: gone.state,
            stake,
        };
        let bucket = self.bucket(gone.hash);
        if let Some(free) = bucket.iter_mut().find(|of| is_free(of.as_ref(), now)) {
            *free = Some(record);
            return 0;
        }
        let least = bucket.iter_mut().flatten().min_by_key(|of| of.stake);
        if let Some(least) = least
            && least.stake < stake
        {
            *least = record;
        }
        1
    }

    fn bucket(&mut self, hash: u64) -> &mut [Option<EvictedValue<S>>] {
        let buckets = self.records.len() / BUCKET;
        let at = if buckets == 0 {
            0
        } else {
            hash as usize % buckets
        };
        self.records
            .get_mut(at * BUCKET..(at + 1) * BUCKET)
            .unwrap_or_default()
    }

    fn record(&mut self, hash: u64) -> Option<&mut EvictedValue<S>> {
        self.bucket(hash)
            .iter_mut()
            .flatten()
            .find(|record| record.hash == hash)
    }

    fn take_record(&mut self, hash: u64) -> Option<S> {
        let bucket = self.bucket(hash);
        let of = bucket
            .iter_mut()
            .find(|of| of.as_ref().is_some_and(|record| record.hash == hash))?;
        of.take().map(|record| record.state)
    }
}

/// Whether a new record may take the place.
fn is_free<S>(place: Option<&EvictedValue<S>>, now: Nanos) -> bool {
    place.is_none_or(|record| record.stake.until <= now)
}
