//! Steps on a key's state. Most are on a known key that nothing but the general policy concerns: its
//! state is locked without waiting and without a reference to the generation.
#![allow(unsafe_code)] // The policy is read without a reference to its generation.

use tidegate_core::{Algorithm, Nanos, Policy};

use super::{KeyedLimiter, generation::NoStep};
use crate::{
    eras::Site,
    sync::yield_now,
    table::{Bucket, NotNear, Tag},
};

/// A key's state and the general policy, which decides on it.
pub(crate) struct NearKey<'a> {
    policy: &'a Policy,
    site: Site<'a>,
    bucket: Bucket<'a>,
    cell: usize,
}

impl NearKey<'_> {
    /// The policy and the words of the state.
    #[inline]
    pub fn parts(&mut self) -> (&Policy, &mut [u64]) {
        (self.policy, self.bucket.state(self.cell))
    }
}

impl<'a> NearKey<'a> {
    /// What the place of units in this state depends on.
    #[inline]
    pub fn site(&self) -> Site<'a> {
        self.site
    }
}

impl<C: ?Sized> KeyedLimiter<C> {
    /// Locks a known key's state if no thread holds it, and no exception, waiter, change of policy
    /// or reset of all keys concerns it.
    #[inline]
    pub(crate) fn try_near(&self, tag: Tag) -> Result<NearKey<'_>, NotNear> {
        let generation = self.generations.newest();
        let (bucket, cell) = generation.table().try_near(tag)?;
        // Checked under the key's lock, as in `decide`.
        if self.marks.has(tag) || generation.is_retired() || self.eras.is_resetting() {
            return Err(NotNear::Other);
        }
        Ok(NearKey {
            // SAFETY: this thread holds the lock of the key's bucket, and the generation is not
            // retired. The policy is given out only while the lock is held.
            policy: unsafe { generation.policy() },
            site: self.eras.site(generation.rate(), Some(tag)),
            bucket,
            cell,
        })
    }

    /// One atomic step on a key's state, with the policy that applies to the key.
    ///
    /// # Errors
    /// If the key is new and the table has no room for it: the time until which it is refused
    /// ([`WhenFull::Deny`](crate::WhenFull::Deny)).
    pub(crate) fn with_state<R>(
        &self,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&Policy, &mut [u64], Site<'_>) -> R,
    ) -> Result<R, Nanos> {
        if let Ok(mut near) = self.try_near(tag) {
            let site = near.site();
            let (policy, state) = near.parts();
            return Ok(step(policy, state, site));
        }
        let mut step = Some(step);
        loop {
            let generation = self.generation_of(tag);
            let policy = generation.policy();
            let site = self.site(&generation, tag);
            let result = generation.apply(policy, tag, now, |state| {
                let step = if self.is_home(tag, &generation) {
                    step.take()
                } else {
                    None
                };
                step.map(|step| step(policy, state, site))
            });
            match result {
                Ok(Some(result)) => return Ok(result),
                Err(NoStep::Refused(until)) => return Err(until),
                // The state has just moved, or is about to.
                Ok(None) | Err(NoStep::Retired) => yield_now(),
            }
        }
    }
}

/// A step by another policy on a state of `mine`. A state with another layout is converted for it
/// and back.
#[inline]
pub(crate) fn step_by<R>(
    mine: &Policy,
    by: &Policy,
    state: &mut [u64],
    now: Nanos,
    step: impl FnOnce(&mut [u64]) -> R,
) -> R {
    if std::ptr::eq(by, mine) || by.reads_states_of(mine) {
        return step(state);
    }
    let mut theirs = vec![0; by.words()];
    by.transfer(&mut theirs, mine, &state[..mine.words()], now);
    let before = theirs.clone();
    let result = step(&mut theirs);
    // A step without an effect leaves the state as exact as it was.
    if theirs != before {
        let state = &mut state[..mine.words()];
        let mut after = vec![0; mine.words()];
        mine.transfer(&mut after, by, &theirs, now);
        if by.penalty().is_none() {
            mine.keep_block(&mut after, state);
        }
        if mine.is_concurrency() == by.is_concurrency() {
            state.copy_from_slice(&after);
        } else {
            // Permits and units of a rate do not become each other: only what was taken now counts.
            let taken = by.used(&theirs, now).saturating_sub(by.used(&before, now));
            mine.charge(state, now, taken);
            mine.keep_block(state, &after);
        }
    }
    result
}
