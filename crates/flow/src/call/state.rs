//! The state that a gate keeps for one resource: its statistics and its rules.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwapOption;
use tidegate_core::{Nanos, stats::Headroom};

use crate::{
    call::{
        compiled::{Compiled, Far},
        gate_state::GateState,
    },
    rules::{RuleSet, blocked::BlockCounts},
    stats::{
        bounds::{Bounds, second},
        named_nodes::NamedNodes,
        node::Node,
    },
};

/// The state that a gate keeps for one resource.
pub(crate) struct ResourceState {
    pub(crate) name: Arc<str>,
    pub(crate) shared: Arc<GateState>,
    pub(crate) node: Arc<Node>,
    pub(crate) origins: NamedNodes,
    pub(crate) contexts: NamedNodes,
    pub(crate) blocked: BlockCounts,
    /// The version of the rules that `compiled` was made for, times four, plus their [`RulesKind`].
    /// For a resource without rules, an entry reads nothing else.
    stamp: AtomicU64,
    /// The units a second that plain rules allow, times two, plus one if system rules also apply to
    /// inbound calls. It is one word because it may belong to newer rules than the stamp that was
    /// read.
    limit: AtomicU64,
    second: Headroom,
    compiled: ArcSwapOption<Compiled>,
    compiling: Mutex<()>,
}

impl ResourceState {
    pub(crate) fn new(name: Arc<str>, shared: Arc<GateState>) -> Self {
        let layout = shared.layout;
        Self {
            name,
            shared,
            node: Arc::new(Node::new(layout)),
            origins: NamedNodes::default(),
            contexts: NamedNodes::default(),
            blocked: BlockCounts::default(),
            stamp: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            second: Headroom::new(second(layout)),
            compiled: ArcSwapOption::empty(),
            compiling: Mutex::new(()),
        }
    }

    /// Returns the kind of the newest rules; `compile` makes them from the previous ones if
    /// necessary.
    #[inline]
    pub(crate) fn kind_by(
        &self,
        compile: impl FnOnce(&RuleSet, Option<&Compiled>) -> Option<Compiled>,
    ) -> RulesKind {
        // Acquire: a thread that sees the stamp sees the rules compiled for it, or newer ones.
        let stamp = self.stamp.load(Ordering::Acquire);
        if stamp >> 2 == self.shared.loaded.version() {
            RulesKind::of(stamp)
        } else {
            self.renew(compile)
        }
    }

    /// Admits units that plain rules certainly admit. False means nothing: check the rules.
    #[inline]
    pub(crate) fn pass_far(&self, now: Nanos, units: u32, inbound: bool) -> bool {
        // Acquire: the word belongs to the rules whose stamp was read, or to newer rules if those
        // are plain, too.
        let word = self.limit.load(Ordering::Acquire);
        let bounds = Bounds {
            passed: word >> 1,
            ..Bounds::NONE
        };
        !(inbound && word & 1 == 1)
            && self
                .node
                .pass_far(now, units, bounds, &self.second)
                .is_some()
    }

    /// Admits units whose rules keep to `far`, in the resource's window and, if they are inbound,
    /// in the inbound one. False means nothing: check the rules.
    #[inline]
    pub(crate) fn pass_both_far(&self, now: Nanos, units: u32, inbound: bool, far: Far) -> bool {
        if !inbound {
            return self
                .node
                .pass_far(now, units, far.own, &self.second)
                .is_some();
        }
        // Near bounds are seen before anything is taken.
        let Some(bounds) = far.inbound.filter(|bounds| bounds.are_far(units)) else {
            return false;
        };
        let Some(own) = self.node.pass_far(now, units, far.own, &self.second) else {
            return false;
        };
        let all = self
            .shared
            .inbound
            .pass_far(now, units, bounds, &self.shared.inbound_second);
        if all.is_none() {
            self.node.take_back(units, own);
        }
        all.is_some()
    }

    #[inline]
    pub(crate) fn rules(&self) -> arc_swap::Guard<Option<Arc<Compiled>>> {
        self.compiled.load()
    }

    #[cold]
    fn renew(
        &self,
        compile: impl FnOnce(&RuleSet, Option<&Compiled>) -> Option<Compiled>,
    ) -> RulesKind {
        let _one = self
            .compiling
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let set = self.shared.loaded.set();
        let old = self.compiled.load();
        if self.stamp.load(Ordering::Acquire) >> 2 != set.version {
            let compiled = compile(&set, old.as_deref());
            let plain = compiled.as_ref().and_then(Compiled::plain);
            let kind = match (&compiled, plain) {
                (None, _) => RulesKind::None,
                (Some(_), None) => RulesKind::Any,
                (Some(_), Some(limit)) => {
                    let has_system = !set.rules.system.is_empty();
                    self.limit
                        .store(limit << 1 | u64::from(has_system), Ordering::Release);
                    RulesKind::Plain
                }
            };
            self.compiled.store(compiled.map(Arc::new));
            self.stamp
                .store(set.version << 2 | kind as u64, Ordering::Release);
        }
        RulesKind::of(self.stamp.load(Ordering::Acquire))
    }
}

/// The kind of rules that a resource has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RulesKind {
    None = 0,
    Any = 1,
    /// A call has to check only one threshold of the resource's window, and an inbound call perhaps
    /// system rules as well.
    Plain = 2,
}

impl RulesKind {
    #[inline]
    const fn of(stamp: u64) -> Self {
        match stamp & 3 {
            0 => Self::None,
            1 => Self::Any,
            _ => Self::Plain,
        }
    }
}
