//! Flow rules as they are written.

use super::super::InvalidRule;
use std::{fmt, time::Duration};

use tidegate_core::{MAX_WINDOW, stats::Layout};

use crate::rules::{
    Target, Threshold,
    warm_up::{self, WarmUp},
};

/// At most a threshold of a resource: in each interval, or in flight.
///
/// ```
/// use tidegate_flow::rules::{Behaviour, FlowRule};
/// let rule = FlowRule::new("GET:/orders", 100).behaviour(Behaviour::Throttle { max_wait: std::time::Duration::from_millis(500) });
/// assert_eq!(rule.to_string(), "100/1s throttle");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRule {
    /// A name of the rule's own, for whoever reads a [`Blocked`](crate::Blocked).
    pub id: Option<String>,
    /// The resources it is about.
    pub resource: Target,
    /// How much is allowed.
    pub threshold: Threshold,
    /// Over what time, for [`Measure::Rate`]. Default: a second.
    pub interval: Duration,
    /// What is measured. Default: the rate.
    pub measure: Measure,
    /// Whose traffic is measured. Default: the resource's own.
    pub relation: Relation,
    /// Whose entries are checked, and measured. Default: everybody's, together.
    pub origins: Origins,
    /// What happens to an entry that does not fit. Default: it is blocked.
    pub behaviour: Behaviour,
    /// Whether the slot before the interval counts in full, for [`Behaviour::Reject`] and [`Behaviour::WarmUp`].
    ///
    /// Without (the default, as Sentinel counts) an interval is the current slot and the full slots behind it: never
    /// more than the threshold in those, up to twice in an interval that begins anywhere. With it: never more than
    /// the threshold in any interval.
    pub strict: bool,
}

/// What a flow rule measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Units that passed in an interval.
    #[default]
    Rate,
    /// Units in flight.
    InFlight,
}

/// Whose traffic a flow rule measures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The resource's own.
    #[default]
    Direct,
    /// That of another resource: entries are blocked while the other has more than the threshold. They do not count
    /// in it themselves, so this bounds nothing by itself. A throttle cannot be related; a warm-up throttle spaces the
    /// resource's own entries, at the rate that the other is warm enough for.
    Related(String),
    /// The resource's own within one context; entries in other contexts are not checked.
    Context(String),
}

/// Whose entries a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origins {
    /// Everybody's, together.
    #[default]
    Any,
    /// Those of one origin.
    Only(String),
    /// Those of each origin that no other flow rule of the resource names, each origin by itself, and those without an
    /// origin together; with another relation than [`Relation::Direct`], all of them by the traffic that it names.
    Others,
}

/// What a flow rule does with an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Behaviour {
    /// Blocks what is beyond the threshold.
    #[default]
    Reject,
    /// Blocks what is beyond a rate that rises to the threshold.
    WarmUp {
        /// How long the way to the full rate takes. Whole use needs an interval of one second.
        period: Duration,
        /// The full rate divided by the rate at first; above 1, and usually 3.
        cold_factor: f64,
    },
    /// Lets entries through one after the other, evenly spaced; those that come early are delayed. An entry that several
    /// throttles space goes when the last of them lets it, and is spaced from there in each.
    Throttle {
        /// The longest delay that this rule may ask for; who would have to wait longer is blocked.
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

impl FlowRule {
    /// At most `threshold` a second, from everybody together; what is beyond is blocked.
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

    /// At most `threshold` in flight.
    pub fn in_flight(resource: impl Into<Target>, threshold: impl Into<Threshold>) -> Self {
        Self { measure: Measure::InFlight, ..Self::new(resource, threshold) }
    }

    /// The same rule with another interval.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// The same rule with another behaviour.
    #[must_use]
    pub fn behaviour(self, behaviour: Behaviour) -> Self {
        Self { behaviour, ..self }
    }

    /// The same rule about other entries.
    #[must_use]
    pub fn origins(self, origins: Origins) -> Self {
        Self { origins, ..self }
    }

    /// The same rule about other traffic.
    #[must_use]
    pub fn relation(self, relation: Relation) -> Self {
        Self { relation, ..self }
    }

    /// The same rule bounding every interval (see [`strict`](Self::strict)).
    #[must_use]
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// The slots in which the rule counts the units that pass, where its interval is no view of a node's `layout`.
    pub(crate) fn ring_layout(&self, layout: Layout) -> Option<Layout> {
        let counts = self.measure == Measure::Rate && self.behaviour == Behaviour::Reject;
        if !counts || layout.view(1, self.interval).is_ok() {
            return None;
        }
        Some(own_layout(self.interval).unwrap_or_else(|e| unreachable!("a validated interval: {e}")))
    }

    /// What makes the rule impossible, said so that it can be mended.
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
            return Err("the origin has no name; give it one, or make the rule about any".into());
        }
        if self.measure == Measure::InFlight {
            if self.behaviour != Behaviour::Reject {
                return Err("calls in flight can only be rejected; set the behaviour to reject".into());
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
                    Err("a throttle spaces the resource's own calls, whatever passes elsewhere; \
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

/// Ten slots of the interval, or fewer where they would be too short.
fn own_layout(interval: Duration) -> Result<Layout, InvalidRule> {
    [10, 8, 5, 4, 2, 1]
        .into_iter()
        .find_map(|slots| Layout::new(slots, interval).ok())
        .ok_or_else(|| "the interval is too short; take at least 33us".into())
}
