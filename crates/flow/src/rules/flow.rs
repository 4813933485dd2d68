//! Flow rules: how much of a resource may pass, and what to do with the rest.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_core::{
    MAX_WINDOW, Nanos,
    stats::{Layout, Look, Ring, Tally, Trailing, View},
};

use super::{
    Target, Threshold,
    throttle::{self, Place, Throttle},
    warm_up::{self, WarmUp},
};
use crate::{node::Node, sample::SystemSample};

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
    /// in it themselves, so this bounds nothing by itself.
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
    /// Those of each origin that no other flow rule of the resource names, each origin by itself.
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
    /// Lets entries through one after the other, evenly spaced; those that come early are delayed.
    Throttle {
        /// The longest delay; who would have to wait longer is blocked.
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

    /// What makes the rule impossible, said so that it can be mended.
    pub(crate) fn validate(&self) -> Result<(), String> {
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
                if self.origins == Origins::Others {
                    return Err(
                        "a warm-up is of one traffic; name the origin, or make the rule about any".into()
                    );
                }
                WarmUp::new(count, period, cold_factor)?;
                let is_stuck = matches!(self.behaviour, Behaviour::WarmUp { .. })
                    && warm_up::whole(count / cold_factor) == 0;
                if is_stuck {
                    return Err(format!(
                        "a cold resource would let {count}/{cold_factor} pass in a second, which is none, and so never \
                         warm up; raise the threshold to the cold factor, or throttle"
                    ));
                }
                Ok(())
            }
            Behaviour::Reject => own_layout(self.interval).map(drop),
            Behaviour::Throttle { .. } => Ok(()),
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
fn own_layout(interval: Duration) -> Result<Layout, String> {
    [10, 8, 5, 4, 2, 1]
        .into_iter()
        .find_map(|slots| Layout::new(slots, interval).ok())
        .ok_or_else(|| "the interval is too short; take at least 33us".into())
}

/// A flow rule at one resource, with what it remembers.
pub(crate) struct Flow {
    pub(crate) rule: FlowRule,
    pub(crate) label: Arc<str>,
    /// The node that is measured, where it is another resource's.
    pub(crate) related: Option<Arc<Node>>,
    /// For [`Origins::Others`]: the origins that have rules of their own.
    pub(crate) named: Vec<String>,
    how: How,
}

enum How {
    InFlight,
    /// By the node's own window.
    Window(Trailing),
    /// By a window of the rule's own, as the interval is none of the node's. A look needs no time, as who enters has
    /// turned it.
    Own(Ring<1, 0>, Trailing),
    WarmUp(WarmUp, Trailing),
    Throttle(Throttle, Nanos),
    WarmUpThrottle(WarmUp, Throttle, Nanos),
}

/// What a rule took that is not in a node's window.
pub(crate) enum Taken {
    Place(Place),
    Own(Tally),
}

impl Flow {
    pub(crate) fn new(rule: FlowRule, layout: Layout) -> Self {
        let strict = |view: View| if rule.strict { view.strict() } else { view };
        let second = || Trailing::new(strict(layout.view(1, rule.interval).unwrap_or(layout.whole())));
        let warm_up = |period, factor| {
            let Threshold::Fixed(count) = rule.threshold else {
                unreachable!("a validated warm-up is fixed")
            };
            WarmUp::new(count, period, factor).unwrap_or_else(|e| unreachable!("a validated warm-up: {e}"))
        };
        let how = match (rule.measure, rule.behaviour) {
            (Measure::InFlight, _) => How::InFlight,
            (Measure::Rate, Behaviour::Reject) => {
                if let Ok(view) = layout.view(1, rule.interval) {
                    How::Window(Trailing::new(strict(view)))
                } else {
                    let own = own_layout(rule.interval);
                    let own = own.unwrap_or_else(|e| unreachable!("a validated interval: {e}"));
                    How::Own(Ring::new(own), Trailing::new(strict(own.whole())))
                }
            }
            (Measure::Rate, Behaviour::WarmUp { period, cold_factor }) => {
                How::WarmUp(warm_up(period, cold_factor), second())
            }
            (Measure::Rate, Behaviour::Throttle { max_wait }) => {
                How::Throttle(Throttle::new(), max_wait.into())
            }
            (Measure::Rate, Behaviour::WarmUpThrottle { period, cold_factor, max_wait }) => {
                How::WarmUpThrottle(warm_up(period, cold_factor), Throttle::new(), max_wait.into())
            }
        };
        Self { label: rule.to_string().into(), rule, related: None, named: Vec::new(), how }
    }

    /// Whether the rule takes something beside what the node counts.
    pub(crate) const fn takes(&self) -> bool {
        matches!(self.how, How::Own(..) | How::Throttle(..) | How::WarmUpThrottle(..))
    }

    /// The threshold, for a rule that everything passes which passes a count of units in `view` of the resource's window.
    pub(crate) fn plain(&self, view: View) -> Option<u64> {
        let FlowRule { origins: Origins::Any, relation: Relation::Direct, threshold, .. } = &self.rule else {
            return None;
        };
        match (&self.how, threshold) {
            (How::Window(trailing), Threshold::Fixed(_)) if trailing.view() == view => {
                Some(threshold.units(&SystemSample::default()))
            }
            _ => None,
        }
    }

    /// Whether the window of `node` has room for `n` units more.
    ///
    /// # Errors
    /// With the time until it has, where one can be named.
    #[inline]
    pub(crate) fn fits(
        &self,
        node: &Node,
        look: Look<'_>,
        now: Nanos,
        n: u32,
        sample: &SystemSample,
    ) -> Result<(), Option<Duration>> {
        let (trailing, limit) = match &self.how {
            How::Window(trailing) => (trailing, self.rule.threshold.units(sample)),
            How::WarmUp(warm_up, trailing) => (
                trailing,
                warm_up::whole(warm_up.rate(now, || node.window().passed_last_second(now).unwrap_or(0))),
            ),
            How::InFlight => {
                let over = look.in_flight() + u64::from(n) > self.rule.threshold.units(sample);
                return if over { Err(None) } else { Ok(()) };
            }
            How::Own(..) | How::Throttle(..) | How::WarmUpThrottle(..) => return Ok(()),
        };
        // Each other origin has its own window; a place kept at hand would be another's.
        let used = match self.rule.origins {
            Origins::Others => look.passed_in(trailing.view()),
            _ => look.passed(trailing),
        };
        let n = u64::from(n);
        match used {
            // The window has turned on: this look decides nothing, the next one will.
            None => Ok(()),
            Some(used) if used + n <= limit => Ok(()),
            Some(_) => Err(limit.checked_sub(n).map(|goal| look.fits_after(now, trailing.view(), goal))),
        }
    }

    /// What [`take`](Self::take) would say.
    pub(crate) fn peek(
        &self,
        node: &Node,
        now: Nanos,
        n: u32,
        sample: &SystemSample,
    ) -> Result<(), Option<Duration>> {
        match &self.how {
            How::Own(ring, trailing) => {
                ring.turn_to(now);
                let (tally, head) = ring.standing(0);
                self.own_fits((ring, trailing), (tally, head), now, n, sample)
            }
            How::Throttle(throttle, max_wait) | How::WarmUpThrottle(_, throttle, max_wait) => {
                let cost = self.cost(node, now, n, sample).ok_or(None)?;
                throttle.peek(now, cost, *max_wait).map_err(Some)
            }
            _ => Ok(()),
        }
    }

    /// Takes what the rule keeps beside the node's window.
    pub(crate) fn take(
        &self,
        node: &Node,
        now: Nanos,
        n: u32,
        sample: &SystemSample,
    ) -> Result<Option<Taken>, Option<Duration>> {
        match &self.how {
            How::Own(ring, trailing) => {
                ring.turn_to(now);
                let fits = |tally, head| self.own_fits((ring, trailing), (tally, head), now, n, sample);
                ring.add_if(0, n, fits).map(|tally| Some(Taken::Own(tally)))
            }
            How::Throttle(throttle, max_wait) | How::WarmUpThrottle(_, throttle, max_wait) => {
                let cost = self.cost(node, now, n, sample).ok_or(None)?;
                throttle.take(now, cost, *max_wait).map(|place| Some(Taken::Place(place))).map_err(Some)
            }
            _ => Ok(None),
        }
    }

    /// Gives back what [`take`](Self::take) took.
    pub(crate) fn give_back(&self, n: u32, taken: &Taken) {
        match (&self.how, taken) {
            (How::Own(ring, _), Taken::Own(tally)) => drop(ring.undo(0, n, *tally)),
            (How::Throttle(throttle, _) | How::WarmUpThrottle(_, throttle, _), Taken::Place(place)) => {
                throttle.give_back(*place);
            }
            _ => {}
        }
    }

    fn cost(&self, node: &Node, now: Nanos, n: u32, sample: &SystemSample) -> Option<Nanos> {
        let rate = match &self.how {
            How::WarmUpThrottle(warm_up, ..) => {
                warm_up.rate(now, || node.window().passed_last_second(now).unwrap_or(0))
            }
            _ => self.rule.threshold.now(sample),
        };
        throttle::cost(n, rate, self.rule.interval.into())
    }

    fn own_fits(
        &self,
        (ring, trailing): (&Ring<1, 0>, &Trailing),
        (tally, head): (Tally, tidegate_core::stats::Head),
        now: Nanos,
        n: u32,
        sample: &SystemSample,
    ) -> Result<(), Option<Duration>> {
        let (n, limit) = (u64::from(n), self.rule.threshold.units(sample));
        match trailing.used(ring, 0, tally, head) {
            Some(used) if used + n > limit => Err(limit
                .checked_sub(n)
                .map(|goal| ring.fits_after(0, tally, head, now, trailing.view(), goal))),
            _ => Ok(()),
        }
    }
}
