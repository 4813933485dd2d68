//! Flow rules: how many units of a resource may pass, and what happens to the others.

mod per_node;
mod rule;

pub use rule::{Behaviour, FlowRule, Measure, Origins, Relation};

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    Nanos,
    stats::{Layout, Ring, Tally, Trailing, View},
};

use super::{
    Threshold,
    throttle::{self, Reservation, Throttle, ThrottledCall},
    warm_up::{self, WarmUp},
};
use crate::{
    machine::sample::SystemSample,
    stats::{borrowed::Usage, node::Node},
};
use per_node::{Interval, PerNode};

/// A flow rule of one resource, with its state.
pub(crate) struct Flow {
    pub(crate) rule: FlowRule,
    pub(crate) label: Arc<str>,
    /// The measured node, if it belongs to another resource.
    pub(crate) related: Option<Arc<Node>>,
    /// For [`Origins::Others`]: the origins that other rules name.
    pub(crate) named: Vec<String>,
    how: How,
}

enum How {
    InFlight,
    /// Counts in the node's own window.
    Window(Trailing),
    /// Counts in the rule's own window, because the interval does not fit the node's window.
    Own(PerNode<Interval>),
    /// Counts in a window that another resource keeps for the rule, for the same reason.
    Watched(Interval),
    WarmUp(PerNode<WarmUp>, Trailing),
    Throttle(PerNode<Throttle>, Nanos),
    WarmUpThrottle(PerNode<WarmUp>, PerNode<Throttle>, Nanos),
}

/// The units that a rule took outside a node's window.
pub(crate) enum TakenUnits {
    Reservation(Reservation),
    Own(Tally),
}

impl Flow {
    /// `related` is the node of the related resource that the rule names.
    pub(crate) fn new(rule: FlowRule, layout: Layout, related: Option<Arc<Node>>) -> Self {
        let view = |view: View| if rule.strict { view.strict() } else { view };
        let second = || {
            Trailing::new(view(
                layout.view(1, rule.interval).unwrap_or(layout.whole()),
            ))
        };
        let each = rule.origins == Origins::Others;
        let warm_up = |period, factor| {
            let Threshold::Fixed(count) = rule.threshold else {
                unreachable!("a validated warm-up is fixed")
            };
            let new = move || WarmUp::new(count, period, factor);
            PerNode::new(each, move || {
                new().unwrap_or_else(|e| unreachable!("a validated warm-up: {e}"))
            })
        };
        let how = match (rule.measure, rule.behaviour) {
            (Measure::InFlight, _) => How::InFlight,
            (Measure::Rate, Behaviour::Reject) => match (rule.ring_layout(layout), &related) {
                (None, _) => How::Window(second()),
                (Some(own), Some(related)) => {
                    How::Watched(Interval::new(related.watched(own), view(own.whole())))
                }
                (Some(own), None) => {
                    let view = view(own.whole());
                    How::Own(PerNode::new(each, move || {
                        Interval::new(Arc::new(Ring::new(own)), view)
                    }))
                }
            },
            (
                Measure::Rate,
                Behaviour::WarmUp {
                    period,
                    cold_factor,
                },
            ) => How::WarmUp(warm_up(period, cold_factor), second()),
            (Measure::Rate, Behaviour::Throttle { max_wait }) => {
                How::Throttle(PerNode::new(each, Throttle::new), max_wait.into())
            }
            (
                Measure::Rate,
                Behaviour::WarmUpThrottle {
                    period,
                    cold_factor,
                    max_wait,
                },
            ) => {
                let throttle = PerNode::new(each, Throttle::new);
                How::WarmUpThrottle(warm_up(period, cold_factor), throttle, max_wait.into())
            }
        };
        Self {
            label: rule.to_string().into(),
            rule,
            related,
            named: Vec::new(),
            how,
        }
    }

    /// Whether the rule takes anything outside the node's window.
    pub(crate) const fn takes(&self) -> bool {
        matches!(
            self.how,
            How::Own(..) | How::Throttle(..) | How::WarmUpThrottle(..)
        )
    }

    /// Returns the threshold of a rule that only compares the units in `view` of the resource's
    /// window with it.
    pub(crate) fn plain(&self, view: View) -> Option<u64> {
        let FlowRule {
            origins: Origins::Any,
            relation: Relation::Direct,
            threshold,
            ..
        } = &self.rule
        else {
            return None;
        };
        match &self.how {
            How::Window(trailing) if trailing.view() == view => threshold.fixed(),
            _ => None,
        }
    }

    /// Whether a prioritized call may borrow from later slots of the measured window.
    #[inline]
    pub(crate) const fn lends(&self) -> bool {
        matches!(self.how, How::Window(_)) && !matches!(self.rule.relation, Relation::Related(_))
    }

    /// Checks that the window of `node` has room for `n` more units.
    ///
    /// # Errors
    /// The time until there is room, if it can be given.
    #[inline]
    pub(crate) fn fits(
        &self,
        node: &Arc<Node>,
        usage: Usage<'_>,
        now: Nanos,
        n: u32,
        sample: &SystemSample,
    ) -> Result<(), Option<Duration>> {
        let (trailing, limit) = match &self.how {
            How::Window(_) if usage.may_borrow() && self.lends() => return Ok(()),
            How::Window(trailing) => (trailing, self.rule.threshold.units(sample)),
            How::WarmUp(warm_up, trailing) => (trailing, warm_up::whole(rate(warm_up, node, now))),
            How::InFlight => {
                let fits = usage.in_flight_fits(n, self.rule.threshold.units(sample));
                return if fits { Ok(()) } else { Err(None) };
            }
            How::Own(..) | How::Watched(..) | How::Throttle(..) | How::WarmUpThrottle(..) => {
                return Ok(());
            }
        };
        // Every other origin has its own window, so the cached position may belong to another one.
        let each = self.rule.origins == Origins::Others;
        usage.fits(trailing, limit, n, each, (now, node.layout().slot_nanos()))
    }

    /// Returns what [`take`](Self::take) would return, without taking anything.
    pub(crate) fn peek(
        &self,
        node: &Arc<Node>,
        now: Nanos,
        n: u32,
        sample: &SystemSample,
    ) -> Result<(), Option<Duration>> {
        let limit = || self.rule.threshold.units(sample);
        match &self.how {
            How::Own(own) => own.of(node, |own| own.peek(now, n, limit())),
            How::Watched(interval) => interval.peek(now, n, limit()),
            // A look has no place in a queue.
            How::Throttle(..) | How::WarmUpThrottle(..) if n == 0 => Ok(()),
            How::Throttle(throttle, max_wait) | How::WarmUpThrottle(_, throttle, max_wait) => {
                let asked = self.asked(node, now, n, *max_wait, sample)?;
                throttle
                    .of(node, |throttle| throttle.peek(asked))
                    .map_err(Some)
            }
            How::InFlight | How::Window(_) | How::WarmUp(..) => Ok(()),
        }
    }

    /// Takes what the rule keeps outside the node's window. A throttle reserves a place that is not
    /// before `earliest`.
    ///
    /// # Errors
    /// Same as [`fits`](Self::fits).
    pub(crate) fn take(
        &self,
        node: &Arc<Node>,
        (now, earliest): (Nanos, Nanos),
        n: u32,
        sample: &SystemSample,
    ) -> Result<Option<TakenUnits>, Option<Duration>> {
        match &self.how {
            How::Own(own) => {
                let limit = self.rule.threshold.units(sample);
                own.of(node, |own| own.take(now, n, limit))
                    .map(|tally| Some(TakenUnits::Own(tally)))
            }
            How::Throttle(..) | How::WarmUpThrottle(..) if n == 0 => Ok(None),
            How::Throttle(throttle, max_wait) | How::WarmUpThrottle(_, throttle, max_wait) => {
                let asked = self.asked(node, now, n, *max_wait, sample)?;
                let reservation = throttle.of(node, |throttle| throttle.take(asked, earliest));
                reservation
                    .map(|reservation| Some(TakenUnits::Reservation(reservation)))
                    .map_err(Some)
            }
            How::InFlight | How::Window(_) | How::Watched(_) | How::WarmUp(..) => Ok(None),
        }
    }

    /// Postpones a throttle's place to `start`, or to a later time if other calls have queued up
    /// behind it.
    ///
    /// # Errors
    /// Same as [`fits`](Self::fits).
    pub(crate) fn put_off(
        &self,
        node: &Arc<Node>,
        reservation: &mut Reservation,
        start: Nanos,
    ) -> Result<(), Option<Duration>> {
        let (How::Throttle(throttle, _) | How::WarmUpThrottle(_, throttle, _)) = &self.how else {
            return Ok(());
        };
        throttle
            .of(node, |throttle| throttle.put_off(reservation, start))
            .map_err(Some)
    }

    /// Gives back what [`take`](Self::take) took.
    pub(crate) fn give_back(&self, node: &Arc<Node>, n: u32, taken: &TakenUnits) {
        match (&self.how, taken) {
            (How::Own(own), TakenUnits::Own(tally)) => own.of(node, |own| own.give_back(n, *tally)),
            (
                How::Throttle(throttle, _) | How::WarmUpThrottle(_, throttle, _),
                TakenUnits::Reservation(reservation),
            ) => {
                throttle.of(node, |throttle| throttle.give_back(*reservation));
            }
            _ => {}
        }
    }

    fn asked(
        &self,
        node: &Arc<Node>,
        now: Nanos,
        n: u32,
        longest: Nanos,
        sample: &SystemSample,
    ) -> Result<ThrottledCall, Option<Duration>> {
        let threshold = self.rule.threshold.now(sample);
        // No call is larger than what an interval allows. Below one unit in an interval, single
        // units still pass.
        if f64::from(n) > threshold.ceil() {
            return Err(None);
        }
        let rate = match &self.how {
            How::WarmUpThrottle(warm_up, ..) => rate(warm_up, node, now),
            _ => threshold,
        };
        let cost = throttle::cost(n, rate, self.rule.interval.into()).ok_or(None)?;
        Ok(ThrottledCall { now, cost, longest })
    }
}

/// Returns the rate that a warm-up currently allows for `node`.
fn rate(warm_up: &PerNode<WarmUp>, node: &Arc<Node>, now: Nanos) -> f64 {
    let last_second = || node.passed_last_second(now).unwrap_or(0);
    warm_up.of(node, |warm_up| warm_up.rate(now, last_second))
}
