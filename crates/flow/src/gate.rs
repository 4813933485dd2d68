//! The gate: all resources of one program, or of one part of it, and their rules.

use std::{fmt, io, sync::Arc, time::Duration};

use tidegate_core::clock::Timer;
use tidegate_core::{
    Nanos,
    stats::{Layout, LayoutError},
};

use crate::{
    blocked::Blocked,
    guard::Guard,
    machine::{Machine, MachineWatch},
    named_nodes::NodeBudget,
    node::Node,
    resource::Resource,
    rules::{LoadError, Rules, StateChange},
    sample::Sample,
    shared::{Sampled, Shared},
    table::Table,
    timer::GateTimer,
};

/// Resources, their statistics and their rules. Gates live beside each other and share nothing; a clone is another
/// handle of the same gate.
///
/// ```
/// use tidegate_flow::{Gate, rules::{FlowRule, Rules}};
///
/// let gate = Gate::new();
/// gate.load(Rules { flow: vec![FlowRule::new("orders", 2)], ..Rules::default() })?;
/// let orders = gate.resource("orders");
///
/// let first = gate.enter(&orders)?; // leaves when dropped
/// let second = gate.enter(&orders)?;
/// let blocked = gate.enter(&orders).unwrap_err();
/// assert_eq!((blocked.resource(), blocked.rule()), ("orders", "2/1s"));
/// assert!(blocked.retry_after().is_some());
/// assert_eq!(orders.node().in_flight(), 2);
/// # drop((first, second));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gate {
    table: Arc<Table>,
}

impl Gate {
    /// A gate on the system's clock, with the defaults of [`GateBuilder`].
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A gate with settings of one's own.
    #[must_use]
    pub fn builder() -> GateBuilder {
        GateBuilder {
            timer: None,
            layout: Layout::second(),
            max_resources: 100_000,
            max_origins: 1_000,
            max_origins_in_all: 100_000,
            sampled: Sampled::default(),
            max_priority_wait: Duration::from_millis(500),
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.table.shared
    }

    /// The time on the gate's clock.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.shared().timer.now()
    }

    /// The resource of this name, made when it is first asked for. Keep the handle: it saves the look-up.
    #[must_use]
    pub fn resource(&self, name: &str) -> Resource {
        // Before the look-up: rules that are loaded meanwhile are looked at again.
        let version = self.shared().loaded.version();
        let state = self.table.state(name);
        if *state.name == *name {
            Resource::new(state)
        } else {
            Resource::overflow(state, self.table.clone(), name, version)
        }
    }

    /// Enters a resource with one unit, outbound: the guard leaves when it is dropped. A resource is entered in the
    /// gate that made it.
    ///
    /// The call may go ahead after [`Guard::delay`]; without a throttling rule that is at once.
    ///
    /// # Errors
    /// When a rule blocks: an answer, not a failure.
    ///
    /// # Panics
    /// In a build with debug assertions, when another gate made the resource: it would be entered there.
    #[inline]
    pub fn enter<'a>(&self, resource: &'a Resource) -> Result<Guard<'a>, Blocked> {
        debug_assert!(
            Arc::ptr_eq(&self.table.shared, &resource.state.shared),
            "the resource {} is another gate's; enter it there, or by Resource::enter",
            resource.name()
        );
        resource.enter()
    }

    /// Replaces all rules at once: an entry is judged by the old rules or by the new ones, never by some of each. Rules
    /// that were loaded before, word for word, keep their state.
    ///
    /// The gate logs a warning (by `tracing`, once) when a rule looks at load, CPU or memory, and the gate has no sample of
    /// the machine: see [`GateBuilder::watch_machine`].
    ///
    /// # Errors
    /// When a rule is impossible: no rule is loaded, and the previous rules stay active.
    pub fn load(&self, rules: Rules) -> Result<(), LoadError> {
        self.update(|old| *old = rules)
    }

    /// Changes the rules: as [`load`](Self::load) with what `change` made of those that are loaded. Loads come one after
    /// the other, so `change` must not load rules of this gate itself: it would wait for its own end.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn update(&self, change: impl FnOnce(&mut Rules)) -> Result<(), LoadError> {
        let node = |name: &str| self.table.needed_state(name).node.clone();
        self.shared().loaded.update(change, self.now(), node)?;
        self.shared().warn_of_missing_samples();
        Ok(())
    }

    /// The rules that are loaded.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.shared().loaded.set().rules.clone()
    }

    /// The statistics of everything that came in, whatever the resource.
    #[must_use]
    pub fn inbound(&self) -> &Node {
        &self.shared().inbound
    }

    /// The resources that have a place, in the order of their names; the shared place of all others last, if it is used.
    #[must_use]
    pub fn resources(&self) -> Vec<Resource> {
        self.table.states().into_iter().map(Resource::new).collect()
    }

    /// How often a resource was asked for that found no place (see [`GateBuilder::max_resources`]).
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.table.overflowed()
    }

    /// Tells the gate how the machine is doing, for system rules and memory thresholds.
    pub fn set_sample(&self, sample: Sample) {
        self.shared().sample.set(sample);
    }

    /// Calls `listener` whenever a breaker changes its state, on the thread whose call changed it: it should be quick.
    /// A panic in it goes no further than the panic hook: it is called again at the next change.
    pub fn on_breaker_change(&self, listener: impl Fn(&StateChange<'_>) + Send + Sync + 'static) {
        self.shared().listen(listener);
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("resources", &self.table.count()).finish_non_exhaustive()
    }
}

/// Settings of a gate.
pub struct GateBuilder {
    timer: Option<GateTimer>,
    layout: Layout,
    max_resources: usize,
    max_origins: usize,
    max_origins_in_all: usize,
    sampled: Sampled,
    max_priority_wait: Duration,
}

impl GateBuilder {
    /// Runs on this clock and its timers instead of the system's: for tests, a [`ManualTimer`](crate::ManualTimer).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::Nanos;
    /// use tidegate_flow::{Gate, ManualTimer};
    /// let timer = ManualTimer::new(Nanos::from_secs(1));
    /// let gate = Gate::builder().timer(timer.clone()).build();
    /// timer.advance(Duration::from_secs(2));
    /// assert_eq!(gate.now(), Nanos::from_secs(3));
    /// ```
    #[must_use]
    pub fn timer(self, timer: impl Timer + 'static) -> Self {
        Self { timer: Some(GateTimer::Other(Arc::new(timer))), ..self }
    }

    /// Counts in these slots instead of ten of 100 ms. Sentinel's own figures come from two of 500 ms.
    ///
    /// # Errors
    /// When a second is no whole number of the layout's slots, or longer than the layout.
    pub fn layout(self, layout: Layout) -> Result<Self, LayoutError> {
        layout.view(1, Duration::from_secs(1))?;
        Ok(Self { layout, ..self })
    }

    /// Keeps statistics of at most this many resources, about 4 KiB each. Default: 100,000.
    ///
    /// Beyond that, resources that a loaded rule names still get a place, also by handles from before it was loaded. All
    /// others share one place, named [`OVERFLOW`](crate::OVERFLOW): what happens there is counted there, and [`Gate::overflowed`] says how
    /// often.
    #[must_use]
    pub fn max_resources(self, max_resources: usize) -> Self {
        Self { max_resources, ..self }
    }

    /// Keeps statistics of at most this many origins, and as many contexts, of each resource. Default: 1,000.
    ///
    /// Beyond that, those that a loaded rule names are still kept. All others are counted in the resource alone; a rule
    /// about each other origin ([`Origins::Others`](crate::rules::Origins::Others)) takes them for one.
    /// [`Resource::crowded`] says how often.
    #[must_use]
    pub fn max_origins(self, max_origins: usize) -> Self {
        Self { max_origins, ..self }
    }

    /// Keeps statistics of at most this many origins and contexts of all resources together, about 4 KiB each: who calls
    /// often makes them up. Default: 100,000. Beyond that, as with [`max_origins`](Self::max_origins).
    #[must_use]
    pub fn max_origins_in_all(self, max_origins_in_all: usize) -> Self {
        Self { max_origins_in_all, ..self }
    }

    /// Blocks a [prioritized](crate::Entry::prioritized) call that would have to wait this long, or longer. Default:
    /// 500 ms.
    #[must_use]
    pub fn max_priority_wait(self, max_priority_wait: Duration) -> Self {
        Self { max_priority_wait, ..self }
    }

    /// Looks at the machine now and after each `period`, on a thread that lives as long as the gate: for rules on load, CPU
    /// or memory. A look that fails later leaves the last one standing.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tidegate_flow::{Gate, Machine};
    /// let gate = Gate::builder().watch_machine(Machine::new(), Duration::from_secs(1))?.build();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the first look fails (on other systems than Linux it does), or the thread cannot be started.
    pub fn watch_machine(mut self, machine: Machine, period: Duration) -> io::Result<Self> {
        let watch = MachineWatch::start(machine, period, self.sampled.sample.clone())?;
        self.sampled.watch = Some(watch);
        Ok(self)
    }

    /// The gate.
    #[must_use]
    pub fn build(self) -> Gate {
        let room = NodeBudget::new(self.layout, self.max_origins, self.max_origins_in_all);
        let timer = self.timer.unwrap_or_default();
        let shared = Shared::new(timer, self.layout, self.max_priority_wait, room, self.sampled);
        Gate { table: Arc::new(Table::new(shared, self.max_resources)) }
    }
}
