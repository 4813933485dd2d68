//! Adaptive concurrency: limits on the units in flight that are learned from the calls.
//!
//! Each algorithm implements [`ConcurrencyLimit`], and you can add your own. All learn from windows
//! of at least one second and ten calls, because single response times vary too much.
//!
//! Start with [`Vegas`], which keeps the shortest queue.
//!
//! `tests/simulation` compares each algorithm with the best fixed limit, which is the smallest
//! limit that reaches 0.98 of the highest goodput. The scenarios have 5, 20 and 100 workers, four
//! distributions of service times, and 0.5 to 3 times the load that can be served, with three seeds
//! each. On average over the seeds each algorithm reaches at least 0.97 of the goodput of the best
//! fixed limit. Its 99th percentile is at most 1.5 times that of the best fixed limit. In the
//! scenarios where one call in a hundred takes ten times as long, the 99th percentile lies on the
//! edge of the slow calls, so the 98th and the 99.5th percentiles are compared instead.
//!
//! After half a minute in which calls take three times as long, goodput recovers within ten
//! seconds. If the service permanently loses seven tenths of its capacity, each algorithm reaches
//! on average 0.95 of the goodput of the best fixed limit from ten seconds later on, and 0.88 if
//! the service times have an infinite variance (Pareto). In the first ten seconds after a service of
//! 5 or 20 workers has lost half or seven tenths of its capacity, or has got it back, goodput is at
//! least 0.85 of that of the best fixed limit for these seconds, and the 99th percentile at most 2.5
//! times as long; before and after these seconds it is at least 0.97 and at most 1.8. Ten seconds in which half of the calls
//! fail cost nothing if the rule ignores failures; else goodput is back within five seconds.
//!
//! `docs/src/pictures/adaptive.svg` shows a run; `cargo run --release --example adaptive_limits`
//! draws it and prints the figures.

mod aimd;
mod baseline;
mod failures;
mod gradient2;
mod learner;
mod vegas;

pub use aimd::Aimd;
pub use gradient2::Gradient2;
pub use vegas::Vegas;

use learner::Learner;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tidegate_core::Nanos;

use super::{InvalidRule, Target};
use crate::{
    stats::bounds::whole,
    sync::{AtomicU64, Mutex, Ordering},
};

/// The result of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallSample {
    /// The response time of the call.
    pub(crate) rt: Nanos,
    /// The units in flight when the call ended, including itself.
    pub(crate) in_flight: u64,
    pub(crate) failed: bool,
}

/// The calls that ended in one time window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CallWindow {
    /// How long the window lasted.
    pub span: Duration,
    /// The number of calls that ended.
    pub calls: u64,
    /// How many of them failed; 0 if the rule ignores failures.
    pub failed: u64,
    /// How many units the limit blocked in the same time.
    pub blocked: u64,
    /// The mean response time of the calls that did not fail, or of all calls if all failed.
    pub mean_rt: Duration,
    /// The most units in flight.
    pub in_flight: u64,
}

/// When the next window begins and ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Calls that end within this time are ignored, because they began under the previous limit.
    pub skip: Duration,
    /// The shortest duration of the window.
    pub span: Duration,
    /// The smallest number of calls in the window.
    pub calls: u64,
}

impl Default for Pace {
    /// Returns a pace of at least one second and at least ten calls.
    fn default() -> Self {
        Self {
            skip: Duration::ZERO,
            span: Duration::from_secs(1),
            calls: 10,
        }
    }
}

/// An algorithm that learns a limit on the units in flight. It receives one window of calls after
/// another.
pub trait ConcurrencyLimit: Send {
    /// Returns the initial limit.
    fn start(&self) -> f64;

    /// Returns the next limit, given the current one and a window. The caller clamps it to the
    /// rule's bounds.
    fn next(&mut self, limit: f64, window: &CallWindow) -> f64;

    /// Returns the pace of the next window.
    fn pace(&self) -> Pace {
        Pace::default()
    }
}

/// The algorithm of an [`AdaptiveRule`].
#[derive(Clone)]
#[non_exhaustive]
pub enum AdaptiveAlgorithm {
    /// Additive increase, multiplicative decrease.
    Aimd(Aimd),
    /// Compares response times with those without a queue.
    Gradient2(Gradient2),
    /// Estimates the queue. Start with this one.
    Vegas(Vegas),
    /// A custom algorithm. The closure creates one for each resource.
    Custom(Arc<dyn Fn() -> Box<dyn ConcurrencyLimit> + Send + Sync>),
}

impl AdaptiveAlgorithm {
    fn make(&self) -> Box<dyn ConcurrencyLimit> {
        match self {
            Self::Aimd(aimd) => Box::new(Learner::new(aimd.clone())),
            Self::Gradient2(gradient) => Box::new(Learner::new(gradient.clone())),
            Self::Vegas(vegas) => Box::new(Learner::new(vegas.clone())),
            Self::Custom(make) => make(),
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Aimd(_) => "aimd",
            Self::Gradient2(_) => "gradient2",
            Self::Vegas(_) => "vegas",
            Self::Custom(_) => "custom",
        }
    }
}

impl PartialEq for AdaptiveAlgorithm {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Aimd(a), Self::Aimd(b)) => a == b,
            (Self::Gradient2(a), Self::Gradient2(b)) => a == b,
            (Self::Vegas(a), Self::Vegas(b)) => a == b,
            (Self::Custom(a), Self::Custom(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl fmt::Debug for AdaptiveAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Limits the units of a resource in flight. The limit is learned from the resource's calls.
///
/// ```
/// use tidegate_flow::rules::{AdaptiveRule, AdaptiveAlgorithm, Vegas};
/// let rule = AdaptiveRule::new("db", AdaptiveAlgorithm::Vegas(Vegas::default()));
/// assert_eq!((rule.min, rule.max, rule.to_string().as_str()), (1, 1_000, "vegas 1..1000 in flight"));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdaptiveRule {
    /// The rule's id, which a [`Blocked`](crate::Blocked) reports.
    pub id: Option<String>,
    /// The resources that the rule applies to.
    pub resource: Target,
    /// The algorithm that finds the limit.
    pub algorithm: AdaptiveAlgorithm,
    /// The lower bound of the limit. Default: 1.
    pub min: u32,
    /// The upper bound of the limit. Default: 1,000.
    pub max: u32,
    /// Whether failed calls leave the limit as it is. Otherwise they are a sign of overload: the
    /// limit falls while at least a tenth of the calls fail, and returns to its value when they
    /// stop. Default: false.
    pub ignore_errors: bool,
}

impl AdaptiveRule {
    /// Creates a rule with a limit from 1 to 1,000.
    pub fn new(resource: impl Into<Target>, algorithm: AdaptiveAlgorithm) -> Self {
        Self {
            id: None,
            resource: resource.into(),
            algorithm,
            min: 1,
            max: 1_000,
            ignore_errors: false,
        }
    }

    crate::rules::id_setter!();

    /// Lets failed calls leave the limit as it is: for failures that do not come from overload,
    /// such as bad requests.
    #[must_use]
    pub fn ignore_errors(self) -> Self {
        Self {
            ignore_errors: true,
            ..self
        }
    }

    /// Sets the bounds of the limit.
    #[must_use]
    pub fn bounds(self, min: u32, max: u32) -> Self {
        Self { min, max, ..self }
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        self.resource.compile()?;
        if self.min == 0 || self.min > self.max {
            return Err(format!(
                "the bounds are {} and {}; take 1 <= min <= max",
                self.min, self.max
            )
            .into());
        }
        match &self.algorithm {
            AdaptiveAlgorithm::Aimd(aimd) => aimd.validate(),
            AdaptiveAlgorithm::Gradient2(gradient) => gradient.validate(),
            AdaptiveAlgorithm::Vegas(_) | AdaptiveAlgorithm::Custom(_) => Ok(()),
        }
    }
}

impl fmt::Display for AdaptiveRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => f.write_str(id),
            None => write!(
                f,
                "{} {}..{} in flight",
                self.algorithm.name(),
                self.min,
                self.max
            ),
        }
    }
}

/// An adaptive rule of one resource, with its state.
pub(crate) struct Adaptive {
    pub(crate) rule: AdaptiveRule,
    pub(crate) label: Arc<str>,
    /// When the rule became active.
    since: Nanos,
    /// The limit in whole units, which entries read.
    units: AtomicU64,
    /// How many units the rule has blocked since the start.
    blocked: AtomicU64,
    learning: Mutex<Learning>,
}

struct Learning {
    algorithm: Box<dyn ConcurrencyLimit>,
    limit: f64,
    window: OpenWindow,
}

/// The current window.
#[derive(Default)]
struct OpenWindow {
    pace: Pace,
    /// When the window began; set when the first call ends after the skipped time.
    begun: Option<Nanos>,
    /// Calls that end before this time are skipped.
    skip_until: Option<Nanos>,
    /// When the last call ended.
    last: Nanos,
    calls: u64,
    failed: u64,
    in_flight: u64,
    /// The sums of response times in nanoseconds: of all calls, and of those that failed.
    rt: (u128, u128),
    /// How many units the rule had blocked when the window began.
    blocked: u64,
}

/// Calls within a window may be this far apart, however short the window is.
const PAUSE: Nanos = Nanos::from_secs(1);

impl OpenWindow {
    fn new(pace: Pace) -> Self {
        Self {
            pace,
            ..Self::default()
        }
    }

    /// Adds a call that ended at `now` and returns the window if it is complete. After a pause
    /// longer than the window, [`PAUSE`] and twice the call, the window starts again, because older
    /// calls say nothing about the present.
    fn add(&mut self, now: Nanos, call: &CallSample, blocked: u64) -> Option<CallWindow> {
        let skip_until = *self
            .skip_until
            .get_or_insert(now.saturating_add(self.pace.skip.into()));
        if now < skip_until {
            return None;
        }
        let span = Nanos::from(self.pace.span);
        let pause = now.saturating_since(self.last);
        let longest = span.max(PAUSE).max(call.rt.saturating_add(call.rt));
        if self.begun.is_some() && pause > longest {
            *self = Self {
                skip_until: Some(skip_until),
                ..Self::new(self.pace)
            };
        }
        let begun = *self.begun.get_or_insert_with(|| {
            self.blocked = blocked;
            now
        });
        self.last = self.last.max(now);
        self.calls += 1;
        self.rt.0 += u128::from(call.rt.get());
        if call.failed {
            self.failed += 1;
            self.rt.1 += u128::from(call.rt.get());
        }
        self.in_flight = self.in_flight.max(call.in_flight);
        if self.calls < self.pace.calls || now.saturating_since(begun) < span {
            return None;
        }
        let (sum, calls) = match self.calls - self.failed {
            0 => (self.rt.0, self.calls),
            good => (self.rt.0 - self.rt.1, good),
        };
        let mean = u64::try_from(sum / u128::from(calls)).unwrap_or(u64::MAX);
        Some(CallWindow {
            span: now.saturating_since(begun).into(),
            calls: self.calls,
            failed: self.failed,
            blocked: blocked.saturating_sub(self.blocked),
            mean_rt: Duration::from_nanos(mean),
            in_flight: self.in_flight,
        })
    }
}

impl Adaptive {
    pub(crate) fn new(rule: AdaptiveRule) -> Self {
        let algorithm = rule.algorithm.make();
        let limit = within(&rule, algorithm.start());
        let units = AtomicU64::new(whole(limit));
        let window = OpenWindow::new(algorithm.pace());
        let learning = Mutex::new(Learning {
            algorithm,
            limit,
            window,
        });
        let (label, blocked) = (rule.to_string().into(), AtomicU64::new(0));
        Self {
            rule,
            label,
            since: Nanos::ZERO,
            units,
            blocked,
            learning,
        }
    }

    /// Returns a state that ignores calls that began before `at`.
    pub(crate) fn since(self, at: Nanos) -> Self {
        Self { since: at, ..self }
    }

    /// Returns how many units may be in flight now.
    #[inline]
    pub(crate) fn units(&self) -> u64 {
        // Relaxed: the number is independent of other data.
        self.units.load(Ordering::Relaxed)
    }

    /// Counts units that the limit has blocked.
    #[cold]
    pub(crate) fn note_blocked(&self, units: u32) {
        // Relaxed: this is only a counter.
        self.blocked.fetch_add(units.into(), Ordering::Relaxed);
    }

    /// Learns from a call that ended at `now`. If another thread is learning from a call at the
    /// same time, this call is skipped: no call waits, and a single call makes no difference.
    pub(crate) fn learn(&self, now: Nanos, call: &CallSample) {
        if now.saturating_since(call.rt) < self.since {
            return;
        }
        let Ok(mut learning) = self.learning.try_lock() else {
            return;
        };
        let Learning {
            algorithm,
            limit,
            window,
        } = &mut *learning;
        let Some(mut ended) = window.add(now, call, self.blocked.load(Ordering::Relaxed)) else {
            return;
        };
        if self.rule.ignore_errors {
            ended.failed = 0;
        }
        // Dropping a guard must not panic, because the thread may already be unwinding. If the
        // algorithm panics, the limit stays unchanged.
        let next = catch_unwind(AssertUnwindSafe(|| {
            (algorithm.next(*limit, &ended), algorithm.pace())
        }));
        let (next, pace) = next.unwrap_or((*limit, Pace::default()));
        *limit = within(&self.rule, next);
        *window = OpenWindow::new(pace);
        self.units.store(whole(*limit), Ordering::Relaxed);
    }
}

fn within(rule: &AdaptiveRule, limit: f64) -> f64 {
    // NaN becomes the lower bound.
    limit.max(rule.min.into()).min(rule.max.into())
}

#[cfg(all(test, loom))]
mod loom_tests;
