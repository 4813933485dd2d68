//! Flow rules: how much of a resource may pass, and what to do with the rest.

mod rule;

pub use rule::{Behaviour, FlowRule, Measure, Origins, Relation};

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    Nanos,
    stats::{Layout, Look, Ring, Tally, Trailing, View},
};

use super::{
    Threshold,
    throttle::{self, Place, Throttle},
    warm_up::{self, WarmUp},
};
use crate::{node::Node, sample::SystemSample};
use rule::own_layout;

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
