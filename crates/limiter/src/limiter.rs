//! One limit for all requests together.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_core::{
    Admission, Algorithm, Clock, Decision, Estimate, Nanos, Policy, StoredState, clock::block_on,
};

use crate::{
    SystemClock, Timer, WaitError, WaitUntil,
    block::{Until, denied_until},
    eras::{Eras, Site},
    table::NotNear,
    version::{LockedVersion, Versions},
    wait::{Ground, Home, OneLine, Ticket, WaitLine, Wakes, wait},
};

/// The estimate of a request that took nothing.
pub(crate) const NOTHING: Estimate = Estimate {
    cost: 0,
    taken: Nanos::ZERO,
    place: 0,
};

/// A limit without keys: a policy, one state and a clock.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{Limiter, Policy, Quota};
/// let gate = Limiter::new(Policy::token_bucket(Quota::per_second(2)));
/// assert!(gate.acquire(1).is_allowed());
/// assert!(gate.acquire(1).is_allowed());
/// let denied = gate.acquire(1);
/// assert!(denied.retry_after() <= Some(std::time::Duration::from_millis(500)));
/// ```
pub struct Limiter<C: ?Sized = SystemClock> {
    /// The policy and its state.
    versions: Versions,
    line: OneLine,
    eras: Eras,
    /// Denies everything until this time, in nanoseconds; 0 if not blocked.
    blocked: AtomicU64,
    /// Last, so that a reference to a limiter becomes one to a limiter with any clock.
    clock: C,
}

impl Limiter {
    /// A limiter with the system clock.
    #[must_use]
    pub fn new(policy: impl Into<Policy>) -> Self {
        Self::with_clock(policy, SystemClock::new())
    }
}

impl<C> Limiter<C> {
    /// A limiter with its own clock.
    #[must_use]
    pub fn with_clock(policy: impl Into<Policy>, clock: C) -> Self {
        Self {
            versions: Versions::new(policy.into()),
            line: OneLine::new(),
            eras: Eras::new(),
            blocked: AtomicU64::new(0),
            clock,
        }
    }
}

impl<C: ?Sized> Limiter<C> {
    /// The limiter's policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.versions.policy()
    }

    /// A number that is another one after each change of the policy. Compare it to know whether
    /// something that you derived from the policy still holds. Read it before the policy, so that a
    /// change in between is noticed next time.
    #[must_use]
    pub fn policy_version(&self) -> u64 {
        self.versions.changes()
    }

    /// The limiter's clock.
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Asks for `cost` at the given time.
    ///
    /// While callers [wait](Self::wait), the answer is a denial until all of them have been served.
    /// Its `retry_after` is exact behind up to 64 waiters. Behind `n` more, it may describe the
    /// queue as it was up to `n / 64` requests ago, before a waiter left or the policy changed.
    #[inline]
    pub fn acquire_at(&self, cost: u64, now: Nanos) -> Decision {
        if self.is_plain()
            && let Some(decision) = self.versions.try_decide(|| now, cost)
        {
            return decision;
        }
        self.acquire_behind(cost, now)
    }

    /// Decides if no caller waits and nothing is blocked.
    #[inline]
    fn is_plain(&self) -> bool {
        !self.line.is_busy() && self.blocked.load(Ordering::Relaxed) == 0
    }

    #[cold]
    fn acquire_behind(&self, cost: u64, now: Nanos) -> Decision {
        if let Some(denied) = self.blocked_at(now) {
            return denied;
        }
        let passed = self.blocked.load(Ordering::Relaxed);
        if passed <= now.get() {
            // The next decision then takes the short path again, unless there is a new block by
            // now.
            let _ = self
                .blocked
                .compare_exchange(passed, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        if cost == 0 || !self.line.is_busy() {
            return self.versions.decide(now, cost);
        }
        self.step(now, |line, ground, wakes| {
            line.decide(ground, cost, wakes).0
        })
    }

    /// [`acquire_at`](Self::acquire_at) for units that may return. The second value is what was
    /// taken, for [`settle_at`](Self::settle_at): nothing if the request was denied.
    pub fn acquire_estimate_at(&self, cost: u64, now: Nanos) -> (Decision, Estimate) {
        if let Some(denied) = self.blocked_at(now) {
            return (denied, NOTHING);
        }
        if cost > 0 && self.line.is_busy() {
            return self.step(now, |line, ground, wakes| line.decide(ground, cost, wakes));
        }
        let mut held = self.versions.lock();
        let site = self.site(&held);
        let (policy, state) = held.parts();
        let decision = policy.decide(state, now, cost);
        if decision.is_denied() {
            return (decision, NOTHING);
        }
        (decision, site.note(policy, state, cost, now))
    }

    /// Serves the waiters, after a change that may have made room.
    fn serve(&self, now: Nanos) {
        if self.line.is_busy() {
            self.step(now, WaitLine::changed);
        }
    }

    /// A step on the line for a joint decision, which holds the state.
    pub(crate) fn with_line<R>(
        &self,
        ground: &mut Ground<'_>,
        step: impl FnOnce(&mut WaitLine, &mut Ground<'_>) -> R,
    ) -> R {
        ground.blocked = Nanos::new(self.blocked.load(Ordering::Relaxed));
        self.line.with(|line| step(line, ground))
    }

    /// Whether a decision must consider the line.
    pub(crate) fn has_line(&self) -> bool {
        self.line.is_busy()
    }

    /// [`with_line`](Self::with_line), if a decision must consider the line.
    pub(crate) fn find_line<R>(
        &self,
        ground: &mut Ground<'_>,
        step: impl FnOnce(&mut WaitLine, &mut Ground<'_>) -> R,
    ) -> Option<R> {
        self.line.is_busy().then(|| self.with_line(ground, step))
    }

    /// Gives up a place in the line.
    pub(crate) fn leave_line(&self, ticket: &Ticket, now: Nanos) {
        self.step(now, |line, ground, wakes| line.leave(ground, ticket, wakes));
    }

    pub(crate) fn blocked_at(&self, now: Nanos) -> Option<Decision> {
        let until = self.blocked.load(Ordering::Relaxed);
        if until == 0 {
            return None;
        }
        denied_until(&self.policy(), Nanos::new(until), now)
    }

    /// The decision on `cost` at `now`, without taking it.
    pub fn peek_at(&self, cost: u64, now: Nanos) -> Decision {
        if let Some(denied) = self.blocked_at(now) {
            return denied;
        }
        if cost > 0 && self.line.is_busy() {
            return self.step(now, |line, ground, wakes| line.check(ground, cost, wakes));
        }
        self.versions
            .apply(|policy, state| policy.peek(state, now, cost))
    }

    /// Takes as much of `cost` as is available at `now`; returns that amount and the decision on
    /// it.
    pub fn acquire_up_to_at(&self, cost: u64, now: Nanos) -> (u64, Decision) {
        match self.blocked_at(now) {
            Some(denied) => (0, denied),
            None if self.line.is_busy() => self.step(now, |line, ground, wakes| {
                line.decide_up_to(ground, cost, wakes)
            }),
            None => self
                .versions
                .apply(|policy, state| policy.decide_up_to(state, now, cost)),
        }
    }

    /// Takes `cost` even if it does not fit: for a cost that is known only after the work. Units
    /// above the limit are debt, which time repays (see [`Algorithm::charge`]); it also counts
    /// against waiters, and during a block. Returns the decision on a cost of 0 afterwards: a
    /// denial if more is in use than the limit.
    pub fn charge_at(&self, cost: u64, now: Nanos) -> Decision {
        let charge = |policy: &Policy, state: &mut [u64]| {
            policy.charge(state, now, cost);
            policy.peek(state, now, 0)
        };
        let standing = if self.line.is_busy() {
            self.step(now, |line, ground, wakes| {
                line.charge(ground, charge, wakes)
            })
        } else {
            self.versions.apply(charge)
        };
        self.blocked_at(now).unwrap_or(standing)
    }

    /// Returns up to `cost` of the units that were taken last; never more than are in use.
    pub fn refund_at(&self, cost: u64, now: Nanos) {
        if self.line.is_busy() {
            return self.step(now, |line, ground, wakes| line.refund(ground, cost, wakes));
        }
        self.versions
            .apply(|policy, state| policy.refund(state, now, cost));
        // A waiter may have joined just before, without seeing this room.
        self.serve(now);
    }

    /// Corrects an estimate at `now` to the `actual` cost (see [`Policy::settle`]). A caller
    /// settles each estimate once. Nothing returns of units that were taken before a reset, and of
    /// a bucket's units that were taken before a change of its policy.
    pub fn settle_at(&self, estimate: Estimate, actual: u64, now: Nanos) {
        if self.line.is_busy() {
            return self.step(now, |line, ground, wakes| {
                line.correct(ground, estimate, actual, wakes);
            });
        }
        let mut held = self.versions.lock();
        let site = self.site(&held);
        let (policy, state) = held.parts();
        let refund = |state: &mut [u64], units| policy.refund(state, now, units);
        site.settle(policy, state, now, (estimate, actual), refund);
        drop(held);
        // A waiter may have joined just before, without seeing this room.
        self.serve(now);
    }

    /// Where units count now: see [`Estimate::place`].
    pub(crate) fn place(&self) -> u64 {
        let mut held = self.versions.lock();
        let site = self.site(&held);
        let (policy, state) = held.parts();
        site.place(policy, state)
    }

    /// Forgets what was used, as if the limiter were new, and ends a block by the policy's
    /// [`Penalty`](crate::Penalty). A [`block`](Self::block) stays. Permits in use are
    /// forgotten too: releasing one later has no effect. Returns whether anything was in use.
    pub fn reset_at(&self, now: Nanos) -> bool {
        let mut held = self.versions.lock();
        let (policy, state) = held.parts();
        let was_used = !policy.is_recovered(state, now);
        state.fill(0);
        self.eras.reset();
        drop(held);
        self.serve(now);
        was_used
    }

    /// Denies everything until a time, or until [`unblock`](Self::unblock).
    pub fn block(&self, until: Until) {
        self.blocked.store(until.0.get(), Ordering::Relaxed);
    }

    /// Ends a [`block`](Self::block), also one by the policy's [`Penalty`](crate::Penalty), and admits waiters as far as there is room. Returns whether a
    /// block was still in force.
    pub fn unblock_at(&self, now: Nanos) -> bool {
        let lifted = self.blocked.swap(0, Ordering::Relaxed) > now.get();
        let mut held = self.versions.lock();
        let (policy, state) = held.parts();
        let by_rule = policy.unblock(state, now);
        drop(held);
        self.serve(now);
        lifted || by_rule
    }

    /// Changes the policy and keeps the current usage (see [`Policy::transfer`]). The call returns
    /// at once, and decisions and waits continue.
    ///
    /// Each of the first 64 different policies that the limiter has keeps about 400 bytes until the
    /// limiter is dropped. From the 65th on, the limiter decides behind a lock, so any number of
    /// policies takes no more memory.
    pub fn set_policy_at(&self, policy: impl Into<Policy>, now: Nanos) {
        let ahead = self.policy().wall_ahead();
        self.versions
            .change(policy.into().with_wall_ahead(ahead), now);
        self.serve(now);
    }

    /// Has a limit on a calendar follow the system's time, which is `ahead` nanoseconds ahead of
    /// the limiter's clock (see [`Clock::wall_ahead`]). Less than a second of difference changes
    /// nothing. The window's count stays (see [`Policy::with_wall_ahead`]). Returns whether
    /// something changed. Call it now and then, each second for instance.
    pub fn follow_wall_at(&self, ahead: i64, now: Nanos) -> bool {
        let policy = self.policy().follow_wall(ahead);
        if let Some(policy) = policy {
            self.versions.change(policy, now);
            self.serve(now);
        }
        policy.is_some()
    }

    /// A copy of the state, to be saved and [restored](Self::restore_at).
    #[must_use]
    pub fn snapshot(&self) -> Vec<u64> {
        self.versions.apply(|_, state| state.to_vec())
    }

    /// Merges in a snapshot that was made under the policy `from`: the stricter of both states
    /// stays, and usage in this limiter still counts. Returns whether the snapshot was valid.
    pub fn restore_at(&self, from: &Policy, state: &[u64], now: Nanos) -> bool {
        if !from.accepts(state) {
            return false;
        }
        self.versions.apply(|policy, mine| {
            let mut converted = vec![0; policy.words()];
            policy.transfer(&mut converted, from, state, now);
            policy.join(mine, &converted, now);
        });
        self.serve(now);
        true
    }

    /// What the place of units depends on in a locked state.
    pub(crate) const fn site(&self, held: &LockedVersion<'_>) -> Site<'_> {
        self.eras.site(held.rate, None)
    }

    pub(crate) fn lock(&self) -> LockedVersion<'_> {
        self.versions.lock()
    }

    /// Locks the state if no thread holds it, and no waiter or block concerns it.
    pub(crate) fn try_near(&self, now: Nanos) -> Result<LockedVersion<'_>, NotNear> {
        let held = self.versions.try_lock().ok_or(NotNear::Busy)?;
        if self.line.is_busy() || self.blocked_at(now).is_some() {
            return Err(NotNear::Other);
        }
        Ok(held)
    }

    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(&self.versions) as usize
    }
}

impl<C: Clock> Limiter<C> {
    /// Asks for one unit at the current time.
    #[inline(always)]
    #[allow(clippy::inline_always)] // See `acquire`.
    pub fn check(&self) -> Decision {
        self.acquire(1)
    }

    /// Asks for `cost` at the current time. A cost of 0 is a peek.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A caller that reads yes or no does not pay for the rest of a decision.
    pub fn acquire(&self, cost: u64) -> Decision {
        if self.is_plain()
            && let Some(decision) = self.versions.try_decide_once(|| self.clock.now(), cost)
        {
            return decision;
        }
        self.acquire_behind_now(cost)
    }

    #[cold]
    fn acquire_behind_now(&self, cost: u64) -> Decision {
        self.acquire_behind(cost, self.clock.now())
    }

    /// The decision on `cost`, without taking it.
    pub fn peek(&self, cost: u64) -> Decision {
        self.peek_at(cost, self.clock.now())
    }

    /// Takes as much of `cost` as is available; returns that amount and the decision on it.
    pub fn acquire_up_to(&self, cost: u64) -> (u64, Decision) {
        self.acquire_up_to_at(cost, self.clock.now())
    }

    /// Denies everything for a time span.
    pub fn block_for(&self, span: Duration) {
        self.block(Until(self.clock.now().saturating_add(span.into())));
    }

    /// Ends a [`block`](Self::block). Returns whether a block was still in force.
    pub fn unblock(&self) -> bool {
        self.unblock_at(self.clock.now())
    }

    /// [`charge_at`](Self::charge_at) at the current time.
    pub fn charge(&self, cost: u64) -> Decision {
        self.charge_at(cost, self.clock.now())
    }

    /// Returns up to `cost` of the units that were taken last; never more than are in use.
    pub fn refund(&self, cost: u64) {
        self.refund_at(cost, self.clock.now());
    }

    /// [`set_policy_at`](Self::set_policy_at) at the current time.
    pub fn set_policy(&self, policy: impl Into<Policy>) {
        self.set_policy_at(policy, self.clock.now());
    }

    /// [`follow_wall_at`](Self::follow_wall_at) the system's time.
    pub fn follow_wall(&self) -> bool {
        self.follow_wall_at(self.clock.wall_ahead(), self.clock.now())
    }

    /// [`reset_at`](Self::reset_at) at the current time.
    pub fn reset(&self) -> bool {
        self.reset_at(self.clock.now())
    }
}

impl<T: Timer> Limiter<T> {
    /// Waits until `cost` is admitted, after all callers that already wait, or before those that its
    /// [`Priority`](crate::Priority) lets it overtake. `until` is the deadline, or
    /// [more](WaitUntil). Dropping the future
    /// gives up the place in the queue.
    ///
    /// # Errors
    /// If waiting cannot help, or the cost would not be admitted by the deadline. Both errors are
    /// returned at once.
    pub fn wait(
        &self,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> impl Future<Output = Result<Admission, WaitError>> {
        wait(self, cost, until.into(), &self.clock, |admission, _| {
            admission
        })
    }

    /// [`wait`](Self::wait) for units that may return. The second value is what was taken, for
    /// [`settle_at`](Self::settle_at).
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn wait_estimate(
        &self,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> impl Future<Output = Result<(Admission, Estimate), WaitError>> {
        wait(
            self,
            cost,
            until.into(),
            &self.clock,
            |admission, estimate| (admission, estimate),
        )
    }

    /// [`wait`](Self::wait) for a thread without an async runtime: it blocks the thread.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn wait_blocking(
        &self,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> Result<Admission, WaitError> {
        block_on(self.wait(cost, until))
    }

    /// [`wait`](Self::wait) for at most `span`.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub async fn wait_for(&self, cost: u64, span: Duration) -> Result<Admission, WaitError> {
        self.wait(cost, Some(self.clock.now().saturating_add(span.into())))
            .await
    }
}

impl<C: ?Sized> Home for &Limiter<C> {
    fn step<R>(
        &self,
        now: Nanos,
        step: impl FnOnce(&mut WaitLine, &mut Ground<'_>, &mut Wakes) -> R,
    ) -> R {
        // Declared first, so that it is dropped last: no task is woken while the state is locked.
        let mut wakes = Wakes::default();
        let mut held = self.versions.lock();
        let site = self.site(&held);
        let (policy, state) = held.parts();
        let blocked = Nanos::new(self.blocked.load(Ordering::Relaxed));
        let mut ground = Ground {
            policy,
            state,
            site,
            blocked,
            now,
        };
        self.line.with(|line| step(line, &mut ground, &mut wakes))
    }
}

impl<C: ?Sized> fmt::Debug for Limiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("policy", &self.policy())
            .finish_non_exhaustive()
    }
}
