//! The operations of a limiter at a time that the caller gives.

use std::{fmt, sync::atomic::Ordering};

use tidegate_core::{Algorithm, Decision, Estimate, Nanos, Policy, StoredState};

use super::{Limiter, NOTHING};
use crate::{SystemClock, wait::Home};

/// A [`Limiter`] at one time: each method is an operation at that time, and reads no clock.
/// [`Limiter::at`] makes it. It is a reference and a number, so a copy costs nothing.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{Limiter, Nanos, Policy, Quota};
/// let gate = Limiter::new(Policy::token_bucket(Quota::per_second(2)));
/// let then = gate.at(Nanos::from_secs(10));
/// assert!(then.acquire(2).is_allowed() && then.acquire(1).is_denied());
/// assert!(gate.at(Nanos::from_millis(10_500)).acquire(1).is_allowed());
/// ```
///
/// [`KeyedAt`](crate::KeyedAt) says when to use it, and what a time before that of an earlier call
/// does.
pub struct LimiterAt<'a, C: ?Sized = SystemClock> {
    limiter: &'a Limiter<C>,
    now: Nanos,
}

impl<C: ?Sized> Clone for LimiterAt<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: ?Sized> Copy for LimiterAt<'_, C> {}

impl<C: ?Sized> fmt::Debug for LimiterAt<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterAt")
            .field("limiter", &self.limiter)
            .field("now", &self.now)
            .finish()
    }
}

impl<C: ?Sized> Limiter<C> {
    /// The limiter at a given time: operations that read no clock.
    #[inline]
    #[must_use]
    pub const fn at(&self, now: Nanos) -> LimiterAt<'_, C> {
        LimiterAt { limiter: self, now }
    }
}

#[allow(clippy::must_use_candidate)] // They have an effect, so a caller may ignore what they return.
impl<C: ?Sized> LimiterAt<'_, C> {
    /// Asks for `cost`. A cost of 0 is a peek.
    ///
    /// While callers [wait](Limiter::wait), the answer is a denial until all of them have been
    /// served. Its `retry_after` is exact behind up to 64 waiters. Behind `n` more, it may describe
    /// the queue as it was up to `n / 64` requests ago, before a waiter left or the policy changed.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A caller that reads yes or no does not pay for the rest of a decision.
    pub fn acquire(self, cost: u64) -> Decision {
        let Self { limiter, now } = self;
        if limiter.is_plain()
            && let Some(decision) = limiter.versions.try_decide_once(|| now, cost)
        {
            return decision;
        }
        limiter.acquire_behind(cost, now)
    }

    /// [`acquire`](Self::acquire) for units that may return. The second value is what was taken, for
    /// [`settle`](Self::settle): nothing if the request was denied.
    pub fn acquire_estimate(self, cost: u64) -> (Decision, Estimate) {
        let Self { limiter, now } = self;
        if let Some(denied) = limiter.denied_by_block(now) {
            return (denied, NOTHING);
        }
        if cost > 0 && limiter.line.is_busy() {
            return limiter.step(now, |line, ground, wakes| line.decide(ground, cost, wakes));
        }
        let mut held = limiter.versions.lock();
        let site = limiter.site(&held);
        let (policy, state) = held.parts();
        let decision = policy.decide(state, now, cost);
        if decision.is_denied() {
            return (decision, NOTHING);
        }
        (decision, site.note(policy, state, cost, now))
    }

    /// The decision on `cost`, without taking it.
    pub fn peek(self, cost: u64) -> Decision {
        let Self { limiter, now } = self;
        if let Some(denied) = limiter.denied_by_block(now) {
            return denied;
        }
        if cost > 0 && limiter.line.is_busy() {
            return limiter.step(now, |line, ground, wakes| line.check(ground, cost, wakes));
        }
        limiter
            .versions
            .apply(|policy, state| policy.peek(state, now, cost))
    }

    /// Takes as much of `cost` as is available; returns that amount and the decision on it.
    pub fn acquire_up_to(self, cost: u64) -> (u64, Decision) {
        let Self { limiter, now } = self;
        match limiter.denied_by_block(now) {
            Some(denied) => (0, denied),
            None if limiter.line.is_busy() => limiter.step(now, |line, ground, wakes| {
                line.decide_up_to(ground, cost, wakes)
            }),
            None => limiter
                .versions
                .apply(|policy, state| policy.decide_up_to(state, now, cost)),
        }
    }

    /// Takes `cost` even if it does not fit: for a cost that is known only after the work. Units
    /// above the limit are debt, which time repays (see [`Algorithm::charge`]); it also counts
    /// against waiters, and during a block. Returns the decision on a cost of 0 afterwards: a
    /// denial if more is in use than the limit.
    pub fn charge(self, cost: u64) -> Decision {
        let Self { limiter, now } = self;
        let charge = |policy: &Policy, state: &mut [u64]| {
            policy.charge(state, now, cost);
            policy.peek(state, now, 0)
        };
        let standing = if limiter.line.is_busy() {
            limiter.step(now, |line, ground, wakes| {
                line.charge(ground, charge, wakes)
            })
        } else {
            limiter.versions.apply(charge)
        };
        limiter.denied_by_block(now).unwrap_or(standing)
    }

    /// Returns up to `cost` of the units that were taken last; never more than are in use.
    pub fn refund(self, cost: u64) {
        let Self { limiter, now } = self;
        if limiter.line.is_busy() {
            return limiter.step(now, |line, ground, wakes| line.refund(ground, cost, wakes));
        }
        limiter
            .versions
            .apply(|policy, state| policy.refund(state, now, cost));
        // A waiter may have joined just before, without seeing this room.
        limiter.serve(now);
    }

    /// Corrects an estimate to the `actual` cost (see [`Policy::settle`]). A caller settles each
    /// estimate once. Nothing returns of units that were taken before a reset, and of a bucket's
    /// units that were taken before a change of its policy.
    pub fn settle(self, estimate: Estimate, actual: u64) {
        let Self { limiter, now } = self;
        if limiter.line.is_busy() {
            return limiter.step(now, |line, ground, wakes| {
                line.correct(ground, estimate, actual, wakes);
            });
        }
        let mut held = limiter.versions.lock();
        let site = limiter.site(&held);
        let (policy, state) = held.parts();
        let refund = |state: &mut [u64], units| policy.refund(state, now, units);
        site.settle(policy, state, now, (estimate, actual), refund);
        drop(held);
        // A waiter may have joined just before, without seeing this room.
        limiter.serve(now);
    }

    /// Forgets what was used, as if the limiter were new, and ends a block by the policy's
    /// [`Penalty`](crate::Penalty). A [`block`](Limiter::block) stays. Permits in use are
    /// forgotten too: releasing one later has no effect. Returns whether anything was in use.
    pub fn reset(self) -> bool {
        let Self { limiter, now } = self;
        let mut held = limiter.versions.lock();
        let (policy, state) = held.parts();
        let was_used = !policy.is_recovered(state, now);
        state.fill(0);
        limiter.eras.reset();
        drop(held);
        limiter.serve(now);
        was_used
    }

    /// Ends a [`block`](Limiter::block), also one by the policy's [`Penalty`](crate::Penalty), and
    /// admits waiters as far as there is room. Returns whether a block was still in force.
    pub fn unblock(self) -> bool {
        let Self { limiter, now } = self;
        let lifted = limiter.blocked.swap(0, Ordering::Relaxed) > now.get();
        let mut held = limiter.versions.lock();
        let (policy, state) = held.parts();
        let by_rule = policy.unblock(state, now);
        drop(held);
        limiter.serve(now);
        lifted || by_rule
    }

    /// Changes the policy and keeps the current usage (see [`Policy::transfer`]). The call returns
    /// at once, and decisions and waits continue.
    ///
    /// Each of the first 64 different policies that the limiter has keeps about 400 bytes until the
    /// limiter is dropped. From the 65th on, the limiter decides behind a lock, so any number of
    /// policies takes no more memory.
    pub fn set_policy(self, policy: impl Into<Policy>) {
        let Self { limiter, now } = self;
        let policy = policy.into();
        limiter.versions.change(now, &limiter.eras, |old| {
            policy.with_wall_ahead(old.wall_ahead())
        });
        limiter.serve(now);
    }

    /// Has a limit on a calendar follow the system's time, which is `ahead` nanoseconds ahead of
    /// the limiter's clock (see [`Clock::wall_ahead`](crate::Clock::wall_ahead)). Less than a second
    /// of difference changes nothing. The window's count stays (see [`Policy::with_wall_ahead`]).
    /// Returns whether something changed. Call it now and then, each second for instance.
    pub fn follow_wall(self, ahead: i64) -> bool {
        let Self { limiter, now } = self;
        let has_changed = limiter.policy().follow_wall(ahead).is_some();
        if has_changed {
            // Of the policy by then: another thread may just have changed it.
            limiter.versions.change(now, &limiter.eras, |old| {
                old.follow_wall(ahead).unwrap_or(*old)
            });
            limiter.serve(now);
        }
        has_changed
    }

    /// Merges in a snapshot that was made under the policy `from`: the stricter of both states
    /// stays, and usage in this limiter still counts. Returns whether the snapshot was valid.
    pub fn restore(self, from: &Policy, state: &[u64]) -> bool {
        let Self { limiter, now } = self;
        if !from.accepts(state) {
            return false;
        }
        limiter.versions.apply(|policy, mine| {
            let mut converted = vec![0; policy.words()];
            policy.transfer(&mut converted, from, state, now);
            policy.join(mine, &converted, now);
        });
        limiter.serve(now);
        true
    }
}
