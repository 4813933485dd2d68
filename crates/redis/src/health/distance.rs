//! The distance to the store: the shortest recent round trip.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Nanos;

/// If the round trip is longer than this, calls follow each other without waiting for replies.
const FAR: Nanos = Nanos::from_millis(1);
/// The minimum gap between such calls, unless enough requests have gathered.
const GAP: Nanos = Nanos::from_millis(1);
/// The maximum number of calls in flight to a near store.
const NEAR_CALLS: usize = 4;
/// A full call keeps Redis busy for about this long in nanoseconds. One call for each such span of
/// the round trip keeps Redis from idling.
const CALL: u64 = 250_000;

/// The shortest recent round trip, in two spans. The heartbeat starts a new span each time.
#[derive(Debug)]
pub struct Distance {
    now: AtomicU64,
    before: AtomicU64,
    /// The round trip that deadlines allow for: rises at once with a heartbeat's, and falls by at
    /// most a quarter with each.
    allowed: AtomicU64,
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The maximum number of calls in flight.
    pub calls: usize,
    /// If set, a call is sent this long after the previous one, returned or not. If `None`, it
    /// waits for the previous one to return.
    pub gap: Option<Nanos>,
}

impl Default for Distance {
    fn default() -> Self {
        Self {
            now: AtomicU64::new(u64::MAX),
            before: AtomicU64::new(u64::MAX),
            allowed: AtomicU64::new(0),
        }
    }
}

impl Distance {
    // Relaxed throughout: these are independent measurements.

    /// Records the round trip of a reply.
    pub fn measured(&self, round_trip: Nanos) {
        if round_trip.get() < self.now.load(Ordering::Relaxed) {
            self.now.fetch_min(round_trip.get(), Ordering::Relaxed);
        }
    }

    /// Records the round trip of a heartbeat. Callers measure only replies that are in time, so
    /// they cannot see that the distance grows beyond their deadline.
    pub fn beat(&self, round_trip: Nanos) {
        self.measured(round_trip);
        let allowed = self.allowed.load(Ordering::Relaxed);
        self.allowed.store(
            round_trip.get().max(allowed - allowed / 4),
            Ordering::Relaxed,
        );
    }

    /// The round trip that deadlines allow for, or `None` before the first reply.
    pub fn allowed(&self) -> Option<Nanos> {
        let allowed = Nanos::new(self.allowed.load(Ordering::Relaxed));
        self.get().map(|shortest| shortest.max(allowed))
    }

    /// Starts a new span if this one has a measurement.
    pub fn turn(&self) {
        let now = self.now.swap(u64::MAX, Ordering::Relaxed);
        if now != u64::MAX {
            self.before.store(now, Ordering::Relaxed);
        }
    }

    /// The round trip, or `None` before the first reply.
    pub fn get(&self) -> Option<Nanos> {
        let least = self
            .now
            .load(Ordering::Relaxed)
            .min(self.before.load(Ordering::Relaxed));
        (least != u64::MAX).then(|| Nanos::new(least))
    }

    /// How calls follow each other at this distance.
    pub fn pace(&self) -> Pace {
        match self.get() {
            Some(far) if far >= FAR => {
                let calls = usize::try_from(far.get() / CALL).unwrap_or(usize::MAX);
                Pace {
                    calls: NEAR_CALLS.saturating_add(calls),
                    gap: Some(GAP),
                }
            }
            _ => Pace {
                calls: NEAR_CALLS,
                gap: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_follow_a_growing_distance_at_once_and_a_shrinking_one_slowly() {
        let (distance, millis) = (Distance::default(), Nanos::from_millis);
        assert_eq!(distance.allowed(), None);
        distance.beat(millis(1));
        distance.beat(millis(80));
        assert_eq!(
            (distance.get(), distance.allowed()),
            (Some(millis(1)), Some(millis(80)))
        );
        distance.beat(millis(1));
        assert_eq!(distance.allowed(), Some(millis(60)));
        for _ in 0..20 {
            distance.beat(millis(1));
        }
        assert_eq!(distance.allowed(), Some(millis(1)));
    }

    #[test]
    fn the_distance_is_the_shortest_recent_round_trip() {
        let distance = Distance::default();
        assert_eq!((distance.get(), distance.pace().gap), (None, None));
        let millis = Nanos::from_millis;
        distance.measured(millis(40));
        distance.measured(millis(45));
        assert_eq!(distance.get(), Some(millis(40)));
        assert!(distance.pace().gap.is_some() && distance.pace().calls > 100);
        // The store is nearer now, and later farther again.
        distance.turn();
        distance.measured(Nanos::from_micros(100));
        assert_eq!(distance.get(), Some(Nanos::from_micros(100)));
        distance.turn();
        distance.measured(millis(43));
        distance.turn();
        assert_eq!(distance.get(), Some(millis(43)));
        distance.turn();
        assert_eq!(distance.get(), Some(millis(43)), "nothing new is known");
    }
}
