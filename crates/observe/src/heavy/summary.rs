//! The most frequent keys in bounded memory: the space-saving algorithm of Metwally, Agrawal and El
//! Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005).
//!
//! For a summary of `capacity` keys after a total weight of `total`:
//!
//! 1. A key in the summary weighs at most its `count` and at least `count - error`.
//! 2. A key outside the summary weighs at most [`least`](Summary::least), which is at most
//!    `total / capacity`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tidegate_core::Nanos;

/// A bounded count of the weights of keys.
#[derive(Debug, Default)]
pub(super) struct Summary {
    capacity: usize,
    /// The sum of all weights.
    pub total: u64,
    /// The keys in it, unordered. Slots never move, so `places` and `by_count` can refer to them by
    /// index.
    pub slots: Vec<CountedKey>,
    /// Counts with the indices of their slots, the lightest first.
    by_count: BTreeSet<(u64, u32)>,
    /// Hashed with a random key, because clients choose the keys.
    places: HashMap<Arc<[u8]>, u32>,
}

#[derive(Clone, Debug)]
pub(super) struct CountedKey {
    pub key: Arc<[u8]>,
    pub count: u64,
    pub error: u64,
    /// Since when it is counted.
    pub since: Nanos,
}

impl Summary {
    /// An empty summary of at most `capacity` keys. It allocates memory as keys arrive.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// Adds weight to a key. A new key in a full summary replaces the lightest one, and inherits
    /// its count as the error. A new key is counted since a time that `since` says.
    pub fn add(&mut self, key: &[u8], weight: u64, since: impl FnOnce() -> Nanos) {
        if self.capacity == 0 {
            return;
        }
        self.total = self.total.saturating_add(weight);
        let at = match self.places.get(key) {
            Some(slot) => *slot,
            None if self.slots.len() < self.capacity => self.insert(key, since()),
            None => self.replace(key, since()),
        };
        let slot = &mut self.slots[at as usize];
        self.by_count.remove(&(slot.count, at));
        slot.count = slot.count.saturating_add(weight);
        self.by_count.insert((slot.count, at));
    }

    /// Since when a key in the summary is counted.
    pub fn since(&self, key: &[u8]) -> Option<Nanos> {
        let slot = self.slots.get(*self.places.get(key)? as usize)?;
        Some(slot.since)
    }

    /// The maximum weight of a key outside the summary.
    pub fn least(&self) -> u64 {
        if self.slots.len() < self.capacity {
            0
        } else {
            self.by_count.first().map_or(0, |(count, _)| *count)
        }
    }

    fn insert(&mut self, key: &[u8], since: Nanos) -> u32 {
        let slot = self.slots.len() as u32;
        let key: Arc<[u8]> = key.into();
        self.slots.push(CountedKey {
            key: Arc::clone(&key),
            count: 0,
            error: 0,
            since,
        });
        self.places.insert(key, slot);
        slot
    }

    fn replace(&mut self, key: &[u8], since: Nanos) -> u32 {
        let slot = self.by_count.first().map_or(0, |(_, slot)| *slot);
        let key: Arc<[u8]> = key.into();
        let place = &mut self.slots[slot as usize];
        (place.error, place.since) = (place.count, since);
        let gone = std::mem::replace(&mut place.key, Arc::clone(&key));
        self.places.remove(&gone);
        self.places.insert(key, slot);
        slot
    }
}
