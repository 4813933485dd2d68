//! Statistics.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Clock, Nanos};
use tidegate_limiter::SystemClock;

use crate::StoreError;

/// The minimum time between two log lines for each kind of error. The counters include all errors.
const LINE: Nanos = Nanos::from_secs(60);

/// Counters that only grow, and the current state. `Store::stats` returns
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Decisions made by the store.
    pub decided: u64,
    /// Remembered denials that were returned.
    pub remembered: u64,
    /// Requests admitted from this node's allotments.
    pub leased: u64,
    /// Decisions made in memory while the store was down.
    pub local: u64,
    /// Requests admitted because the store was down.
    pub failed_open: u64,
    /// Requests denied because the store was down.
    pub failed_closed: u64,
    /// Script calls sent. Together with [`decided`](Self::decided), this shows how many decisions
    /// share a call.
    pub calls: u64,
    /// Scripts sent with their text because the server did not know them.
    pub script_loads: u64,
    /// Connections made.
    pub connections: u64,
    /// How often the store, or a part of a cluster, went down.
    pub opened: u64,
    /// How often it came up again.
    pub closed: u64,
    /// Errors, in the order of [`StoreError::NAMES`], of all kinds of requests: decisions, releases
    /// of permits, background requests of leases, and heartbeats.
    pub errors: [u64; StoreError::NAMES.len()],
    /// Nodes that share the store, at the last count; at least 1.
    pub nodes: u32,
    /// Limits whose rule differs at another node (see
    /// `Store::differing_rules`).
    pub differing_rules: u64,
    /// How many milliseconds the store's clock is ahead of this machine's, and negative if it is
    /// behind; `None` before the first heartbeat. In a cluster, that of the server with the largest
    /// difference.
    pub clock_ahead_ms: Option<i64>,
    /// Whether the store's clock has shown a later time than now.
    pub clock_went_back: bool,
    /// The store's eviction policy, if it may evict limits in force; `None` also if its user may
    /// not read it.
    pub evicts: Option<String>,
    /// How many keys the store has evicted since its start; `None` if its user may not read it, and
    /// in a cluster.
    pub evicted_keys: Option<u64>,
    /// Commands that Tidegate's scripts use and the store does not run, by the last examination:
    /// limits in force work without them, and other requests may not.
    pub missing_commands: Vec<String>,
    /// Blocks and overrides that this node has given again to a store that had lost them.
    pub orders_given_again: u64,
    /// Those that it could not give again; they stay in force at this node.
    pub orders_lost: u64,
}

impl Stats {
    /// The number of errors of one kind; 0 for a name that is not in [`StoreError::NAMES`].
    #[must_use]
    pub fn errors_of(&self, name: &str) -> u64 {
        StoreError::NAMES
            .iter()
            .position(|&other| other == name)
            .map_or(0, |at| self.errors[at])
    }
}

/// The counters. Relaxed throughout: they order nothing.
#[derive(Debug, Default)]
pub struct StoreCounters {
    pub decided: Counter,
    pub remembered: Counter,
    /// The counts of limits that no longer exist; `remembered` includes some of those, too.
    pub leased: Counter,
    pub local: Counter,
    pub failed_open: Counter,
    pub failed_closed: Counter,
    pub calls: Counter,
    pub script_loads: Counter,
    pub opened: Counter,
    pub closed: Counter,
    pub orders_given_again: Counter,
    pub orders_lost: Counter,
    pub errors: [Counter; StoreError::NAMES.len()],
    lines: ErrorLog,
}

/// For each kind of error, the time until which no further line is logged.
#[derive(Debug, Default)]
struct ErrorLog {
    clock: SystemClock,
    until: [AtomicU64; StoreError::NAMES.len()],
}

/// One counter.
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

impl StoreCounters {
    /// Counts an error that is logged elsewhere.
    pub fn count(&self, error: &StoreError) {
        self.errors[error.index()].add(1);
    }

    /// Counts a request's error and logs it. Not logged here: a conclusive error, which is logged
    /// with the store's health; an error about the key, which is logged by the caller that knows
    /// [the limit](Self::tell_of); and `Down`, because the outage was logged when it was found.
    pub fn error(&self, error: &StoreError) {
        self.count(error);
        let told_elsewhere =
            error.is_certain() || error.is_about_the_key() || *error == StoreError::Down;
        if !told_elsewhere && self.may_tell(error) {
            tracing::warn!(%error, "the shared store made no decision");
        }
    }

    /// Like [`error`](Self::error) after a request that may not have been admitted: `Down` was
    /// counted when the store was not asked.
    pub fn outcome(&self, error: &StoreError) {
        if *error != StoreError::Down {
            self.error(error);
        }
    }

    /// Logs an error about a key. `prefix` is the prefix of the limit's keys, because a key itself
    /// may be a secret.
    pub fn tell_of(&self, error: &StoreError, prefix: &[u8]) {
        if error.is_about_the_key() && self.may_tell(error) {
            let keys = String::from_utf8_lossy(prefix);
            tracing::warn!(%error, %keys, "the shared store made no decision");
        }
    }

    /// Whether a line may be logged now.
    fn may_tell(&self, error: &StoreError) -> bool {
        let (until, now) = (&self.lines.until[error.index()], self.lines.clock.now());
        let old = until.load(Ordering::Relaxed);
        let next = now.saturating_add(LINE).get();
        old <= now.get()
            && until
                .compare_exchange(old, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
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
            orders_given_again: self.orders_given_again.get(),
            orders_lost: self.orders_lost.get(),
            errors: std::array::from_fn(|at| self.errors[at].get()),
            nodes,
            ..Stats::default()
        }
    }
}
