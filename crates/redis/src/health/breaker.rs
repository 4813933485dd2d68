//! Keeps callers away from a store that is down: they are told at once. The heartbeat tries the store for all
//! of them.

use std::sync::atomic::{AtomicU8, Ordering};

/// Somebody asked this shard.
const ASKED: u8 = 1;
/// A caller's failure leaves a doubt that the next heartbeat is to settle.
const SUSPECTED: u8 = 2;
/// Nobody but the heartbeat asks.
const OPEN: u8 = 4;

/// The breaker before a store, or before a part of a cluster: closed (the usual state), closed with a doubt, or open.
#[derive(Debug, Default)]
pub struct Breaker(AtomicU8);

impl Breaker {
    // Relaxed throughout: no other memory hangs on it, and a caller who sees a change late is one who came earlier.

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

    /// Whether anybody has asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) & ASKED != 0
    }

    /// Whether a heartbeat is wanted.
    pub fn is_in_doubt(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (OPEN | SUSPECTED) != 0
    }

    /// Notes a doubt. Returns whether there was none.
    pub fn suspect(&self) -> bool {
        let state = self.0.load(Ordering::Relaxed);
        state & (OPEN | SUSPECTED) == 0
            && self.0.fetch_or(SUSPECTED, Ordering::Relaxed) & (OPEN | SUSPECTED) == 0
    }

    /// Opens it. Returns whether it was closed.
    pub fn open(&self) -> bool {
        self.0.fetch_or(OPEN, Ordering::Relaxed) & OPEN == 0
    }

    /// Closes it, and settles all doubt. Returns whether it was open.
    pub fn close(&self) -> bool {
        self.0.fetch_and(ASKED, Ordering::Relaxed) & OPEN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_breaker_admits_nobody_until_it_is_closed() {
        let breaker = Breaker::default();
        assert!(!breaker.is_asked() && breaker.admits() && breaker.is_asked());
        assert!(breaker.open() && !breaker.open());
        assert!((0..100).all(|_| !breaker.admits()) && breaker.is_open());
        assert!(breaker.close() && !breaker.close());
        assert!(breaker.admits() && breaker.is_asked());
    }

    #[test]
    fn a_doubt_is_told_once_and_turns_nobody_away() {
        let breaker = Breaker::default();
        assert!(breaker.suspect() && !breaker.suspect());
        assert!(breaker.is_in_doubt() && breaker.admits() && !breaker.is_open());
        assert!(!breaker.close(), "it was not open");
        assert!(!breaker.is_in_doubt() && breaker.suspect());
        breaker.open();
        assert!(!breaker.suspect(), "there is no doubt that it is down");
    }
}
