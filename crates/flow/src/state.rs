//! What a gate keeps about one resource: its statistics, and the rules that are about it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tidegate_core::{Nanos, stats::Headroom};

use crate::{compiled::Compiled, named_nodes::NamedNodes, node::Node, rules::RuleSet, shared::Shared};

const SECOND: Duration = Duration::from_secs(1);

/// A call that asks for more than this part of a threshold is not let in by its [`Headroom`]: so dozens of others must
/// come in between before one that does has to be withdrawn.
const FAR: u64 = 64;

/// What a gate keeps about one resource.
pub(crate) struct State {
    pub(crate) name: Arc<str>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) node: Arc<Node>,
    pub(crate) origins: NamedNodes,
    pub(crate) contexts: NamedNodes,
    /// The rules' version that `compiled` was made for, times four, plus their [`Kind`]. A resource without rules never
    /// looks further.
    stamp: AtomicU64,
    /// What plain rules let pass in a second, times two; and one more where there are system rules beside them, for what
    /// comes in. One word, as it may be of newer rules than the stamp that was seen.
    limit: AtomicU64,
    second: Headroom,
    compiled: ArcSwapOption<Compiled>,
    compiling: Mutex<()>,
}

impl State {
    pub(crate) fn new(name: Arc<str>, shared: Arc<Shared>) -> Self {
        let layout = shared.layout;
        Self {
            name,
            shared,
            node: Arc::new(Node::new(layout)),
            origins: NamedNodes::default(),
            contexts: NamedNodes::default(),
            stamp: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            // The gate's layout was checked when the gate was built.
            second: Headroom::new(layout.view(1, SECOND).unwrap_or(layout.whole())),
            compiled: ArcSwapOption::empty(),
            compiling: Mutex::new(()),
        }
    }

    /// What rules there are, once they are those of the newest version: `compile` makes them of those before.
    #[inline]
    pub(crate) fn kind_by(
        &self,
        compile: impl FnOnce(&RuleSet, Option<&Compiled>) -> Option<Compiled>,
    ) -> Kind {
        // Acquire: who sees the stamp sees what was compiled for it, or something newer.
        let stamp = self.stamp.load(Ordering::Acquire);
        if stamp >> 2 == self.shared.loaded.version() { Kind::of(stamp) } else { self.renew(compile) }
    }

    /// Lets units pass that plain rules surely let. False says nothing: ask the rules.
    #[inline]
    pub(crate) fn pass_far(&self, now: Nanos, units: u32, inbound: bool) -> bool {
        // Acquire: of the rules whose stamp was seen, or of newer ones if those are plain, too.
        let word = self.limit.load(Ordering::Acquire);
        let limit = word >> 1;
        // Nothing is no call.
        units > 0
            && !(inbound && word & 1 == 1)
            && u64::from(units) <= limit / FAR
            && self.pass_unless_lent(now, units, limit)
    }

    /// Adds, and takes it back if something is borrowed: then an addition alone sees too little.
    #[inline]
    fn pass_unless_lent(&self, now: Nanos, units: u32, limit: u64) -> bool {
        let window = self.node.window();
        let Some(passed) = window.pass_far(now, units, limit, &self.second) else { return false };
        // Acquire: after the addition. A reservation marks the count that is added to: one that did so before is seen
        // here, and one that comes later sees what was added.
        fence(Ordering::Acquire);
        if self.node.borrowed().is_any() {
            window.take_back(units, passed);
            return false;
        }
        true
    }

    #[inline]
    pub(crate) fn rules(&self) -> arc_swap::Guard<Option<Arc<Compiled>>> {
        self.compiled.load()
    }

    #[cold]
    fn renew(&self, compile: impl FnOnce(&RuleSet, Option<&Compiled>) -> Option<Compiled>) -> Kind {
        let _one = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let set = self.shared.loaded.set();
        let old = self.compiled.load();
        if self.stamp.load(Ordering::Acquire) >> 2 != set.version {
            let compiled = compile(&set, old.as_deref());
            let plain = compiled.as_ref().and_then(|rules| rules.plain(self.second.view()));
            let kind = match (&compiled, plain) {
                (None, _) => Kind::None,
                (Some(_), None) => Kind::Any,
                (Some(_), Some(limit)) => {
                    let has_system = !set.rules.system.is_empty();
                    self.limit.store(limit << 1 | u64::from(has_system), Ordering::Release);
                    Kind::Plain
                }
            };
            self.compiled.store(compiled.map(Arc::new));
            self.stamp.store(set.version << 2 | kind as u64, Ordering::Release);
        }
        Kind::of(self.stamp.load(Ordering::Acquire))
    }
}

/// What rules a resource has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None = 0,
    Any = 1,
    /// All that a call has to keep is one threshold of the resource's window; one from outside perhaps system rules, too.
    Plain = 2,
}

impl Kind {
    #[inline]
    const fn of(stamp: u64) -> Self {
        match stamp & 3 {
            0 => Self::None,
            1 => Self::Any,
            _ => Self::Plain,
        }
    }
}
