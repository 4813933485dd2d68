//! How far a long run has come, for whoever shows it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts that other threads may read while work goes on.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Begins another stretch of work, of `total` steps; 0 where nobody knows.
    pub fn begin(&self, total: u64) {
        // Relaxed here and below: the counts carry no other data.
        self.total.store(total, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }

    /// Steps done, and how many there are (0 where nobody knows).
    #[must_use]
    pub fn get(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}
