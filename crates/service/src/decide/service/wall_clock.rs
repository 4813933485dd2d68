//! The system's time as the service last read it. An administrator may set it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;

/// The distance of the system's time from the service's clock, and its steps.
pub struct WallClock {
    /// In nanoseconds, when it was last looked at.
    ahead: AtomicI64,
    steps: AtomicU64,
}

impl WallClock {
    pub fn new(ahead: i64) -> Self {
        Self {
            ahead: AtomicI64::new(ahead),
            steps: AtomicU64::new(0),
        }
    }

    /// Records the distance, once a second. Returns by how many seconds the system's time stepped,
    /// if it did: clocks that run at different rates drift by much less than a second.
    pub fn see(&self, ahead: i64) -> Option<i64> {
        let before = self.ahead.swap(ahead, Ordering::Relaxed);
        let is_step = before.abs_diff(ahead) >= SECOND;
        self.steps.fetch_add(is_step.into(), Ordering::Relaxed);
        is_step.then(|| ahead.saturating_sub(before) / SECOND.cast_signed())
    }

    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The distance in whole seconds, in either direction.
    pub fn seconds_off(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed).unsigned_abs() / SECOND
    }
}
