//! The resources of a gate, by name.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use hashbrown::HashTable;
use tidegate_core::stats::Layout;

use crate::state::State;

/// The name of the statistics that resources share which found no place of their own.
pub const OVERFLOW: &str = "*overflow*";

const SHARDS: usize = 64;

/// States by the hash of their names, which has chosen the shard, too.
type Shard = RwLock<HashTable<Arc<State>>>;

/// The states of a bounded number of resources, and one for all others.
pub(crate) struct Table {
    layout: Layout,
    most: usize,
    shards: Box<[Shard]>,
    count: AtomicUsize,
    overflow: OnceLock<Arc<State>>,
    overflowed: AtomicU64,
    hasher: RandomState,
}

impl Table {
    pub(crate) fn new(layout: Layout, most: usize) -> Self {
        Self {
            layout,
            most,
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            count: AtomicUsize::new(0),
            overflow: OnceLock::new(),
            overflowed: AtomicU64::new(0),
            hasher: RandomState::new(),
        }
    }

    /// The state of a resource; a `needed` one gets one however many there are.
    pub(crate) fn state(&self, name: &str, needed: impl FnOnce() -> bool) -> Option<Arc<State>> {
        let hash = self.hasher.hash_one(name);
        let is_it = |state: &Arc<State>| *state.name == *name;
        // The table takes its places from the low bits and the top ones.
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        if let Some(state) = shard.read().unwrap_or_else(PoisonError::into_inner).find(hash, is_it) {
            return Some(state.clone());
        }
        let needed = needed();
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = shard.find(hash, is_it) {
            return Some(state.clone());
        }
        // Relaxed: the places are only counted; the map is behind its lock.
        let place = |count| (count < self.most || needed).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).ok()?;
        let state = Arc::new(State::new(name.into(), self.layout));
        shard.insert_unique(hash, state.clone(), |state| self.hasher.hash_one(&*state.name));
        Some(state)
    }

    /// The state of all that find no place of their own.
    pub(crate) fn overflow(&self) -> Arc<State> {
        // Relaxed: a count for people.
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow.get_or_init(|| Arc::new(State::new(OVERFLOW.into(), self.layout))).clone()
    }

    /// How often somebody was sent there.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// How many resources have a place.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All states in the order of their names; that of all others last, if it is used.
    pub(crate) fn states(&self) -> Vec<Arc<State>> {
        let of = |shard: &Shard| -> Vec<_> {
            shard.read().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
        };
        let mut states: Vec<_> = self.shards.iter().flat_map(of).collect();
        states.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        states.extend(self.overflow.get().cloned());
        states
    }
}
