//! The most frequent keys in bounded memory: the space-saving algorithm of Metwally, Agrawal and El Abbadi, "Efficient
//! Computation of Frequent and Top-k Elements in Data Streams" (2005).
//!
//! For a summary of `capacity` keys after a total weight of `total`:
//!
//! 1. A key in the summary weighs at most its `count` and at least `count - error`.
//! 2. A key outside the summary weighs at most [`least`](Summary::least), which is at most `total / capacity`.

use std::{collections::HashMap, sync::Arc};

/// A bounded count of the weights of keys.
#[derive(Debug, Default)]
pub(super) struct Summary {
    capacity: usize,
    total: u64,
    /// Slots never move, so `places` and `heap` can refer to them by index.
    slots: Vec<Slot>,
    /// Indices of slots: a binary heap with the smallest count first.
    heap: Vec<u32>,
    /// Hashed with a random key, because clients choose the keys.
    places: HashMap<Arc<[u8]>, u32>,
}

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub key: Arc<[u8]>,
    pub count: u64,
    pub error: u64,
    /// Its position in the heap.
    at: u32,
}

impl Summary {
    /// An empty summary of at most `capacity` keys. It allocates memory as keys arrive.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Adds weight to a key. A new key in a full summary replaces the lightest one, and inherits its count as the error.
    pub fn add(&mut self, key: &[u8], weight: u64) {
        if self.capacity == 0 {
            return;
        }
        self.total = self.total.saturating_add(weight);
        let slot = match self.places.get(key) {
            Some(slot) => *slot,
            None if self.slots.len() < self.capacity => self.insert(key),
            None => self.replace(key),
        };
        let slot = &mut self.slots[slot as usize];
        slot.count = slot.count.saturating_add(weight);
        let at = slot.at as usize;
        self.sift_down(at);
    }

    /// The sum of all weights.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The maximum weight of a key outside the summary.
    pub fn least(&self) -> u64 {
        if self.slots.len() < self.capacity {
            0
        } else {
            self.heap.first().map_or(0, |slot| self.count(*slot))
        }
    }

    /// The keys in it, unordered. The keys are shared, not copied.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    fn count(&self, slot: u32) -> u64 {
        self.slots[slot as usize].count
    }

    fn insert(&mut self, key: &[u8]) -> u32 {
        let slot = self.slots.len() as u32;
        let key: Arc<[u8]> = key.into();
        self.slots.push(Slot { key: Arc::clone(&key), count: 0, error: 0, at: slot });
        self.heap.push(slot);
        self.places.insert(key, slot);
        // No count is less than zero.
        self.sift_up(slot as usize);
        slot
    }

    fn replace(&mut self, key: &[u8]) -> u32 {
        let slot = self.heap[0];
        let key: Arc<[u8]> = key.into();
        let place = &mut self.slots[slot as usize];
        place.error = place.count;
        let gone = std::mem::replace(&mut place.key, Arc::clone(&key));
        self.places.remove(&gone);
        self.places.insert(key, slot);
        slot
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.count(self.heap[parent]) <= self.count(self.heap[at]) {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.count(self.heap[*child])) else { break };
            if self.count(self.heap[at]) <= self.count(self.heap[least]) {
                break;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for at in [one, other] {
            self.slots[self.heap[at] as usize].at = at as u32;
        }
    }
}
