//! Counts the responses of a connection whose client has gone before they were written.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tidegate_service::observe::metrics::ConnectionStats;

/// The responses of one connection. Relaxed throughout: one task changes it.
#[derive(Debug, Default)]
pub struct Responses {
    /// Those that are not written yet.
    ready: AtomicU64,
    /// Those of all the listener's connections.
    stats: Arc<ConnectionStats>,
}

impl Responses {
    pub fn new(stats: Arc<ConnectionStats>) -> Self {
        Self {
            ready: AtomicU64::new(0),
            stats,
        }
    }

    /// The next write begins with a response, or with one more.
    pub fn ready(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn write(&self, has_gone: impl FnOnce() -> bool) {
        let ready = self.ready.load(Ordering::Relaxed);
        if ready == 0 {
            return;
        }
        self.ready.store(0, Ordering::Relaxed);
        if has_gone() {
            self.stats.unawaited.fetch_add(ready, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(super) fn unawaited(&self) -> u64 {
        self.stats.unawaited.load(Ordering::Relaxed)
    }
}
