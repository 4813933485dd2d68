//! Permits that are released when they are dropped.

use std::{fmt, sync::Arc};

use tidegate_core::{Clock, Denied, Key, Nanos};

use crate::{KeyedLimiter, Limiter, SystemClock, Timer, WaitError, table::Tag};

/// Units that are returned when the work is over: on return, on an error, on a panic, and when a
/// future is cancelled.
///
/// Made for [`Policy::concurrency`](crate::Policy::concurrency), where returning them lets the next
/// caller in.
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
    cost: u64,
}

enum From<'a, C> {
    One(&'a Limiter<C>),
    Key(&'a KeyedLimiter<C>, Tag),
}

impl<'a, C: Clock> Permit<'a, C> {
    /// Units that were taken.
    pub(crate) const fn of(limiter: &'a Limiter<C>, cost: u64) -> Self {
        Self {
            from: From::One(limiter),
            cost,
        }
    }

    /// Units of a key that were taken.
    pub(crate) const fn of_key(limiter: &'a KeyedLimiter<C>, tag: Tag, cost: u64) -> Self {
        Self {
            from: From::Key(limiter, tag),
            cost,
        }
    }

    /// The number of units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
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
        f.debug_struct("Permit")
            .field("cost", &self.cost)
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
    cost: u64,
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
        limiter.permit(cost)?.keep();
        Ok(Self {
            from: Owned::One(Arc::clone(limiter)),
            cost,
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
        limiter.permit(key, cost)?.keep();
        Ok(Self {
            from: Owned::Key(Arc::clone(limiter), tag),
            cost,
        })
    }

    /// The number of units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Keeps the units: they are not returned.
    pub fn keep(mut self) {
        self.cost = 0;
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
        deadline: Option<Nanos>,
    ) -> Result<Self, WaitError> {
        limiter.wait_permit(cost, deadline).await?.keep();
        Ok(Self {
            from: Owned::One(Arc::clone(limiter)),
            cost,
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
        deadline: Option<Nanos>,
    ) -> Result<Self, WaitError> {
        let tag = limiter.tag_of(&key);
        limiter.wait_permit(key, cost, deadline).await?.keep();
        Ok(Self {
            from: Owned::Key(Arc::clone(limiter), tag),
            cost,
        })
    }
}

impl<C: Clock> Drop for OwnedPermit<C> {
    fn drop(&mut self) {
        drop(match &self.from {
            Owned::One(limiter) => Permit::of(limiter, self.cost),
            Owned::Key(limiter, tag) => Permit::of_key(limiter, *tag, self.cost),
        });
    }
}

impl<C: Clock> fmt::Debug for OwnedPermit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPermit")
            .field("cost", &self.cost)
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
        self.acquire(cost).into_result()?;
        Ok(Permit::of(self, cost))
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
        deadline: Option<Nanos>,
    ) -> Result<Permit<'_, T>, WaitError> {
        self.wait(cost, deadline).await?;
        Ok(Permit::of(self, cost))
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
        self.acquire(key, cost).into_result()?;
        Ok(Permit::of_key(self, tag, cost))
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
        deadline: Option<Nanos>,
    ) -> Result<Permit<'_, T>, WaitError> {
        let tag = self.tag_of(&key);
        self.wait(key, cost, deadline).await?;
        Ok(Permit::of_key(self, tag, cost))
    }
}
