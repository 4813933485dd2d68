//! Changing a policy while other threads decide, without losing usage.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
};

use tidegate_core::{Clock, Key, Nanos, Policy};

use super::{
    Generation, KeyedAt, KeyedLimiter, OverrideError, TooManyExceptions,
    exceptions::Exception,
    generation::{MOST_OLDER, Room},
};
use crate::table::{BuildError, Tag, WhenFull};

impl<'a, C: ?Sized> KeyedAt<'a, C> {
    /// Changes the policy of keys without an override, and keeps the current usage (see
    /// [`Policy::transfer`]).
    ///
    /// The call returns at once, however many keys there are. A key's state moves on its next
    /// request. The rest moves when the returned [`Change`], or that of a later change, is finished
    /// or awaited, and at the latest with the next snapshot. The tables of both policies are in
    /// memory until then. Up to four changes may be unfinished. A fifth change first moves the
    /// states of the oldest, which takes about a second for a million keys.
    ///
    /// # Errors
    /// If the memory for the new states cannot be reserved; then nothing has changed.
    pub fn set_policy(self, policy: impl Into<Policy>) -> Result<Change<'a, C>, BuildError> {
        let Self { limiter, now } = self;
        let policy = policy.into();
        limiter.change_to(now, |old, room| {
            (policy.with_wall_ahead(old.wall_ahead()), room)
        })
    }

    /// Has limits on a calendar follow the system's time, which is `ahead` nanoseconds ahead of the
    /// limiter's clock (see [`Clock::wall_ahead`]): the policy's and those of single keys. Less
    /// than a second of difference changes nothing. Each window's count stays (see
    /// [`Policy::with_wall_ahead`]). Returns whether something changed. Call it now and then, each
    /// second for instance.
    ///
    /// # Errors
    /// The same as [`set_policy`](Self::set_policy) and [`set_override`](Self::set_override).
    pub fn follow_wall(self, ahead: i64) -> Result<bool, OverrideError> {
        let Self { limiter, now } = self;
        let mut has_changed = limiter.policy().follow_wall(ahead).is_some();
        if has_changed {
            // Of the policy by then: another thread may just have changed it.
            let follow = |old: Policy| old.follow_wall(ahead).unwrap_or(old);
            limiter
                .change_to(now, |old, room| (follow(old), room))?
                .finish_at(now);
        }
        // A key's policy may be on a calendar though the general one is not.
        for (tag, own) in limiter.exceptions.own() {
            if let Some(policy) = own.policy().follow_wall(ahead) {
                has_changed |= limiter.set_override_of(tag, policy, Some(&own), now)?;
            }
        }
        Ok(has_changed)
    }

    /// Changes the maximum number of keys, and keeps the usage of each key. As with a change of
    /// policy, a state moves on its key's next request or when the returned [`Change`] is finished,
    /// and both tables are in memory until then.
    ///
    /// If there are more keys than the new maximum, those that would lose least are evicted and
    /// leave a record each. Keys that are blocked or have their own policy keep that, even if they
    /// are more than the maximum.
    ///
    /// # Errors
    /// If the maximum is 0, or the memory for that many states cannot be reserved; then nothing has
    /// changed.
    pub fn set_max_keys(self, max_keys: usize) -> Result<Change<'a, C>, BuildError> {
        let Self { limiter, now } = self;
        limiter.change_to(now, |policy, room| (policy, Room { max_keys, ..room }))
    }

    /// Changes what happens to a new key if the limiter would have to forget an exhausted key for
    /// it. The states move as with [`set_max_keys`](Self::set_max_keys).
    ///
    /// # Errors
    /// If the memory for the states cannot be reserved a second time; then nothing has changed.
    pub fn set_when_full(self, when_full: WhenFull) -> Result<Change<'a, C>, BuildError> {
        let Self { limiter, now } = self;
        limiter.change_to(now, |policy, room| (policy, Room { when_full, ..room }))
    }

    /// Gives one key its own policy, and keeps the key's usage.
    ///
    /// # Errors
    /// If the number of keys with exceptions has reached the maximum number of keys, or the system
    /// has no memory.
    pub fn set_override(
        self,
        key: impl Key,
        policy: impl Into<Policy>,
    ) -> Result<(), OverrideError> {
        let Self { limiter, now } = self;
        let policy = policy.into().with_wall_ahead(limiter.policy().wall_ahead());
        let tag = limiter.tag_of(&key);
        limiter.set_override_of(tag, policy, None, now).map(|_| ())
    }

    /// Removes a key's own policy; the key's usage still counts. Returns whether it had one.
    pub fn remove_override(self, key: impl Key) -> bool {
        let Self { limiter, now } = self;
        let tag = limiter.tag_of(&key);
        let had_one = limiter.remove_override_of(tag, now);
        if had_one {
            limiter.serve(tag, now);
        }
        had_one
    }
}

impl<C: ?Sized> KeyedLimiter<C> {
    fn remove_override_of(&self, tag: Tag, now: Nanos) -> bool {
        let limiter = self;
        let _one_at_a_time = limiter
            .changing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let own = limiter.exceptions.get(tag);
        let Some(own) = own.and_then(|exception| exception.own) else {
            return false;
        };
        let general = limiter.generations.current();
        let end = || {
            // Units from before the override do not return, as if it were a change of policy.
            let policies = (own.policy(), general.policy());
            limiter
                .eras
                .end_own(tag, limiter.exceptions.most(), policies, now);
            // The only possible error concerns a new key beyond the bound; this one is not new.
            let _ = limiter
                .exceptions
                .change(&limiter.marks, tag, now, |exception| exception.own = None);
        };
        // In one step, as `set_override_of`. The general table's lock is taken before the key's own
        // one, in both places.
        let moved = general.apply(general.policy(), tag, now, |state| {
            own.retire();
            own.table.take_out(own.policy(), tag, now, |old| {
                general.receive(state, own.policy(), old, now);
            });
            end();
        });
        if moved.is_err() {
            // The table has no room for the key. Its record has, and nobody decides until then.
            own.retire();
            let old = own.table.take_out(own.policy(), tag, now, <[u64]>::to_vec);
            if let Some(old) = old {
                general.keep(tag, own.policy(), &old, now);
            }
            end();
        }
        true
    }

    fn change_to(
        &self,
        now: Nanos,
        to: impl FnOnce(Policy, Room) -> (Policy, Room),
    ) -> Result<Change<'_, C>, BuildError> {
        let mut one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.generations.current_full();
        let (policy, room) = to(*old.policy(), *one_at_a_time);
        if policy != *old.policy() || room != *one_at_a_time {
            while old.count_older() >= MOST_OLDER && old.sweep(now) {}
            let rate = if policy == *old.policy() {
                old.rate()
            } else {
                self.eras.next()
            };
            let new = self
                .generations
                .make(policy, (rate, now), room, Arc::clone(&old))?;
            self.exceptions.set_most(room.max_exceptions());
            self.eras.change_policy(old.policy(), new.policy(), now);
            self.generations.publish(&old, new);
            *one_at_a_time = room;
        }
        drop((one_at_a_time, old));
        self.serve_all(now);
        Ok(Change { limiter: self })
    }

    /// Gives a key its own policy; with `from`, only if the key still has that one. Returns whether
    /// it did.
    fn set_override_of(
        &self,
        tag: Tag,
        policy: Policy,
        from: Option<&Arc<Generation>>,
        now: Nanos,
    ) -> Result<bool, OverrideError> {
        let one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_from = |from: &Arc<Generation>| {
            let own = self.exceptions.get(tag).and_then(|exception| exception.own);
            own.is_some_and(|own| Arc::ptr_eq(&own, from))
        };
        if !from.is_none_or(is_from) {
            return Ok(false);
        }
        let old = self.generation_of(tag);
        let own = Arc::new(Generation::own(policy, (self.eras.next(), now))?);
        let begin = || {
            let (most, policies) = (self.exceptions.most(), (old.policy(), &policy));
            let rates = (old.rate(), own.rate());
            self.eras.begin_own(tag, most, rates, policies, now);
        };
        // In one step under the key's lock in its old place: the state moves, and later requests
        // follow it.
        let moved = old.apply(old.policy(), tag, now, |state| {
            let _ = own.apply(&policy, tag, now, |mine| {
                own.receive(mine, old.policy(), state, now);
            });
            let replaced = self.exceptions.change(&self.marks, tag, now, |exception| {
                exception.own.replace(Arc::clone(&own))
            })?;
            state.fill(0);
            begin();
            if let Some(replaced) = replaced {
                replaced.retire();
            }
            Ok::<(), TooManyExceptions>(())
        });
        if let Ok(done) = moved {
            done?;
        } else {
            // Not retired: that takes the lock that is held. The key has no place, so there is
            // nothing to move.
            let set = |exception: &mut Exception| exception.own = Some(Arc::clone(&own));
            self.exceptions.change(&self.marks, tag, now, set)?;
            begin();
        }
        // No task is woken under the lock.
        drop((old, one_at_a_time));
        self.serve(tag, now);
        Ok(true)
    }
}

/// A change of policy that is in force while its states still move (see [`KeyedAt::set_policy`]).
///
/// If it is dropped, the remaining states stay where they are until the next request for them:
/// nothing is lost, and both tables stay in memory.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{KeyedLimiter, Policy, Quota};
/// # async fn change() -> Result<(), tidegate::BuildError> {
/// let limiter = KeyedLimiter::new(Policy::token_bucket(Quota::per_second(10)))?;
/// // The new quota holds from here on; the future moves the states in pieces.
/// limiter.set_policy(Policy::token_bucket(Quota::per_second(20)))?.await;
/// # Ok(())
/// # }
/// ```
pub struct Change<'a, C: ?Sized> {
    limiter: &'a KeyedLimiter<C>,
}

/// Moves the states of a [`Change`] a page at a time, and lets other tasks run in between.
#[must_use = "futures do nothing unless polled"]
pub struct Sweeping<'a, C: ?Sized>(&'a KeyedLimiter<C>);

/// The number of pages that one poll moves.
const A_POLL: usize = 16;

impl<C: ?Sized> Change<'_, C> {
    /// Moves the states of about one page. Returns whether there are more. `now` must be the
    /// current time: if the new policy keeps another kind of state, what a state has in use counts
    /// as taken then.
    #[must_use = "it says whether there is more to move"]
    pub fn step_at(&self, now: Nanos) -> bool {
        self.limiter.generations.current().sweep(now)
    }

    /// Moves all remaining states.
    pub fn finish_at(self, now: Nanos) {
        while self.step_at(now) {}
    }
}

impl<C: Clock> Change<'_, C> {
    /// Moves all remaining states, which takes about a second for a million keys.
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

impl<C: ?Sized> fmt::Debug for Change<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("to", &self.limiter.policy())
            .finish_non_exhaustive()
    }
}

impl<C: ?Sized> fmt::Debug for Sweeping<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweeping")
            .field("to", &self.0.policy())
            .finish_non_exhaustive()
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// Has limits on a calendar follow the system's time, as the clock has it (see
    /// [`KeyedAt::follow_wall`]).
    ///
    /// # Errors
    /// The same as [`KeyedAt::follow_wall`].
    pub fn follow_wall(&self) -> Result<bool, OverrideError> {
        self.at_now().follow_wall(self.clock().wall_ahead())
    }

    /// Changes the policy of keys without an override now (see [`KeyedAt::set_policy`]).
    ///
    /// # Errors
    /// The same as [`KeyedAt::set_policy`].
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<Change<'_, C>, BuildError> {
        self.at_now().set_policy(policy)
    }

    /// Changes the maximum number of keys now (see [`KeyedAt::set_max_keys`]).
    ///
    /// # Errors
    /// The same as [`KeyedAt::set_max_keys`].
    pub fn set_max_keys(&self, max_keys: usize) -> Result<Change<'_, C>, BuildError> {
        self.at_now().set_max_keys(max_keys)
    }

    /// Gives one key its own policy now (see [`KeyedAt::set_override`]).
    ///
    /// # Errors
    /// The same as [`KeyedAt::set_override`].
    pub fn set_override(
        &self,
        key: impl Key,
        policy: impl Into<Policy>,
    ) -> Result<(), OverrideError> {
        self.at_now().set_override(key, policy)
    }

    /// Removes a key's own policy now (see [`KeyedAt::remove_override`]). Returns whether it had one.
    pub fn remove_override(&self, key: impl Key) -> bool {
        self.at_now().remove_override(key)
    }
}
