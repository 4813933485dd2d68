//! Resources, which callers enter.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_core::Nanos;

use crate::{
    BlockReason,
    call::{state::ResourceState, table::Table},
    rules::{BreakerState, StateChange, breaker::Breaker},
    stats::node::Node,
};

/// A resource of a gate: something that the gate guards, identified by name.
///
/// This is a handle. It is cheap to clone, and entering through it needs no lookup. It belongs to
/// the gate that created it.
#[derive(Clone)]
pub struct Resource {
    pub(crate) state: Arc<ResourceState>,
    /// Set if the resource shares the overflow state. All other methods use the resource that
    /// [`placed`](Self::placed) returns.
    alias: Option<Arc<Alias>>,
}

/// A resource that shares a state until it gets a place in the table.
struct Alias {
    name: Arc<str>,
    /// The table, which may have a place for it by now.
    table: Arc<Table>,
    /// The version of the rules under which the resource had no place.
    version: AtomicU64,
    own: OnceLock<Resource>,
}

impl Resource {
    pub(crate) const fn new(state: Arc<ResourceState>) -> Self {
        Self { state, alias: None }
    }

    /// Creates a resource with this name that has no place under the rules of `version`.
    pub(crate) fn overflow(
        state: Arc<ResourceState>,
        table: Arc<Table>,
        name: &str,
        version: u64,
    ) -> Self {
        let alias = Alias {
            name: name.into(),
            table,
            version: AtomicU64::new(version),
            own: OnceLock::new(),
        };
        Self {
            state,
            alias: Some(Arc::new(alias)),
        }
    }

    /// Returns the resource with its own state, if it has one by now.
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
        // A thread that reads a version finds the rules of that version or newer ones. At worst it
        // looks once more in vain.
        let version = self.state.shared.loaded.version();
        if alias.version.load(Ordering::Acquire) != version {
            if let Some(state) = alias.table.own_state(&alias.name) {
                return alias.own.get_or_init(|| Self::new(state));
            }
            alias.version.store(version, Ordering::Release);
        }
        self
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.alias
            .as_ref()
            .map_or(&self.state.name, |alias| &alias.name)
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.alias
            .as_ref()
            .map_or(&self.state.name, |alias| &alias.name)
            .clone()
    }

    /// Returns a function that notifies the gate's listeners when one of the resource's breakers
    /// changes its state.
    #[inline]
    pub(crate) fn tells(&self, at: Nanos) -> impl Fn(&Breaker, BreakerState, BreakerState) {
        move |breaker, from, to| {
            self.state.shared.publish(&StateChange {
                resource: self.name(),
                rule: &breaker.rule,
                from,
                to,
                at,
            });
        }
    }

    /// Returns true if the table was full, so that this resource shares statistics and pattern
    /// rules with all other overflow resources: see
    /// [`GateBuilder::max_resources`](crate::GateBuilder::max_resources). Once a rule that names
    /// the resource is loaded, the resource gets its own place and this returns false.
    #[must_use]
    pub fn is_overflow(&self) -> bool {
        self.placed().alias.is_some()
    }

    /// Returns the resource's statistics.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.placed().state.node
    }

    /// Returns the statistics of the entries from one origin, if there were any.
    #[must_use]
    pub fn origin(&self, origin: &str) -> Option<Arc<Node>> {
        self.placed().state.origins.get(origin)
    }

    /// Returns the statistics of the entries within one context, if there were any.
    #[must_use]
    pub fn context(&self, context: &str) -> Option<Arc<Node>> {
        self.placed().state.contexts.get(context)
    }

    /// Returns the origins that have statistics, sorted.
    #[must_use]
    pub fn origins(&self) -> Vec<String> {
        self.placed().state.origins.names()
    }

    /// Returns the contexts that have statistics, sorted.
    #[must_use]
    pub fn contexts(&self) -> Vec<String> {
        self.placed().state.contexts.names()
    }

    /// Returns the units that were blocked since the start, by [`BlockReason`](crate::BlockReason),
    /// each reason with at least one.
    #[must_use]
    pub fn blocked(&self) -> Vec<(BlockReason, u64)> {
        let counts = BlockReason::ALL
            .into_iter()
            .zip(self.placed().state.blocked.get());
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the state of each of the resource's breakers, with the rule's id or its summary.
    #[must_use]
    pub fn breakers(&self) -> Vec<(String, BreakerState)> {
        let state = &self.placed().state;
        state.kind();
        let rules = state.rules();
        let breakers = rules.iter().flat_map(|rules| &rules.breakers);
        breakers
            .map(|breaker| (breaker.label.to_string(), breaker.state()))
            .collect()
    }

    /// Returns the current in-flight limit of each of the resource's adaptive rules, with the
    /// rule's id or its summary.
    #[must_use]
    pub fn adaptive_limits(&self) -> Vec<(String, u64)> {
        let state = &self.placed().state;
        state.kind();
        let rules = state.rules();
        let adaptive = rules.iter().flat_map(|rules| &rules.adaptive);
        adaptive
            .map(|adaptive| (adaptive.label.to_string(), adaptive.units()))
            .collect()
    }

    /// Returns the total of two counts since the start: entries whose origin or context had no room
    /// for its own statistics, and argument values that were forgotten although they had used part
    /// of their share.
    #[must_use]
    pub fn crowded(&self) -> u64 {
        let state = &self.placed().state;
        let rules = state.rules();
        let values: u64 = rules
            .iter()
            .flat_map(|rules| &rules.params)
            .map(|param| param.forgotten())
            .sum();
        values + state.origins.left_out() + state.contexts.left_out()
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
