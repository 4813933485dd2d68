//! A limit for each key, in this process or in a shared store.

use std::sync::Arc;

use tidegate_core::{Clock, Decision, Policy};

use crate::{KeyedLimiter, Limiter};

/// A limit for each key, decided in this process or in a shared store. Middleware accepts it.
///
/// A decision never fails: an implementation decides itself what to answer if its store fails. The
/// future runs on the caller's runtime. The future of a [`KeyedLimiter`] is ready at once and
/// allocates nothing.
///
/// The method is asynchronous, so the trait is not object safe. Make your code generic over it. To
/// choose an implementation at run time, implement the trait for an enum of the alternatives.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{KeyedLimit, KeyedLimiter, Policy, Quota};
///
/// async fn login(limit: &impl KeyedLimit, user: &str) -> bool {
///     limit.decide(user.as_bytes(), 1).await.is_allowed()
/// }
///
/// let logins = KeyedLimiter::new(Policy::token_bucket(Quota::per_minute(1)))?;
/// let both = async { (login(&logins, "alice").await, login(&logins, "alice").await) };
/// assert_eq!(futures::executor::block_on(both), (true, false));
/// # Ok::<(), tidegate::BuildError>(())
/// ```
pub trait KeyedLimit: Send + Sync {
    /// Asks for `cost`, and takes it if it is admitted; a cost of 0 is a peek. Nothing happens
    /// before the future is first polled. A future that is dropped before it is ready may have
    /// taken the cost.
    fn decide(&self, key: &[u8], cost: u64) -> impl Future<Output = Decision> + Send;

    /// The policy of keys without an override.
    fn policy(&self) -> Policy;
}

impl<C: Clock> KeyedLimit for KeyedLimiter<C> {
    #[inline]
    async fn decide(&self, key: &[u8], cost: u64) -> Decision {
        self.acquire(key, cost)
    }

    fn policy(&self) -> Policy {
        self.policy()
    }
}

/// One limit for all keys: the key is ignored.
impl<C: Clock> KeyedLimit for Limiter<C> {
    #[inline]
    async fn decide(&self, _key: &[u8], cost: u64) -> Decision {
        self.acquire(cost)
    }

    fn policy(&self) -> Policy {
        self.policy()
    }
}

impl<L: KeyedLimit> KeyedLimit for Arc<L> {
    #[inline]
    fn decide(&self, key: &[u8], cost: u64) -> impl Future<Output = Decision> + Send {
        L::decide(self, key, cost)
    }

    fn policy(&self) -> Policy {
        L::policy(self)
    }
}
