//! Limits the rate of a log line.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Nanos;

const MINUTE: Nanos = Nanos::from_secs(60);

/// Allows a message at most once a minute.
#[derive(Debug, Default)]
pub struct OnceAMinute {
    /// When the message is allowed again.
    next: AtomicU64,
    /// How often it was not allowed since.
    left_out: AtomicU64,
}

impl OnceAMinute {
    /// Whether the message may be logged now. If so, it may not be again for a minute.
    pub fn is_due(&self, now: Nanos) -> bool {
        let again = now.saturating_add(MINUTE).get();
        let due = |next| (now.get() >= next).then_some(again);
        // Relaxed: the word orders nothing else, and only one of two threads succeeds.
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, due)
            .is_ok()
    }

    /// The same for a message about many: how many were left out since the last one, if it may be
    /// logged now. Otherwise it is one more.
    pub fn due(&self, now: Nanos) -> Option<u64> {
        if self.is_due(now) {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}
