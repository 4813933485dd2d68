//! Changing a policy while others decide: nothing that was used is forgotten.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
};

use tidegate_core::{Clock, Key, Nanos, Policy};

use super::{
    Generation, KeyedLimiter, OverrideError, TooManyExceptions,
    generation::{MOST_OLDER, Room},
};
use crate::table::{BuildError, WhenFull};

impl<C> KeyedLimiter<C> {
    /// Changes the policy of keys without one of their own, and keeps what has been used (see [`Policy::transfer`]).
    ///
    /// Returns at once, however many keys there are. A key's state moves over when it is asked for; the rest moves when
    /// the returned [`Change`], or that of a later change, is finished or awaited, and at the latest with the next snapshot.
    /// The tables of both policies are in memory until then. Up to four changes may be unfinished; before a fifth, the states
    /// of the oldest are moved, which takes about a second for a million keys.
    ///
    /// # Errors
    /// When the memory for the new states cannot be reserved; then nothing has changed.
    pub fn set_policy_at(&self, policy: impl Into<Policy>, now: Nanos) -> Result<Change<'_, C>, BuildError> {
        let policy = policy.into();
        self.change_at(now, |_, room| (policy, room))
    }

    /// Changes how many keys there may be, and keeps what each has used. As with a change of policy, states move over when
    /// they are asked for or when the returned [`Change`] is finished, and until then both tables are in memory.
    ///
    /// Where the keys are more than the new bound, those with the least to lose leave a record each. Keys that are blocked or
    /// have a policy of their own stay so, even if they are more than the bound.
    ///
    /// # Errors
    /// When the bound is 0, or the memory for that many states cannot be reserved; then nothing has changed.
    pub fn set_max_keys_at(&self, max_keys: usize, now: Nanos) -> Result<Change<'_, C>, BuildError> {
        self.change_at(now, |policy, room| (policy, Room { max_keys, ..room }))
    }

    /// Changes what happens to a new key when an exhausted key would have to be forgotten for it. The states move as in
    /// [`set_max_keys_at`](Self::set_max_keys_at).
    ///
    /// # Errors
    /// When the memory for the states cannot be reserved a second time; then nothing has changed.
    pub fn set_when_full_at(&self, when_full: WhenFull, now: Nanos) -> Result<Change<'_, C>, BuildError> {
        self.change_at(now, |policy, room| (policy, Room { when_full, ..room }))
    }

    fn change_at(
        &self,
        now: Nanos,
        to: impl FnOnce(Policy, Room) -> (Policy, Room),
    ) -> Result<Change<'_, C>, BuildError> {
        let mut one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.generations.current_full();
        let (policy, room) = to(*old.policy(), *one_at_a_time);
        if policy != *old.policy() || room != *one_at_a_time {
            while old.count_older() >= MOST_OLDER && old.sweep(now) {}
            let new = self.generations.make(policy, room, Arc::clone(&old))?;
            self.exceptions.set_most(room.max_keys);
            self.generations.publish(&old, new);
            *one_at_a_time = room;
        }
        drop((one_at_a_time, old));
        self.serve_all(now);
        Ok(Change { limiter: self })
    }

    /// Gives one key a policy of its own, keeping what it has used.
    ///
    /// # Errors
    /// When as many keys have exceptions as the limiter may hold keys, or there is no memory.
    pub fn set_override_at(
        &self,
        key: impl Key,
        policy: impl Into<Policy>,
        now: Nanos,
    ) -> Result<(), OverrideError> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = self.tag_of(&key);
        let (policy, old) = (policy.into(), self.generation_of(tag));
        let own = Arc::new(Generation::own(policy)?);
        // In one step under the key's lock in its old place: the state moves, and everybody else is sent after it.
        let moved = old.apply(old.policy(), tag, now, |state| {
            let _ = own.apply(&policy, tag, now, |mine| own.receive(mine, old.policy(), state, now));
            let replaced = self
                .exceptions
                .change(&self.marks, tag, now, |exception| exception.own.replace(Arc::clone(&own)))?;
            state.fill(0);
            if let Some(replaced) = replaced {
                replaced.retire();
            }
            Ok::<(), TooManyExceptions>(())
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
    pub fn remove_override_at(&self, key: impl Key, now: Nanos) -> bool {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = self.tag_of(&key);
        let Some(own) = self.exceptions.get(tag).and_then(|exception| exception.own) else { return false };
        let general = self.generations.current();
        // As above, and the general table's lock before the own one's, there as here.
        let _ = general.apply(general.policy(), tag, now, |state| {
            own.retire();
            own.table.take_out(own.policy(), tag, now, |old| general.receive(state, own.policy(), old, now));
            // The only error is a new key beyond the bound; this one is not new.
            let _ = self.exceptions.change(&self.marks, tag, now, |exception| exception.own = None);
        });
        self.serve(tag, now);
        true
    }
}

/// A change of policy that holds already, and whose states still move over (see [`KeyedLimiter::set_policy_at`]).
///
/// Dropped, it leaves the rest where it is until it is asked for: nothing is lost, and both tables stay in memory.
///
/// ```
/// use tidegate::{KeyedLimiter, Policy, Quota};
/// # async fn change() -> Result<(), tidegate::BuildError> {
/// let limiter = KeyedLimiter::new(Policy::token_bucket(Quota::per_second(10)))?;
/// // The new quota holds from here on; the future moves the states in pieces.
/// limiter.set_policy(Policy::token_bucket(Quota::per_second(20)))?.await;
/// # Ok(())
/// # }
/// ```
pub struct Change<'a, C> {
    limiter: &'a KeyedLimiter<C>,
}

/// Moves the states of a [`Change`] a stretch at a time, and lets other tasks run in between.
#[must_use = "futures do nothing unless polled"]
pub struct Sweeping<'a, C>(&'a KeyedLimiter<C>);

/// Stretches (of a page each) that one poll moves.
const A_POLL: usize = 16;

impl<C> Change<'_, C> {
    /// Moves a stretch of the states, about a page; returns whether there is more. The time is the present one: what a state
    /// of another kind has in use counts as taken then.
    #[must_use = "it says whether there is more to move"]
    pub fn step_at(&self, now: Nanos) -> bool {
        self.limiter.generations.current().sweep(now)
    }

    /// Moves everything that is still to be moved.
    pub fn finish_at(self, now: Nanos) {
        while self.step_at(now) {}
    }
}

impl<C: Clock> Change<'_, C> {
    /// Moves everything that is still to be moved: about a second for a million keys.
    pub fn finish(self) {
        while self.step_at(self.limiter.clock().now()) {}
    }
}

impl<'a, C: Clock> IntoFuture for Change<'a, C> {
    type Output = ();
    type IntoFuture = Sweeping<'a, C>;

    fn into_future(self) -> Sweeping<'a, C> {
        Sweeping(self.limiter)
    }
}

impl<C: Clock> Future for Sweeping<'_, C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.0.clock().now();
        if (0..A_POLL).all(|_| self.0.generations.current().sweep(now)) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl<C> fmt::Debug for Change<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("to", &self.limiter.policy()).finish_non_exhaustive()
    }
}

impl<C> fmt::Debug for Sweeping<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweeping").field("to", &self.0.policy()).finish_non_exhaustive()
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// [`set_policy_at`](Self::set_policy_at), now.
    ///
    /// # Errors
    /// When the memory for the new states cannot be reserved; then nothing has changed.
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<Change<'_, C>, BuildError> {
        self.set_policy_at(policy, self.clock().now())
    }

    /// [`set_max_keys_at`](Self::set_max_keys_at), now.
    ///
    /// # Errors
    /// When the bound is 0, or the memory for that many states cannot be reserved; then nothing has changed.
    pub fn set_max_keys(&self, max_keys: usize) -> Result<Change<'_, C>, BuildError> {
        self.set_max_keys_at(max_keys, self.clock().now())
    }

    /// Gives one key a policy of its own now, keeping what it has used.
    ///
    /// # Errors
    /// When as many keys have exceptions as the limiter may hold keys, or there is no memory.
    pub fn set_override(&self, key: impl Key, policy: impl Into<Policy>) -> Result<(), OverrideError> {
        self.set_override_at(key, policy, self.clock().now())
    }

    /// Takes a key's own policy away now; what it has used counts on. Returns whether it had one.
    pub fn remove_override(&self, key: impl Key) -> bool {
        self.remove_override_at(key, self.clock().now())
    }
}
