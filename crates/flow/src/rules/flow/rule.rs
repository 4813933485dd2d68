//! The configuration of flow rules.

use std::{fmt, time::Duration};

use tidegate_core::{MAX_WINDOW, stats::Layout};

use crate::rules::{
    InvalidRule, Target, Threshold,
    warm_up::{self, WarmUp},
};

/// Limits the units of a resource, either per interval or in flight.
///
/// ```
/// use tidegate_flow::rules::{Behaviour, FlowRule};
/// let rule = FlowRule::new("GET:/orders", 100).behaviour(Behaviour::Throttle { max_wait: std::time::Duration::from_millis(500) });
/// assert_eq!(rule.to_string(), "100/1s throttle");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FlowRule {
    /// The rule's id, which a [`Blocked`](crate::Blocked) reports.
    pub id: Option<String>,
    /// The resources that the rule applies to.
    pub resource: Target,
    /// The highest number of units.
    pub threshold: Threshold,
    /// The interval of [`Measure::Rate`]. Default: one second.
    pub interval: Duration,
    /// The measured quantity. Default: the rate.
    pub measure: Measure,
    /// The measured traffic. Default: the resource's own.
    pub relation: Relation,
    /// The origins whose entries are checked and measured. Default: all origins together.
    pub origins: Origins,
    /// The treatment of an entry over the threshold. Default: the rule blocks it.
    pub behaviour: Behaviour,
    /// Whether the slot before the interval also counts in full, for [`Behaviour::Reject`] and
    /// [`Behaviour::WarmUp`].
    ///
    /// If false (the default, as in Sentinel), an interval is the current slot and the full slots
    /// before it. These slots never hold more than the threshold, but an arbitrary interval may
    /// hold up to twice the threshold. If true, no interval holds more than the threshold.
    pub strict: bool,
}

/// The quantity that a flow rule measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Measure {
    /// The units that passed in an interval.
    #[default]
    Rate,
    /// The units in flight.
    InFlight,
}

/// The traffic that a flow rule measures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Relation {
    /// The traffic of the rule's own resource.
    #[default]
    Direct,
    /// The traffic of another resource: the rule blocks entries while the other resource is over
    /// the threshold. The entries do not count there, so the rule alone bounds no traffic. A
    /// throttle cannot be related. A warm-up throttle spaces the resource's own entries at the rate
    /// to which the other resource has warmed up.
    Related(String),
    /// The resource's traffic within one context. Entries in other contexts are not checked.
    Context(String),
}

/// The origins whose entries a rule checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origins {
    /// All origins together.
    #[default]
    Any,
    /// One origin.
    Only(String),
    /// Every origin that no other flow rule of the resource names, each measured separately.
    /// Entries without an origin are measured together. With a relation other than
    /// [`Relation::Direct`], all of these entries are checked against the traffic that the relation
    /// names.
    Others,
}

/// The treatment of an entry over a flow rule's threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Behaviour {
    /// Blocks entries over the threshold.
    #[default]
    Reject,
    /// Blocks entries over a rate that rises to the threshold.
    WarmUp {
        /// How long the rise to the full rate takes. The interval must be one second.
        period: Duration,
        /// The full rate divided by the initial rate. Must be greater than 1 (typically 3).
        cold_factor: f64,
    },
    /// Spaces entries evenly and delays those that arrive early. If several throttles space an
    /// entry, it starts at the latest of their times, and each throttle spaces the next entry from
    /// that start.
    Throttle {
        /// The longest delay that this rule may require. An entry that would have to wait longer is
        /// blocked.
        max_wait: Duration,
    },
    /// Spaces entries at a rate that rises to the threshold.
    WarmUpThrottle {
        /// As in [`Behaviour::WarmUp`].
        period: Duration,
        /// As in [`Behaviour::WarmUp`].
        cold_factor: f64,
        /// As in [`Behaviour::Throttle`].
        max_wait: Duration,
    },
}

#[cfg(any(feature = "json", feature = "yaml"))]
impl Behaviour {
    /// The behaviour of these parts: the period and the cold factor of a warm-up, and the longest
    /// delay of a throttle.
    pub(crate) const fn of(warm_up: Option<(Duration, f64)>, max_wait: Option<Duration>) -> Self {
        match (warm_up, max_wait) {
            (None, None) => Self::Reject,
            (Some((period, cold_factor)), None) => Self::WarmUp {
                period,
                cold_factor,
            },
            (None, Some(max_wait)) => Self::Throttle { max_wait },
            (Some((period, cold_factor)), Some(max_wait)) => Self::WarmUpThrottle {
                period,
                cold_factor,
                max_wait,
            },
        }
    }

    /// The opposite of [`of`](Self::of).
    pub(crate) const fn parts(self) -> (Option<(Duration, f64)>, Option<Duration>) {
        match self {
            Self::Reject => (None, None),
            Self::WarmUp {
                period,
                cold_factor,
            } => (Some((period, cold_factor)), None),
            Self::Throttle { max_wait } => (None, Some(max_wait)),
            Self::WarmUpThrottle {
                period,
                cold_factor,
                max_wait,
            } => (Some((period, cold_factor)), Some(max_wait)),
        }
    }
}

impl FlowRule {
    /// Creates a rule that admits at most `threshold` units a second from all origins together and
    /// blocks the rest.
    pub fn new(resource: impl Into<Target>, threshold: impl Into<Threshold>) -> Self {
        Self {
            id: None,
            resource: resource.into(),
            threshold: threshold.into(),
            interval: Duration::from_secs(1),
            measure: Measure::Rate,
            relation: Relation::Direct,
            origins: Origins::Any,
            behaviour: Behaviour::Reject,
            strict: false,
        }
    }

    /// Creates a rule that admits at most `threshold` units in flight.
    pub fn in_flight(resource: impl Into<Target>, threshold: impl Into<Threshold>) -> Self {
        Self {
            measure: Measure::InFlight,
            ..Self::new(resource, threshold)
        }
    }

    crate::rules::id_setter!();

    /// Sets the measured quantity.
    #[must_use]
    pub fn measure(self, measure: Measure) -> Self {
        Self { measure, ..self }
    }

    /// Sets the interval.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the behaviour.
    #[must_use]
    pub fn behaviour(self, behaviour: Behaviour) -> Self {
        Self { behaviour, ..self }
    }

    /// Sets the origins.
    #[must_use]
    pub fn origins(self, origins: Origins) -> Self {
        Self { origins, ..self }
    }

    /// Sets the relation.
    #[must_use]
    pub fn relation(self, relation: Relation) -> Self {
        Self { relation, ..self }
    }

    /// Bounds every interval (see [`strict`](Self::strict)).
    #[must_use]
    pub fn strict(self) -> Self {
        Self {
            strict: true,
            ..self
        }
    }

    /// Returns the slots of the rule's own window, if its interval is not a view of a node's
    /// `layout`.
    pub(crate) fn ring_layout(&self, layout: Layout) -> Option<Layout> {
        let counts = self.measure == Measure::Rate && self.behaviour == Behaviour::Reject;
        if !counts || layout.view(1, self.interval).is_ok() {
            return None;
        }
        Some(
            own_layout(self.interval).unwrap_or_else(|e| unreachable!("a validated interval: {e}")),
        )
    }

    /// Checks the rule. The error says what is wrong and how to fix it.
    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        self.resource.compile()?;
        self.threshold.validate()?;
        if let Relation::Related(name) | Relation::Context(name) = &self.relation
            && name.is_empty()
        {
            return Err(
                "the related resource or context has no name; give it one, or make the relation direct"
                    .into(),
            );
        }
        if matches!(&self.origins, Origins::Only(name) if name.is_empty()) {
            return Err(
                "the origin has no name; give it one, or apply the rule to any origin".into(),
            );
        }
        if self.measure == Measure::InFlight {
            if self.behaviour != Behaviour::Reject {
                return Err(
                    "calls in flight can only be rejected; set the behaviour to reject".into(),
                );
            }
            return Ok(());
        }
        if self.interval.is_zero() || self.interval > MAX_WINDOW {
            return Err("the interval must be above zero and at most 366 days".into());
        }
        match self.behaviour {
            Behaviour::WarmUp { period, cold_factor }
            | Behaviour::WarmUpThrottle { period, cold_factor, .. } => {
                let Threshold::Fixed(count) = self.threshold else {
                    return Err("a warm-up needs a fixed threshold".into());
                };
                if self.interval != Duration::from_secs(1) {
                    return Err("a warm-up counts by the second; set the interval to 1s".into());
                }
                WarmUp::new(count, period, cold_factor)?;
                let is_stuck = matches!(self.behaviour, Behaviour::WarmUp { .. })
                    && warm_up::whole(count / cold_factor) == 0;
                if is_stuck {
                    return Err(format!(
                        "a cold resource would let {count}/{cold_factor} pass in a second, which is none, and so never \
                         warm up; raise the threshold to the cold factor, or throttle"
                    ).into());
                }
                Ok(())
            }
            Behaviour::Reject => own_layout(self.interval).map(drop),
            Behaviour::Throttle { .. } => match self.relation {
                Relation::Related(_) => {
                    Err("a throttle spaces the resource's own calls and cannot measure another resource; \
                                             make the relation direct, or the behaviour reject"
                        .into())
                }
                Relation::Direct | Relation::Context(_) => Ok(()),
            },
        }
    }
}

impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.id {
            return f.write_str(id);
        }
        match self.threshold {
            Threshold::Fixed(count) => write!(f, "{count}")?,
            Threshold::Memory(memory) => write!(f, "{}..{}", memory.when_scarce, memory.when_free)?,
        }
        match self.measure {
            Measure::Rate => write!(f, "/{:?}", self.interval)?,
            Measure::InFlight => f.write_str(" in flight")?,
        }
        f.write_str(match self.behaviour {
            Behaviour::Reject => "",
            Behaviour::WarmUp { .. } => " warm-up",
            Behaviour::Throttle { .. } => " throttle",
            Behaviour::WarmUpThrottle { .. } => " warm-up throttle",
        })?;
        match &self.relation {
            Relation::Direct => {}
            Relation::Related(other) => write!(f, " of {other}")?,
            Relation::Context(context) => write!(f, " in {context}")?,
        }
        match &self.origins {
            Origins::Any => Ok(()),
            Origins::Only(origin) => write!(f, " from {origin}"),
            Origins::Others => f.write_str(" from each other origin"),
        }
    }
}

/// Returns ten slots of the interval, or fewer if they would be too short.
fn own_layout(interval: Duration) -> Result<Layout, InvalidRule> {
    [10, 8, 5, 4, 2, 1]
        .into_iter()
        .find_map(|slots| Layout::new(slots, interval).ok())
        .ok_or_else(|| "the interval is too short; take at least 33us".into())
}
