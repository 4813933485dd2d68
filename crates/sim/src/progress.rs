//! How far a long run has come, for whoever shows it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a run is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Reading; steps are lines.
    #[default]
    Reading,
    /// Looking for limits; steps are requests, those that are looked at again included.
    Suggesting,
    /// Replaying; steps are requests.
    Replaying,
}

/// Counts that other threads may read while work goes on.
#[derive(Debug, Default)]
pub struct Progress {
    stage: AtomicU8,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Begins another stage, of `total` steps; 0 where nobody knows.
    pub fn begin(&self, stage: Stage, total: u64) {
        // Relaxed here and below: the counts carry no other data, and a line that mixes two stages is gone at once.
        self.stage.store(stage as u8, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }

    /// The stage, steps done, and how many there are (0 where nobody knows).
    #[must_use]
    pub fn get(&self) -> (Stage, u64, u64) {
        let stage = match self.stage.load(Ordering::Relaxed) {
            1 => Stage::Suggesting,
            2 => Stage::Replaying,
            _ => Stage::Reading,
        };
        (stage, self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}
