//! The rules of one resource with their state.

use std::sync::Arc;

use tidegate_core::{
    Nanos,
    stats::{Ring, View},
};

use crate::rules::{
    AuthorityRule, IsolationRule, adaptive::Adaptive, breaker::Breaker, flow::Flow, hot_param::HotParam,
    system::System,
};

/// The rules that an entry of one resource is checked against. The first entry after a rule change compiles them.
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
}

impl Compiled {
    /// Returns the threshold of the resource's window if that is all an outbound entry has to check.
    pub(crate) fn plain(&self, view: View) -> Option<u64> {
        let others = self.authority.len() + self.params.len() + self.isolation.len() + self.watched.len();
        if others > 0 || self.learns() {
            return None;
        }
        let limits = self.flow.iter().map(|flow| flow.plain(view));
        limits.reduce(|a, b| Some(a?.min(b?))).flatten()
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
