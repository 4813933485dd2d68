//! A call in flight: what it holds, and how it went.

use std::{error::Error, sync::Arc, thread};

use tidegate_core::Nanos;

use crate::{
    blocked::Blocked,
    compiled::Compiled,
    node::Node,
    resource::Resource,
    rules::{
        breaker::Probe,
        hot_param::{Held, HotParam},
    },
};

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Well,
    Failed,
    /// It never ran, or was given up: it says nothing about the resource.
    Cancelled,
}

/// What a call in flight holds.
pub(crate) struct Pass {
    /// When the call may go ahead: response times count from here.
    pub(crate) started: Nanos,
    /// How long that is after the entry, in nanoseconds; 0 once it has been waited out.
    pub(crate) delay: u64,
    pub(crate) units: u32,
    pub(crate) inbound: bool,
    pub(crate) outcome: Outcome,
    /// Whether the rules want to know how it went: those of the resource when it ends, each if it was in force when the
    /// call began. Keeping the rules instead would cost two writes to a word that all threads share.
    pub(crate) learns: bool,
    /// What few calls hold.
    pub(crate) extra: Option<Box<Extra>>,
}

#[derive(Default)]
pub(crate) struct Extra {
    pub(crate) origin: Option<Arc<Node>>,
    pub(crate) context: Option<Arc<Node>>,
    /// Probes by the breaker's index in `rules`.
    pub(crate) probes: Vec<(usize, Probe)>,
    /// The rules that a probe has passed.
    pub(crate) rules: Option<Arc<Compiled>>,
    pub(crate) held: Vec<(Arc<HotParam>, Held)>,
    /// The slots that a prioritized call has borrowed units of, and in which they pass.
    pub(crate) borrowed: Vec<(Scope, u64)>,
}

/// Whose window it is that an entry counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Resource,
    Origin,
    Context,
    Inbound,
}

impl Extra {
    /// The node of a part of an entry of `resource`, if the entry counts there.
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
        Self { started, delay: 0, units, inbound, outcome: Outcome::Well, learns: false, extra: None }
    }

    pub(crate) fn fail(&mut self, error: &(dyn Error + 'static)) {
        if !error.is::<Blocked>() {
            self.outcome = Outcome::Failed;
        }
    }

    /// How the call went, now that it ends.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.units == 0 {
            self.outcome = Outcome::Cancelled; // A question, no call, whatever became of who asked.
        } else if self.outcome != Outcome::Failed && thread::panicking() {
            // A panic in a future that `run` polls drops the guard, too.
            self.outcome = Outcome::Failed;
        }
    }
}
