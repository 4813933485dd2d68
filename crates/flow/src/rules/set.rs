//! All rules of a gate, and an index to find those of one resource.

use std::{collections::HashMap, fmt, sync::Arc};

use regex::Regex;
use tidegate_core::Nanos;

use super::{
    AdaptiveRule, AuthorityRule, BreakerRule, FlowRule, HotParamRule, InvalidRule, IsolationRule,
    Relation, SystemRule, Target, Threshold,
};
use crate::{rules::blocked::BlockKind, stats::node::Node};

/// The rules of a gate, by kind.
///
/// Loading rules replaces all previous rules atomically. A rule that is identical in both sets
/// keeps its state. Units in flight stay counted when the numbers of a rule change. For a resource
/// this always holds; for the values of an argument it holds if both sets have a hot-parameter rule
/// that limits units in flight by that argument. Within a kind, rules are checked in the order of
/// the list.
///
/// ```
/// use std::time::Duration;
/// use tidegate_flow::rules::{BreakerRule, FlowRule, Rules, Trip};
///
/// let trip = Trip::ErrorRatio { ratio: 0.5 };
/// let rules = Rules::from(vec![FlowRule::new("payments", 1_000)])
///     .and(vec![BreakerRule::new("payments", trip, Duration::from_secs(5))]);
/// assert_eq!((rules.flow.len(), rules.breakers.len()), (1, 1));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rules {
    /// Which origins may enter a resource.
    pub authority: Vec<AuthorityRule>,
    /// Limits on all inbound traffic. All rules are checked.
    pub system: Vec<SystemRule>,
    /// Limits for each value of an argument.
    pub hot_params: Vec<HotParamRule>,
    /// Limits on the traffic of a resource.
    pub flow: Vec<FlowRule>,
    /// Limits on the units in flight.
    pub isolation: Vec<IsolationRule>,
    /// Limits on the units in flight that are learned from the calls.
    pub adaptive: Vec<AdaptiveRule>,
    /// Circuit breakers.
    pub breakers: Vec<BreakerRule>,
}

macro_rules! kinds_of_rules {
    ($($rule:ident, $field:ident;)*) => {
        $(impl From<Vec<$rule>> for Rules {
            fn from($field: Vec<$rule>) -> Self {
                Self { $field, ..Self::default() }
            }
        })*

        impl Rules {
            /// Adds rules behind those of each kind.
            #[must_use]
            pub fn and(mut self, more: impl Into<Self>) -> Self {
                let more = more.into();
                $(self.$field.extend(more.$field);)*
                self
            }
        }
    };
}

kinds_of_rules! {
    AuthorityRule, authority;
    SystemRule, system;
    HotParamRule, hot_params;
    FlowRule, flow;
    IsolationRule, isolation;
    AdaptiveRule, adaptive;
    BreakerRule, breakers;
}

impl Rules {
    /// Returns the number of rules of each kind, under the names that the kinds have in
    /// [documents](crate::sources).
    #[must_use]
    pub fn counts(&self) -> [(&'static str, usize); 7] {
        [
            ("flow", self.flow.len()),
            ("isolation", self.isolation.len()),
            ("adaptive", self.adaptive.len()),
            ("breakers", self.breakers.len()),
            ("hot_params", self.hot_params.len()),
            ("system", self.system.len()),
            ("authority", self.authority.len()),
        ]
    }

    /// Returns the first rule that depends on load, CPU or memory.
    pub(crate) fn first_that_needs_samples(&self) -> Option<String> {
        let by_memory = |threshold: Threshold| matches!(threshold, Threshold::Memory(_));
        let system = self
            .system
            .iter()
            .find(|rule| rule.load.is_some() || rule.cpu.is_some());
        let flow = self.flow.iter().find(|rule| by_memory(rule.threshold));
        let isolation = self.isolation.iter().find(|rule| by_memory(rule.threshold));
        let name = |kind: BlockKind, rule: &dyn fmt::Display| format!("{kind} rule {rule}");
        system
            .map(|rule| name(BlockKind::System, rule))
            .or_else(|| flow.map(|rule| name(BlockKind::Flow, rule)))
            .or_else(|| isolation.map(|rule| name(BlockKind::Isolation, rule)))
    }

    /// Checks every rule.
    ///
    /// # Errors
    /// All invalid rules, each with the reason.
    pub fn validate(&self) -> Result<(), LoadError> {
        self.clone().remove_invalid()
    }

    /// Checks every rule, and removes those that are invalid. What is left can be loaded.
    ///
    /// # Errors
    /// The removed rules, each with the reason.
    pub fn remove_invalid(&mut self) -> Result<(), LoadError> {
        let mut bad = Vec::new();
        check(
            BlockKind::Authority,
            &mut self.authority,
            AuthorityRule::validate,
            &mut bad,
        );
        check(
            BlockKind::System,
            &mut self.system,
            SystemRule::validate,
            &mut bad,
        );
        check(
            BlockKind::HotParam,
            &mut self.hot_params,
            HotParamRule::validate,
            &mut bad,
        );
        check(
            BlockKind::Flow,
            &mut self.flow,
            FlowRule::validate,
            &mut bad,
        );
        check(
            BlockKind::Isolation,
            &mut self.isolation,
            IsolationRule::validate,
            &mut bad,
        );
        check(
            BlockKind::Adaptive,
            &mut self.adaptive,
            AdaptiveRule::validate,
            &mut bad,
        );
        check(
            BlockKind::Breaker,
            &mut self.breakers,
            BreakerRule::validate,
            &mut bad,
        );
        if bad.is_empty() {
            Ok(())
        } else {
            Err(LoadError { rules: bad })
        }
    }
}

fn check<R: fmt::Display>(
    kind: BlockKind,
    rules: &mut Vec<R>,
    validate: impl Fn(&R) -> Result<(), InvalidRule>,
    bad: &mut Vec<RuleError>,
) {
    let mut indices = 0..;
    rules.retain(|rule| {
        let index = indices.next().unwrap_or_default();
        let checked = validate(rule);
        let rule = || rule.to_string();
        bad.extend(checked.clone().err().map(|reason| RuleError {
            kind,
            index,
            rule: rule(),
            reason,
        }));
        checked.is_ok()
    });
}

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} rule {index} ({rule}): {reason}")]
pub struct RuleError {
    /// The rule's kind.
    pub kind: BlockKind,
    /// The rule's index among the rules of its kind, from 0.
    pub index: usize,
    /// The rule's id, or a summary of the rule.
    pub rule: String,
    /// The mistake, and the remedy.
    #[source]
    pub reason: InvalidRule,
}

/// A set of rules that was rejected as a whole because some rules are invalid. The previous rules
/// stay active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The invalid rules.
    pub rules: Vec<RuleError>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.rules.iter().map(ToString::to_string).collect();
        write!(
            f,
            "rules rejected; the previous rules stay active: {}",
            rules.join("; ")
        )
    }
}

impl std::error::Error for LoadError {
    /// Returns the first invalid rule.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.rules.first().map(|rule| rule as _)
    }
}

/// Validated rules with an index by resource.
pub(crate) struct RuleSet {
    pub(crate) version: u64,
    /// When these rules became active.
    pub(crate) loaded_at: Nanos,
    pub(crate) rules: Rules,
    pub(crate) authority: Index,
    pub(crate) hot_params: Index,
    pub(crate) flow: Index,
    pub(crate) isolation: Index,
    pub(crate) adaptive: Index,
    pub(crate) breakers: Index,
    /// The related resources that flow rules name, each with its statistics and the indices of
    /// these rules.
    related: HashMap<String, (Arc<Node>, Vec<usize>)>,
}

/// The positions of the rules of one kind, by resource.
#[derive(Default)]
pub(crate) struct Index {
    by_name: HashMap<String, Vec<usize>>,
    patterns: Vec<(Regex, usize)>,
}

impl Index {
    fn new<'a>(targets: impl Iterator<Item = &'a Target>) -> Self {
        let mut index = Self::default();
        for (at, target) in targets.enumerate() {
            match target.compile() {
                Ok(Some(pattern)) => index.patterns.push((pattern, at)),
                // Patterns were validated before; one that does not compile matches nothing.
                Ok(None) | Err(_) => index
                    .by_name
                    .entry(target.as_str().into())
                    .or_default()
                    .push(at),
            }
        }
        index
    }

    /// Returns those of the rules that apply to a resource.
    pub(crate) fn of<'r, R>(&self, rules: &'r [R], resource: &str) -> Vec<&'r R> {
        let mut places: Vec<usize> = self.by_name.get(resource).cloned().unwrap_or_default();
        places.extend(
            self.patterns
                .iter()
                .filter(|(pattern, _)| pattern.is_match(resource))
                .map(|&(_, at)| at),
        );
        places.sort_unstable();
        places.into_iter().map(|at| &rules[at]).collect()
    }
}

impl RuleSet {
    pub(crate) fn new(
        version: u64,
        loaded_at: Nanos,
        rules: Rules,
        node: impl Fn(&str) -> Arc<Node>,
    ) -> Self {
        let mut related: HashMap<String, (Arc<Node>, Vec<usize>)> = HashMap::new();
        for (at, rule) in rules.flow.iter().enumerate() {
            if let Relation::Related(other) = &rule.relation {
                related
                    .entry(other.clone())
                    .or_insert_with(|| (node(other), Vec::new()))
                    .1
                    .push(at);
            }
        }
        Self {
            version,
            loaded_at,
            related,
            authority: Index::new(rules.authority.iter().map(|rule| &rule.resource)),
            hot_params: Index::new(rules.hot_params.iter().map(|rule| &rule.resource)),
            flow: Index::new(rules.flow.iter().map(|rule| &rule.resource)),
            isolation: Index::new(rules.isolation.iter().map(|rule| &rule.resource)),
            adaptive: Index::new(rules.adaptive.iter().map(|rule| &rule.resource)),
            breakers: Index::new(rules.breakers.iter().map(|rule| &rule.resource)),
            rules,
        }
    }

    /// Whether a rule names the resource, as its target or as its related resource. A pattern names
    /// none.
    pub(crate) fn names(&self, resource: &str) -> bool {
        let indices = [
            &self.authority,
            &self.hot_params,
            &self.flow,
            &self.isolation,
            &self.adaptive,
            &self.breakers,
        ];
        indices
            .iter()
            .any(|index| index.by_name.contains_key(resource))
            || self.related.contains_key(resource)
    }

    /// Returns the flow rules that measure this resource as related to their own.
    pub(crate) fn related(&self, resource: &str) -> Vec<&FlowRule> {
        let places = self.related.get(resource).map(|(_, places)| places);
        places
            .into_iter()
            .flatten()
            .map(|&at| &self.rules.flow[at])
            .collect()
    }

    /// Returns the statistics of a resource that a rule names as related.
    pub(crate) fn node(&self, related: &str) -> Option<&Arc<Node>> {
        self.related.get(related).map(|(node, _)| node)
    }
}
