//! The configuration and the states of a breaker.

use std::{fmt, time::Duration};

use tidegate_core::{MAX_WINDOW, Nanos, stats::Layout};

use crate::rules::{InvalidRule, Target};

/// Blocks a resource for a while when too many of its calls are slow or fail.
///
/// ```
/// use std::time::Duration;
/// use tidegate_flow::rules::{BreakerRule, Trip};
/// let rule = BreakerRule::new("db", Trip::ErrorRatio { ratio: 0.5 }, Duration::from_secs(5));
/// assert_eq!((rule.min_calls, rule.probes), (5, 1));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BreakerRule {
    /// The rule's id, which a [`Blocked`](crate::Blocked) reports.
    pub id: Option<String>,
    /// The resources that the rule applies to. Each has its own breaker.
    pub resource: Target,
    /// The condition that opens the breaker.
    pub trip: Trip,
    /// The statistics window of the condition. Default: one second.
    pub interval: Duration,
    /// The number of slots in the interval. Default: 10.
    pub slots: u32,
    /// The breaker does not open with fewer calls than this in the interval. Default: 5.
    pub min_calls: u32,
    /// How long the breaker stays open.
    pub open_time: Duration,
    /// The number of probes after the open time. All must succeed. Default: 1; at most 1,000,000.
    pub probes: u32,
    /// The longest duration of a probe, from its start. Once all permits are in use, a probe that
    /// takes longer counts as bad, so that a call that never ends cannot keep the breaker
    /// half-open. Must be greater than zero. Default: ten times the open time.
    pub probe_timeout: Option<Duration>,
}

/// The condition that opens a breaker.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Trip {
    /// More than this share of the calls took longer than `rt`.
    SlowRatio {
        /// The longest response time that is not slow.
        rt: Duration,
        /// The share, from 0 to 1. At 1.0 the breaker opens when all calls are slow.
        ratio: f64,
    },
    /// More than this share of the calls failed.
    ErrorRatio {
        /// The share, from 0 to 1. At 1.0 the breaker opens when all calls fail.
        ratio: f64,
    },
    /// More than `count` calls failed.
    ErrorCount {
        /// The number of calls.
        count: u64,
    },
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls pass and are counted.
    Closed,
    /// Calls are blocked.
    Open,
    /// Probes pass, and other calls are blocked.
    HalfOpen,
}

impl BreakerState {
    /// Returns the name in metrics, logs and reports, such as `half-open`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// A state change of a breaker. Listeners receive it on the thread whose call caused the change.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StateChange<'a> {
    /// The resource.
    pub resource: &'a str,
    /// The rule.
    pub rule: &'a BreakerRule,
    /// The previous state.
    pub from: BreakerState,
    /// The new state.
    pub to: BreakerState,
    /// When the state changed.
    pub at: Nanos,
}

impl BreakerRule {
    /// Creates a rule that opens for `open_time`, with defaults for all other settings.
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

    crate::rules::id_setter!();

    /// Sets the number of slots in the interval.
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    /// Sets the longest duration of a probe.
    #[must_use]
    pub fn probe_timeout(self, probe_timeout: Duration) -> Self {
        Self {
            probe_timeout: Some(probe_timeout),
            ..self
        }
    }

    /// Sets the interval.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the minimum number of calls.
    #[must_use]
    pub fn min_calls(self, min_calls: u32) -> Self {
        Self { min_calls, ..self }
    }

    /// Sets the number of probes.
    #[must_use]
    pub fn probes(self, probes: u32) -> Self {
        Self { probes, ..self }
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        self.resource.compile()?;
        match self.trip {
            Trip::SlowRatio { ratio, .. } | Trip::ErrorRatio { ratio }
                if !(0.0..=1.0).contains(&ratio) =>
            {
                return Err(format!("the ratio is {ratio}; it must be from 0 to 1").into());
            }
            _ => {}
        }
        if self.open_time.is_zero() || self.open_time > MAX_WINDOW {
            return Err("the open time must be above zero and at most 366 days".into());
        }
        if self.probe_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(
                "the probe timeout is zero, so no probe could report in time; lengthen it, or leave it out"
                    .into(),
            );
        }
        if !(1..=1_000_000).contains(&self.probes) {
            return Err(format!(
                "there are {} probes; there must be from 1 to 1000000",
                self.probes
            )
            .into());
        }
        self.layout()
            .map(drop)
            .map_err(|e| format!("the statistic interval: {e}").into())
    }

    /// Returns the slots of the interval, each rounded up to a nanosecond.
    pub(super) fn layout(&self) -> Result<Layout, tidegate_core::stats::LayoutError> {
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
