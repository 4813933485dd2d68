//! Counts the responses of a connection whose client has gone before they were written.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tidegate_service::observe::metrics::ConnectionStats;

/// The responses of one connection. Relaxed throughout: they order nothing.
#[derive(Debug, Default)]
pub struct Responses {
    /// Those that are not written yet.
    ready: AtomicU64,
    /// The requests that wait in line.
    in_line: AtomicU64,
    /// Those of all the listener's connections.
    stats: Arc<ConnectionStats>,
}

impl Responses {
    pub fn new(stats: Arc<ConnectionStats>) -> Self {
        Self {
            ready: AtomicU64::new(0),
            in_line: AtomicU64::new(0),
            stats,
        }
    }

    /// The next write begins with a response, or with one more.
    pub fn ready(&self) {
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    /// A request waits in line until the guard is dropped. Meanwhile the connection ends as soon as
    /// its client closes its side.
    pub fn wait(&self) -> InLine<'_> {
        self.in_line.fetch_add(1, Ordering::Relaxed);
        InLine(self)
    }

    /// Whether requests wait in line.
    pub(super) fn are_in_line(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) > 0
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

/// A request that waits in line.
#[derive(Debug)]
pub struct InLine<'a>(&'a Responses);

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.in_line.fetch_sub(1, Ordering::Relaxed);
    }
}
