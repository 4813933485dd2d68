//! The resources of a gate, by name.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::call::{gate_state::GateState, state::ResourceState};

/// The name of the resource that collects the statistics of all resources without a place in the
/// table.
pub const OVERFLOW: &str = "*overflow*";

/// The fan-out of the tree at its root, and at each state below. Both are powers of two. With a
/// fan-out of four, a resource's place takes a hundred bytes, and a hundred thousand resources are
/// about five steps deep.
const ROOTS: usize = 256;
const FAN: usize = 4;

/// The states of a bounded number of resources, and one state that all others share.
///
/// This is a tree in which the bits of a name's hash are the path to its state. Nothing is ever
/// removed, so a lookup needs no lock and writes nothing that another thread reads. An insertion
/// waits for other insertions.
pub(crate) struct Table {
    pub(crate) shared: Arc<GateState>,
    most: usize,
    roots: Box<[Child]>,
    growing: Mutex<()>,
    /// The number of states in the tree. It is updated after the tree, while `growing` is held.
    count: AtomicUsize,
    overflow: OnceLock<Arc<ResourceState>>,
    overflowed: AtomicU64,
    hasher: RandomState,
}

type Child = OnceLock<Box<Branch>>;

struct Branch {
    hash: u64,
    state: Arc<ResourceState>,
    below: [Child; FAN],
}

impl Table {
    pub(crate) fn new(shared: GateState, most: usize) -> Self {
        Self {
            shared: Arc::new(shared),
            most,
            roots: (0..ROOTS).map(|_| Child::new()).collect(),
            growing: Mutex::new(()),
            count: AtomicUsize::new(0),
            overflow: OnceLock::new(),
            overflowed: AtomicU64::new(0),
            hasher: RandomState::new(),
        }
    }

    /// Returns the state of a resource: its own, or the shared overflow state.
    pub(crate) fn state(&self, name: &str) -> Arc<ResourceState> {
        self.own_state(name).unwrap_or_else(|| self.overflow())
    }

    /// Returns the resource's own state, if it has one, a rule names it, or there is room for it.
    pub(crate) fn own_state(&self, name: &str) -> Option<Arc<ResourceState>> {
        self.find_or_place(name, || self.shared.loaded.set().names(name))
    }

    /// Returns the resource's own state and creates it even if the table is full.
    pub(crate) fn needed_state(&self, name: &str) -> Arc<ResourceState> {
        self.find_or_place(name, || true)
            .unwrap_or_else(|| self.overflow())
    }

    fn find_or_place(
        &self,
        name: &str,
        needed: impl FnOnce() -> bool,
    ) -> Option<Arc<ResourceState>> {
        let hash = self.hasher.hash_one(name);
        if let Ok(state) = self.find(hash, name) {
            return Some(state.clone());
        }
        let needed = needed();
        // Acquire: a thread that sees the count finds the states that were counted.
        if !needed && self.count.load(Ordering::Acquire) >= self.most {
            return self.find(hash, name).ok().cloned();
        }
        let _one = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match self.find(hash, name) {
            Ok(state) => return Some(state.clone()),
            Err(place) => place,
        };
        let count = self.count();
        if !needed && count >= self.most {
            return None;
        }
        let state = Arc::new(ResourceState::new(name.into(), self.shared.clone()));
        let branch = || Branch {
            hash,
            state: state.clone(),
            below: Default::default(),
        };
        place.get_or_init(|| Box::new(branch()));
        self.count.store(count + 1, Ordering::Release);
        Some(state)
    }

    /// Returns the state of a name, or else the place where it would be inserted.
    fn find(&self, hash: u64, name: &str) -> Result<&Arc<ResourceState>, &Child> {
        let mut place = &self.roots[hash as usize % ROOTS];
        let mut way = hash / ROOTS as u64;
        while let Some(branch) = place.get() {
            if branch.hash == hash && *branch.state.name == *name {
                return Ok(&branch.state);
            }
            place = &branch.below[way as usize % FAN];
            // When the bits run out, names with equal hashes form a chain.
            way /= FAN as u64;
        }
        Err(place)
    }

    /// Returns the shared state of all resources without a place in the table.
    fn overflow(&self) -> Arc<ResourceState> {
        // Relaxed: the count is only reported.
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow
            .get_or_init(|| Arc::new(ResourceState::new(OVERFLOW.into(), self.shared.clone())))
            .clone()
    }

    /// Returns how many lookups got the overflow state.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Returns how many resources have a place.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns all states sorted by name. The overflow state comes last, if it is in use.
    pub(crate) fn states(&self) -> Vec<Arc<ResourceState>> {
        let mut states = Vec::new();
        let mut places: Vec<&Child> = self.roots.iter().collect();
        while let Some(place) = places.pop() {
            if let Some(branch) = place.get() {
                states.push(branch.state.clone());
                places.extend(&branch.below);
            }
        }
        states.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        states.extend(self.overflow.get().cloned());
        states
    }
}
