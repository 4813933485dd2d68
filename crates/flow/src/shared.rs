//! What the handles of one gate share.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, RwLock},
};

use tidegate_core::stats::Layout;

use crate::{
    compile::compile,
    family::Room,
    node::Node,
    rules::{Loaded, StateChange},
    sample::SystemSample,
    state::{Kind, State},
    table::Table,
    timer::GateTimer,
};

type Listener = Arc<dyn Fn(&StateChange<'_>) + Send + Sync>;

/// A gate's clock, rules and resources.
pub(crate) struct Shared {
    pub(crate) timer: GateTimer,
    layout: Layout,
    pub(crate) inbound: Node,
    pub(crate) sample: SystemSample,
    pub(crate) loaded: Loaded,
    /// For origins and contexts.
    pub(crate) room: Room,
    pub(crate) resources: Table,
    listeners: RwLock<Vec<Listener>>,
}

impl Shared {
    pub(crate) fn new(timer: GateTimer, layout: Layout, room: Room, resources: Table) -> Self {
        Self {
            timer,
            layout,
            inbound: Node::new(layout),
            sample: SystemSample::default(),
            loaded: Loaded::default(),
            room,
            resources,
            listeners: RwLock::default(),
        }
    }

    /// The state of a resource: its own, or that of all that found no place.
    pub(crate) fn state(&self, name: &str) -> Arc<State> {
        self.own_state(name).unwrap_or_else(|| self.resources.overflow())
    }

    /// The state of a resource, if it has one, a rule names it or there is a place for it.
    pub(crate) fn own_state(&self, name: &str) -> Option<Arc<State>> {
        self.resources.state(name, || self.loaded.set().names(name))
    }

    /// What rules a resource has, once they are those of the newest version.
    #[inline]
    pub(crate) fn kind(&self, state: &State) -> Kind {
        state.kind(&self.loaded, |set, old| {
            let related = |name: &str| self.resources.state(name, || true);
            compile(set, state, old, self.layout, related)
        })
    }

    /// Calls `listener` whenever a breaker changes its state.
    pub(crate) fn listen(&self, listener: impl Fn(&StateChange<'_>) + Send + Sync + 'static) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(listener));
    }

    pub(crate) fn tell(&self, change: &StateChange<'_>) {
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner).clone();
        for listener in listeners {
            // The entry that changed the breaker goes on, or gives back what it has taken: a listener that panics must
            // not come between. The panic hook has reported it.
            let _ = catch_unwind(AssertUnwindSafe(|| listener(change)));
        }
    }
}
