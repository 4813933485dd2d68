//! Throttling: calls that come too close wait until they are one interval apart.

use std::time::Duration;

use tidegate_core::Nanos;

use crate::sync::{AtomicU64, Ordering};

/// When the last call was let go ahead, plus one; 0 before the first. One word, so that no two calls get one place.
#[derive(Debug)]
pub(crate) struct Throttle(AtomicU64);

/// A place in the queue, so that it can be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    before: u64,
    pub(crate) taken: u64,
    /// How long the call has to wait.
    pub(crate) delay: Duration,
}

impl Throttle {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes the next place for a call that needs `cost` between itself and the one before, if the wait for it is no
    /// longer than `longest`.
    ///
    /// # Errors
    /// With the time until the wait would be short enough.
    pub(crate) fn take(&self, now: Nanos, cost: Nanos, longest: Nanos) -> Result<Place, Duration> {
        let mut before = self.0.load(Ordering::Relaxed);
        loop {
            let place = next(before, now, cost, longest)?;
            // Relaxed: the word carries no other data.
            match self.0.compare_exchange_weak(before, place.taken, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(place),
                Err(seen) => before = seen,
            }
        }
    }

    /// What [`take`](Self::take) would answer.
    pub(crate) fn peek(&self, now: Nanos, cost: Nanos, longest: Nanos) -> Result<(), Duration> {
        next(self.0.load(Ordering::Relaxed), now, cost, longest).map(drop)
    }

    /// Gives a place back, if nobody has queued up behind it: otherwise it stays empty, as calls that have been told
    /// when to go ahead must not come closer to each other.
    pub(crate) fn give_back(&self, place: Place) {
        let _ = self.0.compare_exchange(place.taken, place.before, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The place after a word of [`Throttle`], as [`Throttle::take`] says.
pub(crate) fn next(before: u64, now: Nanos, cost: Nanos, longest: Nanos) -> Result<Place, Duration> {
    let free = if before == 0 { Nanos::ZERO } else { Nanos::new(before - 1).saturating_add(cost) };
    let wait = free.saturating_since(now);
    if wait > longest {
        return Err(wait.saturating_since(longest).into());
    }
    Ok(Place { before, taken: free.max(now).get() + 1, delay: wait.into() })
}

/// The time between calls of `n` units at `per_interval` units each `interval`, rounded up to a nanosecond: calls are
/// never closer than that. `None` where nothing is allowed at all.
pub(crate) fn cost(n: u32, per_interval: f64, interval: Nanos) -> Option<Nanos> {
    if per_interval <= 0.0 {
        return None;
    }
    // The cast saturates; what is negative was refused above.
    #[allow(clippy::cast_sign_loss)]
    let cost = (interval.get() as f64 * f64::from(n) / per_interval).ceil() as u64;
    Some(Nanos::new(cost))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn a_call_waits_for_its_place_or_is_told_when_to_come() {
        let throttle = Throttle::new();
        let take = |at| throttle.take(ms(at), ms(100), ms(250)).map(|place| place.delay);
        let wait = Duration::from_millis;
        assert_eq!([take(0), take(0), take(50)], [Ok(wait(0)), Ok(wait(100)), Ok(wait(150))]);
        assert_eq!(take(49), Err(wait(1)), "the place at 300 is 251 away");
        assert_eq!(take(50), Ok(wait(250)));
        assert_eq!(take(1_000), Ok(wait(0)));
    }

    #[test]
    fn rates_above_a_thousand_a_second_are_exact() {
        assert_eq!(cost(1, 2_000.0, Nanos::from_secs(1)), Some(Nanos::from_micros(500)));
        assert_eq!(cost(3, 1_000_000.0, Nanos::from_secs(1)), Some(Nanos::from_micros(3)));
        assert_eq!(cost(1, 3.0, Nanos::from_secs(1)), Some(Nanos::new(333_333_334)));
        assert_eq!(cost(u32::MAX, f64::MIN_POSITIVE, Nanos::MAX), Some(Nanos::MAX));
        assert_eq!(cost(1, 0.0, Nanos::from_secs(1)), None);
    }

    #[test]
    fn a_place_comes_back_only_while_it_is_the_last() {
        let throttle = Throttle::new();
        let take = || throttle.take(ms(0), ms(100), ms(1_000)).unwrap();
        let (_, second) = (take(), take());
        throttle.give_back(second);
        let second = take();
        assert_eq!(second.delay, Duration::from_millis(100));
        let third = take();
        throttle.give_back(second);
        assert_eq!(take().delay, third.delay + Duration::from_millis(100));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{sync::Arc, thread};

    use super::*;

    #[test]
    fn no_two_calls_get_places_closer_than_the_interval() {
        loom::model(|| {
            let throttle = Arc::new(Throttle::new());
            let cost = Nanos::from_millis(100);
            let take = move |throttle: &Throttle, give_back: bool| {
                let place = throttle.take(Nanos::ZERO, cost, Nanos::from_secs(9)).unwrap();
                if give_back {
                    throttle.give_back(place);
                    return None;
                }
                Some(place.delay)
            };
            let others: Vec<_> = [true, false]
                .into_iter()
                .map(|give_back| {
                    let throttle = throttle.clone();
                    thread::spawn(move || take(&throttle, give_back))
                })
                .collect();
            let mut places = vec![take(&throttle, false).unwrap()];
            places.extend(others.into_iter().filter_map(|other| other.join().unwrap()));
            places.sort_unstable();
            assert!(places.windows(2).all(|two| two[1] - two[0] >= cost.into()), "{places:?}");
        });
    }
}
