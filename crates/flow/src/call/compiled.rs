//! The rules of one resource with their state.

use std::sync::Arc;

use tidegate_core::{
    Nanos,
    stats::{Ring, View},
};

use crate::{
    rules::{
        AuthorityRule, IsolationRule, adaptive::Adaptive, breaker::Breaker, flow::Flow,
        hot_param::HotParam, system::System,
    },
    stats::bounds::Bounds,
};

/// The rules that an entry of one resource is checked against. The first entry after a rule change
/// compiles them.
pub(crate) struct Compiled {
    pub(crate) authority: Vec<(AuthorityRule, Arc<str>)>,
    pub(crate) system: Vec<System>,
    pub(crate) params: Vec<Arc<HotParam>>,
    pub(crate) flow: Vec<Arc<Flow>>,
    pub(crate) isolation: Vec<(IsolationRule, Arc<str>)>,
    pub(crate) adaptive: Vec<Arc<Adaptive>>,
    pub(crate) breakers: Vec<Arc<Breaker>>,
    /// Rings that also count the units that pass, for rules of other resources.
    pub(crate) watched: Vec<Arc<Ring<1, 0>>>,
    /// Only rules that the resource's window and the inbound window decide, and breakers.
    pub(crate) is_simple: bool,
    /// If rules of the windows are all that an entry has to check besides closed breakers, and all
    /// are fixed numbers.
    pub(crate) far: Option<Far>,
}

/// The bounds that an entry has to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Far {
    pub(crate) own: Bounds,
    /// `None` if inbound entries have to check more than bounds.
    pub(crate) inbound: Option<Bounds>,
}

impl Compiled {
    /// Returns the threshold of the resource's window if that is all an outbound entry has to
    /// check.
    pub(crate) fn plain(&self) -> Option<u64> {
        let others = self.isolation.len() + self.watched.len();
        if others > 0 || self.learns() || self.flow.is_empty() {
            return None;
        }
        self.far.map(|far| far.own.passed)
    }

    /// Finds [`far`](Self::far). `view` is the last second of the windows.
    pub(crate) fn far(&self, view: View) -> Option<Far> {
        if !self.authority.is_empty() || !self.params.is_empty() || !self.adaptive.is_empty() {
            return None;
        }
        let mut own = Bounds::NONE;
        for flow in &self.flow {
            own.passed = own.passed.min(flow.plain(view)?);
        }
        for (rule, _) in &self.isolation {
            own.in_flight = own.in_flight.min(rule.threshold.fixed()?);
        }
        let inbound = self
            .system
            .iter()
            .try_fold(Bounds::NONE, |all, system| Some(all.and(system.bounds()?)));
        Some(Far { own, inbound })
    }

    /// Counts passed units for the rules of other resources.
    #[inline]
    pub(crate) fn count_watched(&self, units: u32, now: Nanos) {
        for ring in &self.watched {
            ring.turn_to(now);
            ring.add(0, units);
        }
    }

    /// Whether any rule needs the outcome of calls.
    #[inline]
    pub(crate) fn learns(&self) -> bool {
        !self.breakers.is_empty() || !self.adaptive.is_empty()
    }
}
