//! Adaptive concurrency: how much may be in flight, found out by how calls go.
//!
//! Each algorithm is a [`ConcurrencyLimit`], and your own can stand beside them. All learn from windows of calls, at least
//! a second and ten calls long: single response times vary too much.
//!
//! Begin with [`Vegas`], which keeps the shortest queue. `tests/simulation` compares each algorithm with the best fixed
//! limit (the smallest that reaches 0.98 of the most goodput): 5, 20 and 100 workers, four distributions of service times,
//! 0.5 to 3 times the load that can be served, three seeds each. Each algorithm reaches at least 0.97 of its goodput. The
//! 99th percentile is at most 1.5 times its, but for 1.52 in one of the 60 scenarios: with five workers, even service times
//! and a load of 0.9 nothing is blocked at the initial limit, so nothing is learnt. Where one call in a hundred takes ten
//! times as long, the 99th percentile lies on the edge of the slow calls; the 98th and the 99.5th are compared there. Ten
//! seconds after calls were three times as slow for half a minute, goodput is back. `docs/src/pictures/adaptive.svg` shows a run;
//! `cargo run --release --example adaptive_limits` draws it and prints the figures.

mod aimd;
mod baseline;
mod gradient2;
mod vegas;

pub use aimd::Aimd;
pub use gradient2::Gradient2;
pub use vegas::Vegas;

use super::InvalidRule;
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tidegate_core::Nanos;

use super::Target;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// How one call went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallSample {
    /// Its response time.
    pub(crate) rt: Nanos,
    /// The units in flight when it ended, itself included.
    pub(crate) in_flight: u64,
    pub(crate) failed: bool,
}

/// The calls that ended in one window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CallWindow {
    /// How many ended.
    pub calls: u64,
    /// Of those, how many failed.
    pub failed: u64,
    /// How many the limit blocked meanwhile.
    pub blocked: u64,
    /// The mean response time of those that did not fail; of all, where all failed.
    pub mean_rt: Duration,
    /// The most units in flight.
    pub in_flight: u64,
}

impl CallWindow {
    /// Whether a tenth of the calls or more failed.
    fn fails(&self) -> bool {
        self.failed * 10 >= self.calls
    }
}

/// How the next window is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Calls that end in this time are left out: under the limit of before they began.
    pub skip: Duration,
    /// How long the window is, at least.
    pub span: Duration,
    /// How many calls it has, at least.
    pub calls: u64,
}

impl Default for Pace {
    /// A second, and at least ten calls.
    fn default() -> Self {
        Self { skip: Duration::ZERO, span: Duration::from_secs(1), calls: 10 }
    }
}

/// An algorithm that finds out how much may be in flight. It is told of one window of calls after the other.
pub trait ConcurrencyLimit: Send {
    /// The limit to begin with.
    fn start(&self) -> f64;

    /// The limit after one more window, given the limit so far. The caller keeps it within its bounds.
    fn next(&mut self, limit: f64, window: &CallWindow) -> f64;

    /// How the next window is cut.
    fn pace(&self) -> Pace {
        Pace::default()
    }
}

/// Which algorithm an [`AdaptiveRule`] runs.
#[derive(Clone)]
pub enum Algorithm {
    /// Up by one, down by a factor.
    Aimd(Aimd),
    /// By how much response times rise above those without a queue.
    Gradient2(Gradient2),
    /// By the estimated queue. The one to begin with.
    Vegas(Vegas),
    /// One's own: makes a fresh one for each resource.
    Custom(Arc<dyn Fn() -> Box<dyn ConcurrencyLimit> + Send + Sync>),
}

impl Algorithm {
    fn make(&self) -> Box<dyn ConcurrencyLimit> {
        match self {
            Self::Aimd(aimd) => Box::new(aimd::Learning::new(aimd)),
            Self::Gradient2(gradient) => Box::new(gradient2::Learning::new(gradient)),
            Self::Vegas(vegas) => Box::new(vegas::Learning::new(vegas)),
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

impl PartialEq for Algorithm {
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

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bounds the units of a resource in flight by what its calls show it can bear.
///
/// ```
/// use tidegate_flow::rules::{AdaptiveRule, Algorithm, Vegas};
/// let rule = AdaptiveRule::new("db", Algorithm::Vegas(Vegas::default()));
/// assert_eq!((rule.min, rule.max, rule.to_string().as_str()), (1, 1_000, "vegas 1..1000 in flight"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveRule {
    /// A name of the rule's own, for whoever reads a [`Blocked`](crate::Blocked).
    pub id: Option<String>,
    /// The resources it is about.
    pub resource: Target,
    /// How the limit is found.
    pub algorithm: Algorithm,
    /// The limit is never lower. Default: 1.
    pub min: u32,
    /// The limit is never higher. Default: 1,000.
    pub max: u32,
}

impl AdaptiveRule {
    /// Any limit from 1 to 1,000.
    pub fn new(resource: impl Into<Target>, algorithm: Algorithm) -> Self {
        Self { id: None, resource: resource.into(), algorithm, min: 1, max: 1_000 }
    }

    /// The same rule with other bounds.
    #[must_use]
    pub fn bounds(self, min: u32, max: u32) -> Self {
        Self { min, max, ..self }
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        self.resource.compile()?;
        if self.min == 0 || self.min > self.max {
            return Err(format!("the bounds are {} and {}; take 1 <= min <= max", self.min, self.max).into());
        }
        match &self.algorithm {
            Algorithm::Aimd(aimd) => aimd.validate(),
            Algorithm::Gradient2(gradient) => gradient.validate(),
            Algorithm::Vegas(_) | Algorithm::Custom(_) => Ok(()),
        }
    }
}

impl fmt::Display for AdaptiveRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => f.write_str(id),
            None => write!(f, "{} {}..{} in flight", self.algorithm.name(), self.min, self.max),
        }
    }
}

/// An adaptive rule at one resource.
pub(crate) struct Adaptive {
    pub(crate) rule: AdaptiveRule,
    pub(crate) label: Arc<str>,
    /// When the rule came into force.
    since: Nanos,
    /// The limit's whole units, for entries.
    units: AtomicU64,
    /// How many units it has blocked, ever.
    blocked: AtomicU64,
    learning: Mutex<Learning>,
}

struct Learning {
    algorithm: Box<dyn ConcurrencyLimit>,
    limit: f64,
    window: Open,
}

/// A window under way.
struct Open {
    pace: Pace,
    /// When it began, once a call has ended after what is skipped.
    begun: Option<Nanos>,
    /// Calls that end before are skipped.
    skip_until: Option<Nanos>,
    /// When the last call ended.
    last: Nanos,
    calls: u64,
    failed: u64,
    in_flight: u64,
    /// The sums of response times in nanoseconds: of all calls, and of those that failed.
    rt: (u128, u128),
    /// How many units the rule had blocked when it began.
    blocked: u64,
}

/// Calls may be this far apart within a window, however short it is.
const PAUSE: Nanos = Nanos::from_secs(1);

impl Open {
    fn new(pace: Pace) -> Self {
        Self {
            pace,
            begun: None,
            skip_until: None,
            last: Nanos::ZERO,
            calls: 0,
            failed: 0,
            in_flight: 0,
            rt: (0, 0),
            blocked: 0,
        }
    }

    /// Adds a call that ended at `now`; returns the window if it is complete. After a pause longer than the window,
    /// [`PAUSE`] and twice the call it begins anew: what was before says nothing about now.
    fn add(&mut self, now: Nanos, call: &CallSample, blocked: u64) -> Option<CallWindow> {
        let skip_until = *self.skip_until.get_or_insert(now.saturating_add(self.pace.skip.into()));
        if now < skip_until {
            return None;
        }
        let span = Nanos::from(self.pace.span);
        let pause = now.saturating_since(self.last);
        let longest = span.max(PAUSE).max(call.rt.saturating_add(call.rt));
        if self.begun.is_some() && pause > longest {
            *self = Self { skip_until: Some(skip_until), ..Self::new(self.pace) };
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
        let window = Open::new(algorithm.pace());
        let learning = Mutex::new(Learning { algorithm, limit, window });
        let (label, blocked) = (rule.to_string().into(), AtomicU64::new(0));
        Self { rule, label, since: Nanos::ZERO, units, blocked, learning }
    }

    /// The state, to which calls that began before `at` teach nothing.
    pub(crate) fn since(self, at: Nanos) -> Self {
        Self { since: at, ..self }
    }

    /// How many units may be in flight now.
    #[inline]
    pub(crate) fn units(&self) -> u64 {
        // Relaxed: the number stands for itself.
        self.units.load(Ordering::Relaxed)
    }

    /// Notes that the limit has blocked units.
    #[cold]
    pub(crate) fn note_blocked(&self, units: u32) {
        // Relaxed: only counted.
        self.blocked.fetch_add(units.into(), Ordering::Relaxed);
    }

    /// Learns from a call that ended at `now`. A call that ends while another one is learnt from is passed over: no call
    /// waits, and one more or less makes no difference.
    pub(crate) fn learn(&self, now: Nanos, call: &CallSample) {
        if now.saturating_since(call.rt) < self.since {
            return;
        }
        let Ok(mut learning) = self.learning.try_lock() else { return };
        let Learning { algorithm, limit, window } = &mut *learning;
        let Some(ended) = window.add(now, call, self.blocked.load(Ordering::Relaxed)) else { return };
        // A guard that leaves must not panic, perhaps while it unwinds already: the limit stays then as it is.
        let next = catch_unwind(AssertUnwindSafe(|| (algorithm.next(*limit, &ended), algorithm.pace())));
        let (next, pace) = next.unwrap_or((*limit, Pace::default()));
        *limit = within(&self.rule, next);
        *window = Open::new(pace);
        self.units.store(whole(*limit), Ordering::Relaxed);
    }
}

fn within(rule: &AdaptiveRule, limit: f64) -> f64 {
    // What is no number becomes the lower bound.
    limit.max(rule.min.into()).min(rule.max.into())
}

fn whole(limit: f64) -> u64 {
    // At least 1, and a cast saturates.
    #[allow(clippy::cast_sign_loss)]
    let units = limit as u64;
    units
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
