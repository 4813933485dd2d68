//! How far away the store is: the round trip of its quickest answers.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Nanos;

/// A store farther away than this has calls follow each other without waiting for answers.
const FAR: Nanos = Nanos::from_millis(1);
/// How far apart such calls leave at least, unless enough requests have gathered before.
const GAP: Nanos = Nanos::from_millis(1);
/// Calls under way to a store that is near.
const NEAR_CALLS: usize = 4;
/// A full call keeps Redis busy for about so long: with one for each such span of the round trip it is never idle.
const CALL: u64 = 250_000;

/// The shortest round trip of late, in two spans of which the heartbeat begins a new one each time.
#[derive(Debug)]
pub struct Distance {
    now: AtomicU64,
    before: AtomicU64,
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// At most so many are under way.
    pub calls: usize,
    /// A call leaves so long after the one before it, whether that has returned or not; `None`: when it has returned.
    pub gap: Option<Nanos>,
}

impl Default for Distance {
    fn default() -> Self {
        Self { now: AtomicU64::new(u64::MAX), before: AtomicU64::new(u64::MAX) }
    }
}

impl Distance {
    // Relaxed throughout: these are measurements, and none hangs on another.

    /// Takes in the round trip of an answer.
    pub fn measured(&self, round_trip: Nanos) {
        if round_trip.get() < self.now.load(Ordering::Relaxed) {
            self.now.fetch_min(round_trip.get(), Ordering::Relaxed);
        }
    }

    /// Begins a new span, if anything was measured in this one.
    pub fn turn(&self) {
        let now = self.now.swap(u64::MAX, Ordering::Relaxed);
        if now != u64::MAX {
            self.before.store(now, Ordering::Relaxed);
        }
    }

    /// The round trip; `None` before the first answer.
    pub fn get(&self) -> Option<Nanos> {
        let least = self.now.load(Ordering::Relaxed).min(self.before.load(Ordering::Relaxed));
        (least != u64::MAX).then(|| Nanos::new(least))
    }

    /// How calls follow each other at this distance.
    pub fn pace(&self) -> Pace {
        match self.get() {
            Some(far) if far >= FAR => {
                let calls = usize::try_from(far.get() / CALL).unwrap_or(usize::MAX);
                Pace { calls: NEAR_CALLS.saturating_add(calls), gap: Some(GAP) }
            }
            _ => Pace { calls: NEAR_CALLS, gap: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_the_quickest_answer_of_late() {
        let distance = Distance::default();
        assert_eq!((distance.get(), distance.pace().gap), (None, None));
        let millis = Nanos::from_millis;
        distance.measured(millis(40));
        distance.measured(millis(45));
        assert_eq!(distance.get(), Some(millis(40)));
        assert!(distance.pace().gap.is_some() && distance.pace().calls > 100);
        // It is nearer now, and then farther again.
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
