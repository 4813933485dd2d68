//! The origins of a resource, or its contexts: what is counted of each by itself.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tidegate_core::stats::Layout;

use crate::node::Node;

/// How many origins and contexts a gate has room for.
pub(crate) struct NodeBudget {
    /// In which slots they are counted.
    layout: Layout,
    /// Of one resource: so many origins, and as many contexts.
    each: usize,
    /// Of all resources.
    in_all: usize,
    taken: AtomicUsize,
}

impl NodeBudget {
    pub(crate) const fn new(layout: Layout, each: usize, in_all: usize) -> Self {
        Self { layout, each, in_all, taken: AtomicUsize::new(0) }
    }

    /// Takes the place of one more, if there is one or it is `needed`.
    fn take(&self, needed: bool) -> bool {
        // Relaxed: the places are only counted; each family is behind its lock.
        let place = |taken| (taken < self.in_all || needed).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).is_ok()
    }
}

/// Nodes by name, at most a given number: the origins of a resource, or its contexts. Most resources have none, and so only
/// a pointer to nothing.
#[derive(Default)]
pub(crate) struct NamedNodes(OnceLock<Box<Members>>);

#[derive(Default)]
struct Members {
    nodes: RwLock<HashMap<Box<str>, Arc<Node>>>,
    rest: OnceLock<Arc<Node>>,
    unnamed: OnceLock<Arc<Node>>,
    left_out: AtomicU64,
}

impl NamedNodes {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Node>> {
        self.0.get()?.nodes.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The node of `name`, made if the resource and the gate have a place for it; or, for one that is `named` by a rule,
    /// always. Names beyond that are counted, and have one node together if a rule `measures` them.
    pub(crate) fn node(
        &self,
        name: &str,
        room: &NodeBudget,
        named: impl FnOnce() -> bool,
        measures: impl FnOnce() -> bool,
    ) -> Option<Arc<Node>> {
        if let Some(node) = self.get(name) {
            return Some(node);
        }
        let (named, new) = (named(), || Arc::new(Node::new(room.layout)));
        let members = self.0.get_or_init(Box::default);
        let mut nodes = members.nodes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(name) {
            return Some(node.clone());
        }
        if !named && nodes.len() >= room.each || !room.take(named) {
            // Relaxed: a count for people.
            members.left_out.fetch_add(1, Ordering::Relaxed);
            return measures().then(|| members.rest.get_or_init(new).clone());
        }
        let node = new();
        nodes.insert(name.into(), node.clone());
        Some(node)
    }

    /// The node of the entries that have no name here.
    pub(crate) fn unnamed(&self, room: &NodeBudget) -> Arc<Node> {
        let new = || Arc::new(Node::new(room.layout));
        self.0.get_or_init(Box::default).unnamed.get_or_init(new).clone()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let Some(members) = self.0.get() else { return Vec::new() };
        let nodes = members.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = nodes.keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.0.get().map_or(0, |members| members.left_out.load(Ordering::Relaxed))
    }
}
