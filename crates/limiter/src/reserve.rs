//! Reservations: an estimate is taken before the work and corrected when the true cost is known.

use std::{fmt, sync::Arc};

use smallvec::{SmallVec, smallvec};
use tidegate_core::{Clock, Denied, Estimate, Key, Nanos};

use crate::{KeyedLimiter, Limiter, SystemClock, Timer, WaitError, WaitUntil, permit::Owned};

/// The number of estimates that are remembered with their times.
const MOST: usize = 16;

/// Units for work whose cost is known only when it is over, such as the tokens of an answer or the
/// bytes of a response.
///
/// The estimate counts from the moment it is taken, so other callers see it.
/// [`settle`](Self::settle) corrects it: the units that were not used go back to where they count,
/// and units beyond the estimate are charged (see [`Policy::settle`](crate::Policy::settle)). A
/// reservation that is dropped keeps its estimate, because the work may have been done, unless
/// [`cancel_on_drop`](Self::cancel_on_drop) was called.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use std::sync::Arc;
/// use tidegate::{KeyedLimiter, Policy, Reservation};
///
/// let tokens = Arc::new(KeyedLimiter::new(Policy::sliding_window("1000/1m".parse()?))?);
/// let reserved = Reservation::of_key(&tokens, "alice", 800)?;
/// assert_eq!(tokens.peek("alice", 0).remaining(), 200);
/// reserved.settle(350);
/// assert_eq!(tokens.peek("alice", 0).remaining(), 650);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a reservation that is dropped keeps its estimate"]
pub struct Reservation<C: Clock = SystemClock> {
    of: Owned<C>,
    /// Empty once it is settled.
    estimates: Estimates,
    is_cancelled_on_drop: bool,
}

/// The units that were taken for one piece of work: its estimate and the extensions, the oldest
/// first. At most 16 are remembered with their times; the oldest two then count as one with the
/// earlier time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimates(SmallVec<[Estimate; 1]>);

impl Estimates {
    /// Adds an estimate, in order of age.
    pub fn add(&mut self, estimate: Estimate) {
        let Self(all) = self;
        if all.len() == MOST {
            let oldest = all.remove(0);
            // Units go back to the earlier place of the two, if at all.
            let place = if all[0].place == oldest.place {
                oldest.place
            } else {
                0
            };
            all[0] = Estimate {
                cost: all[0].cost.saturating_add(oldest.cost),
                taken: oldest.taken,
                place,
            };
        }
        all.push(estimate);
    }

    /// The sum of the units.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.iter()
            .fold(0, |sum, estimate| sum.saturating_add(estimate.cost))
    }

    /// The estimates.
    pub fn iter(&self) -> impl Iterator<Item = &Estimate> {
        self.0.iter()
    }

    /// Passes on each estimate with its part of the `actual` cost, the latest first, for a call of
    /// [`KeyedAt::settle`](crate::KeyedAt::settle) or [`LimiterAt::settle`](crate::LimiterAt::settle).
    /// Units that were not used are returned from the latest extension back to the first estimate.
    pub fn settle(self, actual: u64, mut settle: impl FnMut(Estimate, u64)) {
        let mut unused = self.cost().saturating_sub(actual);
        let mut beyond = actual.saturating_sub(self.cost());
        for estimate in self.0.into_iter().rev() {
            let returned = unused.min(estimate.cost);
            unused -= returned;
            settle(estimate, (estimate.cost - returned).saturating_add(beyond));
            beyond = 0;
        }
    }
}

impl From<Estimate> for Estimates {
    fn from(estimate: Estimate) -> Self {
        Self(smallvec![estimate])
    }
}

impl<C: Clock> Reservation<C> {
    /// Takes an estimate of `cost`.
    ///
    /// # Errors
    /// [`Denied`] if the limiter does not admit the estimate. A reservation does not report a leaky
    /// bucket's delay.
    pub fn of(limiter: &Arc<Limiter<C>>, cost: u64) -> Result<Self, Denied> {
        Self::take(Owned::One(Arc::clone(limiter)), cost)
    }

    /// Takes an estimate of `cost` for a key.
    ///
    /// # Errors
    /// The same as [`of`](Self::of).
    pub fn of_key(
        limiter: &Arc<KeyedLimiter<C>>,
        key: impl Key,
        cost: u64,
    ) -> Result<Self, Denied> {
        Self::take(Owned::Key(Arc::clone(limiter), limiter.tag_of(&key)), cost)
    }

    fn take(of: Owned<C>, cost: u64) -> Result<Self, Denied> {
        let estimate = of.take(cost)?;
        Ok(Self::taken(of, estimate))
    }

    pub(crate) fn taken(of: Owned<C>, estimate: Estimate) -> Self {
        Self {
            of,
            estimates: estimate.into(),
            is_cancelled_on_drop: false,
        }
    }

    /// The units that are taken: the estimate and its extensions.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.estimates.cost()
    }

    /// Takes `more`, for work that turns out to be larger than its estimate.
    ///
    /// # Errors
    /// [`Denied`] if the limiter does not admit it; the reservation stays as it was.
    pub fn extend(&mut self, more: u64) -> Result<(), Denied> {
        self.estimates.add(self.of.take(more)?);
        Ok(())
    }

    /// Corrects the units that are taken to the `actual` cost.
    pub fn settle(mut self, actual: u64) {
        self.correct(actual);
    }

    /// Returns all units: the work was not done.
    pub fn cancel(mut self) {
        self.correct(0);
    }

    /// The same reservation, which [cancels](Self::cancel) itself when it is dropped.
    pub fn cancel_on_drop(self) -> Self {
        let mut reservation = self;
        reservation.is_cancelled_on_drop = true;
        reservation
    }

    fn correct(&mut self, actual: u64) {
        std::mem::take(&mut self.estimates)
            .settle(actual, |estimate, actual| self.of.settle(estimate, actual));
    }
}

impl<T: Timer> Reservation<T> {
    /// Waits for an estimate as [`Limiter::wait`] does.
    ///
    /// # Errors
    /// The same as [`Limiter::wait`].
    pub async fn wait(
        limiter: &Arc<Limiter<T>>,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> Result<Self, WaitError> {
        let (_, estimate) = limiter.wait_estimate(cost, until).await?;
        Ok(Self::taken(Owned::One(Arc::clone(limiter)), estimate))
    }

    /// Waits for an estimate of a key as [`KeyedLimiter::wait`] does.
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
        let (_, estimate) = limiter.wait_estimate(key, cost, until).await?;
        Ok(Self::taken(Owned::Key(Arc::clone(limiter), tag), estimate))
    }
}

impl<C: Clock> Owned<C> {
    fn now(&self) -> Nanos {
        match self {
            Self::One(limiter) => limiter.clock().now(),
            Self::Key(limiter, _) => limiter.clock().now(),
        }
    }

    fn take(&self, cost: u64) -> Result<Estimate, Denied> {
        let now = self.now();
        let (decision, estimate) = match self {
            Self::One(limiter) => limiter.at(now).acquire_estimate(cost),
            Self::Key(limiter, tag) => limiter.acquire_estimate(*tag, cost, now),
        };
        decision.into_result()?;
        Ok(estimate)
    }

    fn settle(&self, estimate: Estimate, actual: u64) {
        let now = self.now();
        match self {
            Self::One(limiter) => limiter.at(now).settle(estimate, actual),
            Self::Key(limiter, tag) => limiter.settle_tag(*tag, estimate, actual, now),
        }
    }
}

impl<C: Clock> Drop for Reservation<C> {
    fn drop(&mut self) {
        if self.is_cancelled_on_drop {
            self.correct(0);
        }
    }
}

impl<C: Clock> fmt::Debug for Reservation<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("cost", &self.cost())
            .finish_non_exhaustive()
    }
}
