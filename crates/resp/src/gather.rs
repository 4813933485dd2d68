//! When to pause before answering.
//!
//! A reactor that answers each request on arrival wakes up for almost every request, and wakes the
//! client for almost every reply. Both wakeups cost more than the decision. With many busy
//! connections, it is cheaper to gather a few requests first. With few busy connections, the
//! reactor does not pause.

use std::time::Duration;

use tidegate_core::Nanos;

/// How long requests gather. The system makes it somewhat longer.
pub(super) const PAUSE: Duration = Duration::from_micros(20);
/// The period over which busy connections are counted.
const PERIOD: Nanos = Nanos::from_millis(1);
/// The number of busy connections per period from which a pause is cheaper.
const MANY: u32 = 8;

/// Which connections were recently busy.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// One bit for each connection (modulo 64) that had something to read.
    busy: u64,
    period_ends: Nanos,
    pays: bool,
}

impl Gather {
    /// Records that a connection had something to read.
    #[inline]
    pub fn saw(&mut self, connection: usize) {
        self.busy |= 1 << (connection % 64);
    }

    /// Whether to pause before the next poll.
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
