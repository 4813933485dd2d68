//! A policy and the states that it is for.
//!
//! A change of policy makes a new generation. From then on a key's state lives in the old one until the key is asked
//! for (or the change gets to it), and is then moved over, once:
//!
//! * the old generation is retired *before* the new one can be seen;
//! * whoever decides in the old one looks at the retirement under the bucket's lock, so either its effect is there
//!   when the state is taken out under that lock, or it sees the retirement and starts again in the new one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwapOption;
use tidegate_core::{Algorithm, Nanos, Policy};
use tidegate_keyed::{Found, HashKeys, Table, TableError, Tag};

pub(crate) struct Generation {
    pub policy: Policy,
    pub table: Table,
    /// No decision is made here any more.
    retired: AtomicBool,
    /// Where states of before the change still are.
    pub(super) previous: ArcSwapOption<Generation>,
}

/// A generation that was left for a newer one.
#[derive(Debug)]
pub(crate) struct Retired;

impl Generation {
    pub fn new(
        policy: Policy,
        max_keys: usize,
        hash: HashKeys,
        previous: Option<Arc<Self>>,
    ) -> Result<Self, TableError> {
        let table = Table::new(policy.words(), max_keys, hash)?;
        Ok(Self { policy, table, retired: AtomicBool::new(false), previous: ArcSwapOption::new(previous) })
    }

    /// One atomic step on a key's state.
    #[inline]
    pub fn apply<R>(
        &self,
        policy: &Policy,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64]) -> R,
    ) -> Result<R, Retired> {
        self.table.apply(policy, tag, now, |state, found| {
            if self.is_retired() {
                return Err(Retired);
            }
            if found == Found::New {
                self.take_over(tag, state, now);
            }
            Ok(step(state))
        })
    }

    /// A look at a key's state, without adding it.
    pub fn look<R>(&self, tag: Tag, now: Nanos, step: impl FnOnce(&mut [u64]) -> R) -> Result<R, Retired> {
        self.table.look(&self.policy, tag, now, |state, found| {
            if self.is_retired() {
                return Err(Retired);
            }
            if let (Found::New, Some(previous)) = (found, self.previous.load_full()) {
                previous.table.look(&previous.policy, tag, now, |old, _| {
                    self.receive(state, &previous.policy, old, now);
                });
            }
            Ok(step(state))
        })
    }

    /// Relaxed: the bucket's lock, which the caller holds, orders it (see above).
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Moves over what a key that is new here has in the previous generation. The caller holds the key's lock here.
    pub fn take_over(&self, tag: Tag, state: &mut [u64], now: Nanos) {
        let Some(previous) = self.previous.load_full() else { return };
        let moved = previous.table.remove(tag, |old| self.receive(state, &previous.policy, old, now));
        if moved.is_none() {
            let mut owed = vec![0; previous.policy.words()];
            if previous.table.inherit(&previous.policy, tag, &mut owed, now) {
                self.receive(state, &previous.policy, &owed, now);
            }
        }
    }

    /// Joins into `state` what `old`, a state of another policy, has in use.
    pub fn receive(&self, state: &mut [u64], from: &Policy, old: &[u64], now: Nanos) {
        let mut converted = vec![0; self.policy.words()];
        self.policy.transfer(&mut converted, from, old, now);
        self.policy.join(state, &converted, now);
    }
}
