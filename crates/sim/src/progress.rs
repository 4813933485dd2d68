//! The progress of a long run, for a display, and the wish to end it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

/// The stage of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Reading. Steps are lines.
    #[default]
    Reading,
    /// Looking for limits. Steps are requests; a request that is replayed again counts again.
    Suggesting,
    /// Replaying. Steps are requests.
    Replaying,
}

/// Counts that other threads may read during the run.
#[derive(Debug, Default)]
pub struct Progress {
    stage: AtomicU8,
    done: AtomicU64,
    total: AtomicU64,
    stop: Arc<AtomicBool>,
    has_read: Arc<AtomicBool>,
}

impl Progress {
    /// Begins another stage of `total` steps; 0 if unknown.
    pub fn begin(&self, stage: Stage, total: u64) {
        // Relaxed here and below: the counts carry no other data, and a line that mixes two stages
        // is soon replaced.
        self.stage.store(stage as u8, Ordering::Relaxed);
        self.has_read
            .fetch_or(stage != Stage::Reading, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }

    /// Once this is true, reading ends after the current line, as if the log ended there.
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// True once reading is over.
    pub fn has_read(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_read)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }

    /// The stage, the number of steps done, and the total (0 if unknown).
    pub fn get(&self) -> (Stage, u64, u64) {
        let stage = match self.stage.load(Ordering::Relaxed) {
            1 => Stage::Suggesting,
            2 => Stage::Replaying,
            _ => Stage::Reading,
        };
        (
            stage,
            self.done.load(Ordering::Relaxed),
            self.total.load(Ordering::Relaxed),
        )
    }
}
