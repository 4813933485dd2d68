//! Adaptive concurrency: how much may be in flight, found out by how calls go.
//!
//! Each algorithm is a [`ConcurrencyLimit`]; they stand side by side, and one's own stands beside them.

mod aimd;
mod gradient2;
mod vegas;

pub use aimd::Aimd;
pub use gradient2::Gradient2;
pub use vegas::Vegas;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use super::Target;
use crate::sync::{AtomicU64, Ordering};

/// How one call went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallSample {
    /// Its response time.
    pub rt: Duration,
    /// The units in flight when it ended, itself included.
    pub in_flight: u64,
    /// Whether it failed.
    pub failed: bool,
}

/// An algorithm that finds out how much may be in flight. It is told of one call after the other.
pub trait ConcurrencyLimit: Send {
    /// The limit to begin with.
    fn start(&self) -> f64;

    /// The limit after one more call, given the limit so far. The caller keeps it within its bounds.
    fn next(&mut self, limit: f64, call: &CallSample) -> f64;
}

/// Which algorithm an [`AdaptiveRule`] runs.
#[derive(Clone)]
pub enum Algorithm {
    /// Up by one, down by a factor.
    Aimd(Aimd),
    /// By the short-term response time against the long-term one.
    Gradient2(Gradient2),
    /// By the estimated queue.
    Vegas(Vegas),
    /// One's own: makes a fresh one for each resource.
    Custom(Arc<dyn Fn() -> Box<dyn ConcurrencyLimit> + Send + Sync>),
}

impl Algorithm {
    fn make(&self) -> Box<dyn ConcurrencyLimit> {
        match self {
            Self::Aimd(aimd) => Box::new(aimd.clone()),
            Self::Gradient2(gradient) => Box::new(gradient.clone()),
            Self::Vegas(vegas) => Box::new(vegas.clone()),
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

    pub(crate) fn validate(&self) -> Result<(), String> {
        self.resource.compile()?;
        if self.min == 0 || self.min > self.max {
            return Err(format!("the bounds are {} and {}; take 1 <= min <= max", self.min, self.max));
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
    /// The limit's whole units, for entries.
    units: AtomicU64,
    learning: std::sync::Mutex<Learning>,
}

struct Learning {
    algorithm: Box<dyn ConcurrencyLimit>,
    limit: f64,
}

impl Adaptive {
    pub(crate) fn new(rule: AdaptiveRule) -> Self {
        let algorithm = rule.algorithm.make();
        let limit = within(&rule, algorithm.start());
        let units = AtomicU64::new(whole(limit));
        let learning = std::sync::Mutex::new(Learning { algorithm, limit });
        Self { label: rule.to_string().into(), rule, units, learning }
    }

    /// How many units may be in flight now.
    #[inline]
    pub(crate) fn units(&self) -> u64 {
        // Relaxed: the number stands for itself.
        self.units.load(Ordering::Relaxed)
    }

    /// Learns from a call. A call that ends while another one is learnt from is passed over: no call waits, and one
    /// more or less makes no difference.
    pub(crate) fn learn(&self, call: &CallSample) {
        let Ok(mut learning) = self.learning.try_lock() else { return };
        let Learning { algorithm, limit } = &mut *learning;
        // A guard that leaves must not panic, perhaps while it unwinds already: the limit stays then as it is.
        let next = catch_unwind(AssertUnwindSafe(|| algorithm.next(*limit, call)));
        *limit = within(&self.rule, next.unwrap_or(*limit));
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
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_millis(10);
    const CAPACITY: f64 = 20.0;

    /// A resource that answers in 10 ms with up to 20 in flight, and proportionally slower beyond; everybody wants in.
    fn limits(algorithm: Algorithm, calls: usize) -> Vec<f64> {
        let adaptive = Adaptive::new(AdaptiveRule::new("r", algorithm));
        (0..calls)
            .map(|_| {
                let in_flight = adaptive.units();
                let rt = BASE.mul_f64((in_flight as f64 / CAPACITY).max(1.0));
                adaptive.learn(&CallSample { rt, in_flight, failed: false });
                adaptive.units() as f64
            })
            .collect()
    }

    fn settled(algorithm: Algorithm) -> (f64, f64) {
        let limits = limits(algorithm, 20_000);
        let last = &limits[10_000..];
        let (low, high) =
            (last.iter().copied().fold(f64::MAX, f64::min), last.iter().copied().fold(0.0, f64::max));
        assert!(low <= high);
        (low, high)
    }

    #[test]
    fn aimd_and_vegas_settle_near_what_the_resource_can_bear() {
        let aimd = Aimd { slow: BASE * 2, ..Aimd::default() };
        for (algorithm, low, high) in [
            (Algorithm::Aimd(aimd), 30.0, 42.0),
            // Lower for the moments in which it measures the shortest time anew.
            (Algorithm::Vegas(Vegas::default()), 10.0, 40.0),
        ] {
            let name = algorithm.name();
            let (lowest, highest) = settled(algorithm);
            assert!(lowest >= low && highest <= high, "{name} stays in {lowest}..{highest}");
        }
    }

    #[test]
    fn the_gradient_settles_near_what_the_resource_can_bear_where_traffic_ebbs() {
        let adaptive = Adaptive::new(AdaptiveRule::new("r", Algorithm::Gradient2(Gradient2::default())));
        for ebb_and_flow in 0..40 {
            for call in 0..600 {
                let in_flight = if call < 400 { 5 } else { adaptive.units() };
                let rt = BASE.mul_f64((in_flight as f64 / CAPACITY).max(1.0));
                adaptive.learn(&CallSample { rt, in_flight, failed: false });
            }
            let units = adaptive.units();
            assert!((25..=70).contains(&units), "{units} after {ebb_and_flow}");
        }
    }

    #[test]
    fn failures_bring_the_limit_down() {
        for algorithm in [
            Algorithm::Aimd(Aimd::default()),
            Algorithm::Vegas(Vegas::default()),
            Algorithm::Gradient2(Gradient2::default()),
        ] {
            let adaptive = Adaptive::new(AdaptiveRule::new("r", algorithm.clone()).bounds(2, 50));
            for _ in 0..200 {
                adaptive.learn(&CallSample { rt: BASE, in_flight: adaptive.units(), failed: true });
            }
            assert_eq!(adaptive.units(), 2, "{algorithm:?}");
        }
    }

    #[test]
    fn little_traffic_teaches_nothing() {
        for algorithm in [
            Algorithm::Aimd(Aimd::default()),
            Algorithm::Vegas(Vegas::default()),
            Algorithm::Gradient2(Gradient2::default()),
        ] {
            let adaptive = Adaptive::new(AdaptiveRule::new("r", algorithm.clone()));
            let before = adaptive.units();
            for _ in 0..1_000 {
                adaptive.learn(&CallSample { rt: BASE, in_flight: 1, failed: false });
            }
            assert_eq!(adaptive.units(), before, "{algorithm:?}");
        }
    }

    #[test]
    fn no_call_brings_the_limit_out_of_its_bounds() {
        let algorithms = [
            Algorithm::Aimd(Aimd::default()),
            Algorithm::Vegas(Vegas::default()),
            Algorithm::Gradient2(Gradient2::default()),
        ];
        for algorithm in algorithms {
            let adaptive = Adaptive::new(AdaptiveRule::new("r", algorithm).bounds(3, 9));
            for rt in [Duration::ZERO, Duration::MAX, Duration::from_nanos(1)] {
                for in_flight in [0, 5, u64::MAX] {
                    for _ in 0..50 {
                        adaptive.learn(&CallSample { rt, in_flight, failed: false });
                        assert!((3..=9).contains(&adaptive.units()));
                    }
                }
            }
        }
    }

    #[test]
    fn an_algorithm_of_ones_own_decides() {
        struct Fixed;
        impl ConcurrencyLimit for Fixed {
            fn start(&self) -> f64 {
                7.0
            }
            fn next(&mut self, _: f64, call: &CallSample) -> f64 {
                assert!(call.in_flight < 9, "more than it can think of");
                if call.failed { f64::NAN } else { 8.0 }
            }
        }
        let rule = AdaptiveRule::new("r", Algorithm::Custom(Arc::new(|| Box::new(Fixed))));
        assert_eq!(rule, rule.clone());
        let adaptive = Adaptive::new(rule);
        assert_eq!(adaptive.units(), 7);
        let call = CallSample { rt: BASE, in_flight: 1, failed: false };
        adaptive.learn(&call);
        assert_eq!(adaptive.units(), 8);
        adaptive.learn(&CallSample { in_flight: 9, ..call });
        assert_eq!(adaptive.units(), 8, "a panic teaches nothing and goes nowhere");
        adaptive.learn(&CallSample { failed: true, ..call });
        assert_eq!(adaptive.units(), 1, "what is no number is the lower bound");
    }
}
