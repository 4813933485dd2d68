//! What a table counts about itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// A table's figures, read without stopping it: each is exact, together they are of about one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys in the table.
    pub keys: u64,
    /// The bound on them.
    pub max_keys: u64,
    /// Bytes reserved for states, debts included; resident as far as they have been touched.
    pub bytes: u64,
    /// Keys that were added, all told.
    pub added: u64,
    /// States that were forgotten because they were as good as fresh.
    pub reclaimed: u64,
    /// Keys that had to give way while still in debt; the debt was kept in a debt cell.
    pub evicted: u64,
    /// Keys that started with the debt of an evicted key (their own or another's).
    pub inherited: u64,
    /// Decisions on a debt cell itself, because no place at all was free.
    pub untracked: u64,
}

/// One counter. Relaxed throughout: counters order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Adds one unless that would pass `most`.
    pub fn add_up_to(&self, most: u64) -> bool {
        if self.0.fetch_add(1, Ordering::Relaxed) < most {
            return true;
        }
        self.sub(1);
        false
    }

    /// Returns the old value and adds one.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The live counters behind [`Stats`]. They move when keys come and go, never on a known key.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub keys: Counter,
    pub added: Counter,
    pub reclaimed: Counter,
    pub evicted: Counter,
    pub inherited: Counter,
    pub untracked: Counter,
}
