//! Circuit breakers: a resource that fails, or is slow, is left alone for a while, and then tried.
//!
//! ```text
//!             too many bad calls                open time has passed, a first probe
//!   CLOSED ─────────────────────→ OPEN ────────────────────────────────────→ HALF OPEN
//!     ↑                             ↑                                          │   │
//!     │                             └──── a bad probe, or none has reported ───┘   │
//!     └──────────────────────────────────── all probes good ───────────────────────┘
//! ```
//!
//! The state is one word, so every transition happens once and every probe's place is given once:
//!
//! ```text
//!   [ until 62                              │ 1 ]   open, until this time
//!   [ period 22 │ probes out 20 │ good 20   │ 2 ]   half open
//!   [ period 62                             │ 0 ]   closed
//! ```

use std::{fmt, sync::Arc, time::Duration};

use tidegate_core::{
    MAX_WINDOW, Nanos,
    stats::{Layout, Ring, Trailing},
};

use super::Target;
use crate::sync::{AtomicU64, Ordering};

/// Leaves a resource alone for a while when too many of its calls are slow or fail.
///
/// ```
/// use std::time::Duration;
/// use tidegate_flow::rules::{BreakerRule, Trip};
/// let rule = BreakerRule::new("db", Trip::ErrorRatio { ratio: 0.5 }, Duration::from_secs(5));
/// assert_eq!((rule.min_calls, rule.probes), (5, 1));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerRule {
    /// A name of the rule's own, for whoever reads a [`Blocked`](crate::Blocked).
    pub id: Option<String>,
    /// The resources it is about, each with its own breaker.
    pub resource: Target,
    /// What opens it.
    pub trip: Trip,
    /// Over what time calls are judged. Default: a second.
    pub interval: Duration,
    /// Into how many slots the interval is cut. Default: 10.
    pub slots: u32,
    /// Fewer calls than this in the interval open nothing. Default: 5.
    pub min_calls: u32,
    /// How long it stays open.
    pub open_time: Duration,
    /// How many calls are then let through to try, all of which must be good. Default: 1; at most 1,000,000.
    pub probes: u32,
    /// How long probes may take to report. When that time has passed without a verdict, they count as one bad probe: a
    /// call that never ends must not keep the breaker half open. Default: ten times the open time.
    pub probe_timeout: Option<Duration>,
}

/// What opens a breaker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trip {
    /// More than this share of the calls took longer than `rt`.
    SlowRatio {
        /// The longest response time that is not slow.
        rt: Duration,
        /// The share, from 0 to 1. At 1.0 it opens when all calls are slow.
        ratio: f64,
    },
    /// More than this share of the calls failed.
    ErrorRatio {
        /// The share, from 0 to 1. At 1.0 it opens when all calls fail.
        ratio: f64,
    },
    /// More than this many calls failed.
    ErrorCount {
        /// The number of calls.
        count: u64,
    },
}

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Calls pass and are judged.
    Closed,
    /// Calls are blocked.
    Open,
    /// Probes pass, other calls are blocked.
    HalfOpen,
}

/// A breaker that changed its state: what listeners are told, on the thread whose call changed it.
#[derive(Clone, Copy, Debug)]
pub struct StateChange<'a> {
    /// The resource.
    pub resource: &'a str,
    /// The rule.
    pub rule: &'a BreakerRule,
    /// The state before.
    pub from: BreakerState,
    /// The state from now on.
    pub to: BreakerState,
    /// When.
    pub at: Nanos,
}

impl BreakerRule {
    /// Opens for `open_time`; the other settings at their defaults.
    pub fn new(resource: impl Into<Target>, trip: Trip, open_time: Duration) -> Self {
        Self {
            id: None,
            resource: resource.into(),
            trip,
            interval: Duration::from_secs(1),
            slots: 10,
            min_calls: 5,
            open_time,
            probes: 1,
            probe_timeout: None,
        }
    }

    /// The same rule judging by another interval.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// The same rule with another least number of calls.
    #[must_use]
    pub fn min_calls(self, min_calls: u32) -> Self {
        Self { min_calls, ..self }
    }

    /// The same rule with another number of probes.
    #[must_use]
    pub fn probes(self, probes: u32) -> Self {
        Self { probes, ..self }
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        self.resource.compile()?;
        match self.trip {
            Trip::SlowRatio { ratio, .. } | Trip::ErrorRatio { ratio } if !(0.0..=1.0).contains(&ratio) => {
                return Err(format!("the ratio is {ratio}; it must be from 0 to 1"));
            }
            _ => {}
        }
        if self.open_time.is_zero() || self.open_time > MAX_WINDOW {
            return Err("the open time must be above zero and at most 366 days".into());
        }
        if !(1..=PROBES as u32).contains(&self.probes) {
            return Err(format!("there are {} probes; there must be from 1 to 1000000", self.probes));
        }
        self.layout().map(drop).map_err(|e| format!("the statistic interval: {e}"))
    }

    /// The interval in slots, each rounded up to a nanosecond.
    fn layout(&self) -> Result<Layout, tidegate_core::stats::LayoutError> {
        let slots = u64::from(self.slots.max(1));
        let interval = Nanos::from(self.interval).get().div_ceil(slots) * slots;
        Layout::new(self.slots, Duration::from_nanos(interval))
    }
}

impl fmt::Display for BreakerRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.id {
            return f.write_str(id);
        }
        match self.trip {
            Trip::SlowRatio { rt, ratio } => write!(f, "above {ratio} slower than {rt:?}")?,
            Trip::ErrorRatio { ratio } => write!(f, "above {ratio} failing")?,
            Trip::ErrorCount { count } => write!(f, "above {count} errors")?,
        }
        write!(f, " in {:?}", self.interval)
    }
}

const PROBES: u64 = 1_000_000;
const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const HALF: u64 = 2;
const TAG: u64 = 3;
const PERIOD_SHIFT: u32 = 42;
const OUT_SHIFT: u32 = 22;
const GOOD_SHIFT: u32 = 2;
const FIELD: u64 = (1 << 20) - 1;
const TOTAL: usize = 0;
const BAD: usize = 1;

/// One breaker of one resource.
pub(crate) struct Breaker {
    pub(crate) rule: BreakerRule,
    pub(crate) label: Arc<str>,
    /// Longer response times are slow.
    slow: Nanos,
    state: AtomicU64,
    /// When the newest half-open period began; only its latest value matters, and being late by one call does not.
    half_since: AtomicU64,
    periods: AtomicU64,
    calls: Ring<2, 0>,
    total: Trailing,
    bad: Trailing,
}

/// The place of a probe; it must come back to [`Breaker::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    period: u64,
}

/// How a probe went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    Bad,
    /// It never ran, or was cancelled: it says nothing.
    None,
}

/// Who is told about transitions.
pub(crate) type Tell<'a> = &'a dyn Fn(&Breaker, BreakerState, BreakerState);

impl Breaker {
    pub(crate) fn new(rule: BreakerRule) -> Self {
        let layout = rule.layout().unwrap_or_else(|e| unreachable!("a validated interval: {e}"));
        let trailing = || Trailing::new(layout.whole());
        Self {
            label: rule.to_string().into(),
            slow: match rule.trip {
                Trip::SlowRatio { rt, .. } => rt.into(),
                Trip::ErrorRatio { .. } | Trip::ErrorCount { .. } => Nanos::MAX,
            },
            rule,
            state: AtomicU64::new(CLOSED),
            half_since: AtomicU64::new(0),
            periods: AtomicU64::new(1),
            calls: Ring::new(layout),
            total: trailing(),
            bad: trailing(),
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        named(self.state.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & TAG == CLOSED
    }

    /// Whether a call may pass: freely (`None`), or as a probe.
    ///
    /// # Errors
    /// With the time until a probe may be tried, while open.
    pub(crate) fn enter(&self, now: Nanos, tell: Tell<'_>) -> Result<Option<Probe>, Option<Duration>> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let (next, answer) = match state & TAG {
                CLOSED => return Ok(None),
                OPEN => {
                    let until = Nanos::new(state >> GOOD_SHIFT);
                    if now < until {
                        return Err(Some(until.saturating_since(now).into()));
                    }
                    let period = self.periods.fetch_add(1, Ordering::Relaxed) & ((1 << 22) - 1);
                    // Before the state that it belongs to is published.
                    self.half_since.store(now.get(), Ordering::Release);
                    (period << PERIOD_SHIFT | 1 << OUT_SHIFT | HALF, Ok(Some(Probe { period })))
                }
                _ => {
                    let out = state >> OUT_SHIFT & FIELD;
                    if out < self.rule.probes.into() {
                        let period = state >> PERIOD_SHIFT;
                        (state + (1 << OUT_SHIFT), Ok(Some(Probe { period })))
                    } else if self.probes_are_lost(now) {
                        (self.open(now), Err(Some(self.rule.open_time)))
                    } else {
                        return Err(None);
                    }
                }
            };
            // AcqRel: the order of transitions is that of what they were decided on.
            match self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.tell(state, next, tell);
                    return answer;
                }
                Err(seen) => state = seen,
            }
        }
    }

    fn probes_are_lost(&self, now: Nanos) -> bool {
        let timeout = self.rule.probe_timeout.unwrap_or(self.rule.open_time.saturating_mul(10));
        let since = Nanos::new(self.half_since.load(Ordering::Acquire));
        now.saturating_since(since) >= timeout.into()
    }

    fn open(&self, now: Nanos) -> u64 {
        let until = now.saturating_add(self.rule.open_time.into());
        until.get().min((1 << 62) - 1) << GOOD_SHIFT | OPEN
    }

    /// Ends a probe.
    pub(crate) fn settle(&self, probe: Probe, verdict: Verdict, now: Nanos, tell: Tell<'_>) {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & TAG != HALF || state >> PERIOD_SHIFT != probe.period {
                return; // Decided without it.
            }
            let good = (state >> GOOD_SHIFT & FIELD) + 1;
            let next = match verdict {
                Verdict::Bad => self.open(now),
                Verdict::None => state - (1 << OUT_SHIFT),
                Verdict::Good if good < self.rule.probes.into() => state + (1 << GOOD_SHIFT),
                Verdict::Good => {
                    // Before anybody can count in the new period. If another probe is bad meanwhile, nothing is lost:
                    // counts of a breaker that is not closed are never looked at.
                    self.calls.turn_to(now);
                    self.total.forget(self.calls.tally(TOTAL));
                    self.bad.forget(self.calls.tally(BAD));
                    self.periods.fetch_add(1, Ordering::Relaxed) << GOOD_SHIFT | CLOSED
                }
            };
            match self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.tell(state, next, tell),
                Err(seen) => state = seen,
            }
        }
    }

    /// Whether a call that ended so was bad.
    #[inline]
    pub(crate) fn is_bad(&self, rt: Nanos, failed: bool) -> bool {
        match self.rule.trip {
            Trip::SlowRatio { .. } => rt > self.slow,
            Trip::ErrorRatio { .. } | Trip::ErrorCount { .. } => failed,
        }
    }

    /// Counts a call that was no probe, and opens if there are too many bad ones.
    #[inline]
    pub(crate) fn record(&self, now: Nanos, bad: bool, tell: Tell<'_>) {
        let state = self.state.load(Ordering::Acquire);
        if state & TAG != CLOSED {
            return; // A call from before; the calls of the closed state are judged, and the probes.
        }
        self.calls.turn_to(now);
        self.calls.add(TOTAL, 1);
        if bad {
            self.calls.add(BAD, 1);
        }
        if self.is_over() {
            self.trip(state, now, tell);
        }
    }

    #[cold]
    fn trip(&self, state: u64, now: Nanos, tell: Tell<'_>) {
        let open = self.open(now);
        // From the period that was judged: another thread's transition stands.
        if self.state.compare_exchange(state, open, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.tell(state, open, tell);
        }
    }

    #[inline]
    fn is_over(&self) -> bool {
        // The bad first: a call that ends in between makes the share too low, and is judged itself.
        let bad = self.in_view(BAD, &self.bad);
        if bad == 0 {
            return false;
        }
        let total = self.in_view(TOTAL, &self.total);
        if total < self.rule.min_calls.into() {
            return false;
        }
        match self.rule.trip {
            Trip::SlowRatio { ratio, .. } | Trip::ErrorRatio { ratio } => {
                let (bad, total) = (bad as f64, total as f64);
                bad > ratio * total || ratio >= 1.0 && bad >= total
            }
            Trip::ErrorCount { count } => bad > count,
        }
    }

    #[inline]
    fn in_view(&self, at: usize, trailing: &Trailing) -> u64 {
        loop {
            let (tally, head) = self.calls.standing(at);
            if let Some(used) = trailing.used(&self.calls, at, tally, head) {
                return used;
            }
        }
    }

    fn tell(&self, from: u64, to: u64, tell: Tell<'_>) {
        if named(from) != named(to) {
            tell(self, named(from), named(to));
        }
    }
}

fn named(state: u64) -> BreakerState {
    match state & TAG {
        CLOSED => BreakerState::Closed,
        OPEN => BreakerState::Open,
        _ => BreakerState::HalfOpen,
    }
}

#[cfg(all(test, not(loom)))]
#[path = "breaker_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{sync::Arc, thread};

    use super::*;

    fn quiet(_: &Breaker, _: BreakerState, _: BreakerState) {}

    fn model(check: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(check);
    }

    fn opened() -> Arc<Breaker> {
        let trip = Trip::ErrorCount { count: 0 };
        let rule = BreakerRule { slots: 1, ..BreakerRule::new("r", trip, Duration::from_secs(1)) };
        let breaker = Breaker::new(rule.min_calls(1));
        breaker.record(Nanos::ZERO, true, &quiet);
        assert_eq!(breaker.state(), BreakerState::Open);
        Arc::new(breaker)
    }

    #[test]
    fn one_probe_place_goes_to_one_thread_and_comes_back() {
        model(|| {
            let breaker = opened();
            let now = Nanos::from_secs(1);
            let inside = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let (breaker, inside) = (breaker.clone(), inside.clone());
                    thread::spawn(move || {
                        if let Ok(Some(probe)) = breaker.enter(now, &quiet) {
                            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "one place, one probe");
                            inside.fetch_sub(1, Ordering::Relaxed);
                            breaker.settle(probe, Verdict::None, now, &quiet);
                        }
                    })
                })
                .collect();
            others.into_iter().for_each(|other| other.join().unwrap());
            let probe = breaker.enter(now, &quiet).expect("the place is free again").unwrap();
            breaker.settle(probe, Verdict::Good, now, &quiet);
            assert_eq!(breaker.state(), BreakerState::Closed);
        });
    }

    #[test]
    fn two_verdicts_make_one_transition() {
        model(|| {
            let rule = BreakerRule { slots: 1, ..opened().rule.clone() };
            let breaker = Arc::new(Breaker::new(rule.probes(2)));
            breaker.record(Nanos::ZERO, true, &quiet);
            let now = Nanos::from_secs(1);
            let probes = [(); 2].map(|()| breaker.enter(now, &quiet).unwrap().unwrap());
            let other = {
                let breaker = breaker.clone();
                thread::spawn(move || breaker.settle(probes[0], Verdict::Good, now, &quiet))
            };
            breaker.settle(probes[1], Verdict::Bad, now, &quiet);
            other.join().unwrap();
            assert_eq!(breaker.state(), BreakerState::Open, "one bad probe opens it, whoever reports first");
        });
    }
}
