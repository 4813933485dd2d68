//! What the resources of one gate share.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, RwLock},
};

use tidegate_core::stats::Layout;

use crate::{
    family::Room,
    node::Node,
    rules::{Loaded, StateChange},
    sample::SystemSample,
    timer::GateTimer,
};

type Listener = Arc<dyn Fn(&StateChange<'_>) + Send + Sync>;

/// A gate's clock and rules.
pub(crate) struct Shared {
    pub(crate) timer: GateTimer,
    pub(crate) layout: Layout,
    pub(crate) inbound: Node,
    pub(crate) sample: SystemSample,
    pub(crate) loaded: Loaded,
    /// For origins and contexts.
    pub(crate) room: Room,
    listeners: RwLock<Vec<Listener>>,
}

impl Shared {
    pub(crate) fn new(timer: GateTimer, layout: Layout, room: Room) -> Self {
        Self {
            timer,
            layout,
            inbound: Node::new(layout),
            sample: SystemSample::default(),
            loaded: Loaded::default(),
            room,
            listeners: RwLock::default(),
        }
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
