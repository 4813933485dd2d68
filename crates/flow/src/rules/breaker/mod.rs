//! Circuit breakers: a breaker blocks the calls of a failing or slow resource for a while and then
//! sends probes.
//!
//! ```text
//!             too many bad calls                open time has passed, a first probe
//!   CLOSED ─────────────────────→ OPEN ────────────────────────────────────→ HALF OPEN
//!     ↑                            ↑ ↑                                         │ │  │
//!     │                            │ └──── the last probe is cancelled ────────┘ │  │
//!     │                            └────── a bad probe, or one that never ended ─┘  │
//!     └──────────────────────────────────── all probes good ────────────────────────┘
//! ```
//!
//! The state is one word, so entering through a closed breaker costs one load:
//!
//! ```text
//!   [ until 62 │ 1 ]   open, until this time
//!   [ 0        │ 2 ]   half open
//!   [ since 62 │ 0 ]   closed, since this time
//! ```
//!
//! Every transition happens under the mutex around [`Probes`], so each happens once and each probe
//! permit is given once. A closed breaker never takes the mutex. No two closed words are equal,
//! because at least the open time lies between them.

mod rule;

pub use rule::{BreakerRule, BreakerState, StateChange, Trip};

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_core::{
    Nanos,
    stats::{Ring, Trailing},
};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError, fence};

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const HALF: u64 = 2;
const TAG: u64 = 3;
const SHIFT: u32 = 2;
/// The latest time that a state can hold: 146 years.
const LATEST: u64 = (1 << 62) - 1;
const TOTAL: usize = 0;
const BAD: usize = 1;

/// One breaker of one resource.
pub(crate) struct Breaker {
    pub(crate) rule: BreakerRule,
    pub(crate) label: Arc<str>,
    /// A longer response time counts as slow.
    slow: Nanos,
    state: AtomicU64,
    probes: Mutex<Probes>,
    calls: Ring<2, 0>,
    total: Trailing,
    bad: Trailing,
}

/// The probes of a breaker. They change together with the state word, under one mutex.
#[derive(Debug, Default)]
struct Probes {
    /// The probes in flight, ordered by their start.
    inside: BTreeSet<Probe>,
    /// How many probes have succeeded since the breaker opened.
    good: u32,
    /// The end of the open time before the first probe.
    open_until: Nanos,
    /// The number of probes so far.
    count: u64,
}

/// A call that was admitted to test the resource. It must be returned to [`Breaker::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Probe {
    started: Nanos,
    number: u64,
}

/// The outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    Good,
    Bad,
    /// The probe never ran or was cancelled, so it says nothing.
    None,
}

/// The function that is notified of transitions.
pub(crate) type Tell<'a> = &'a dyn Fn(&Breaker, BreakerState, BreakerState);

impl Breaker {
    pub(crate) fn new(rule: BreakerRule) -> Self {
        let layout = rule
            .layout()
            .unwrap_or_else(|e| unreachable!("a validated interval: {e}"));
        let trailing = || Trailing::new(layout.whole());
        Self {
            label: rule.to_string().into(),
            slow: match rule.trip {
                Trip::SlowRatio { rt, .. } => rt.into(),
                Trip::ErrorRatio { .. } | Trip::ErrorCount { .. } => Nanos::MAX,
            },
            rule,
            state: AtomicU64::new(CLOSED),
            probes: Mutex::new(Probes::default()),
            calls: Ring::new(layout),
            total: trailing(),
            bad: trailing(),
        }
    }

    /// Returns the breaker in a state that ignores calls that began before `at`.
    pub(crate) fn since(self, at: Nanos) -> Self {
        Self {
            state: AtomicU64::new(at.get().min(LATEST) << SHIFT | CLOSED),
            ..self
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        named(self.state.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & TAG == CLOSED
    }

    /// Admits a call, either freely (`None`) or as a probe.
    ///
    /// # Errors
    /// The time until a probe is admitted, if the breaker is open.
    pub(crate) fn enter(
        &self,
        now: Nanos,
        tell: Tell<'_>,
    ) -> Result<Option<Probe>, Option<Duration>> {
        if self.is_closed() {
            return Ok(None);
        }
        let mut probes = self.lock();
        let state = self.state.load(Ordering::Acquire);
        let answer = match state & TAG {
            CLOSED => return Ok(None), // The breaker closed while this thread waited for the mutex.
            OPEN => match Nanos::new(state >> SHIFT).saturating_since(now) {
                Nanos::ZERO => {
                    probes.open_until = Nanos::new(state >> SHIFT);
                    Ok(Some(probes.start(now)))
                }
                wait => return Err(Some(wait.into())),
            },
            _ if probes.taken() < u64::from(self.rule.probes) => {
                return Ok(Some(probes.start(now)));
            }
            _ if self.is_lost(&probes, now) => {
                probes.clear();
                Err(Some(self.rule.open_time))
            }
            _ => return Err(None),
        };
        let next = if answer.is_ok() { HALF } else { self.open(now) };
        self.change(probes, state, next, tell);
        answer
    }

    /// Returns what [`enter`](Self::enter) would return, without taking a permit or changing the
    /// state.
    pub(crate) fn peek(&self, now: Nanos) -> Result<(), Option<Duration>> {
        if self.is_closed() {
            return Ok(());
        }
        let probes = self.lock();
        let state = self.state.load(Ordering::Acquire);
        match state & TAG {
            CLOSED => Ok(()),
            OPEN => match Nanos::new(state >> SHIFT).saturating_since(now) {
                Nanos::ZERO => Ok(()),
                wait => Err(Some(wait.into())),
            },
            _ if probes.taken() < u64::from(self.rule.probes) => Ok(()),
            _ => Err(self.is_lost(&probes, now).then_some(self.rule.open_time)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Probes> {
        // Ignore poisoning: no code panics halfway through a change, so the state is consistent.
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the probe that started first has exceeded its timeout.
    fn is_lost(&self, probes: &Probes, now: Nanos) -> bool {
        let timeout = self
            .rule
            .probe_timeout
            .unwrap_or(self.rule.open_time.saturating_mul(10));
        probes
            .inside
            .first()
            .is_some_and(|first| now.saturating_since(first.started) >= timeout.into())
    }

    fn open(&self, now: Nanos) -> u64 {
        let until = now.saturating_add(self.rule.open_time.into());
        until.get().min(LATEST) << SHIFT | OPEN
    }

    /// Ends a probe.
    pub(crate) fn settle(&self, probe: Probe, verdict: ProbeOutcome, now: Nanos, tell: Tell<'_>) {
        let mut probes = self.lock();
        if !probes.inside.remove(&probe) {
            return; // The breaker has changed its state without this probe.
        }
        let state = self.state.load(Ordering::Acquire);
        let next = match verdict {
            ProbeOutcome::Bad => {
                probes.clear();
                self.open(now)
            }
            // The open time is over, so the next call may be a probe at once. Successful probes
            // still count.
            ProbeOutcome::None if probes.inside.is_empty() => {
                probes.open_until.get().min(LATEST) << SHIFT | OPEN
            }
            ProbeOutcome::None => return,
            ProbeOutcome::Good => {
                probes.good += 1;
                if probes.good < self.rule.probes {
                    return;
                }
                probes.clear();
                // This happens before any thread can count in the closed state.
                self.calls.turn_to(now);
                self.total.forget(self.calls.tally(TOTAL));
                self.bad.forget(self.calls.tally(BAD));
                now.get().min(LATEST) << SHIFT | CLOSED
            }
        };
        self.change(probes, state, next, tell);
    }

    /// Changes the state and notifies listeners after the mutex is released, because a listener may
    /// read the breaker.
    fn change(&self, probes: MutexGuard<'_, Probes>, from: u64, to: u64, tell: Tell<'_>) {
        // Release: a thread that sees the closed state also sees that the older counts were reset.
        self.state.store(to, Ordering::Release);
        drop(probes);
        if named(from) != named(to) {
            tell(self, named(from), named(to));
        }
    }

    /// Whether a call with this outcome was bad.
    #[inline]
    pub(crate) fn is_bad(&self, rt: Nanos, failed: bool) -> bool {
        match self.rule.trip {
            Trip::SlowRatio { .. } => rt > self.slow,
            Trip::ErrorRatio { .. } | Trip::ErrorCount { .. } => failed,
        }
    }

    /// Counts a call that was not a probe, and opens the breaker if too many calls were bad.
    #[inline]
    pub(crate) fn record(&self, started: Nanos, now: Nanos, bad: bool, tell: Tell<'_>) {
        let state = self.state.load(Ordering::Acquire);
        if state & TAG != CLOSED || started.get() < state >> SHIFT {
            return; // The call is older than the closed state. Only calls of the closed state, and probes, count.
        }
        self.calls.turn_to(now);
        self.calls.add(TOTAL, 1);
        if bad {
            self.calls.add(BAD, 1);
            // Changes the count of all calls once more. So of a good call and a bad one that end
            // together, at least one sees the other: the good call comes after this change and sees
            // the bad one, or this call's sum has the good one.
            self.calls.add(TOTAL, 0);
        }
        // Acquire: a call that changed the count of all calls before this one is visible.
        fence(Ordering::Acquire);
        if self.is_over() {
            self.trip(state, now, tell);
        }
    }

    #[cold]
    fn trip(&self, judged: u64, now: Nanos, tell: Tell<'_>) {
        let mut probes = self.lock();
        // Open only if the state is still the one that was evaluated; otherwise another thread's
        // transition stays.
        if self.state.load(Ordering::Acquire) == judged {
            probes.clear();
            self.change(probes, judged, self.open(now), tell);
        }
    }

    #[inline]
    fn is_over(&self) -> bool {
        // Read the bad calls first. A call that ends in between makes the share too low, but then
        // evaluates it again itself.
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
}

impl Probes {
    /// Admits one more probe.
    fn start(&mut self, now: Nanos) -> Probe {
        self.count += 1;
        let probe = Probe {
            started: now,
            number: self.count,
        };
        self.inside.insert(probe);
        probe
    }

    /// Returns the permits in use: those of the probes in flight and of the successful ones.
    fn taken(&self) -> u64 {
        self.inside.len() as u64 + u64::from(self.good)
    }

    /// Forgets all probes. The outcome of any of them is ignored from now on.
    fn clear(&mut self) {
        self.inside.clear();
        self.good = 0;
    }
}

fn named(state: u64) -> BreakerState {
    match state & TAG {
        CLOSED => BreakerState::Closed,
        OPEN => BreakerState::Open,
        _ => BreakerState::HalfOpen,
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
