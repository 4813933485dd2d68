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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn true_weights_lie_within_the_bounds(
            capacity in 1_usize..20,
            adds in prop::collection::vec((0_u8..60, 1_u64..50), 0..400),
        ) {
            let mut summary = Summary::new(capacity);
            let mut exact: BTreeMap<u8, u64> = BTreeMap::new();
            for (key, weight) in adds {
                // Squared, so that some keys are much more frequent than others.
                let key = (u16::from(key) * u16::from(key) / 60) as u8;
                summary.add(&[key], weight);
                *exact.entry(key).or_default() += weight;
                prop_assert!(summary.slots().len() <= capacity);
            }
            prop_assert_eq!(summary.total(), exact.values().sum::<u64>());
            prop_assert!(summary.least() <= summary.total() / capacity as u64);
            for (key, weight) in exact {
                match summary.slots().iter().find(|slot| *slot.key == [key]) {
                    Some(slot) => prop_assert!(
                        (slot.count - slot.error..=slot.count).contains(&weight),
                        "{} is not within {:?}", weight, slot
                    ),
                    None => prop_assert!(weight <= summary.least()),
                }
            }
        }
    }

    #[test]
    fn counts_are_exact_while_there_is_room_for_all_keys() {
        let mut summary = Summary::new(3);
        for key in [b"a", b"b", b"a", b"c", b"a", b"b"] {
            summary.add(key, 1);
        }
        let mut told: Vec<_> =
            summary.slots().iter().map(|slot| (&*slot.key, slot.count, slot.error)).collect();
        told.sort_unstable();
        assert_eq!(told, [(&b"a"[..], 3, 0), (b"b", 2, 0), (b"c", 1, 0)]);
        summary.add(b"d", 1);
        assert_eq!(summary.least(), 2, "the new key may be the one that was replaced");
        let newest = summary.slots().iter().find(|slot| *slot.key == *b"d").unwrap();
        assert_eq!((newest.count, newest.error), (2, 1));
    }

    #[test]
    fn a_summary_of_no_keys_keeps_none() {
        let mut summary = Summary::new(0);
        summary.add(b"a", 1);
        assert_eq!((summary.slots().len(), summary.least(), summary.total()), (0, 0, 0));
    }
}
