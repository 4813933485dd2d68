//! A call in flight: the state it holds and its outcome.

use std::{error::Error, sync::Arc, thread};

use tidegate_core::Nanos;

use crate::{
    call::{compiled::Compiled, resource::Resource},
    rules::{
        blocked::Blocked,
        breaker::Probe,
        hot_param::{HeldShare, HotParam},
    },
    stats::node::Node,
};

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Well,
    Failed,
    /// The call never ran or was cancelled, so it says nothing about the resource.
    Cancelled,
}

/// The state that a call in flight holds.
pub(crate) struct Pass {
    /// When the call may proceed. Response times count from here.
    pub(crate) started: Nanos,
    /// The delay from the entry to `started`, in nanoseconds; 0 once the caller has waited.
    pub(crate) delay: u64,
    pub(crate) units: u32,
    /// Whether the call also counts in the statistics of all inbound traffic.
    pub(crate) inbound: bool,
    pub(crate) outcome: Outcome,
    /// Whether rules need the outcome of the call. At its end the call looks up the resource's
    /// current rules, and each rule checks whether it was already active when the call began.
    /// Holding a reference to the rules instead would cost two writes to a word that all threads
    /// share.
    pub(crate) learns: bool,
    /// State that only a few calls hold.
    pub(crate) extra: Option<Box<Extra>>,
}

#[derive(Default)]
pub(crate) struct Extra {
    pub(crate) origin: Option<Arc<Node>>,
    pub(crate) context: Option<Arc<Node>>,
    /// Probes by the breaker's index in `rules`.
    pub(crate) probes: Vec<(usize, Probe)>,
    /// The rules through which the call entered, if it is a probe.
    pub(crate) rules: Option<Arc<Compiled>>,
    pub(crate) held: Vec<(Arc<HotParam>, HeldShare)>,
    /// The slots from which a prioritized call has borrowed units, and in which these units pass.
    pub(crate) borrowed: Vec<(Scope, u64)>,
}

/// Identifies a window in which an entry counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Resource,
    Origin,
    Context,
    Inbound,
}

impl Extra {
    /// Returns the node of `scope` for an entry of `resource`, if the entry counts there.
    pub(crate) fn node<'n>(&'n self, scope: Scope, resource: &'n Resource) -> Option<&'n Node> {
        match scope {
            Scope::Resource => Some(&resource.state.node),
            Scope::Origin => self.origin.as_deref(),
            Scope::Context => self.context.as_deref(),
            Scope::Inbound => Some(&resource.state.shared.inbound),
        }
    }
}

impl Pass {
    #[inline]
    pub(crate) const fn new(started: Nanos, units: u32, inbound: bool) -> Self {
        Self {
            started,
            delay: 0,
            units,
            inbound,
            outcome: Outcome::Well,
            learns: false,
            extra: None,
        }
    }

    pub(crate) fn fail(&mut self, error: &(dyn Error + 'static)) {
        if !error.is::<Blocked>() {
            self.outcome = Outcome::Failed;
        }
    }

    /// Determines the outcome of a call that ends.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.units == 0 {
            self.outcome = Outcome::Cancelled; // A query is not a call, whatever happens to the caller.
        } else if self.outcome != Outcome::Failed && thread::panicking() {
            // A panic in a future that `run` polls also drops the guard.
            self.outcome = Outcome::Failed;
        }
    }
}
