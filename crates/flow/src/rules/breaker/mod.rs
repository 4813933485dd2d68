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
//!   [ since 62                              │ 0 ]   closed, since this time
//! ```
//!
//! No two closed states are alike, as at least the open time lies between them; half-open ones are told apart by their
//! number.

mod rule;

pub use rule::{BreakerRule, BreakerState, StateChange, Trip};

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    Nanos,
    stats::{Ring, Trailing},
};

use crate::sync::{AtomicU64, Ordering};

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const HALF: u64 = 2;
const TAG: u64 = 3;
const PERIOD_SHIFT: u32 = 42;
const OUT_SHIFT: u32 = 22;
const GOOD_SHIFT: u32 = 2;
const FIELD: u64 = (1 << 20) - 1;
/// The latest time that a state can name: 146 years.
const LATEST: u64 = (1 << 62) - 1;
const TOTAL: usize = 0;
const BAD: usize = 1;

/// One breaker of one resource.
pub(crate) struct Breaker {
    pub(crate) rule: BreakerRule,
    pub(crate) label: Arc<str>,
    /// Longer response times are slow.
    slow: Nanos,
    state: AtomicU64,
    /// When the newest half-open period began, or one that somebody wanted to begin then: it only ever grows, so a thread
    /// that slept since an earlier one sets it back no more.
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
                    self.half_since.fetch_max(now.get(), Ordering::Release);
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

    /// What [`enter`](Self::enter) would answer; nothing is taken, and the state stays as it is.
    pub(crate) fn peek(&self, now: Nanos) -> Result<(), Option<Duration>> {
        let state = self.state.load(Ordering::Acquire);
        match state & TAG {
            CLOSED => Ok(()),
            OPEN => match Nanos::new(state >> GOOD_SHIFT).saturating_since(now) {
                Nanos::ZERO => Ok(()),
                wait => Err(Some(wait.into())),
            },
            _ if state >> OUT_SHIFT & FIELD < self.rule.probes.into() => Ok(()),
            _ => Err(self.probes_are_lost(now).then_some(self.rule.open_time)),
        }
    }

    fn probes_are_lost(&self, now: Nanos) -> bool {
        let timeout = self.rule.probe_timeout.unwrap_or(self.rule.open_time.saturating_mul(10));
        let since = Nanos::new(self.half_since.load(Ordering::Acquire));
        now.saturating_since(since) >= timeout.into()
    }

    fn open(&self, now: Nanos) -> u64 {
        let until = now.saturating_add(self.rule.open_time.into());
        until.get().min(LATEST) << GOOD_SHIFT | OPEN
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
                    now.get().min(LATEST) << GOOD_SHIFT | CLOSED
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
    pub(crate) fn record(&self, started: Nanos, now: Nanos, bad: bool, tell: Tell<'_>) {
        let state = self.state.load(Ordering::Acquire);
        if state & TAG != CLOSED || started.get() < state >> GOOD_SHIFT {
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
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
