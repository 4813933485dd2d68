//! Changing a policy while others decide: nothing that was used is forgotten.

use std::sync::{Arc, PoisonError};

use tidegate_core::{Algorithm, Nanos, Policy};
use tidegate_keyed::Tag;

use super::{BuildError, Generation, KeyedLimiter};

impl<C> KeyedLimiter<C> {
    /// Changes the policy of keys without one of their own, and keeps what has been used (see [`Policy::transfer`]).
    ///
    /// Decisions go on meanwhile; a key's state moves over when it is asked for, at the latest when this returns. Both
    /// tables are in memory until then.
    ///
    /// # Errors
    /// When the memory for the new states cannot be reserved; then nothing has changed.
    pub fn set_policy_at(&self, policy: impl Into<Policy>, now: Nanos) -> Result<(), BuildError> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.current.load_full();
        let policy = policy.into();
        if policy == old.policy {
            return Ok(());
        }
        let new = Arc::new(Generation::new(policy, self.max_keys, self.hash, Some(Arc::clone(&old)))?);
        old.retire();
        self.current.store(Arc::clone(&new));
        let mut tags = Vec::new();
        old.table.for_each(|tag, _| tags.push(tag));
        for tag in tags {
            // A key of its own already, or one to be moved: in both cases it is here afterwards. This generation cannot
            // be retired meanwhile, as that takes the lock that is held.
            let _ = new.apply(&policy, tag, now, |_| ());
        }
        old.table.for_each_debt(|cell, owed| {
            let mut converted = vec![0; policy.words()];
            new.receive(&mut converted, &old.policy, owed, now);
            new.table.join_debt(&policy, cell, &converted, now);
        });
        new.previous.store(None);
        Ok(())
    }

    /// Gives one key a policy of its own, keeping what it has used.
    ///
    /// # Errors
    /// When as many keys have exceptions as the limiter may hold keys, or there is no memory.
    pub fn set_override_at(
        &self,
        key: impl AsRef<[u8]>,
        policy: impl Into<Policy>,
        now: Nanos,
    ) -> Result<(), BuildError> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = self.tag(key.as_ref());
        let (policy, old) = (policy.into(), self.generation_of(tag));
        let own = Generation::new(policy, 1, self.hash, None)?;
        let own = Arc::new(own);
        let replaced =
            self.exceptions.change(tag, now, |exception| exception.own.replace(Arc::clone(&own)))?;
        if let Some(replaced) = &replaced {
            replaced.retire();
        }
        move_key(tag, &old, &own, now);
        Ok(())
    }

    /// Takes a key's own policy away; what it has used counts on. Returns whether it had one.
    pub fn remove_override_at(&self, key: impl AsRef<[u8]>, now: Nanos) -> bool {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = self.tag(key.as_ref());
        // The only error is a new key beyond the bound, which has none.
        let Ok(Some(own)) = self.exceptions.change(tag, now, |exception| exception.own.take()) else {
            return false;
        };
        own.retire();
        move_key(tag, &own, &self.current.load_full(), now);
        true
    }
}

/// Joins what a key has in use in one generation into another, where it may have been used already.
fn move_key(tag: Tag, from: &Generation, to: &Generation, now: Nanos) {
    let old = from.table.remove(tag, <[u64]>::to_vec);
    if let Some(old) = old {
        // Not retired: that takes the lock that the caller holds.
        let _ = to.apply(&to.policy, tag, now, |state| to.receive(state, &from.policy, &old, now));
    }
}
