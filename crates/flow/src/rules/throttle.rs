//! Throttling: calls that arrive too close together wait until they are one interval apart.

use std::time::Duration;

use tidegate_core::Nanos;

use crate::{
    stats::bounds::whole,
    sync::{AtomicU64, Ordering},
};

/// The start of the last call, plus one; 0 before the first call. It is one word, so that no two
/// calls get the same place.
#[derive(Debug)]
pub(crate) struct Throttle(AtomicU64);

/// A call's request to a throttle: a place at least `cost` after the previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThrottledCall {
    pub(crate) now: Nanos,
    pub(crate) cost: Nanos,
    /// The longest wait that this throttle may require.
    pub(crate) longest: Nanos,
}

impl ThrottledCall {
    /// Returns when the call may start: after the place in `last` (the word of a [`Throttle`]) and
    /// not before `earliest`.
    ///
    /// # Errors
    /// The time until the wait would be short enough.
    pub(crate) fn start(self, last: u64, earliest: Nanos) -> Result<Nanos, Duration> {
        let free = if last == 0 {
            Nanos::ZERO
        } else {
            Nanos::new(last - 1).saturating_add(self.cost)
        };
        let wait = free.saturating_since(self.now);
        if wait > self.longest {
            return Err(wait.saturating_since(self.longest).into());
        }
        Ok(free.max(earliest).max(self.now))
    }
}

/// A place in the queue, which can be postponed or returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    asked: ThrottledCall,
    before: u64,
    taken: u64,
}

impl Reservation {
    /// Returns when the call starts.
    pub(crate) const fn start(&self) -> Nanos {
        Nanos::new(self.taken - 1)
    }
}

impl Throttle {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Reserves the next place that is not before `earliest`.
    ///
    /// # Errors
    /// Same as [`ThrottledCall::start`].
    pub(crate) fn take(
        &self,
        asked: ThrottledCall,
        earliest: Nanos,
    ) -> Result<Reservation, Duration> {
        let mut before = self.0.load(Ordering::Relaxed);
        loop {
            let taken = asked.start(before, earliest)?.get() + 1;
            // Relaxed: the word publishes no other data.
            match self
                .0
                .compare_exchange_weak(before, taken, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    return Ok(Reservation {
                        asked,
                        before,
                        taken,
                    });
                }
                Err(seen) => before = seen,
            }
        }
    }

    /// Returns what [`take`](Self::take) would return, without reserving a place.
    pub(crate) fn peek(&self, asked: ThrottledCall) -> Result<(), Duration> {
        asked
            .start(self.0.load(Ordering::Relaxed), asked.now)
            .map(drop)
    }

    /// Postpones a place to `start`. If others have queued up behind it, the call takes a new place
    /// behind them, and the old place stays unused because the others already have their start
    /// times.
    ///
    /// # Errors
    /// Same as [`ThrottledCall::start`].
    pub(crate) fn put_off(
        &self,
        reservation: &mut Reservation,
        start: Nanos,
    ) -> Result<(), Duration> {
        if start <= reservation.start() {
            return Ok(());
        }
        let later = start.get() + 1;
        match self.0.compare_exchange(
            reservation.taken,
            later,
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            Ok(_) => reservation.taken = later,
            Err(_) => *reservation = self.take(reservation.asked, start)?,
        }
        Ok(())
    }

    /// Gives back a place if no call has queued up behind it. Otherwise the place stays unused: the
    /// calls behind it already have their start times and must keep their distance.
    pub(crate) fn give_back(&self, reservation: Reservation) {
        let _ = self.0.compare_exchange(
            reservation.taken,
            reservation.before,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

/// Returns the time that a call of `n` units occupies at `per_interval` units per `interval`,
/// rounded up to a nanosecond so that calls are never closer. `None` if nothing is allowed at all.
pub(crate) fn cost(n: u32, per_interval: f64, interval: Nanos) -> Option<Nanos> {
    if per_interval <= 0.0 {
        return None;
    }
    Some(Nanos::new(whole(
        (interval.get() as f64 * f64::from(n) / per_interval).ceil(),
    )))
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{sync::Arc, thread};

    use super::*;

    const ASKED: ThrottledCall = ThrottledCall {
        now: Nanos::ZERO,
        cost: Nanos::from_millis(100),
        longest: Nanos::from_secs(9),
    };

    fn assert_spaced(mut starts: Vec<Nanos>) {
        starts.sort_unstable();
        assert!(
            starts
                .windows(2)
                .all(|two| two[1].saturating_since(two[0]) >= ASKED.cost),
            "{starts:?}"
        );
    }

    #[test]
    fn no_two_calls_get_slots_closer_than_the_interval() {
        loom::model(|| {
            let throttle = Arc::new(Throttle::new());
            let take = move |throttle: &Throttle, give_back: bool| {
                let reservation = throttle.take(ASKED, Nanos::ZERO).unwrap();
                if give_back {
                    throttle.give_back(reservation);
                    return None;
                }
                Some(reservation.start())
            };
            let others: Vec<_> = [true, false]
                .into_iter()
                .map(|give_back| {
                    let throttle = throttle.clone();
                    thread::spawn(move || take(&throttle, give_back))
                })
                .collect();
            let mut starts = vec![take(&throttle, false).unwrap()];
            starts.extend(others.into_iter().filter_map(|other| other.join().unwrap()));
            assert_spaced(starts);
        });
    }

    #[test]
    fn no_two_calls_get_slots_closer_than_the_interval_when_one_is_postponed() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let throttle = Arc::new(Throttle::new());
            let put_off = |throttle: &Throttle, later| {
                let mut reservation = throttle.take(ASKED, Nanos::ZERO).unwrap();
                throttle
                    .put_off(&mut reservation, Nanos::from_millis(later))
                    .unwrap();
                reservation.start()
            };
            let others: Vec<_> = [0, 150]
                .into_iter()
                .map(|later| {
                    let throttle = throttle.clone();
                    thread::spawn(move || put_off(&throttle, later))
                })
                .collect();
            let mut starts = vec![put_off(&throttle, 250)];
            starts.extend(others.into_iter().map(|other| other.join().unwrap()));
            assert_spaced(starts);
        });
    }
}
