//! The clock of the store's server, which decides, and may be wrong.
//!
//! If the clock steps forward and back again, values that were written in between would deny until
//! the clock gets there. Every reply has the server's time, so this node knows the latest time that
//! the clock has shown. Heartbeats compare that with the time, share it with the other nodes
//! through the store, and keep it there for nodes that start later. Until the clock has caught up,
//! the scripts move values from its future to now (see
//! [`Script::after_step`](crate::script::Script::after_step)).
//!
//! A time far ahead of all clocks counts only if a heartbeat confirms it: it is more likely that
//! the reply is not what it should be.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use tidegate_core::Nanos;

/// Only a larger step back counts: replies arrive in another order than they were sent, and a
/// master's clock may differ a little from the former master's.
pub const STEP: Nanos = Nanos::from_secs(1);
/// The largest difference between the store's clock and this node's that is not reported.
pub const APART: Nanos = Nanos::from_secs(1);
/// A time in a reply that is further than this ahead of the server's last heartbeat and of this
/// node's clock counts only once a heartbeat has confirmed it.
const PLAUSIBLE: Nanos = Nanos::from_secs(86_400);

/// The latest time of one server's clock, and its steps back.
#[derive(Debug)]
pub struct StoreClock {
    // Relaxed throughout: they guard no other memory, and a caller that sees a change late is like
    // one that came earlier.
    /// The latest time that it has shown, in nanoseconds.
    latest: AtomicU64,
    went_back: AtomicBool,
    /// The time in the last heartbeat's reply, in nanoseconds.
    confirmed: AtomicU64,
    /// The latest implausible time since a heartbeat, in nanoseconds; 0 for none.
    doubted: AtomicU64,
    /// An implausible time that no heartbeat has confirmed, in nanoseconds; 0 for none. It has not
    /// been logged.
    ignored: AtomicU64,
    /// How far it is ahead of this node's clock, in milliseconds; `i64::MIN` before the first
    /// heartbeat.
    ahead: AtomicI64,
}

impl Default for StoreClock {
    fn default() -> Self {
        let none = || AtomicU64::new(0);
        Self {
            latest: none(),
            went_back: AtomicBool::new(false),
            confirmed: none(),
            doubted: none(),
            ignored: none(),
            ahead: AtomicI64::new(i64::MIN),
        }
    }
}

impl StoreClock {
    /// Takes in the time of a reply. `here` is this node's time. Returns whether only a heartbeat
    /// can find out if the clock went back, because replies may arrive late, or if it shows this
    /// time at all.
    pub fn saw(&self, now: Nanos, here: Nanos) -> bool {
        let confirmed = Nanos::new(self.confirmed.load(Ordering::Relaxed));
        if now.saturating_since(confirmed.max(here)) > PLAUSIBLE {
            self.doubted.fetch_max(now.get(), Ordering::Relaxed);
            return true;
        }
        let latest = self.latest();
        if now >= latest {
            self.latest.fetch_max(now.get(), Ordering::Relaxed);
            if self.went_back() {
                self.went_back.store(false, Ordering::Relaxed);
            }
            return false;
        }
        latest.saturating_since(now) > STEP && !self.went_back()
    }

    /// The latest time that the clock has shown.
    pub fn latest(&self) -> Nanos {
        Nanos::new(self.latest.load(Ordering::Relaxed))
    }

    /// Takes in a heartbeat: the server's time, and the latest time that any node has seen.
    /// `before` is the [latest](Self::latest) time when the heartbeat was sent.
    pub fn beat(&self, now: Nanos, before: Nanos, seen_by_others: Nanos) {
        let latest = before.max(seen_by_others);
        self.confirmed.store(now.get(), Ordering::Relaxed);
        let doubted = Nanos::new(self.doubted.swap(0, Ordering::Relaxed));
        if doubted.saturating_since(now) > PLAUSIBLE {
            self.ignored.fetch_max(doubted.get(), Ordering::Relaxed);
        }
        self.latest
            .fetch_max(latest.max(now).get(), Ordering::Relaxed);
        // Once the clock is known to have gone back, it must catch up completely.
        let least = if self.went_back() { Nanos::ZERO } else { STEP };
        self.went_back
            .store(latest.saturating_since(now) > least, Ordering::Relaxed);
    }

    /// An implausible time that no heartbeat has confirmed, once.
    pub fn take_ignored(&self) -> Option<Nanos> {
        let ignored = Nanos::new(self.ignored.swap(0, Ordering::Relaxed));
        (ignored > Nanos::ZERO).then_some(ignored)
    }

    /// Records an implausible time that was removed from the store.
    pub fn removed(&self, time: Nanos) {
        self.ignored.fetch_max(time.get(), Ordering::Relaxed);
    }

    /// Whether the clock has shown a later time than now.
    pub fn went_back(&self) -> bool {
        self.went_back.load(Ordering::Relaxed)
    }

    /// Compares the server's time with this node's when the request was sent and when the reply
    /// came.
    pub fn compare(&self, server: Nanos, sent: Nanos, received: Nanos) {
        let ahead = i128::from(server.get()) - i128::from(sent.get().midpoint(received.get()));
        let ahead = i64::try_from(ahead / 1_000_000).unwrap_or(i64::MAX);
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// How far the server's clock is ahead of this node's, in milliseconds, and negative if it is
    /// behind; `None` before the first heartbeat.
    pub fn ahead(&self) -> Option<i64> {
        Some(self.ahead.load(Ordering::Relaxed)).filter(|&ahead| ahead > i64::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(1_000_000 + ms)
    }

    #[test]
    fn a_step_back_counts_until_the_clock_has_caught_up() {
        let clock = StoreClock::default();
        assert!(
            !clock.saw(at(0), at(0)) && !clock.saw(at(3_600_000), at(0)),
            "a step forward"
        );
        assert!(
            clock.saw(at(700), at(0)) && !clock.went_back(),
            "a reply may be late"
        );
        clock.beat(at(710), clock.latest(), Nanos::ZERO);
        assert!(clock.went_back() && !clock.saw(at(720), at(0)));
        clock.beat(at(3_599_999), clock.latest(), Nanos::ZERO);
        assert!(clock.went_back(), "a millisecond is missing");
        assert!(!clock.saw(at(3_600_000), at(0)) && !clock.went_back());
    }

    #[test]
    fn late_replies_and_small_steps_are_no_step_back() {
        let clock = StoreClock::default();
        clock.saw(at(5_000), at(0));
        assert!(!clock.saw(at(4_000), at(0)), "a second");
        clock.beat(at(4_000), clock.latest(), Nanos::ZERO);
        assert!(!clock.went_back());
        // This reply was late: the heartbeat that was sent after it shows a later time.
        assert!(clock.saw(at(10), at(0)));
        clock.beat(at(5_001), clock.latest(), Nanos::ZERO);
        assert!(!clock.went_back() && clock.latest() == at(5_001));
        // While a heartbeat is under way, later replies overtake it.
        let before = clock.latest();
        clock.saw(at(9_000), at(0));
        clock.beat(at(5_002), before, Nanos::ZERO);
        assert!(!clock.went_back());
    }

    #[test]
    fn a_time_far_ahead_counts_only_if_a_heartbeat_confirms_it() {
        let (clock, day) = (StoreClock::default(), 86_400_000);
        assert!(!clock.saw(at(day), at(0)), "as far ahead as a clock may be");
        assert!(clock.saw(at(day + 1), at(0)) && clock.latest() == at(day));
        clock.beat(at(0), clock.latest(), Nanos::ZERO);
        assert_eq!(clock.take_ignored(), Some(at(day + 1)));
        assert_eq!(clock.take_ignored(), None, "it is logged once");
        // The clock steps that far ahead, and back.
        assert!(clock.saw(at(90 * day), at(0)));
        clock.beat(at(90 * day + 1), clock.latest(), Nanos::ZERO);
        assert!(clock.take_ignored().is_none() && clock.latest() == at(90 * day + 1));
        assert!(!clock.saw(at(90 * day + 2), at(0)), "it is the clock's");
        clock.beat(at(3), clock.latest(), Nanos::ZERO);
        assert!(clock.went_back());
        // This node's clock may be behind the server's.
        let behind = StoreClock::default();
        assert!(behind.saw(at(9 * day), at(0)));
        behind.beat(at(9 * day), Nanos::ZERO, Nanos::ZERO);
        assert!(!behind.saw(at(9 * day + 1), at(1)) && behind.take_ignored().is_none());
    }

    #[test]
    fn a_node_that_starts_later_learns_of_the_step() {
        let clock = StoreClock::default();
        clock.beat(at(0), Nanos::ZERO, at(3_600_000));
        assert!(clock.went_back() && clock.latest() == at(3_600_000));
    }

    #[test]
    fn the_difference_of_the_clocks_allows_for_the_round_trip() {
        let clock = StoreClock::default();
        assert_eq!(clock.ahead(), None);
        clock.compare(at(40), at(0), at(80));
        assert_eq!(clock.ahead(), Some(0));
        clock.compare(at(0), at(90_000), at(90_100));
        assert_eq!(clock.ahead(), Some(-90_050));
    }
}
