//! Permits that are released when they are dropped.

use std::fmt;

use tidegate_core::{Clock, Decision, Key, Nanos};

use crate::{KeyedLimiter, Limiter, SystemClock, Timer, WaitError, table::Tag};

/// Units that are returned when the work is over: on return, on an error, on a panic, and when a future is cancelled.
///
/// Made for [`Policy::concurrency`](crate::Policy::concurrency), where returning them lets the next caller in.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{KeyedLimiter, Policy};
///
/// let downloads = KeyedLimiter::new(Policy::concurrency(1))?;
/// let first = downloads.permit("alice", 1).expect("nobody else downloads");
/// assert!(downloads.permit("alice", 1).is_err());
/// drop(first);
/// assert!(downloads.permit("alice", 1).is_ok());
/// # Ok::<(), tidegate::BuildError>(())
/// ```
#[must_use = "a permit that is dropped is given back at once"]
pub struct Permit<'a, C: Clock = SystemClock> {
    from: From<'a, C>,
    cost: u32,
}

enum From<'a, C> {
    One(&'a Limiter<C>),
    Key(&'a KeyedLimiter<C>, Tag),
}

impl<'a, C: Clock> Permit<'a, C> {
    /// Units that were taken.
    pub(crate) const fn of(limiter: &'a Limiter<C>, cost: u32) -> Self {
        Self { from: From::One(limiter), cost }
    }

    /// Units of a key that were taken.
    pub(crate) const fn of_key(limiter: &'a KeyedLimiter<C>, tag: Tag, cost: u32) -> Self {
        Self { from: From::Key(limiter, tag), cost }
    }

    /// The number of units.
    #[must_use]
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// Keeps the units: they are not returned.
    pub fn keep(mut self) {
        self.cost = 0;
    }
}

impl<C: Clock> Drop for Permit<'_, C> {
    fn drop(&mut self) {
        match &self.from {
            _ if self.cost == 0 => {}
            From::One(limiter) => limiter.refund(self.cost),
            From::Key(limiter, tag) => limiter.refund_tag(*tag, self.cost, limiter.clock().now()),
        }
    }
}

impl<C: Clock> fmt::Debug for Permit<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("cost", &self.cost).finish_non_exhaustive()
    }
}

impl<C: Clock> Limiter<C> {
    /// Takes `cost` until the permit is dropped.
    ///
    /// # Errors
    /// The denial. A permit does not report a leaky bucket's delay, which is in the decision of [`acquire`](Self::acquire). Use
    /// [`wait_permit`](Self::wait_permit), which waits for the delay.
    pub fn permit(&self, cost: u32) -> Result<Permit<'_, C>, Decision> {
        let decision = self.acquire(cost);
        if decision.is_denied() { Err(decision) } else { Ok(Permit::of(self, cost)) }
    }
}

impl<T: Timer> Limiter<T> {
    /// Waits for a permit as [`wait`](Self::wait) does.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub async fn wait_permit(&self, cost: u32, deadline: Option<Nanos>) -> Result<Permit<'_, T>, WaitError> {
        let _ = self.wait(cost, deadline).await?;
        Ok(Permit::of(self, cost))
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// Takes `cost` of a key until the permit is dropped.
    ///
    /// # Errors
    /// The denial. A permit does not report a leaky bucket's delay, which is in the decision of [`acquire`](Self::acquire). Use
    /// [`wait_permit`](Self::wait_permit), which waits for the delay.
    pub fn permit(&self, key: impl Key, cost: u32) -> Result<Permit<'_, C>, Decision> {
        let tag = self.tag_of(&key);
        let decision = self.acquire(key, cost);
        if decision.is_denied() { Err(decision) } else { Ok(Permit::of_key(self, tag, cost)) }
    }
}

impl<T: Timer> KeyedLimiter<T> {
    /// Waits for a permit as [`wait`](Self::wait) does.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub async fn wait_permit(
        &self,
        key: impl Key,
        cost: u32,
        deadline: Option<Nanos>,
    ) -> Result<Permit<'_, T>, WaitError> {
        let tag = self.tag_of(&key);
        let _ = self.wait(key, cost, deadline).await?;
        Ok(Permit::of_key(self, tag, cost))
    }
}
