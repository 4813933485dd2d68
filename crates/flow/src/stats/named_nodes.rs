//! The origins or the contexts of a resource, each with its own statistics.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tidegate_core::stats::Layout;

use crate::stats::node::Node;

/// The limits on how many origins and contexts a gate keeps.
pub(crate) struct NodeBudget {
    /// The slots in which they are counted.
    layout: Layout,
    /// The maximum number of origins, and of contexts, in each resource.
    each: usize,
    /// The maximum across all resources.
    in_all: usize,
    taken: AtomicUsize,
}

impl NodeBudget {
    pub(crate) const fn new(layout: Layout, each: usize, in_all: usize) -> Self {
        Self {
            layout,
            each,
            in_all,
            taken: AtomicUsize::new(0),
        }
    }

    /// Takes one more place if there is one, or if the node is `needed`.
    fn take(&self, needed: bool) -> bool {
        // Relaxed: the places are only counted; a lock protects each map.
        let place = |taken| (taken < self.in_all || needed).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, place)
            .is_ok()
    }
}

/// A bounded number of nodes by name: the origins or the contexts of a resource. Most resources
/// have none and keep only an empty pointer.
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
        self.0
            .get()?
            .nodes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Returns the node of `name`. It is created if the resource and the gate have a place for it,
    /// and always if a rule names it (`named`). Names beyond that are counted, and share one node
    /// if a rule `measures` them.
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
        let mut nodes = members
            .nodes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(name) {
            return Some(node.clone());
        }
        if !named && nodes.len() >= room.each || !room.take(named) {
            // Relaxed: the count is only reported.
            members.left_out.fetch_add(1, Ordering::Relaxed);
            return measures().then(|| members.rest.get_or_init(new).clone());
        }
        let node = new();
        nodes.insert(name.into(), node.clone());
        Some(node)
    }

    /// Returns the node of the entries without a name.
    pub(crate) fn unnamed(&self, room: &NodeBudget) -> Arc<Node> {
        let new = || Arc::new(Node::new(room.layout));
        self.0
            .get_or_init(Box::default)
            .unnamed
            .get_or_init(new)
            .clone()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let Some(members) = self.0.get() else {
            return Vec::new();
        };
        let nodes = members.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = nodes.keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.0
            .get()
            .map_or(0, |members| members.left_out.load(Ordering::Relaxed))
    }
}
