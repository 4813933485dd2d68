//! One limit for all requests together.

mod at;

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_core::{Admission, Clock, Decision, Estimate, Nanos, Policy, clock::block_on};

use crate::{
    SystemClock, Timer, WaitError, WaitUntil,
    block::{Until, denied_until},
    eras::{Eras, Site},
    table::NotNear,
    version::{LockedVersion, Versions},
    wait::{Ground, Home, OneLine, Ticket, WaitLine, Wakes, wait},
};

pub use at::LimiterAt;

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

    /// Decides if no caller waits and nothing is blocked.
    #[inline]
    fn is_plain(&self) -> bool {
        !self.line.is_busy() && self.blocked.load(Ordering::Relaxed) == 0
    }

    #[cold]
    fn acquire_behind(&self, cost: u64, now: Nanos) -> Decision {
        if let Some(denied) = self.denied_by_block(now) {
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

    pub(crate) fn denied_by_block(&self, now: Nanos) -> Option<Decision> {
        let until = self.blocked.load(Ordering::Relaxed);
        if until == 0 {
            return None;
        }
        denied_until(&self.policy(), Nanos::new(until), now)
    }

    /// Whether units still count here, so that they would return.
    pub(crate) fn counts(&self, estimate: &Estimate, now: Nanos) -> bool {
        let mut held = self.versions.lock();
        let site = self.site(&held);
        let (policy, state) = held.parts();
        site.counts(policy, state, estimate, now)
    }

    /// Denies everything until a time, or until [`unblock`](Self::unblock).
    pub fn block(&self, until: Until) {
        self.blocked.store(until.0.get(), Ordering::Relaxed);
        if self.line.is_busy() {
            // Its alarm may be set for the end of a longer block.
            self.step(Nanos::ZERO, |line, ground, wakes| {
                line.block_changed(ground, wakes);
            });
        }
    }

    /// A copy of the state, to be saved and [restored](LimiterAt::restore).
    #[must_use]
    pub fn snapshot(&self) -> Vec<u64> {
        self.versions.apply(|_, state| state.to_vec())
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
        if self.line.is_busy() || self.denied_by_block(now).is_some() {
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

    /// Asks for `cost` at the current time (see [`LimiterAt::acquire`]). A cost of 0 is a peek.
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

    fn at_now(&self) -> LimiterAt<'_, C> {
        self.at(self.clock.now())
    }

    /// The decision on `cost` now, without taking it (see [`LimiterAt::peek`]).
    pub fn peek(&self, cost: u64) -> Decision {
        self.at_now().peek(cost)
    }

    /// Takes as much of `cost` as is available now (see [`LimiterAt::acquire_up_to`]); returns that
    /// amount and the decision on it.
    pub fn acquire_up_to(&self, cost: u64) -> (u64, Decision) {
        self.at_now().acquire_up_to(cost)
    }

    /// Denies everything for a time span.
    pub fn block_for(&self, span: Duration) {
        self.block(Until(self.clock.now().saturating_add(span.into())));
    }

    /// Ends a [`block`](Self::block) now (see [`LimiterAt::unblock`]). Returns whether a block was
    /// still in force.
    pub fn unblock(&self) -> bool {
        self.at_now().unblock()
    }

    /// Takes `cost` even if it does not fit (see [`LimiterAt::charge`]).
    pub fn charge(&self, cost: u64) -> Decision {
        self.at_now().charge(cost)
    }

    /// Returns up to `cost` of the units that were taken last (see [`LimiterAt::refund`]).
    pub fn refund(&self, cost: u64) {
        self.at_now().refund(cost);
    }

    /// Changes the policy now, and keeps the current usage (see [`LimiterAt::set_policy`]).
    pub fn set_policy(&self, policy: impl Into<Policy>) {
        self.at_now().set_policy(policy);
    }

    /// Has a limit on a calendar follow the system's time, as the clock has it (see
    /// [`LimiterAt::follow_wall`]).
    pub fn follow_wall(&self) -> bool {
        self.at_now().follow_wall(self.clock.wall_ahead())
    }

    /// Forgets what was used (see [`LimiterAt::reset`]). Returns whether anything was in use.
    pub fn reset(&self) -> bool {
        self.at_now().reset()
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
    /// [`LimiterAt::settle`].
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
