//! The state that the resources of one gate share.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_core::stats::{Headroom, Layout};

use crate::{
    call::timer::GateTimer,
    machine::{MachineWatch, sample::SystemSample},
    rules::{LoadedRules, StateChange},
    stats::{bounds::second, named_nodes::NodeBudget, node::Node},
};

/// The machine's last sample, and the sampling thread if the gate runs one.
#[derive(Default)]
pub(crate) struct Sampled {
    pub(crate) sample: Arc<SystemSample>,
    pub(crate) watch: Option<MachineWatch>,
}

type Listener = Arc<dyn Fn(&StateChange<'_>) + Send + Sync>;

/// A gate's clock, rules and settings.
pub(crate) struct GateState {
    pub(crate) timer: GateTimer,
    pub(crate) layout: Layout,
    /// Prioritized calls wait less than this.
    pub(crate) max_priority_wait: Duration,
    pub(crate) inbound: Node,
    pub(crate) inbound_second: Headroom,
    pub(crate) sample: Arc<SystemSample>,
    /// The thread that updates `sample`, if the gate runs one.
    _watch: Option<MachineWatch>,
    has_warned: AtomicBool,
    pub(crate) loaded: LoadedRules,
    /// The budget of nodes for origins and contexts.
    pub(crate) room: NodeBudget,
    listeners: RwLock<Vec<Listener>>,
}

impl GateState {
    pub(crate) fn new(
        timer: GateTimer,
        layout: Layout,
        max_priority_wait: Duration,
        room: NodeBudget,
        sample: Sampled,
    ) -> Self {
        let Sampled { sample, watch } = sample;
        Self {
            timer,
            layout,
            max_priority_wait,
            inbound: Node::new(layout),
            inbound_second: Headroom::new(second(layout)),
            sample,
            _watch: watch,
            has_warned: AtomicBool::new(false),
            loaded: LoadedRules::default(),
            room,
            listeners: RwLock::default(),
        }
    }

    /// Warns once if the loaded rules depend on samples of the machine and none has been set.
    pub(crate) fn warn_of_missing_samples(&self) {
        let needs = self.loaded.set().rules.first_that_needs_samples();
        let Some(rule) = needs.filter(|_| !self.sample.is_fed()) else {
            return;
        };
        // Relaxed: it only matters that a single thread warns.
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                rule,
                "a rule on load, CPU or memory needs samples of the machine, and the gate has none: until it has, the \
                 rule sees an idle machine; build the gate with watch_machine, or call set_sample"
            );
        }
    }

    /// Calls `listener` whenever a breaker changes its state.
    pub(crate) fn listen(&self, listener: impl Fn(&StateChange<'_>) + Send + Sync + 'static) {
        self.listeners
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::new(listener));
    }

    pub(crate) fn publish(&self, change: &StateChange<'_>) {
        crate::call::signals::breaker_changed(change);
        let listeners = self
            .listeners
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for listener in listeners {
            // A panicking listener must not interrupt the entry that changed the breaker, because
            // that entry may still have to give back what it took. The panic hook has already
            // reported the panic.
            let _ = catch_unwind(AssertUnwindSafe(|| listener(change)));
        }
    }
}
