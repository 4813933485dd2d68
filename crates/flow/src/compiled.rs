//! The rules of one resource, with what they remember.

use std::sync::Arc;

use tidegate_core::{
    Nanos,
    stats::{Layout, Ring, View},
};

use crate::{
    gate::Shared,
    resource::State,
    rules::{
        AuthorityRule, IsolationRule, Origins, Relation, RuleSet, adaptive::Adaptive, breaker::Breaker,
        flow::Flow, hot_param::HotParam, system::System,
    },
};

/// What an entry of one resource is checked against. Made when the rules have changed and the resource is entered next.
pub(crate) struct Compiled {
    pub(crate) authority: Vec<(AuthorityRule, Arc<str>)>,
    pub(crate) system: Vec<System>,
    pub(crate) params: Vec<Arc<HotParam>>,
    pub(crate) flow: Vec<Arc<Flow>>,
    pub(crate) isolation: Vec<(IsolationRule, Arc<str>)>,
    pub(crate) adaptive: Vec<Arc<Adaptive>>,
    pub(crate) breakers: Vec<Arc<Breaker>>,
    /// Where what passes is counted, too, for rules of other resources.
    pub(crate) watched: Vec<Arc<Ring<1, 0>>>,
    /// Nothing but what the windows of the resource and of all that comes in decide, and breakers.
    pub(crate) is_simple: bool,
}

impl Compiled {
    /// `None` when no rule is about the resource. Rules that `old` has, word for word, come over with their state.
    pub(crate) fn new(set: &RuleSet, state: &State, old: Option<&Self>, shared: &Shared) -> Option<Self> {
        let (layout, name) = (shared.layout, &*state.name);
        let related = set.related(name).into_iter();
        let authority = set.authority(name).into_iter().map(|rule| (rule.clone(), rule.to_string().into()));
        let isolation = set.isolation(name).into_iter().map(|rule| (rule.clone(), rule.to_string().into()));
        let system = set.rules.system.iter().map(|rule| System::new(rule.clone(), layout));
        let none = (&[][..], &[][..], &[][..], &[][..]);
        let (params, flow, adaptive, breakers) =
            old.map_or(none, |old| (&old.params[..], &old.flow[..], &old.adaptive[..], &old.breakers[..]));
        let mut compiled = Self {
            authority: authority.collect(),
            system: system.collect(),
            params: keep(&set.hot_params(name), params, |old| &old.rule, |rule| HotParam::new(rule.clone())),
            flow: keep_flow(set, name, flow, layout, shared),
            isolation: isolation.collect(),
            adaptive: keep(
                &set.adaptive(name),
                adaptive,
                |old| &old.rule,
                |rule| Adaptive::new(rule.clone()),
            ),
            breakers: keep(&set.breakers(name), breakers, |old| &old.rule, |rule| Breaker::new(rule.clone())),
            watched: related.filter_map(|rule| Some(state.watched(rule.layout_beside(layout)?))).collect(),
            is_simple: false,
        };
        compiled.watched.sort_unstable_by_key(|ring| Arc::as_ptr(ring).addr());
        compiled.watched.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let own = |flow: &Arc<Flow>| {
            !flow.takes() && flow.rule.relation == Relation::Direct && flow.rule.origins == Origins::Any
        };
        compiled.is_simple =
            compiled.authority.is_empty() && compiled.params.is_empty() && compiled.flow.iter().all(own);
        let is_empty = compiled.is_simple
            && compiled.system.is_empty()
            && compiled.flow.is_empty()
            && compiled.isolation.is_empty()
            && compiled.adaptive.is_empty()
            && compiled.breakers.is_empty()
            && compiled.watched.is_empty();
        (!is_empty).then_some(compiled)
    }

    /// The threshold of the resource's window, where that is all there is to an entry that is outbound.
    pub(crate) fn plain(&self, view: View) -> Option<u64> {
        let others = self.authority.len() + self.params.len() + self.isolation.len() + self.watched.len();
        if others > 0 || self.learns() {
            return None;
        }
        let limits = self.flow.iter().map(|flow| flow.plain(view));
        limits.reduce(|a, b| Some(a?.min(b?))).flatten()
    }

    /// Counts units that have passed for the rules of other resources.
    #[inline]
    pub(crate) fn count_watched(&self, units: u32, now: Nanos) {
        for ring in &self.watched {
            ring.turn_to(now);
            ring.add(0, units);
        }
    }

    /// Whether some rule wants to know how calls go.
    #[inline]
    pub(crate) fn learns(&self) -> bool {
        !self.breakers.is_empty() || !self.adaptive.is_empty()
    }
}

/// The states of `rules`: those of `old` for equal rules, each at most once, and new ones for the rest.
fn keep<R: PartialEq, S>(
    rules: &[&R],
    old: &[Arc<S>],
    rule_of: impl Fn(&S) -> &R,
    new: impl Fn(&R) -> S,
) -> Vec<Arc<S>> {
    let mut left: Vec<&Arc<S>> = old.iter().collect();
    let state = |rule: &&R| match left.iter().position(|state| rule_of(state) == *rule) {
        Some(at) => left.remove(at).clone(),
        None => Arc::new(new(rule)),
    };
    rules.iter().map(state).collect()
}

fn keep_flow(
    set: &RuleSet,
    name: &str,
    old: &[Arc<Flow>],
    layout: Layout,
    shared: &Shared,
) -> Vec<Arc<Flow>> {
    let rules = set.flow(name);
    let named: Vec<String> = rules
        .iter()
        .filter_map(|rule| match &rule.origins {
            Origins::Only(origin) => Some(origin.clone()),
            Origins::Any | Origins::Others => None,
        })
        .collect();
    let made = |rule: &crate::rules::FlowRule| {
        let related = match &rule.relation {
            Relation::Related(other) => Some(shared.state(other, true)),
            Relation::Direct | Relation::Context(_) => None,
        };
        let mut flow = Flow::new(rule.clone(), layout, related.as_deref());
        if rule.origins == Origins::Others {
            flow.named.clone_from(&named);
        }
        flow
    };
    // The named origins are no part of the rule itself.
    let same = old.iter().filter(|old| old.rule.origins != Origins::Others || old.named == named);
    keep(&rules, &same.cloned().collect::<Vec<_>>(), |old| &old.rule, made)
}
