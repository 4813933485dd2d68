//! A known key's state, locked without waiting, for a decision over several.
#![allow(unsafe_code)] // The policy is read without a reference to its generation.

use tidegate_core::Policy;

use super::KeyedLimiter;
use crate::{
    eras::Site,
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
}
