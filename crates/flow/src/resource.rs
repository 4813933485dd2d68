//! Resources: what is entered.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_core::Nanos;

use crate::{
    node::Node,
    rules::{BreakerState, StateChange, breaker::Breaker},
    state::State,
    table::Table,
};

/// A resource of a gate: something to be guarded, by name.
///
/// A handle; cloning it is cheap, and entering through it needs no look-up. It belongs to the gate that made it.
#[derive(Clone)]
pub struct Resource {
    pub(crate) state: Arc<State>,
    /// Where the resource shares the state of all that found no place. Behind [`placed`](Self::placed), everything looks
    /// at what that returns.
    alias: Option<Arc<Alias>>,
}

/// A resource that found no place of its own, until it gets one.
struct Alias {
    name: Arc<str>,
    /// Where it may have one by now.
    table: Arc<Table>,
    /// The rules' version by which the resource had no place.
    version: AtomicU64,
    own: OnceLock<Resource>,
}

impl Resource {
    pub(crate) const fn new(state: Arc<State>) -> Self {
        Self { state, alias: None }
    }

    /// A resource of this name, which has no place of its own under the rules of `version`.
    pub(crate) fn overflow(state: Arc<State>, table: Arc<Table>, name: &str, version: u64) -> Self {
        let alias =
            Alias { name: name.into(), table, version: AtomicU64::new(version), own: OnceLock::new() };
        Self { state, alias: Some(Arc::new(alias)) }
    }

    /// The resource with its own place, if it has one by now.
    #[inline]
    pub(crate) fn placed(&self) -> &Self {
        match &self.alias {
            None => self,
            Some(alias) => self.placed_by(alias),
        }
    }

    #[cold]
    fn placed_by<'a>(&'a self, alias: &'a Alias) -> &'a Self {
        if let Some(own) = alias.own.get() {
            return own;
        }
        // Who sees a version finds its rules or newer ones, and may look in vain once more.
        let version = self.state.shared.loaded.version();
        if alias.version.load(Ordering::Acquire) != version {
            if let Some(state) = alias.table.own_state(&alias.name) {
                return alias.own.get_or_init(|| Self::new(state));
            }
            alias.version.store(version, Ordering::Release);
        }
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.alias.as_ref().map_or(&self.state.name, |alias| &alias.name)
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.alias.as_ref().map_or(&self.state.name, |alias| &alias.name).clone()
    }

    /// What tells the gate's listeners that one of the resource's breakers has changed its state.
    #[inline]
    pub(crate) fn tells(&self, at: Nanos) -> impl Fn(&Breaker, BreakerState, BreakerState) {
        move |breaker, from, to| {
            self.state.shared.tell(&StateChange { resource: self.name(), rule: &breaker.rule, from, to, at });
        }
    }

    /// Whether the gate had no place for this resource, so that it shares statistics (and the rules of patterns) with
    /// all others in the same case: see [`GateBuilder::max_resources`](crate::GateBuilder::max_resources). When a rule
    /// is loaded that names the resource, it gets a place, and this becomes false.
    #[must_use]
    pub fn is_overflow(&self) -> bool {
        self.placed().alias.is_some()
    }

    /// The resource's statistics.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.placed().state.node
    }

    /// The statistics of the entries from one origin, if any came.
    #[must_use]
    pub fn origin(&self, origin: &str) -> Option<Arc<Node>> {
        self.placed().state.origins.get(origin)
    }

    /// The statistics of the entries within one context, if any came.
    #[must_use]
    pub fn context(&self, context: &str) -> Option<Arc<Node>> {
        self.placed().state.contexts.get(context)
    }

    /// The origins that have statistics, in order.
    #[must_use]
    pub fn origins(&self) -> Vec<String> {
        self.placed().state.origins.names()
    }

    /// The contexts that have statistics, in order.
    #[must_use]
    pub fn contexts(&self) -> Vec<String> {
        self.placed().state.contexts.names()
    }

    /// Where each of the resource's breakers stands, with its rule's id or what the rule says.
    #[must_use]
    pub fn breakers(&self) -> Vec<(String, BreakerState)> {
        let state = &self.placed().state;
        state.kind();
        let rules = state.rules();
        let breakers = rules.iter().flat_map(|rules| &rules.breakers);
        breakers.map(|breaker| (breaker.label.to_string(), breaker.state())).collect()
    }

    /// How many units each of the resource's adaptive rules lets be in flight now, with its id or what it says.
    #[must_use]
    pub fn adaptive_limits(&self) -> Vec<(String, u64)> {
        let state = &self.placed().state;
        state.kind();
        let rules = state.rules();
        let adaptive = rules.iter().flat_map(|rules| &rules.adaptive);
        adaptive.map(|adaptive| (adaptive.label.to_string(), adaptive.units())).collect()
    }

    /// Entries whose origin or context found no room for statistics of its own, ever, and argument values that were
    /// forgotten though they had used some of their share.
    #[must_use]
    pub fn crowded(&self) -> u64 {
        let state = &self.placed().state;
        let rules = state.rules();
        let values: u64 = rules.iter().flat_map(|rules| &rules.params).map(|param| param.forgotten()).sum();
        values + state.origins.left_out() + state.contexts.left_out()
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("name", &self.name()).finish_non_exhaustive()
    }
}
