//! Keeps callers away from a store that is down: they are told at once, and one at a time tries again.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::Nanos;

/// Failures in a row, none of them certain, that open the breaker.
const FAILURES: u32 = 5;
/// And over this long: many callers that one hiccup failed at once are one failure.
const SPAN: Duration = Duration::from_millis(50);
/// The first pause, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// How long the one who tries has the field to itself.
const TRIAL: Duration = Duration::from_millis(500);
const TRYING: u64 = 1;

/// Closed (the usual state), or open until a time, from which on one caller at a time may try.
#[derive(Debug, Default)]
pub struct Breaker {
    /// 0 while closed; the lowest bit says that somebody is trying. Decisions look at this alone.
    open_until: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In a row, and when the first was.
    failures: u32,
    first: Nanos,
    /// Pauses in a row.
    pauses: u32,
}

impl Breaker {
    /// Whether the caller may ask the store.
    pub fn admits(&self, now: Nanos) -> bool {
        // Acquire and release throughout: slower than relaxed by nothing that a round trip would notice.
        let until = self.open_until.load(Ordering::Acquire);
        if until == 0 {
            return true;
        }
        // Whoever moves the time on is the one who tries. If nothing comes of it, the next one may after the trial.
        let trial = now.saturating_add(TRIAL.into()).get() | TRYING;
        until & !TRYING <= now.get()
            && self.open_until.compare_exchange(until, trial, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.open_until.load(Ordering::Acquire) != 0
    }

    /// The store answered. Returns whether that closed the breaker.
    pub fn succeeded(&self) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        *inner = Inner::default();
        self.open_until.swap(0, Ordering::AcqRel) != 0
    }

    /// The store failed, `certain`ly or perhaps by chance. `chance` in 0..1 spreads the next tries of many nodes. Returns
    /// whether that opened the breaker.
    pub fn failed(&self, now: Nanos, certain: bool, chance: f64) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.failures == 0 {
            inner.first = now;
        }
        inner.failures = inner.failures.saturating_add(1);
        let lasting = inner.failures >= FAILURES && now.saturating_since(inner.first) >= SPAN.into();
        let until = self.open_until.load(Ordering::Acquire);
        // Those who asked before it opened fail late, which says nothing new.
        let late = until > now.get() && until & TRYING == 0;
        if late || (until == 0 && !certain && !lasting) {
            return false;
        }
        let pause = PAUSE.saturating_mul(1 << inner.pauses.min(10)).min(LONGEST);
        inner.pauses = inner.pauses.saturating_add(1);
        let jittered = pause.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0);
        let pause_ends = now.saturating_add(jittered.into()).get() & !TRYING;
        self.open_until.store(pause_ends.max(TRYING << 1), Ordering::Release);
        until == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(1_000_000 + ms)
    }

    #[test]
    fn one_certain_failure_opens_it_and_chance_ones_only_in_a_row() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES - 1 {
            assert!(!breaker.failed(ms(0), false, 0.5));
        }
        breaker.succeeded();
        assert!(!breaker.failed(ms(0), false, 0.5) && breaker.admits(ms(0)));
        assert!((0..100).all(|_| !breaker.failed(ms(0), false, 0.5)), "one hiccup fails many at once");
        assert!(breaker.failed(ms(50), false, 0.5) && !breaker.admits(ms(51)));
        breaker.succeeded();
        assert!(breaker.failed(ms(0), true, 0.5) && !breaker.admits(ms(1)));
        assert!(breaker.succeeded() && breaker.admits(ms(1)));
    }

    #[test]
    fn of_many_callers_one_tries_and_its_success_lets_all_in() {
        let breaker = Breaker::default();
        breaker.failed(ms(0), true, 1.0);
        assert!(!breaker.admits(ms(49)));
        let admitted = (0..100).filter(|_| breaker.admits(ms(51))).count();
        assert_eq!(admitted, 1);
        assert!(breaker.succeeded());
        assert_eq!((0..100).filter(|_| breaker.admits(ms(52))).count(), 100);
    }

    #[test]
    fn a_try_that_nobody_ends_is_followed_by_another() {
        let breaker = Breaker::default();
        breaker.failed(ms(0), true, 0.0);
        assert!(breaker.admits(ms(60)) && !breaker.admits(ms(100)));
        assert!(breaker.admits(ms(60).saturating_add(TRIAL.into())));
    }

    #[test]
    fn pauses_grow_to_two_seconds() {
        let breaker = Breaker::default();
        let mut now = ms(0);
        for _ in 0..20 {
            breaker.failed(now, true, 1.0);
            now = now.saturating_add(LONGEST.into());
            assert!(breaker.admits(now));
        }
        breaker.failed(now, true, 1.0);
        assert!(!breaker.admits(now.saturating_add(Nanos::from_millis(1_900))));
    }
}
