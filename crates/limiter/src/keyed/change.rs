//! Changing a policy while others decide: nothing that was used is forgotten.

use std::sync::{Arc, PoisonError};

use tidegate_core::{Nanos, Policy};

use super::{BuildError, Generation, KeyedLimiter};
use crate::table::Cursor;

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
        let old = Arc::clone(self.generations.current());
        let policy = policy.into();
        if policy == old.policy {
            return Ok(());
        }
        let new = Arc::new(Generation::new(policy, self.max_keys, self.when_full, Some(Arc::clone(&old)))?);
        old.retire();
        self.generations.push(Arc::clone(&new));
        // Who began in the old table before it was retired may still add a key there, and move another.
        old.table.close();
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let mut tags = Vec::new();
            cursor = old.table.walk(from, |tag, _| tags.push(tag));
            for tag in tags {
                // A key of its own already, or one to be moved: in both cases it is here afterwards. This generation
                // cannot be retired meanwhile, as that takes the lock that is held.
                let _ = new.apply(&policy, tag, now, |_| ());
            }
        }
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let convert = |debt| new.receive_debt(&old.policy, debt, now);
            cursor = old.table.move_records(from, &new.table, now, convert);
        }
        new.finish();
        self.serve_all(now);
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
        let own = Arc::new(Generation::own(policy)?);
        // In one step under the key's lock in its old place: the state moves, and everybody else is sent after it.
        let moved = old.apply(&old.policy, tag, now, |state| {
            let _ = own.apply(&policy, tag, now, |mine| own.receive(mine, &old.policy, state, now));
            let replaced = self
                .exceptions
                .change(&self.marks, tag, now, |exception| exception.own.replace(Arc::clone(&own)))?;
            state.fill(0);
            if let Some(replaced) = replaced {
                replaced.retire();
            }
            Ok::<(), BuildError>(())
        });
        match moved {
            Ok(done) => done?,
            // Not retired: that takes the lock that is held. It has no place, and so nothing to move.
            Err(_) => self.exceptions.change(&self.marks, tag, now, |exception| exception.own = Some(own))?,
        }
        self.serve(tag, now);
        Ok(())
    }

    /// Takes a key's own policy away; what it has used counts on. Returns whether it had one.
    pub fn remove_override_at(&self, key: impl AsRef<[u8]>, now: Nanos) -> bool {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = self.tag(key.as_ref());
        let Some(own) = self.exceptions.get(tag).and_then(|exception| exception.own) else { return false };
        let general = self.generations.current();
        // As above, and the general table's lock before the own one's, there as here.
        let _ = general.apply(&general.policy, tag, now, |state| {
            own.retire();
            own.table.take_out(&own.policy, tag, now, |old| general.receive(state, &own.policy, old, now));
            // The only error is a new key beyond the bound; this one is not new.
            let _ = self.exceptions.change(&self.marks, tag, now, |exception| exception.own = None);
        });
        self.serve(tag, now);
        true
    }
}
