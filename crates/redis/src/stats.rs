//! What has happened, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Clock, Nanos};
use tidegate_limiter::SystemClock;

use crate::StoreError;

/// A line for each kind of error at most so often; the counters have them all.
const LINE: Nanos = Nanos::from_secs(60);

/// Counters that only grow, and how things stand. From [`Store::stats`](crate::Store::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Decisions that the store made.
    pub decided: u64,
    /// Denials remembered from an earlier answer.
    pub remembered: u64,
    /// Requests admitted from allotments of a quota that this node held.
    pub leased: u64,
    /// Decisions made in memory while the store was down.
    pub local: u64,
    /// Requests admitted because the store was down.
    pub failed_open: u64,
    /// Requests denied because the store was down.
    pub failed_closed: u64,
    /// Script calls sent. With [`decided`](Self::decided), how many decisions share one.
    pub calls: u64,
    /// Scripts sent with their text, as the server did not know them.
    pub script_loads: u64,
    /// Connections made.
    pub connections: u64,
    /// How often the store (of a cluster, one of its parts) was found to be down.
    pub opened: u64,
    /// How often it was found to be back.
    pub closed: u64,
    /// Errors, in the order of [`StoreError::NAMES`]: each of a request of any kind (a decision, permits that come back, what a
    /// lease asks for in the background, a sign of life).
    pub errors: [u64; StoreError::NAMES.len()],
    /// Nodes that share the store, as last seen; at least 1.
    pub nodes: u32,
}

impl Stats {
    /// How many errors of one kind there were; 0 for a name that is none of [`StoreError::NAMES`].
    #[must_use]
    pub fn errors_of(&self, name: &str) -> u64 {
        StoreError::NAMES.iter().position(|&other| other == name).map_or(0, |at| self.errors[at])
    }
}

/// The counters. Relaxed throughout: they order nothing.
#[derive(Debug, Default)]
pub struct Counters {
    pub decided: Counter,
    pub remembered: Counter,
    /// Those of limits that are no more; as are some of `remembered`.
    pub leased: Counter,
    pub local: Counter,
    pub failed_open: Counter,
    pub failed_closed: Counter,
    pub calls: Counter,
    pub script_loads: Counter,
    pub opened: Counter,
    pub closed: Counter,
    pub errors: [Counter; StoreError::NAMES.len()],
    lines: Lines,
}

/// Until when no further line is logged about each kind of error.
#[derive(Debug, Default)]
struct Lines {
    clock: SystemClock,
    until: [AtomicU64; StoreError::NAMES.len()],
}

/// One of them.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// Counts an error that is told elsewhere.
    pub fn count(&self, error: &StoreError) {
        self.errors[error.index()].add(1);
    }

    /// Counts an error of a request, and tells of it. One that leaves no doubt is told with the store's health; one about the
    /// key by whoever knows [which limit's](Self::tell_of); that the store is down was told when it was found out.
    pub fn error(&self, error: &StoreError) {
        self.count(error);
        let told_elsewhere = error.is_certain() || error.is_about_the_key() || *error == StoreError::Down;
        if !told_elsewhere && self.may_tell(error) {
            tracing::warn!(%error, "the shared store gave no decision");
        }
    }

    /// Tells of an error about a key. `prefix` is that of the limit's keys: a key itself may be a secret.
    pub fn tell_of(&self, error: &StoreError, prefix: &[u8]) {
        if error.is_about_the_key() && self.may_tell(error) {
            let keys = String::from_utf8_lossy(prefix);
            tracing::warn!(%error, %keys, "the shared store gave no decision");
        }
    }

    /// Whether a line is due.
    fn may_tell(&self, error: &StoreError) -> bool {
        let (until, now) = (&self.lines.until[error.index()], self.lines.clock.now());
        let old = until.load(Ordering::Relaxed);
        let next = now.saturating_add(LINE).get();
        old <= now.get() && until.compare_exchange(old, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub fn read(&self, nodes: u32, connections: u64) -> Stats {
        Stats {
            decided: self.decided.get(),
            remembered: self.remembered.get(),
            leased: self.leased.get(),
            local: self.local.get(),
            failed_open: self.failed_open.get(),
            failed_closed: self.failed_closed.get(),
            calls: self.calls.get(),
            script_loads: self.script_loads.get(),
            connections,
            opened: self.opened.get(),
            closed: self.closed.get(),
            errors: std::array::from_fn(|at| self.errors[at].get()),
            nodes,
        }
    }
}
