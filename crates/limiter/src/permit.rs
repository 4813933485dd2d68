//! Permits that are released when they are dropped.

use std::{fmt, sync::Arc};

use tidegate_core::{Clock, Denied, Estimate, Key};

use crate::{
    KeyedLimiter, Limiter, SystemClock, Timer, WaitError, WaitUntil, limiter::NOTHING, table::Tag,
};

/// Units that are returned when the work is over: on return, on an error, on a panic, and when a
/// future is cancelled.
///
/// Made for [`Policy::concurrency`](crate::Policy::concurrency), where returning them lets the next
/// caller in. A reset forgets the permits in use: those that were taken before it return nothing.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{KeyedLimiter, Policy};
///
/// let downloads = KeyedLimiter::new(Policy::concurrency(1))?;
/// let first = downloads.permit("alice", 1).expect("no other download is running");
/// assert!(downloads.permit("alice", 1).is_err());
/// drop(first);
/// assert!(downloads.permit("alice", 1).is_ok());
/// # Ok::<(), tidegate::BuildError>(())
/// ```
#[must_use = "a permit that is dropped is given back at once"]
pub struct Permit<'a, C: Clock = SystemClock> {
    from: From<'a, C>,
    estimate: Estimate,
}

enum From<'a, C> {
    One(&'a Limiter<C>),
    Key(&'a KeyedLimiter<C>, Tag),
}

impl<'a, C: Clock> Permit<'a, C> {
    /// Units that were taken.
    pub(crate) const fn of(limiter: &'a Limiter<C>, estimate: Estimate) -> Self {
        Self {
            from: From::One(limiter),
            estimate,
        }
    }

    /// Units of a key that were taken.
    pub(crate) const fn of_key(limiter: &'a KeyedLimiter<C>, tag: Tag, estimate: Estimate) -> Self {
        Self {
            from: From::Key(limiter, tag),
            estimate,
        }
    }

    /// The number of units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.estimate.cost
    }

    /// Keeps the units: they are not returned.
    pub fn keep(self) {
        let _ = self.take();
    }

    /// What was taken, which the permit no longer returns.
    pub(crate) fn take(mut self) -> Estimate {
        std::mem::replace(&mut self.estimate, NOTHING)
    }
}

impl<C: Clock> Drop for Permit<'_, C> {
    fn drop(&mut self) {
        let Self { from, estimate } = self;
        match from {
            _ if estimate.cost == 0 => {}
            From::One(limiter) => limiter.at(limiter.clock().now()).settle(*estimate, 0),
            From::Key(limiter, tag) => {
                limiter.settle_tag(*tag, *estimate, 0, limiter.clock().now());
            }
        }
    }
}

impl<C: Clock> fmt::Debug for Permit<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("cost", &self.cost())
            .finish_non_exhaustive()
    }
}

/// A [`Permit`] that keeps its limiter alive, for a spawned task or thread.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use std::sync::Arc;
/// use tidegate::{Limiter, OwnedPermit, Policy};
///
/// let in_flight = Arc::new(Limiter::new(Policy::concurrency(1)));
/// let permit = OwnedPermit::of(&in_flight, 1)?;
/// let work = std::thread::spawn(move || drop(permit));
/// # work.join().unwrap();
/// # Ok::<(), tidegate::Denied>(())
/// ```
#[must_use = "a permit that is dropped is given back at once"]
pub struct OwnedPermit<C: Clock = SystemClock> {
    from: Owned<C>,
    estimate: Estimate,
}

/// A limiter or one of its keys, which is kept alive.
pub(crate) enum Owned<C> {
    One(Arc<Limiter<C>>),
    Key(Arc<KeyedLimiter<C>>, Tag),
}

impl<C: Clock> OwnedPermit<C> {
    /// Takes `cost` until the permit is dropped.
    ///
    /// # Errors
    /// The same as [`Limiter::permit`].
    pub fn of(limiter: &Arc<Limiter<C>>, cost: u64) -> Result<Self, Denied> {
        Ok(Self {
            from: Owned::One(Arc::clone(limiter)),
            estimate: limiter.permit(cost)?.take(),
        })
    }

    /// Takes `cost` of a key until the permit is dropped.
    ///
    /// # Errors
    /// The same as [`KeyedLimiter::permit`].
    pub fn of_key(
        limiter: &Arc<KeyedLimiter<C>>,
        key: impl Key,
        cost: u64,
    ) -> Result<Self, Denied> {
        let tag = limiter.tag_of(&key);
        Ok(Self {
            from: Owned::Key(Arc::clone(limiter), tag),
            estimate: limiter.permit(key, cost)?.take(),
        })
    }

    /// The number of units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.estimate.cost
    }

    /// Keeps the units: they are not returned.
    pub fn keep(mut self) {
        self.estimate = NOTHING;
    }
}

impl<T: Timer> OwnedPermit<T> {
    /// Waits for a permit as [`Limiter::wait`] does.
    ///
    /// # Errors
    /// The same as [`Limiter::wait`].
    pub async fn wait(
        limiter: &Arc<Limiter<T>>,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> Result<Self, WaitError> {
        Ok(Self {
            from: Owned::One(Arc::clone(limiter)),
            estimate: limiter.wait_permit(cost, until).await?.take(),
        })
    }

    /// Waits for a permit of a key as [`KeyedLimiter::wait`] does.
    ///
    /// # Errors
    /// The same as [`KeyedLimiter::wait`].
    pub async fn wait_key(
        limiter: &Arc<KeyedLimiter<T>>,
        key: impl Key,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> Result<Self, WaitError> {
        let tag = limiter.tag_of(&key);
        Ok(Self {
            from: Owned::Key(Arc::clone(limiter), tag),
            estimate: limiter.wait_permit(key, cost, until).await?.take(),
        })
    }
}

impl<C: Clock> Drop for OwnedPermit<C> {
    fn drop(&mut self) {
        drop(match &self.from {
            Owned::One(limiter) => Permit::of(limiter, self.estimate),
            Owned::Key(limiter, tag) => Permit::of_key(limiter, *tag, self.estimate),
        });
    }
}

impl<C: Clock> fmt::Debug for OwnedPermit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPermit")
            .field("cost", &self.cost())
            .finish_non_exhaustive()
    }
}

impl<C: Clock> Limiter<C> {
    /// Takes `cost` until the permit is dropped.
    ///
    /// # Errors
    /// The denial. A permit does not report a leaky bucket's delay, which is in the decision of
    /// [`acquire`](Self::acquire). Use [`wait_permit`](Self::wait_permit), which waits for the
    /// delay.
    pub fn permit(&self, cost: u64) -> Result<Permit<'_, C>, Denied> {
        let (decision, estimate) = self.at(self.clock().now()).acquire_estimate(cost);
        decision.into_result()?;
        Ok(Permit::of(self, estimate))
    }
}

impl<T: Timer> Limiter<T> {
    /// Waits for a permit as [`wait`](Self::wait) does.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub async fn wait_permit(
        &self,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> Result<Permit<'_, T>, WaitError> {
        let (_, estimate) = self.wait_estimate(cost, until).await?;
        Ok(Permit::of(self, estimate))
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// Takes `cost` of a key until the permit is dropped.
    ///
    /// # Errors
    /// The denial. A permit does not report a leaky bucket's delay, which is in the decision of
    /// [`acquire`](Self::acquire). Use [`wait_permit`](Self::wait_permit), which waits for the
    /// delay.
    pub fn permit(&self, key: impl Key, cost: u64) -> Result<Permit<'_, C>, Denied> {
        let tag = self.tag_of(&key);
        let (decision, estimate) = self.acquire_estimate(tag, cost, self.clock().now());
        decision.into_result()?;
        Ok(Permit::of_key(self, tag, estimate))
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
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> Result<Permit<'_, T>, WaitError> {
        let tag = self.tag_of(&key);
        let (_, estimate) = self.wait_estimate(key, cost, until).await?;
        Ok(Permit::of_key(self, tag, estimate))
    }
}
