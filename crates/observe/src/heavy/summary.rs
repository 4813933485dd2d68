//! The most frequent keys in bounded memory: the space-saving algorithm of Metwally, Agrawal and El
//! Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005).
//!
//! For a summary of `capacity` keys after a total weight of `total`:
//!
//! 1. A key in the summary weighs at most its `count` and at least `count - error`.
//! 2. A key outside the summary weighs at most [`least`](Summary::least), which is at most
//!    `total / capacity`.

use std::{cmp::Reverse, collections::BinaryHeap, mem, sync::Arc};

use hashbrown::HashTable;
use tidegate_core::Nanos;

/// A key and its hash, which clients cannot predict. All summaries of a limit have the same hash.
#[derive(Clone, Copy)]
pub(super) struct HashedKey<'k> {
    pub key: &'k [u8],
    pub hash: u64,
}

/// A bounded count of the weights of keys.
#[derive(Debug, Default)]
pub(super) struct Summary {
    capacity: usize,
    /// The sum of all weights.
    pub total: u64,
    /// The keys in it, unordered. Slots never move, so `places` and `by_count` can refer to them by
    /// index.
    pub slots: Vec<CountedKey>,
    /// Counts with the indices of their slots, the lightest first; empty until a key has to give
    /// way to another one. A slot may count more than its entry says: it is corrected when it comes
    /// to the front.
    by_count: BinaryHeap<Reverse<u128>>,
    places: HashTable<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct CountedKey {
    pub key: Arc<[u8]>,
    hash: u64,
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
    pub fn add(&mut self, key: HashedKey<'_>, weight: u64, since: impl FnOnce() -> Nanos) {
        if self.capacity == 0 {
            return;
        }
        self.total = self.total.saturating_add(weight);
        let at = match self.find(key) {
            Some(slot) => slot,
            None if self.slots.len() < self.capacity => self.insert(key, since()),
            None => self.replace(key, since()),
        };
        let slot = &mut self.slots[at as usize];
        slot.count = slot.count.saturating_add(weight);
    }

    /// Since when a key in the summary is counted.
    pub fn since(&self, key: HashedKey<'_>) -> Option<Nanos> {
        let slot = self.slots.get(self.find(key)? as usize)?;
        Some(slot.since)
    }

    /// The maximum weight of a key outside the summary.
    pub fn least(&self) -> u64 {
        if self.slots.len() < self.capacity {
            return 0;
        }
        let counts = self.slots.iter().map(|slot| slot.count);
        counts.min().unwrap_or_default()
    }

    fn find(&self, HashedKey { key, hash }: HashedKey<'_>) -> Option<u32> {
        let is_key = |slot: &u32| *self.slots[*slot as usize].key == *key;
        self.places.find(hash, is_key).copied()
    }

    fn place(&mut self, hash: u64, slot: u32) {
        let Self { places, slots, .. } = self;
        places.insert_unique(hash, slot, |slot| slots[*slot as usize].hash);
    }

    fn insert(&mut self, HashedKey { key, hash }: HashedKey<'_>, since: Nanos) -> u32 {
        let slot = self.slots.len() as u32;
        self.slots.push(CountedKey {
            key: key.into(),
            hash,
            count: 0,
            error: 0,
            since,
        });
        self.place(hash, slot);
        slot
    }

    fn replace(&mut self, HashedKey { key, hash }: HashedKey<'_>, since: Nanos) -> u32 {
        let slot = self.lightest();
        let place = &mut self.slots[slot as usize];
        (place.error, place.since) = (place.count, since);
        match Arc::get_mut(&mut place.key) {
            // Its memory serves for the new key.
            Some(gone) if gone.len() == key.len() => gone.copy_from_slice(key),
            _ => place.key = key.into(),
        }
        let gone = mem::replace(&mut place.hash, hash);
        if let Ok(entry) = self.places.find_entry(gone, |other| *other == slot) {
            entry.remove();
        }
        self.place(hash, slot);
        slot
    }

    /// The slot with the lowest count, the first among equals.
    fn lightest(&mut self) -> u32 {
        let Self {
            by_count, slots, ..
        } = self;
        if by_count.is_empty() {
            *by_count = slots.iter().zip(0..).map(entry).collect();
        }
        while let Some(mut first) = by_count.peek_mut() {
            // The lower 32 bits.
            let slot = first.0 as u32;
            let counted = entry((&slots[slot as usize], slot));
            if *first == counted {
                return slot;
            }
            *first = counted;
        }
        0
    }
}

/// An entry of the heap, in one number that is fast to compare.
fn entry((slot, at): (&CountedKey, u32)) -> Reverse<u128> {
    Reverse(u128::from(slot.count) << 32 | u128::from(at))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The same without a heap and a table: count, error, key and since when, by slot.
    #[derive(Default)]
    struct Plain(Vec<(u64, u64, Vec<u8>, Nanos)>);

    impl Plain {
        fn add(&mut self, capacity: usize, key: &[u8], weight: u64, now: Nanos) {
            let Self(slots) = self;
            if let Some(slot) = slots.iter_mut().find(|slot| slot.2 == key) {
                slot.0 += weight;
            } else if slots.len() < capacity {
                slots.push((weight, 0, key.to_vec(), now));
            } else {
                // The first of the lightest ones.
                let lightest = slots.iter_mut().min_by_key(|slot| slot.0).unwrap();
                *lightest = (lightest.0 + weight, lightest.0, key.to_vec(), now);
            }
        }
    }

    proptest! {
        /// Keys with equal hashes stay apart, and copies for readers stay as they are.
        #[test]
        fn it_is_the_algorithm_whatever_the_keys_hashes_and_weights(
            capacity in 1_usize..24,
            added in prop::collection::vec((0_u8..48, 0_u32..5, any::<bool>()), 1..400),
        ) {
            let (mut summary, mut plain) = (Summary::new(capacity), Plain::default());
            let mut seen = Vec::new();
            for (at, (key, weight, reads)) in added.into_iter().enumerate() {
                // Of several lengths.
                let text = vec![key; usize::from(key % 3) + 1];
                let (weight, now) = (1 << weight, Nanos::from_secs(at as u64));
                let key = HashedKey { key: &text, hash: u64::from(key % 16) << 57 | u64::from(key % 8) };
                summary.add(key, weight, || now);
                plain.add(capacity, &text, weight, now);
                if reads {
                    seen.push((summary.slots.clone(), plain.0.clone()));
                }
                prop_assert!(summary.since(key).is_some());
                let least = plain.0.iter().map(|slot| slot.0).min().filter(|_| plain.0.len() == capacity);
                prop_assert_eq!(summary.least(), least.unwrap_or(0));
                let places: BTreeSet<u32> = summary.places.iter().copied().collect();
                prop_assert!(places.into_iter().eq(0..summary.slots.len() as u32));
            }
            seen.push((summary.slots, plain.0));
            for (slots, plain) in seen {
                let found = slots.into_iter().map(|slot| (slot.count, slot.error, slot.key.to_vec(), slot.since));
                prop_assert_eq!(found.collect::<Vec<_>>(), plain);
            }
        }
    }
}
