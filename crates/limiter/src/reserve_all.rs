//! Reservations of several limits that are taken in one step.

use std::{fmt, sync::Arc};

use tidegate_core::{Clock, Estimate, Key, Nanos};

use crate::{
    AllDecision, Full, KeyedLimiter, Limiter, Request, Reservation, SystemClock, Timer,
    WaitAllError, WaitUntil, acquire_all_estimates_at, permit::Owned, wait_all_estimates,
};

/// The estimates of one piece of work at several limits. They are taken in one step: all or none.
/// Each limit then has a [`Reservation`] of its own, because the true costs differ: a request is
/// one request, whatever its tokens.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use std::sync::Arc;
/// use tidegate::{KeyedLimiter, Limiter, Policy, Quota, ReserveAll};
///
/// let requests = Arc::new(Limiter::new(Policy::token_bucket(Quota::per_second(100))));
/// let tokens = Arc::new(KeyedLimiter::new(Policy::sliding_window("1000/1m".parse()?))?);
/// let work = ReserveAll::new().limiter(&requests, 1).key(&tokens, "alice", 800);
/// let [_request, answer] = work.take()?.try_into().expect("one for each limit");
/// answer.settle(350);
/// assert_eq!(tokens.peek("alice", 0).remaining(), 650);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "estimates are taken by `take` or `wait`"]
pub struct ReserveAll<C: Clock = SystemClock> {
    parts: Vec<Part<C>>,
}

struct Part<C> {
    of: Owned<C>,
    /// Empty without a key.
    key: Vec<u8>,
    cost: u64,
}

/// Why several estimates were not taken together.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveAllError {
    /// A limit does not admit its estimate.
    #[error("a limit does not admit its estimate")]
    Denied(Box<AllDecision>),
    /// A limiter is too small to hold all requested keys at the same time.
    #[error(transparent)]
    Full(#[from] Full),
}

impl<C: Clock> Default for ReserveAll<C> {
    fn default() -> Self {
        Self { parts: Vec::new() }
    }
}

impl<C: Clock> ReserveAll<C> {
    /// No estimates.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an estimate of `cost`.
    pub fn limiter(self, limiter: &Arc<Limiter<C>>, cost: u64) -> Self {
        self.with(Owned::One(Arc::clone(limiter)), Vec::new(), cost)
    }

    /// Adds an estimate of `cost` for a key.
    pub fn key(self, limiter: &Arc<KeyedLimiter<C>>, key: impl Key, cost: u64) -> Self {
        let of = Owned::Key(Arc::clone(limiter), limiter.tag_of(&key));
        self.with(of, key.with_bytes(<[u8]>::to_vec), cost)
    }

    fn with(mut self, of: Owned<C>, key: Vec<u8>, cost: u64) -> Self {
        self.parts.push(Part { of, key, cost });
        self
    }

    /// Takes the estimates, at the current time of the first limiter's clock. Returns the
    /// reservations in the order in which the limits were added.
    ///
    /// # Errors
    /// If a limit does not admit its estimate, or as [`acquire_all`](crate::acquire_all); nothing is
    /// taken then. A reservation does not report a leaky bucket's delay.
    pub fn take(self) -> Result<Vec<Reservation<C>>, ReserveAllError> {
        let requests = self.requests();
        let now = requests
            .first()
            .map_or(Nanos::ZERO, |first| first.clock().now());
        let (all, taken) = acquire_all_estimates_at(&requests, now)?;
        drop(requests);
        if all.is_allowed() {
            Ok(self.reservations(taken))
        } else {
            Err(ReserveAllError::Denied(Box::new(all)))
        }
    }

    fn requests(&self) -> Vec<Request<'_, C>> {
        let requests = self.parts.iter().map(|part| match &part.of {
            Owned::One(limiter) => Request::unkeyed(limiter, part.cost),
            Owned::Key(limiter, _) => Request::keyed(limiter, &part.key, part.cost),
        });
        requests.collect()
    }

    fn reservations(self, taken: Vec<Estimate>) -> Vec<Reservation<C>> {
        let parts = self.parts.into_iter().zip(taken);
        parts
            .map(|(part, estimate)| Reservation::taken(part.of, estimate))
            .collect()
    }
}

impl<T: Timer> ReserveAll<T> {
    /// Waits until all limits admit their estimates in one step, as
    /// [`wait_all`](crate::wait_all) does. Until then nothing is taken.
    ///
    /// # Errors
    /// The same as [`wait_all`](crate::wait_all).
    pub async fn wait(
        self,
        until: impl Into<WaitUntil>,
    ) -> Result<Vec<Reservation<T>>, WaitAllError> {
        let (_, taken) = wait_all_estimates(&self.requests(), until).await?;
        Ok(self.reservations(taken))
    }
}

impl<C: Clock> fmt::Debug for ReserveAll<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let costs = self.parts.iter().map(|part| part.cost);
        f.debug_list().entries(costs).finish()
    }
}
