//! Compiles the rules of one resource. Rules that were already there keep their state.

use std::{fmt::Display, sync::Arc};

use tidegate_core::stats::Layout;

use crate::{
    call::{
        compiled::Compiled,
        state::{ResourceState, RulesKind},
    },
    rules::{
        FlowRule, Origins, Relation, RuleSet, adaptive::Adaptive, breaker::Breaker, flow::Flow,
        hot_param::HotParam, system::System,
    },
    stats::bounds::second,
};

impl ResourceState {
    /// Returns the kind of the newest rules, and compiles them if necessary.
    #[inline]
    pub(crate) fn kind(&self) -> RulesKind {
        self.kind_by(|set, old| compile(set, self, old))
    }
}

/// Compiles the rules of `set` that apply to a resource; `None` if there are none. A rule that is
/// identical in `old` keeps its state. If only the numbers of a rule differ, it keeps its units in
/// flight.
fn compile(set: &RuleSet, state: &ResourceState, old: Option<&Compiled>) -> Option<Compiled> {
    let (layout, name, rules) = (state.shared.layout, &*state.name, &set.rules);
    let related = set.related(name).into_iter();
    let system = rules
        .system
        .iter()
        .map(|rule| System::new(rule.clone(), layout));
    let none = (&[][..], &[][..], &[][..], &[][..]);
    let (params, flow, adaptive, breakers) = old.map_or(none, |old| {
        (
            &old.params[..],
            &old.flow[..],
            &old.adaptive[..],
            &old.breakers[..],
        )
    });
    let mut compiled = Compiled {
        authority: labelled(set.authority.of(&rules.authority, name)),
        system: system.collect(),
        params: keep(
            &set.hot_params.of(&rules.hot_params, name),
            params,
            |old| &old.rule,
            |rule, left| match left.iter().position(|old| old.counts_as(rule)) {
                Some(at) => left.remove(at).changed_to(rule.clone()),
                None => HotParam::new(rule.clone()),
            },
        ),
        flow: keep_flow(set, name, flow, layout),
        isolation: labelled(set.isolation.of(&rules.isolation, name)),
        adaptive: keep(
            &set.adaptive.of(&rules.adaptive, name),
            adaptive,
            |old| &old.rule,
            |rule, _| Adaptive::new(rule.clone()).since(set.loaded_at),
        ),
        breakers: keep(
            &set.breakers.of(&rules.breakers, name),
            breakers,
            |old| &old.rule,
            |rule, _| Breaker::new(rule.clone()).since(set.loaded_at),
        ),
        watched: related
            .filter_map(|rule| Some(state.node.watched(rule.ring_layout(layout)?)))
            .collect(),
        is_simple: false,
        far: None,
    };
    compiled
        .watched
        .sort_unstable_by_key(|ring| Arc::as_ptr(ring).addr());
    compiled.watched.dedup_by(|a, b| Arc::ptr_eq(a, b));
    let own = |flow: &Arc<Flow>| {
        !flow.takes() && flow.rule.relation == Relation::Direct && flow.rule.origins == Origins::Any
    };
    compiled.is_simple = compiled.authority.is_empty()
        && compiled.params.is_empty()
        && compiled.flow.iter().all(own);
    compiled.far = compiled.far(second(layout));
    let is_empty = compiled.is_simple
        && compiled.system.is_empty()
        && compiled.flow.is_empty()
        && compiled.isolation.is_empty()
        && compiled.adaptive.is_empty()
        && compiled.breakers.is_empty()
        && compiled.watched.is_empty();
    (!is_empty).then_some(compiled)
}

/// The rules with what to call them.
fn labelled<R: Clone + Display>(rules: Vec<&R>) -> Vec<(R, Arc<str>)> {
    rules
        .into_iter()
        .map(|rule| (rule.clone(), rule.to_string().into()))
        .collect()
}

/// Returns the states of `rules`. An equal rule keeps its state from `old`, each at most once.
/// `new` makes the others and may reuse one of the remaining old states.
fn keep<R: PartialEq, S>(
    rules: &[&R],
    old: &[Arc<S>],
    rule_of: impl Fn(&S) -> &R,
    new: impl Fn(&R, &mut Vec<&Arc<S>>) -> S,
) -> Vec<Arc<S>> {
    let mut left: Vec<&Arc<S>> = old.iter().collect();
    let mut equal = |rule: &R| {
        let at = left.iter().position(|state| rule_of(state) == rule)?;
        Some(left.remove(at).clone())
    };
    let kept: Vec<Option<Arc<S>>> = rules.iter().map(|rule| equal(rule)).collect();
    let state =
        |(rule, kept): (&&R, Option<_>)| kept.unwrap_or_else(|| Arc::new(new(rule, &mut left)));
    rules.iter().zip(kept).map(state).collect()
}

fn keep_flow(set: &RuleSet, name: &str, old: &[Arc<Flow>], layout: Layout) -> Vec<Arc<Flow>> {
    let rules = set.flow.of(&set.rules.flow, name);
    let named: Vec<String> = rules
        .iter()
        .filter_map(|rule| match &rule.origins {
            Origins::Only(origin) => Some(origin.clone()),
            Origins::Any | Origins::Others => None,
        })
        .collect();
    let made = |rule: &FlowRule| {
        let related = match &rule.relation {
            Relation::Related(other) => set.node(other).cloned(),
            Relation::Direct | Relation::Context(_) => None,
        };
        let mut flow = Flow::new(rule.clone(), layout, related);
        if rule.origins == Origins::Others {
            flow.named.clone_from(&named);
        }
        flow
    };
    // The named origins are not part of the rule itself.
    let same = old
        .iter()
        .filter(|old| old.rule.origins != Origins::Others || old.named == named);
    keep(
        &rules,
        &same.cloned().collect::<Vec<_>>(),
        |old| &old.rule,
        |rule, _| made(rule),
    )
}
