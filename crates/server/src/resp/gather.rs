//! When to wait a moment before answering.
//!
//! A reactor that answers each request the moment it comes wakes for almost every one of them, and wakes the client for
//! almost every answer; both wakeups cost more than the decision. With many connections busy at once it pays to let a few
//! requests gather. Nobody waits for company that is not there: as long as few connections are busy there is no pause.

use std::time::Duration;

use tidegate_core::Nanos;

/// How long requests gather. The system makes it somewhat longer.
pub(super) const PAUSE: Duration = Duration::from_micros(20);
/// How long it is looked who is busy.
const PERIOD: Nanos = Nanos::from_millis(1);
/// From this many busy connections on in one period it pays.
const MANY: u32 = 8;

/// Which connections were busy lately.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// One bit for each connection (of those whose numbers are equal modulo 64) that had something to read.
    busy: u64,
    period_ends: Nanos,
    pays: bool,
}

impl Gather {
    /// A connection had something to read.
    #[inline]
    pub fn saw(&mut self, connection: usize) {
        self.busy |= 1 << (connection % 64);
    }

    /// Whether to pause before the next look at the sockets.
    #[inline]
    pub fn pays(&mut self, now: Nanos) -> bool {
        if now >= self.period_ends {
            self.pays = self.busy.count_ones() >= MANY;
            self.busy = 0;
            self.period_ends = now.saturating_add(PERIOD);
        }
        self.pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    #[test]
    fn one_busy_connection_never_waits() {
        let mut gather = Gather::default();
        for turn in 0..10_000 {
            gather.saw(3);
            assert!(!gather.pays(at(turn * 30)));
        }
    }

    #[test]
    fn many_busy_connections_gather_until_they_are_few_again() {
        let mut gather = Gather::default();
        assert!(!gather.pays(at(0)));
        for connection in 0..8 {
            gather.saw(connection);
            assert!(!gather.pays(at(900)), "the period is not over");
        }
        assert!(gather.pays(at(1_000)));
        gather.saw(1);
        assert!(gather.pays(at(1_900)));
        assert!(!gather.pays(at(2_000)));
    }
}
