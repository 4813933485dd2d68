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

use crate::table::{Found, Refused, Table, TableError, Tag, WhenFull};
use tidegate_core::{Algorithm, Debt, Nanos, Policy};

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

/// Why a generation made no step.
#[derive(Debug)]
pub(crate) enum NoStep {
    /// It was left for a newer one.
    Retired,
    /// The key is new and has no place until then ([`WhenFull::Deny`]).
    Refused(Nanos),
}

impl From<Refused> for NoStep {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full { until } => Self::Refused(until),
            Refused::Closed => Self::Retired,
        }
    }
}

impl Generation {
    pub fn new(
        policy: Policy,
        max_keys: usize,
        when_full: WhenFull,
        previous: Option<Arc<Self>>,
    ) -> Result<Self, TableError> {
        let table = Table::new(policy.words(), max_keys)?.when_full(when_full);
        let complete = AtomicBool::new(previous.is_none());
        let number = previous.as_ref().map_or(0, |previous| previous.number + 1);
        Ok(Self { policy, table, is_own: false, number, retired: AtomicBool::new(false), previous, complete })
    }

    /// A place for one key with a policy of its own.
    pub fn own(policy: Policy) -> Result<Self, TableError> {
        Ok(Self { is_own: true, ..Self::new(policy, 1, WhenFull::Forget, None)? })
    }

    /// Which of one limiter's tables is locked first: a newer generation before the one that it takes states over from,
    /// a key's own after the general ones.
    pub const fn rank(&self) -> u64 {
        if self.is_own { u64::MAX } else { u64::MAX - 1 - self.number }
    }

    /// Makes sure that a key has nothing left in the generation before. Only one key's locks are held for it.
    pub fn bring(&self, tag: Tag, now: Nanos) -> Result<(), NoStep> {
        if self.incomplete().is_none() {
            return Ok(());
        }
        match self.apply(&self.policy, tag, now, |_| ()) {
            // Unknown in both, or in its record.
            Err(NoStep::Refused(_)) => Ok(()),
            done => done,
        }
    }

    /// One atomic step on a key's state.
    #[inline]
    pub fn apply<R>(
        &self,
        policy: &Policy,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64]) -> R,
    ) -> Result<R, NoStep> {
        if self.table.denies_when_full()
            && let Some(previous) = self.incomplete()
        {
            // A key of the generation before is no stranger: it has a record here before it asks for a place.
            let keep = |old: &[u64]| self.keep(tag, &previous.policy, old, now);
            previous.table.take_out(&previous.policy, tag, now, keep);
        }
        self.table.apply(policy, tag, now, |state, found| {
            if self.is_retired() {
                return Err(NoStep::Retired);
            }
            if found == Found::New {
                self.take_over(tag, state, now);
            }
            Ok(step(state))
        })?
    }

    /// A look at a key's state, without adding it.
    pub fn look<R>(&self, tag: Tag, now: Nanos, step: impl FnOnce(&mut [u64]) -> R) -> Result<R, NoStep> {
        // The generation before first: whatever moves meanwhile is seen here or there.
        let before = self.incomplete().and_then(|previous| {
            previous.table.look(&previous.policy, tag, now, |old, _| {
                (!previous.policy.is_recovered(old, now)).then(|| self.converted(&previous.policy, old, now))
            })
        });
        self.table.look(&self.policy, tag, now, |state, found| {
            if self.is_retired() {
                return Err(NoStep::Retired);
            }
            match before {
                Some(before) if found == Found::New => {
                    let mut joined = state.to_vec();
                    self.policy.join(&mut joined, &before, now);
                    Ok(step(&mut joined))
                }
                _ => Ok(step(state)),
            }
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
        if self.previous.is_none() {
            return;
        }
        if let Some(previous) = self.incomplete() {
            let receive = |old: &[u64]| self.receive(state, &previous.policy, old, now);
            previous.table.take_out(&previous.policy, tag, now, receive);
        }
        // Its record may have moved since the table looked for one here.
        self.table.take_record(&self.policy, tag, now, state);
    }

    /// Forgets what a key has in use; returns whether there was anything.
    pub fn reset(&self, tag: Tag, now: Nanos) -> bool {
        // The generation before first: what moves meanwhile moves here.
        let moved = self.incomplete().and_then(|previous| {
            previous.table.take_out(&previous.policy, tag, now, |old| !previous.policy.is_recovered(old, now))
        });
        let here = self.table.take_out(&self.policy, tag, now, |state| !self.policy.is_recovered(state, now));
        moved == Some(true) || here == Some(true)
    }

    /// What of a debt under another policy is left here.
    pub fn receive_debt(&self, from: &Policy, debt: Debt, now: Nanos) -> Option<Debt> {
        if *from == self.policy {
            return Some(debt);
        }
        let mut old = vec![0; from.words()];
        from.owe(&mut old, debt);
        self.policy.debt(&self.converted(from, &old, now), now)
    }

    /// Puts down what a key of another policy that has no place here owes.
    pub fn keep(&self, tag: Tag, from: &Policy, old: &[u64], now: Nanos) {
        if let Some(debt) = self.policy.debt(&self.converted(from, old, now), now) {
            self.table.keep(tag, debt, now);
        }
    }

    /// Joins into `state` what `old`, a state of another policy, has in use.
    pub fn receive(&self, state: &mut [u64], from: &Policy, old: &[u64], now: Nanos) {
        self.policy.join(state, &self.converted(from, old, now), now);
    }

    fn converted(&self, from: &Policy, old: &[u64], now: Nanos) -> Vec<u64> {
        let mut converted = vec![0; self.policy.words()];
        self.policy.transfer(&mut converted, from, old, now);
        converted
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
