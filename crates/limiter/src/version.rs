//! The policy of a limiter without keys, together with its state: both change in one step while
//! other threads decide.
//!
//! A change of policy moves the state from the cell of the old version to that of the new one,
//! holding both. The old cell stays locked, so a thread that comes to it late does nothing there,
//! and looks up the current version again.
//!
//! It is unknown when the last reader has left a version: tracking that would cost each decision
//! more than the decision itself. So a version is kept, and used again when its policy returns: a
//! late thread that finds it open then decides by the policy that it read, in a cell that is
//! current. A version that is not current holds no state; it takes about 400 bytes.
//!
//! After [`MOST`] versions comes the last one, whose policy and state are behind a lock, so that
//! both can change any number of times. Its cell is locked for ever: a decision looks behind the
//! lock once it has found the cell locked, and the others pay nothing for it.
#![allow(unsafe_code)] // The version in force is reached by a pointer.

use std::sync::{Arc, PoisonError};

use tidegate_core::{
    Algorithm, Decision, Nanos, Policy,
    cell::{Backoff, StateCell, StateGuard},
};

use crate::eras::Eras;
use crate::sync::{AtomicPtr, AtomicU64, Mutex, MutexGuard, Ordering};

/// The maximum number of policies that decide without a lock.
const MOST: usize = if cfg!(loom) { 2 } else { 64 };

/// A policy and its state.
pub(crate) struct Version {
    policy: Policy,
    cell: StateCell,
    /// In the last version, what decides instead.
    last: Option<Mutex<Last>>,
}

/// A policy and its state, which change together.
pub(crate) struct Last {
    policy: Policy,
    state: Vec<u64>,
}

/// The versions of a limiter: one for each of its first policies, and one for all others. One of
/// them is current.
pub(crate) struct Versions {
    current: AtomicPtr<Version>,
    /// Locked during a change. Nothing is ever removed.
    all: Mutex<Vec<Arc<Version>>>,
    /// How often `current` was replaced. A version returns with its policy, so its address does not
    /// show a change.
    changes: AtomicU64,
}

/// The current version, locked.
pub(crate) struct LockedVersion<'a> {
    /// Identifies the time for which the policy is in force.
    pub rate: u64,
    held: Held<'a>,
}

enum Held<'a> {
    Cell(&'a Policy, StateGuard<'a>),
    Last(MutexGuard<'a, Last>),
}

impl LockedVersion<'_> {
    /// The policy and the words of the state.
    pub fn parts(&mut self) -> (&Policy, &mut [u64]) {
        match &mut self.held {
            Held::Cell(policy, state) => (policy, state.words()),
            Held::Last(last) => last.parts(),
        }
    }
}

impl Last {
    fn parts(&mut self) -> (&Policy, &mut [u64]) {
        (&self.policy, &mut self.state)
    }
}

impl Version {
    fn new(policy: Policy) -> Arc<Self> {
        Arc::new(Self {
            policy,
            cell: StateCell::new(policy.words()),
            last: None,
        })
    }

    fn last(policy: Policy) -> Arc<Self> {
        let cell = StateCell::new(policy.words());
        cell.lock().retire();
        let state = vec![0; policy.words()];
        let last = Some(Mutex::new(Last { policy, state }));
        Arc::new(Self { policy, cell, last })
    }

    /// What is behind the lock, in the last version.
    fn behind(&self) -> Option<MutexGuard<'_, Last>> {
        let last = self.last.as_ref()?;
        // A step that panics midway has changed only words.
        Some(last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Versions {
    pub fn new(policy: Policy) -> Self {
        let first = Version::new(policy);
        let current = AtomicPtr::new(Arc::as_ptr(&first).cast_mut());
        Self {
            current,
            all: Mutex::new(vec![first]),
            changes: AtomicU64::new(0),
        }
    }

    /// The current version, or one that was just replaced: its cell shows which.
    #[inline]
    fn current(&self) -> &Version {
        // Acquire: the data behind the pointer is visible with the pointer.
        // SAFETY: it points to one of `all`, from which nothing is ever removed.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// The current policy.
    pub fn policy(&self) -> Policy {
        let version = self.current();
        version.behind().map_or(version.policy, |last| last.policy)
    }

    /// How often the current version was replaced.
    pub fn changes(&self) -> u64 {
        // Acquire: a later read of `current` sees this change's version, or a newer one.
        self.changes.load(Ordering::Acquire)
    }

    /// Decides, if no other thread holds the state.
    #[inline(always)]
    #[allow(clippy::inline_always)] // In the caller most of a decision is never looked at, and falls away.
    pub fn try_decide(&self, now: impl FnOnce() -> Nanos, cost: u64) -> Option<Decision> {
        let version = self.current();
        version.cell.try_decide(&version.policy, now, cost)
    }

    /// Decides in one attempt, if no other thread holds the state or is faster.
    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    pub fn try_decide_once(&self, now: impl FnOnce() -> Nanos, cost: u64) -> Option<Decision> {
        let version = self.current();
        version.cell.try_decide_once(&version.policy, now, cost)
    }

    /// Decides, after waiting for a thread that holds the state.
    pub fn decide(&self, now: Nanos, cost: u64) -> Decision {
        retry(|| {
            let decided = self.try_decide(|| now, cost);
            decided.or_else(|| {
                let mut last = self.current().behind()?;
                let (policy, state) = last.parts();
                Some(policy.decide(state, now, cost))
            })
        })
    }

    /// One atomic step on the state. The closure may run more than once and must change nothing but
    /// the words.
    pub fn apply<R>(&self, mut step: impl FnMut(&Policy, &mut [u64]) -> R) -> R {
        retry(|| {
            let version = self.current();
            if let Some(mut last) = version.behind() {
                let (policy, state) = last.parts();
                return Some(step(policy, state));
            }
            version.cell.try_apply(|state| step(&version.policy, state))
        })
    }

    /// Locks the current version.
    pub fn lock(&self) -> LockedVersion<'_> {
        retry(|| {
            self.try_lock().or_else(|| {
                let last = self.current().behind()?;
                Some(self.locked(Held::Last(last)))
            })
        })
    }

    /// Locks the current version if no thread holds it. The last one is never locked here.
    pub fn try_lock(&self) -> Option<LockedVersion<'_>> {
        let version = self.current();
        let state = version.cell.try_lock()?;
        Some(self.locked(Held::Cell(&version.policy, state)))
    }

    fn locked<'a>(&self, held: Held<'a>) -> LockedVersion<'a> {
        LockedVersion {
            // Relaxed: it changes while both states are locked.
            rate: self.changes.load(Ordering::Relaxed),
            held,
        }
    }

    /// Makes another policy current, and moves the usage to it.
    pub fn change(&self, now: Nanos, eras: &Eras, to: impl FnOnce(&Policy) -> Policy) {
        // No change panics midway.
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.current();
        if let Some(mut last) = old.behind() {
            let policy = to(&last.policy);
            if last.policy != policy {
                let mut state = vec![0; policy.words()];
                eras.change_policy(&last.policy, &policy, now);
                policy.transfer(&mut state, &last.policy, &last.state, now);
                *last = Last { policy, state };
                self.changes.fetch_add(1, Ordering::Release);
            }
            return;
        }
        let policy = to(&old.policy);
        if old.policy == policy {
            return;
        }
        let new = if let Some(known) = all.iter().find(|version| version.policy == policy) {
            Arc::clone(known)
        } else {
            let new = if all.len() < MOST {
                Version::new(policy)
            } else {
                Version::last(policy)
            };
            all.push(Arc::clone(&new));
            new
        };
        // Changes come one at a time, so this stays the current version to the end, and is open.
        let mut before = old.cell.lock();
        let mut after = match new.behind() {
            Some(last) => Held::Last(last),
            // Retired, or new and not yet visible to other threads.
            None => Held::Cell(
                &new.policy,
                new.cell
                    .resume(policy.words())
                    .unwrap_or_else(|| new.cell.lock()),
            ),
        };
        let state = match &mut after {
            Held::Cell(_, state) => state.words(),
            Held::Last(last) => &mut last.state,
        };
        eras.change_policy(&old.policy, &policy, now);
        policy.transfer(state, &old.policy, before.words(), now);
        // Release: see `current`. No thread decides in a version that is not current: it is locked
        // until then.
        self.current
            .store(Arc::as_ptr(&new).cast_mut(), Ordering::Release);
        // Release: see `changes`.
        self.changes.fetch_add(1, Ordering::Release);
        drop(after);
        before.retire();
    }
}

/// Tries until there is a result: each time the current version has changed, or another thread
/// holds it for a moment.
#[inline]
fn retry<R>(mut step: impl FnMut() -> Option<R>) -> R {
    let mut backoff = Backoff::new();
    loop {
        if let Some(result) = step() {
            return result;
        }
        backoff.wait();
    }
}
