//! Statistics of one traffic: a resource's, an origin's or a context's part of it, or all that comes in.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    Nanos,
    stats::{Counts, Event, Layout, Slot, Window},
};

use crate::gate::Shared;

/// The statistics of one traffic.
pub struct Node {
    window: Window,
}

impl Node {
    pub(crate) fn new(layout: Layout) -> Self {
        // The gate's layout was checked when the gate was built.
        let window = Window::with_minute(layout).unwrap_or_else(|_| Window::new(layout));
        Self { window }
    }

    #[inline]
    pub(crate) const fn window(&self) -> &Window {
        &self.window
    }

    /// The sums of the last interval of the gate's layout (a second, by default) at `now`.
    #[must_use]
    pub fn counts(&self, now: Nanos) -> Counts {
        self.window.counts(now, self.window.layout().whole())
    }

    /// How much of one event there was in the last interval at `now`.
    #[must_use]
    pub fn sum(&self, now: Nanos, event: Event) -> u64 {
        self.window.sum(now, event, self.window.layout().whole())
    }

    /// The slots of the last interval at `now`, oldest first; those without traffic are left out, but for the current.
    #[must_use]
    pub fn slots(&self, now: Nanos) -> Vec<Slot> {
        self.window.slots(now, self.window.layout().whole())
    }

    /// The seconds of the last minute at `now` that saw traffic, oldest first, the current one included.
    #[must_use]
    pub fn seconds(&self, now: Nanos) -> Vec<Slot> {
        self.window.seconds(now)
    }

    /// The units in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.window.in_flight()
    }

    /// The shortest response time of the last interval at `now`.
    #[must_use]
    pub fn min_rt(&self, now: Nanos) -> Option<Duration> {
        self.window.min_rt(now, self.window.layout().whole())
    }
}

/// Nodes by name, at most a given number: the origins of a resource, or its contexts. Most resources have none, and so only
/// a pointer to nothing.
#[derive(Default)]
pub(crate) struct Family(OnceLock<Box<Members>>);

#[derive(Default)]
struct Members {
    nodes: RwLock<HashMap<Box<str>, Arc<Node>>>,
    rest: OnceLock<Arc<Node>>,
    left_out: AtomicU64,
}

impl Family {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Node>> {
        self.0.get()?.nodes.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The node of `name`, made if the resource and the gate have a place for it; or, for one that is `named` by a rule,
    /// always. Names beyond that are counted, and have one node together if a rule `measures` them.
    pub(crate) fn node(
        &self,
        name: &str,
        shared: &Shared,
        named: impl FnOnce() -> bool,
        measures: impl FnOnce() -> bool,
    ) -> Option<Arc<Node>> {
        if let Some(node) = self.get(name) {
            return Some(node);
        }
        let (named, new) = (named(), || Arc::new(Node::new(shared.layout)));
        let members = self.0.get_or_init(Box::default);
        let mut nodes = members.nodes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(name) {
            return Some(node.clone());
        }
        if !named && nodes.len() >= shared.max_origins || !shared.place_origin(named) {
            // Relaxed: a count for people.
            members.left_out.fetch_add(1, Ordering::Relaxed);
            return measures().then(|| members.rest.get_or_init(new).clone());
        }
        let node = new();
        nodes.insert(name.into(), node.clone());
        Some(node)
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
