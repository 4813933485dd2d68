//! A policy and the states that it is for.
//!
//! A change of policy makes a new generation. From then on a key's state lives in the old one until the key is asked
//! for (or the change gets to it), and is then moved over, once:
//!
//! * the old generation is retired *before* the new one can be seen;
//! * whoever decides in the old one looks at the retirement under the bucket's lock, so either its effect is there
//!   when the state is taken out under that lock, or it sees the retirement and starts again in the new one.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use crate::table::{Found, Table, TableError, Tag};
use tidegate_core::{Algorithm, Nanos, Policy};

pub(crate) struct Generation {
    pub policy: Policy,
    pub table: Table,
    /// Whether this is one key's own, not the general one.
    pub is_own: bool,
    /// How many general ones there were before.
    number: u64,
    /// No decision is made here any more.
    retired: AtomicBool,
    /// Where states of before the change are, until they have been moved.
    previous: Option<Arc<Generation>>,
    /// All states have been moved; or there never were any.
    complete: AtomicBool,
}

/// A generation that was left for a newer one.
#[derive(Debug)]
pub(crate) struct Retired;

impl Generation {
    pub fn new(policy: Policy, max_keys: usize, previous: Option<Arc<Self>>) -> Result<Self, TableError> {
        let table = Table::new(policy.words(), max_keys)?;
        let complete = AtomicBool::new(previous.is_none());
        let number = previous.as_ref().map_or(0, |previous| previous.number + 1);
        Ok(Self { policy, table, is_own: false, number, retired: AtomicBool::new(false), previous, complete })
    }

    /// A place for one key with a policy of its own.
    pub fn own(policy: Policy) -> Result<Self, TableError> {
        Ok(Self { is_own: true, ..Self::new(policy, 1, None)? })
    }

    /// Which of one limiter's tables is locked first: a newer generation before the one that it takes states over from,
    /// a key's own after the general ones.
    pub const fn rank(&self) -> u64 {
        if self.is_own { u64::MAX } else { u64::MAX - 1 - self.number }
    }

    /// Makes sure that a key has nothing left in the generation before. Only one key's locks are held for it.
    pub fn bring(&self, tag: Tag, now: Nanos) -> Result<(), Retired> {
        if self.incomplete().is_some() { self.apply(&self.policy, tag, now, |_| ()) } else { Ok(()) }
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
            if let (Found::New, Some(previous)) = (found, self.incomplete()) {
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

    /// The generation before, while it may still have states.
    fn incomplete(&self) -> Option<&Self> {
        // Acquire: who sees that all has been moved also sees where to.
        if self.complete.load(Ordering::Acquire) { None } else { self.previous.as_deref() }
    }

    /// Everything that the generation before had is here now; its memory goes back to the system.
    pub fn finish(&self) {
        self.complete.store(true, Ordering::Release);
        if let Some(previous) = &self.previous {
            previous.table.release();
        }
    }

    /// Moves over what a key that is new here has in the previous generation. The caller holds the key's lock here.
    fn take_over(&self, tag: Tag, state: &mut [u64], now: Nanos) {
        let Some(previous) = self.incomplete() else { return };
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

/// All generations of a limiter, of which the last one decides: a chain from the first.
///
/// Those before are kept for whoever has just read that they decide; their memory has gone back to the system. So a
/// decision needs no lock to find its generation, and pays one plain load for each change of policy there ever was.
pub(crate) struct Generations {
    first: Link,
}

struct Link {
    generation: Arc<Generation>,
    next: OnceLock<Box<Link>>,
}

impl Link {
    const fn new(generation: Arc<Generation>) -> Self {
        Self { generation, next: OnceLock::new() }
    }
}

impl Generations {
    pub fn new(first: Generation) -> Self {
        Self { first: Link::new(Arc::new(first)) }
    }

    #[inline]
    pub fn current(&self) -> &Arc<Generation> {
        match self.first.next.get() {
            None => &self.first.generation,
            Some(next) => Self::last(next),
        }
    }

    #[cold]
    fn last(mut link: &Link) -> &Arc<Generation> {
        while let Some(next) = link.next.get() {
            link = next;
        }
        &link.generation
    }

    /// Adds the next one. Changes come one at a time.
    pub fn push(&self, next: Arc<Generation>) {
        let mut link = &self.first;
        while let Some(further) = link.next.get() {
            link = further;
        }
        // Nobody else pushes, so the place is free.
        let _ = link.next.set(Box::new(Link::new(next)));
    }
}

/// The generation where a key's state lives.
pub(crate) enum Home<'a> {
    General(&'a Arc<Generation>),
    Own(Arc<Generation>),
}

impl std::ops::Deref for Home<'_> {
    type Target = Generation;

    #[inline]
    fn deref(&self) -> &Generation {
        match self {
            Self::General(generation) => generation,
            Self::Own(generation) => generation,
        }
    }
}
