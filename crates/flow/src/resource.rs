//! Resources: what is entered.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tidegate_core::{
    Nanos,
    stats::{Headroom, Layout, Ring},
};

use crate::{
    BreakerState, admit,
    blocked::Blocked,
    compiled::Compiled,
    entry::Entry,
    gate::Shared,
    guard::{Guard, OwnedGuard},
    node::{Family, Node},
};

const SECOND: Duration = Duration::from_secs(1);

/// A call that asks for more than this part of a threshold is not let in by its [`Headroom`]: so dozens of others must
/// come in between before one that does has to be withdrawn.
const FAR: u64 = 64;

/// What a gate keeps about one resource.
pub(crate) struct State {
    pub(crate) name: Arc<str>,
    pub(crate) node: Arc<Node>,
    pub(crate) origins: Family,
    pub(crate) contexts: Family,
    /// The rules' version that `compiled` was made for, times four, plus their [`Kind`]. A resource without rules never
    /// looks further.
    stamp: AtomicU64,
    /// What plain rules let pass in a second.
    limit: AtomicU64,
    second: Headroom,
    compiled: ArcSwapOption<Compiled>,
    compiling: Mutex<()>,
    watched: Mutex<Vec<Weak<Ring<1, 0>>>>,
}

impl State {
    pub(crate) fn new(name: Arc<str>, shared: &Shared) -> Self {
        Self {
            name,
            node: Arc::new(Node::new(shared.layout)),
            origins: Family::default(),
            contexts: Family::default(),
            stamp: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            // The gate's layout was checked when the gate was built.
            second: Headroom::new(shared.layout.view(1, SECOND).unwrap_or(shared.layout.whole())),
            compiled: ArcSwapOption::empty(),
            compiling: Mutex::new(()),
            watched: Mutex::default(),
        }
    }

    /// What passes in slots of `layout`, counted for as long as a rule of another resource wants to know.
    pub(crate) fn watched(&self, layout: Layout) -> Arc<Ring<1, 0>> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|ring| ring.strong_count() > 0);
        let known = watched.iter().filter_map(Weak::upgrade).find(|ring| ring.layout() == layout);
        known.unwrap_or_else(|| {
            let ring = Arc::new(Ring::new(layout));
            watched.push(Arc::downgrade(&ring));
            ring
        })
    }

    /// What rules there are, once they are those of the newest version.
    #[inline]
    pub(crate) fn kind(&self, shared: &Shared) -> Kind {
        // Acquire: who sees the stamp sees what was compiled for it, or something newer.
        let stamp = self.stamp.load(Ordering::Acquire);
        if stamp >> 2 == shared.version.load(Ordering::Acquire) {
            Kind::of(stamp)
        } else {
            self.compile(shared)
        }
    }

    /// Lets units pass that plain rules surely let. False says nothing: ask the rules.
    #[inline]
    pub(crate) fn pass_far(&self, now: Nanos, units: u32) -> bool {
        // Acquire: of the rules whose stamp was seen, or of newer ones if those are plain, too.
        let limit = self.limit.load(Ordering::Acquire);
        // Nothing is no call.
        units > 0
            && u64::from(units) <= limit / FAR
            && self.node.window().pass_far(now, units, limit, &self.second)
    }

    #[inline]
    pub(crate) fn rules(&self) -> arc_swap::Guard<Option<Arc<Compiled>>> {
        self.compiled.load()
    }

    #[cold]
    fn compile(&self, shared: &Shared) -> Kind {
        let _one = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let set = shared.rules.load();
        let old = self.compiled.load();
        if self.stamp.load(Ordering::Acquire) >> 2 != set.version {
            let compiled = Compiled::new(&set, self, old.as_deref(), shared);
            let plain = compiled.as_ref().and_then(|rules| rules.plain(self.second.view()));
            let kind = match (&compiled, plain) {
                (None, _) => Kind::None,
                (Some(_), None) => Kind::Any,
                (Some(_), Some(limit)) => {
                    self.limit.store(limit, Ordering::Release);
                    if set.rules.system.is_empty() { Kind::Plain } else { Kind::PlainOutbound }
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
    /// All that an outbound call has to keep is one threshold of the resource's window; one from outside has to keep
    /// system rules, too.
    PlainOutbound = 2,
    /// All that any call has to keep is that threshold.
    Plain = 3,
}

impl Kind {
    #[inline]
    const fn of(stamp: u64) -> Self {
        match stamp & 3 {
            0 => Self::None,
            1 => Self::Any,
            2 => Self::PlainOutbound,
            _ => Self::Plain,
        }
    }
}

/// A resource of a gate: something to be guarded, by name.
///
/// A handle; cloning it is cheap, and entering through it needs no look-up. It belongs to the gate that made it.
#[derive(Clone)]
pub struct Resource {
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Arc<State>,
    /// Where the resource shares the state of all that found no place. Behind [`placed`](Self::placed), everything looks
    /// at what that returns.
    alias: Option<Arc<Alias>>,
}

/// A resource that found no place of its own, until it gets one.
struct Alias {
    name: Arc<str>,
    /// The rules' version by which the resource had no place.
    version: AtomicU64,
    own: OnceLock<Resource>,
}

impl Resource {
    pub(crate) const fn new(shared: Arc<Shared>, state: Arc<State>) -> Self {
        Self { shared, state, alias: None }
    }

    /// A resource of this name, which has no place of its own under the rules of `version`.
    pub(crate) fn overflow(shared: Arc<Shared>, state: Arc<State>, name: &str, version: u64) -> Self {
        let alias = Alias { name: name.into(), version: AtomicU64::new(version), own: OnceLock::new() };
        Self { shared, state, alias: Some(Arc::new(alias)) }
    }

    /// The resource with its own place, if it has one by now.
    #[inline]
    fn placed(&self) -> &Self {
        match &self.alias {
            None => self,
            Some(alias) => self.placed_by(alias),
        }
    }

    #[cold]
    fn placed_by<'a>(&'a self, alias: &'a Alias) -> &'a Self {
        if let Some(own) = alias.own.get() {
            return own;
        }
        // Who sees a version finds its rules or newer ones, and may look in vain once more.
        let version = self.shared.version.load(Ordering::Acquire);
        if alias.version.load(Ordering::Acquire) != version {
            if let Some(state) = self.shared.own_state(&alias.name, false) {
                return alias.own.get_or_init(|| Self::new(self.shared.clone(), state));
            }
            alias.version.store(version, Ordering::Release);
        }
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.alias.as_ref().map_or(&self.state.name, |alias| &alias.name)
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.alias.as_ref().map_or(&self.state.name, |alias| &alias.name).clone()
    }

    /// Whether the gate had no place for this resource, so that it shares statistics (and the rules of patterns) with
    /// all others in the same case: see [`GateBuilder::max_resources`](crate::GateBuilder::max_resources). When a rule
    /// is loaded that names the resource, it gets a place, and this becomes false.
    #[must_use]
    pub fn is_overflow(&self) -> bool {
        self.placed().alias.is_some()
    }

    /// An entry with options: a count, an origin, arguments, and so on.
    pub fn entry(&self) -> Entry<'_> {
        Entry::new(self.placed())
    }

    /// Enters with one unit, outbound: see [`Gate::enter`](crate::Gate::enter).
    ///
    /// # Errors
    /// When a rule blocks.
    #[inline]
    pub fn enter(&self) -> Result<Guard<'_>, Blocked> {
        let placed = self.placed();
        admit::admit_plain(placed, 1, false).map(|pass| Guard::new(placed, pass))
    }

    /// As [`enter`](Self::enter), with a guard that borrows nothing.
    ///
    /// # Errors
    /// When a rule blocks.
    pub fn enter_owned(&self) -> Result<OwnedGuard, Blocked> {
        self.entry().enter_owned()
    }

    /// The resource's statistics.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.placed().state.node
    }

    /// The statistics of the entries from one origin, if any came.
    #[must_use]
    pub fn origin(&self, origin: &str) -> Option<Arc<Node>> {
        self.placed().state.origins.get(origin)
    }

    /// The statistics of the entries within one context, if any came.
    #[must_use]
    pub fn context(&self, context: &str) -> Option<Arc<Node>> {
        self.placed().state.contexts.get(context)
    }

    /// The origins that have statistics, in order.
    #[must_use]
    pub fn origins(&self) -> Vec<String> {
        self.placed().state.origins.names()
    }

    /// The contexts that have statistics, in order.
    #[must_use]
    pub fn contexts(&self) -> Vec<String> {
        self.placed().state.contexts.names()
    }

    /// Where each of the resource's breakers stands, with its rule's id or what the rule says.
    #[must_use]
    pub fn breakers(&self) -> Vec<(String, BreakerState)> {
        let state = &self.placed().state;
        state.kind(&self.shared);
        let rules = state.rules();
        let breakers = rules.iter().flat_map(|rules| &rules.breakers);
        breakers.map(|breaker| (breaker.label.to_string(), breaker.state())).collect()
    }

    /// How many units each of the resource's adaptive rules lets be in flight now, with its id or what it says.
    #[must_use]
    pub fn adaptive_limits(&self) -> Vec<(String, u64)> {
        let state = &self.placed().state;
        state.kind(&self.shared);
        let rules = state.rules();
        let adaptive = rules.iter().flat_map(|rules| &rules.adaptive);
        adaptive.map(|adaptive| (adaptive.label.to_string(), adaptive.units())).collect()
    }

    /// Entries whose origin, context or argument value found no place of its own, ever: they shared one with others, or
    /// were counted in the resource alone.
    #[must_use]
    pub fn crowded(&self) -> u64 {
        let state = &self.placed().state;
        let rules = state.rules();
        let values: u64 = rules.iter().flat_map(|rules| &rules.params).map(|param| param.crowded()).sum();
        values + state.origins.left_out() + state.contexts.left_out()
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("name", &self.name()).finish_non_exhaustive()
    }
}
