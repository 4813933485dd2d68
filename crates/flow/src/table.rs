//! The resources of a gate, by name.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::{shared::Shared, state::State};

/// The name of the statistics that resources share which found no place of their own.
pub const OVERFLOW: &str = "*overflow*";

/// How far the tree fans out at its root, and at each state below: powers of two. With four, a resource's place takes a hundred
/// bytes, and a hundred thousand resources are some five steps deep.
const ROOTS: usize = 256;
const FAN: usize = 4;

/// The states of a bounded number of resources, and one for all others.
///
/// A tree in which the bits of a name's hash are the way to its state. Nothing is ever taken out of it, so whoever looks a name
/// up needs no lock, and writes nothing that another thread reads; who adds one waits for others who do.
pub(crate) struct Table {
    pub(crate) shared: Arc<Shared>,
    most: usize,
    roots: Box<[Child]>,
    growing: Mutex<()>,
    /// Of states in the tree; changed after it, while `growing` is held.
    count: AtomicUsize,
    overflow: OnceLock<Arc<State>>,
    overflowed: AtomicU64,
    hasher: RandomState,
}

type Child = OnceLock<Box<Branch>>;

struct Branch {
    hash: u64,
    state: Arc<State>,
    below: [Child; FAN],
}

impl Table {
    pub(crate) fn new(shared: Shared, most: usize) -> Self {
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

    /// The state of a resource: its own, or that of all that found no place.
    pub(crate) fn state(&self, name: &str) -> Arc<State> {
        self.own_state(name).unwrap_or_else(|| self.overflow())
    }

    /// The state of a resource, if it has one, a rule names it or there is a place for it.
    pub(crate) fn own_state(&self, name: &str) -> Option<Arc<State>> {
        self.find_or_place(name, || self.shared.loaded.set().names(name))
    }

    /// The state of a resource, which gets one however many there are.
    pub(crate) fn needed_state(&self, name: &str) -> Arc<State> {
        self.find_or_place(name, || true).unwrap_or_else(|| self.overflow())
    }

    fn find_or_place(&self, name: &str, needed: impl FnOnce() -> bool) -> Option<Arc<State>> {
        let hash = self.hasher.hash_one(name);
        if let Ok(state) = self.find(hash, name) {
            return Some(state.clone());
        }
        let needed = needed();
        // Acquire: who sees the count finds the states that were counted.
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
        let state = Arc::new(State::new(name.into(), self.shared.clone()));
        let branch = || Branch { hash, state: state.clone(), below: Default::default() };
        place.get_or_init(|| Box::new(branch()));
        self.count.store(count + 1, Ordering::Release);
        Some(state)
    }

    /// The state of a name, or else the place where it would be.
    fn find(&self, hash: u64, name: &str) -> Result<&Arc<State>, &Child> {
        let mut place = &self.roots[hash as usize % ROOTS];
        let mut way = hash / ROOTS as u64;
        while let Some(branch) = place.get() {
            if branch.hash == hash && *branch.state.name == *name {
                return Ok(&branch.state);
            }
            place = &branch.below[way as usize % FAN];
            // Where the bits have run out, names whose hashes are equal are one behind the other.
            way /= FAN as u64;
        }
        Err(place)
    }

    /// The state of all that find no place of their own.
    fn overflow(&self) -> Arc<State> {
        // Relaxed: a count for people.
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow.get_or_init(|| Arc::new(State::new(OVERFLOW.into(), self.shared.clone()))).clone()
    }

    /// How often somebody was sent there.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// How many resources have a place.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All states in the order of their names; that of all others last, if it is used.
    pub(crate) fn states(&self) -> Vec<Arc<State>> {
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
