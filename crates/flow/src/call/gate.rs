//! The gate: the resources of a program, or of a part of it, and their rules.

use std::{fmt, io, sync::Arc, time::Duration};

use tidegate_core::clock::Timer;
use tidegate_core::{
    Nanos,
    stats::{Layout, LayoutError},
};

use crate::{
    call::{
        gate_state::{GateState, Sampled},
        guard::Guard,
        resource::Resource,
        table::Table,
        timer::GateTimer,
    },
    machine::{Machine, MachineWatch, sample::Sample},
    rules::{LoadError, Rules, StateChange, blocked::Blocked},
    stats::{named_nodes::NodeBudget, node::Node},
};

/// A set of resources with their statistics and rules. Gates are independent and share no state. A
/// clone is another handle to the same gate.
///
/// ```
/// use tidegate_flow::{Gate, rules::{FlowRule, Rules}};
///
/// let gate = Gate::new();
/// gate.load(Rules::from(vec![FlowRule::new("orders", 2)]))?;
/// let orders = gate.resource("orders");
///
/// let first = gate.enter(&orders)?; // exits when dropped
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
    /// Creates a gate that uses the system clock and the defaults of [`GateBuilder`].
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder for a gate with custom settings.
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

    /// Returns a builder for a gate that counts as Sentinel does: over two slots of 500 ms, so that
    /// a call counts for 500 ms to a second. Rules that are read from Sentinel's JSON need it to
    /// decide as they do there. Their breakers count in one slot already.
    ///
    /// # Panics
    /// Never: a test builds it.
    #[must_use]
    pub fn sentinel() -> GateBuilder {
        let layout = Layout::new(2, Duration::from_secs(1)).expect("two slots divide a second");
        GateBuilder {
            layout,
            ..Self::builder()
        }
    }

    pub(crate) fn shared(&self) -> &GateState {
        &self.table.shared
    }

    /// Returns the current time of the gate's clock.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.shared().timer.now()
    }

    /// Returns the resource with this name and creates it on first use. Keep the handle to avoid
    /// repeated lookups.
    #[must_use]
    pub fn resource(&self, name: &str) -> Resource {
        // Read the version before the lookup: the resource then rechecks rules that are loaded in
        // between.
        let version = self.shared().loaded.version();
        let state = self.table.state(name);
        if *state.name == *name {
            Resource::new(state)
        } else {
            Resource::overflow(state, self.table.clone(), name, version)
        }
    }

    /// Enters a resource with one outbound unit. The guard exits when it is dropped. Enter a
    /// resource through the gate that created it.
    ///
    /// The call may proceed after [`Guard::delay`], which is zero unless a rule throttles.
    ///
    /// # Errors
    /// [`Blocked`] if a rule blocks the entry. This is an expected answer, not a failure.
    ///
    /// # Panics
    /// With debug assertions enabled, if another gate created the resource. Without them, the call
    /// enters the resource in that other gate.
    #[inline]
    pub fn enter<'a>(&self, resource: &'a Resource) -> Result<Guard<'a>, Blocked> {
        debug_assert!(
            Arc::ptr_eq(&self.table.shared, &resource.state.shared),
            "the resource {} belongs to another gate; enter it there, or use Resource::enter",
            resource.name()
        );
        resource.enter()
    }

    /// Replaces all rules atomically: an entry is checked against either the old rules or the new
    /// ones, never a mix. A rule that is identical to one loaded before keeps its state.
    ///
    /// The gate logs one warning (through `tracing`) if a rule depends on load, CPU or memory and
    /// the gate has no sample of the machine: see [`GateBuilder::watch_machine`].
    ///
    /// # Errors
    /// If any rule is invalid. No new rule is loaded then, and the previous rules stay active.
    pub fn load(&self, rules: Rules) -> Result<(), LoadError> {
        self.update(|old| *old = rules)
    }

    /// Changes the loaded rules: `change` edits a copy, which is then loaded as in
    /// [`load`](Self::load). Loads are serialized, so `change` must not load rules into this gate:
    /// that would deadlock.
    ///
    /// # Errors
    /// Same as [`load`](Self::load).
    pub fn update(&self, change: impl FnOnce(&mut Rules)) -> Result<(), LoadError> {
        let node = |name: &str| self.table.needed_state(name).node.clone();
        self.shared().loaded.update(change, self.now(), node)?;
        self.shared().warn_of_missing_samples();
        Ok(())
    }

    /// Returns the loaded rules.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.shared().loaded.set().rules.clone()
    }

    /// Returns a number that changes when rules are loaded.
    #[must_use]
    pub fn rules_version(&self) -> u64 {
        self.shared().loaded.version()
    }

    /// Returns the statistics of all inbound traffic, across all resources.
    #[must_use]
    pub fn inbound(&self) -> &Node {
        &self.shared().inbound
    }

    /// Returns the resources that have separate statistics, sorted by name. The shared overflow
    /// resource comes last, if it is in use.
    #[must_use]
    pub fn resources(&self) -> Vec<Resource> {
        self.table.states().into_iter().map(Resource::new).collect()
    }

    /// Returns how many lookups went to the shared overflow resource because the table was full
    /// (see [`GateBuilder::max_resources`]).
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.table.overflowed()
    }

    /// Samples the machine now and after each `period`, and passes each sample to the gate, for
    /// system rules and memory thresholds. If a later sample fails, the previous one stays in
    /// effect. To have the gate sample the machine for as long as it lives, build it with
    /// [`GateBuilder::watch_machine`](crate::GateBuilder::watch_machine).
    ///
    /// # Errors
    /// If the first sample fails, or if the thread cannot be started.
    pub fn watch_machine(&self, machine: Machine, period: Duration) -> io::Result<MachineWatch> {
        MachineWatch::start(machine, period, self.shared().sample.clone())
    }

    /// Sets the machine's current sample, which system rules and memory thresholds use.
    pub fn set_sample(&self, sample: Sample) {
        self.shared().sample.set(sample);
    }

    /// Calls `listener` whenever a breaker changes its state. It runs on the thread whose call
    /// caused the change, so it should return quickly. If it panics, the panic hook runs and the
    /// gate catches the panic; the next change calls the listener again.
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
        f.debug_struct("Gate")
            .field("resources", &self.table.count())
            .finish_non_exhaustive()
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
    /// Uses this clock and its timers instead of the system's. Tests use a
    /// [`ManualTimer`](crate::ManualTimer).
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
        Self {
            timer: Some(GateTimer::Other(Arc::new(timer))),
            ..self
        }
    }

    /// Sets the slots of the statistics window. Default: ten slots of 100 ms. [`Gate::sentinel`]
    /// has two of 500 ms.
    ///
    /// # Errors
    /// If one second is not a whole number of the layout's slots, or is longer than the layout.
    pub fn layout(self, layout: Layout) -> Result<Self, LayoutError> {
        layout.view(1, Duration::from_secs(1))?;
        Ok(Self { layout, ..self })
    }

    /// Limits how many resources have separate statistics, about 4 KiB each. Default: 100,000.
    ///
    /// Beyond that limit, a resource that a loaded rule names still gets its own statistics, even
    /// through handles created before the rule was loaded. All others share the statistics of one
    /// resource named [`OVERFLOW`](crate::OVERFLOW). [`Gate::overflowed`] counts how often this
    /// happens.
    #[must_use]
    pub fn max_resources(self, max_resources: usize) -> Self {
        Self {
            max_resources,
            ..self
        }
    }

    /// Limits how many origins, and how many contexts, have their own statistics in each resource.
    /// Default: 1,000.
    ///
    /// Beyond that limit, origins and contexts that a loaded rule names still get their own
    /// statistics. All others are counted only in the resource. A rule for every other origin
    /// ([`Origins::Others`](crate::rules::Origins::Others)) treats them as a single origin.
    /// [`Resource::crowded`] counts how often this happens.
    #[must_use]
    pub fn max_origins(self, max_origins: usize) -> Self {
        Self {
            max_origins,
            ..self
        }
    }

    /// Limits how many origins and contexts have their own statistics across all resources, about 4
    /// KiB each, because callers can often invent these names. Default: 100,000. Beyond that limit,
    /// [`max_origins`](Self::max_origins) describes what happens.
    #[must_use]
    pub fn max_origins_in_all(self, max_origins_in_all: usize) -> Self {
        Self {
            max_origins_in_all,
            ..self
        }
    }

    /// Blocks a [prioritized](crate::Entry::prioritized) call that would have to wait at least this
    /// long. Default: 500 ms.
    #[must_use]
    pub fn max_priority_wait(self, max_priority_wait: Duration) -> Self {
        Self {
            max_priority_wait,
            ..self
        }
    }

    /// Samples the machine now and after each `period`, for rules on load, CPU or memory. A
    /// background thread does this for as long as the gate lives. If a later sample fails, the
    /// previous one stays in effect.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tidegate_flow::{Gate, Machine};
    /// let gate = Gate::builder().watch_machine(Machine::new(), Duration::from_secs(1))?.build();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the first sample fails (as it does on systems other than Linux), or if the thread cannot
    /// be started.
    pub fn watch_machine(mut self, machine: Machine, period: Duration) -> io::Result<Self> {
        let watch = MachineWatch::start(machine, period, self.sampled.sample.clone())?;
        self.sampled.watch = Some(watch);
        Ok(self)
    }

    /// Builds the gate.
    #[must_use]
    pub fn build(self) -> Gate {
        let room = NodeBudget::new(self.layout, self.max_origins, self.max_origins_in_all);
        let timer = self.timer.unwrap_or_default();
        let shared = GateState::new(
            timer,
            self.layout,
            self.max_priority_wait,
            room,
            self.sampled,
        );
        Gate {
            table: Arc::new(Table::new(shared, self.max_resources)),
        }
    }
}
