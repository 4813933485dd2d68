//! The breaker: while a store is down, callers fail immediately. Only the heartbeat probes the
//! store.

use std::sync::atomic::{AtomicU8, Ordering};

/// A caller has asked this shard.
const ASKED: u8 = 1;
/// A caller failed, and the next heartbeat must find out whether the shard is down.
const SUSPECTED: u8 = 2;
/// Only the heartbeat asks.
const OPEN: u8 = 4;

/// The breaker of a store, or of a cluster's shard: closed (normal), closed and suspected, or open.
#[derive(Debug, Default)]
pub struct Breaker(AtomicU8);

impl Breaker {
    // Relaxed throughout: it guards no other memory, and a caller that sees a change late is like
    // one that came earlier.

    /// Whether the caller may ask the store.
    pub fn admits(&self) -> bool {
        let state = self.0.load(Ordering::Relaxed);
        if state & ASKED == 0 {
            self.0.fetch_or(ASKED, Ordering::Relaxed);
        }
        state & OPEN == 0
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) & OPEN != 0
    }

    /// Whether any caller has asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) & ASKED != 0
    }

    /// Whether a heartbeat is due.
    pub fn is_in_doubt(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (OPEN | SUSPECTED) != 0
    }

    /// Marks the shard as suspected. Returns whether it was not before.
    pub fn suspect(&self) -> bool {
        let state = self.0.load(Ordering::Relaxed);
        state & (OPEN | SUSPECTED) == 0
            && self.0.fetch_or(SUSPECTED, Ordering::Relaxed) & (OPEN | SUSPECTED) == 0
    }

    /// Opens it. Returns whether it was closed.
    pub fn open(&self) -> bool {
        self.0.fetch_or(OPEN, Ordering::Relaxed) & OPEN == 0
    }

    /// Closes it and clears suspicion. Returns whether it was open.
    pub fn close(&self) -> bool {
        self.0.fetch_and(ASKED, Ordering::Relaxed) & OPEN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_breaker_admits_no_caller_until_it_is_closed() {
        let breaker = Breaker::default();
        assert!(!breaker.is_asked() && breaker.admits() && breaker.is_asked());
        assert!(breaker.open() && !breaker.open());
        assert!((0..100).all(|_| !breaker.admits()) && breaker.is_open());
        assert!(breaker.close() && !breaker.close());
        assert!(breaker.admits() && breaker.is_asked());
    }

    #[test]
    fn a_suspicion_is_reported_once_and_denies_no_caller() {
        let breaker = Breaker::default();
        assert!(breaker.suspect() && !breaker.suspect());
        assert!(breaker.is_in_doubt() && breaker.admits() && !breaker.is_open());
        assert!(!breaker.close(), "it was not open");
        assert!(!breaker.is_in_doubt() && breaker.suspect());
        breaker.open();
        assert!(!breaker.suspect(), "it is known to be down");
    }
}
