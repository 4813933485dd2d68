//! A limit for each key, wherever its states are.

use std::sync::Arc;

use tidegate_core::{Clock, Decision, Policy};

use crate::{KeyedLimiter, Limiter};

/// A limit for each key, decided in this process or in a store that several share: what middleware takes.
///
/// A decision never fails: whoever implements this says what the answer is when a store gives none. Waiting is for the
/// caller's runtime; a [`KeyedLimiter`] is ready at once, and nothing is allocated.
///
/// As its method is asynchronous the trait makes no trait objects: be generic over it, and where the choice falls at run
/// time, implement it for an enum of what there is to choose from.
///
/// ```
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
    /// Asks for `cost`, and takes it when the answer admits that; a cost of 0 is a peek. Nothing is asked before the future
    /// is first polled; one that is dropped before it is ready may have taken the cost.
    fn decide(&self, key: &[u8], cost: u32) -> impl Future<Output = Decision> + Send;

    /// The policy of keys without one of their own.
    fn policy(&self) -> Policy;
}

impl<C: Clock> KeyedLimit for KeyedLimiter<C> {
    #[inline]
    async fn decide(&self, key: &[u8], cost: u32) -> Decision {
        self.acquire(key, cost)
    }

    fn policy(&self) -> Policy {
        self.policy()
    }
}

/// One limit for everybody: the key does not matter.
impl<C: Clock> KeyedLimit for Limiter<C> {
    #[inline]
    async fn decide(&self, _key: &[u8], cost: u32) -> Decision {
        self.acquire(cost)
    }

    fn policy(&self) -> Policy {
        self.policy()
    }
}

impl<L: KeyedLimit> KeyedLimit for Arc<L> {
    #[inline]
    fn decide(&self, key: &[u8], cost: u32) -> impl Future<Output = Decision> + Send {
        L::decide(self, key, cost)
    }

    fn policy(&self) -> Policy {
        L::policy(self)
    }
}
