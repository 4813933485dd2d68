//! What evicted keys still owe.
//!
//! Debt cells are few (one for 64 keys of the bound, at most 65,536), so several keys fall on one; each holds the join
//! of all that was kept in it, which is at least as strict as every part.

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Algorithm, Nanos};

use super::{
    TableError, Tag,
    layout::Layout,
    memory::{Bucket, Memory},
};

const KEYS_PER_CELL: usize = 64;
const MOST_CELLS: usize = 65_536;

/// The debt cells. A cell's lock is a leaf: whoever holds it takes no other.
pub(crate) struct Debts {
    memory: Memory,
    /// Whether anything was ever kept: until then new keys need not look.
    used: AtomicBool,
}

impl Debts {
    pub fn new(words: usize, max_keys: usize) -> Result<Self, TableError> {
        let buckets = (max_keys / KEYS_PER_CELL).clamp(1, MOST_CELLS);
        // One cell each: the lock (its tag is not used), the state.
        let layout = Layout { words, cells: 1, stride: words + 1, buckets };
        Ok(Self { memory: Memory::new(layout)?, used: AtomicBool::new(false) })
    }

    pub fn bytes(&self) -> usize {
        self.memory.layout.bytes()
    }

    /// The cell that a key falls on, locked.
    fn lock(&self, tag: Tag) -> Bucket<'_> {
        self.memory.lock(tag.spread(self.memory.layout.buckets))
    }

    /// The cell that a key falls on, locked, to write to.
    pub fn cell(&self, tag: Tag) -> Bucket<'_> {
        // Relaxed: whoever looks for a key's debt has locked the bucket that the key was evicted from, which orders this
        // store before the look.
        self.used.store(true, Ordering::Relaxed);
        self.lock(tag)
    }

    /// Joins what `state` still owes into its cell.
    pub fn keep(&self, algorithm: &impl Algorithm, tag: Tag, state: &[u64], now: Nanos) {
        algorithm.join(self.cell(tag).state(0), state, now);
    }

    /// Writes into `state`, a fresh one, what its cell owes. Returns whether there was anything.
    pub fn inherit(&self, algorithm: &impl Algorithm, tag: Tag, state: &mut [u64], now: Nanos) -> bool {
        if !self.used.load(Ordering::Relaxed) {
            return false;
        }
        let mut cell = self.lock(tag);
        let owed = cell.state(0);
        if algorithm.is_recovered(owed, now) {
            return false;
        }
        state.copy_from_slice(owed);
        true
    }

    pub fn for_each(&self, mut visit: impl FnMut(usize, &mut [u64])) {
        if self.used.load(Ordering::Relaxed) {
            for index in 0..self.memory.layout.buckets {
                visit(index, self.memory.lock(index).state(0));
            }
        }
    }

    pub fn join(&self, algorithm: &impl Algorithm, index: usize, state: &[u64], now: Nanos) -> bool {
        if index >= self.memory.layout.buckets || state.len() != self.memory.layout.words {
            return false;
        }
        self.used.store(true, Ordering::Relaxed);
        algorithm.join(self.memory.lock(index).state(0), state, now);
        true
    }
}
