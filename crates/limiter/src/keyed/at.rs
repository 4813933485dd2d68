//! The operations of a keyed limiter at a time that the caller gives.

use std::{fmt, sync::PoisonError};

use tidegate_core::{Algorithm, Decision, Estimate, Key, Nanos, Policy};

use super::{KeyedLimiter, TooManyExceptions, exceptions::Exception, steps::step_by};
use crate::{
    SystemClock,
    block::Until,
    table::Tag,
    wait::{Ground, WaitLine, Wakes},
};

/// A [`KeyedLimiter`] at one time: each method is an operation at that time, and reads no clock.
/// [`KeyedLimiter::at`] makes it. It is a reference and a number, so a copy costs nothing.
///
/// Use it if one reading of the clock is for several calls, if the time comes from elsewhere (a log,
/// an event), and in tests.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{KeyedLimiter, Nanos, Policy, Quota};
/// let limiter = KeyedLimiter::new(Policy::token_bucket(Quota::per_second(2)))?;
/// let then = limiter.at(Nanos::from_secs(10));
/// assert!(then.acquire("alice", 2).is_allowed() && then.acquire("alice", 1).is_denied());
/// assert!(then.acquire("bob", 1).is_allowed());
/// // Half a second later, one token is back.
/// let later = limiter.at(Nanos::from_millis(10_500));
/// assert_eq!(later.acquire_up_to("alice", 2).0, 1);
/// # Ok::<(), tidegate::BuildError>(())
/// ```
///
/// All times of one limiter must count from the same start: that of its clock, or the caller's own.
/// A time before that of an earlier call is no error: it never admits more than the newest time that
/// the key's state remembers.
pub struct KeyedAt<'a, C: ?Sized = SystemClock> {
    pub(super) limiter: &'a KeyedLimiter<C>,
    pub(super) now: Nanos,
}

impl<C: ?Sized> Clone for KeyedAt<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: ?Sized> Copy for KeyedAt<'_, C> {}

impl<C: ?Sized> fmt::Debug for KeyedAt<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedAt")
            .field("limiter", &self.limiter)
            .field("now", &self.now)
            .finish()
    }
}

impl<C: ?Sized> KeyedLimiter<C> {
    /// The limiter at a given time: operations that read no clock.
    #[inline]
    #[must_use]
    pub const fn at(&self, now: Nanos) -> KeyedAt<'_, C> {
        KeyedAt { limiter: self, now }
    }
}

impl<C: ?Sized> KeyedAt<'_, C> {
    /// Asks for `cost`. A cost of 0 is a peek that does not add the key.
    ///
    /// While callers [wait](KeyedLimiter::wait) for this key, the answer is a denial until all of
    /// them have been served. Its `retry_after` is exact behind up to 64 waiters. Behind `n` more, it
    /// may describe the queue as it was up to `n / 64` requests ago, before a waiter left or the
    /// policy changed.
    #[inline]
    pub fn acquire(self, key: impl Key, cost: u64) -> Decision {
        let Self { limiter, now } = self;
        limiter.decide(limiter.tag_of(&key), cost, now)
    }

    /// [`acquire`](Self::acquire) for units that may return. The second value is what was taken, for
    /// [`settle`](Self::settle): nothing if the request was denied.
    pub fn acquire_estimate(self, key: impl Key, cost: u64) -> (Decision, Estimate) {
        let Self { limiter, now } = self;
        limiter.acquire_estimate(limiter.tag_of(&key), cost, now)
    }

    /// Decides by another policy on the key's state, for a limit that comes with each request.
    ///
    /// If the policy does not [read the state as it is](Policy::reads_states_of), the state is
    /// converted for the decision and back (see [`Policy::transfer`]). That allocates, and is as
    /// strict as the limiter's own states are exact: give the limiter a policy whose states have
    /// room for all limits that requests may bring, such as [`Policy::wide`].
    pub fn acquire_with(self, policy: &Policy, key: impl Key, cost: u64) -> Decision {
        let Self { limiter, now } = self;
        let tag = limiter.tag_of(&key);
        if let Some(denied) = limiter.blocked_tag(tag, now) {
            return denied;
        }
        if cost == 0 {
            return limiter.look(tag, now, |mine, state| {
                step_by(mine, policy, state, now, |state| policy.peek(state, now, 0))
            });
        }
        let decide = |mine: &Policy, state: &mut [u64]| {
            step_by(mine, policy, state, now, |state| {
                policy.decide(state, now, cost)
            })
        };
        let behind = |line: &mut WaitLine, ground: &mut Ground<'_>, wakes: &mut Wakes| {
            line.settle(ground, wakes);
            if line.is_waiting() {
                line.answer(ground, cost)
            } else {
                decide(ground.policy, ground.state)
            }
        };
        let decided = limiter.on_line(tag, now, behind, |mine, state, _| decide(mine, state));
        decided.unwrap_or_else(|refused| refused)
    }

    /// The denial of a key that is blocked, or `None`. Faster than [`peek`](Self::peek): it does not
    /// look at the key's state, and if nothing is blocked it does not even hash the key.
    pub fn blocked(self, key: impl Key) -> Option<Decision> {
        let Self { limiter, now } = self;
        if !limiter.marks.any() {
            return None;
        }
        limiter.blocked_tag(limiter.tag_of(&key), now)
    }

    /// The time until which a key is [blocked](Self::block); zero if it is not.
    #[must_use]
    pub fn block_end(self, key: impl Key) -> Nanos {
        let Self { limiter, now } = self;
        if !limiter.marks.any() {
            return Nanos::ZERO;
        }
        let until = limiter.exceptions.blocked(limiter.tag_of(&key));
        if until > now { until } else { Nanos::ZERO }
    }

    /// The decision on `cost`, without taking it and without adding the key.
    pub fn peek(self, key: impl Key, cost: u64) -> Decision {
        let Self { limiter, now } = self;
        limiter.peek_tag(limiter.tag_of(&key), cost, now)
    }

    /// Takes as much of `cost` as is available; returns that amount and the decision on it.
    pub fn acquire_up_to(self, key: impl Key, cost: u64) -> (u64, Decision) {
        let Self { limiter, now } = self;
        let tag = limiter.tag_of(&key);
        match limiter.blocked_tag(tag, now) {
            Some(denied) => (0, denied),
            None => limiter
                .on_line(
                    tag,
                    now,
                    |line, ground, wakes| line.decide_up_to(ground, cost, wakes),
                    |policy, state, _| policy.decide_up_to(state, now, cost),
                )
                .unwrap_or_else(|refused| (0, refused)),
        }
    }

    /// Takes `cost` even if it does not fit: for a cost that is known only after the work. Units
    /// above the limit are debt, which time repays (see [`Algorithm::charge`]); it also counts
    /// against waiters, and during a block. Returns the decision on a cost of 0 afterwards: a
    /// denial if more is in use than the limit.
    ///
    /// A new key for which a full table has no room ([`WhenFull::Deny`]) is not charged: it is
    /// denied until the table has room.
    ///
    /// [`WhenFull::Deny`]: crate::WhenFull::Deny
    pub fn charge(self, key: impl Key, cost: u64) -> Decision {
        self.charge_by(None, self.limiter.tag_of(&key), cost)
    }

    /// [`charge`](Self::charge) by another policy on the key's state, as
    /// [`acquire_with`](Self::acquire_with) decides.
    pub fn charge_with(self, policy: &Policy, key: impl Key, cost: u64) -> Decision {
        self.charge_by(Some(policy), self.limiter.tag_of(&key), cost)
    }

    fn charge_by(self, by: Option<&Policy>, tag: Tag, cost: u64) -> Decision {
        let Self { limiter, now } = self;
        let charge = |mine: &Policy, state: &mut [u64]| {
            let by = by.unwrap_or(mine);
            step_by(mine, by, state, now, |state| {
                if cost > 0 {
                    by.charge(state, now, cost);
                }
                by.peek(state, now, 0)
            })
        };
        let standing = if cost == 0 {
            Ok(limiter.look(tag, now, charge))
        } else {
            let on_line = |line: &mut WaitLine, ground: &mut Ground<'_>, wakes: &mut Wakes| {
                line.charge(ground, charge, wakes)
            };
            limiter.on_line(tag, now, on_line, |mine, state, _| charge(mine, state))
        };
        limiter
            .blocked_tag(tag, now)
            .unwrap_or_else(|| standing.unwrap_or_else(|refused| refused))
    }

    /// Returns up to `cost` of the units that the key took last; never more than are in use.
    pub fn refund(self, key: impl Key, cost: u64) {
        let Self { limiter, now } = self;
        // A key without a place has taken nothing.
        let _ = limiter.on_line(
            limiter.tag_of(&key),
            now,
            |line, ground, wakes| line.refund(ground, cost, wakes),
            |policy, state, _| policy.refund(state, now, cost),
        );
    }

    /// Corrects an estimate of the key to the `actual` cost (see [`Policy::settle`]). A
    /// caller settles each estimate once. Nothing returns of units that were taken before a reset
    /// of the key, and of a bucket's units that were taken before a change of the key's policy. The
    /// latest resets of as many keys as the limiter holds are remembered.
    pub fn settle(self, key: impl Key, estimate: Estimate, actual: u64) {
        let Self { limiter, now } = self;
        limiter.settle_tag(limiter.tag_of(&key), estimate, actual, now);
    }

    /// Whether an estimate of the key still counts, so that [`settle`](Self::settle) would return
    /// units: no reset came between, and permits have not ended with their hold.
    #[must_use]
    pub fn counts(self, key: impl Key, estimate: &Estimate) -> bool {
        let Self { limiter, now } = self;
        limiter.counts_tag(limiter.tag_of(&key), estimate, now)
    }

    /// Forgets what a key has used, as if it had never sent a request, and ends a block by the
    /// policy's [`Penalty`](crate::Penalty). A [block](Self::block) stays, and so does the key's
    /// own policy. Permits in use are forgotten too: releasing one later has no effect.
    /// Returns whether there was anything to forget.
    pub fn reset(self, key: impl Key) -> bool {
        let Self { limiter, now } = self;
        let tag = limiter.tag_of(&key);
        let is_used = limiter.look(tag, now, |policy, state| !policy.is_recovered(state, now));
        // A key that has used nothing is not added to the table.
        let was_used = is_used
            && limiter
                .with_state(tag, now, |policy, state, _| {
                    let was_used = !policy.is_recovered(state, now);
                    state.fill(0);
                    limiter.eras.reset_key(tag, limiter.exceptions.most());
                    was_used
                })
                .unwrap_or(false);
        limiter.serve(tag, now);
        was_used
    }

    /// Forgets the usage of all keys (see [`reset`](Self::reset)), key by key, while decisions
    /// continue. Units that a key takes during the call may or may not be forgotten.
    pub fn reset_all(self) {
        let Self { limiter, now } = self;
        {
            // A change of policy would move keys that are not reset yet to places that were already
            // reset.
            let _no_change = limiter
                .changing
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let general = limiter.generations.sweep_all(now);
            limiter.eras.reset_all(|| {
                general.table.clear();
                for (_, exception) in limiter.exceptions.all() {
                    if let Some(own) = exception.own {
                        own.table.clear();
                    }
                }
            });
        }
        limiter.serve_all(now);
    }

    /// Denies a key until a time, or until it is [unblocked](Self::unblock). A block that has
    /// passed costs nothing and is dropped.
    ///
    /// # Errors
    /// [`TooManyExceptions`] if the number of keys with exceptions has reached the maximum number
    /// of keys.
    pub fn block(self, key: impl Key, until: Until) -> Result<(), TooManyExceptions> {
        let Self { limiter, now } = self;
        let tag = limiter.tag_of(&key);
        limiter
            .exceptions
            .change(&limiter.marks, tag, now, |exception| {
                exception.blocked = until.0;
            })?;
        limiter.serve(tag, now);
        Ok(())
    }

    /// Ends a block, also one by the policy's [`Penalty`](crate::Penalty). Returns whether it was
    /// still in force.
    pub fn unblock(self, key: impl Key) -> bool {
        let Self { limiter, now } = self;
        let lift = |exception: &mut Exception| std::mem::take(&mut exception.blocked) > now;
        // The only possible error concerns a new key beyond the bound, which is not blocked.
        let tag = limiter.tag_of(&key);
        let lifted = limiter
            .exceptions
            .change(&limiter.marks, tag, now, lift)
            .unwrap_or(false);
        let by_rule = self.blocked_by_rule_tag(tag).is_some()
            && limiter
                .with_state(tag, now, |policy, state, _| policy.unblock(state, now))
                .unwrap_or(false);
        limiter.serve(tag, now);
        lifted || by_rule
    }

    /// The denial of a key that the policy's [`Penalty`](crate::Penalty) blocks, or `None`.
    pub fn blocked_by_rule(self, key: impl Key) -> Option<Decision> {
        self.blocked_by_rule_tag(self.limiter.tag_of(&key))
    }

    fn blocked_by_rule_tag(self, tag: Tag) -> Option<Decision> {
        let Self { limiter, now } = self;
        limiter.look(tag, now, |policy, state| {
            (policy.blocked_until(state) > now).then(|| policy.peek(state, now, 0))
        })
    }
}
