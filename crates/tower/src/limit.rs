//! The limits of a layer: limits of this process and shared limits behind one type.

use std::{fmt, pin::Pin, sync::Arc};

use tidegate_core::{Decision, Policy};
use tidegate_limiter::{KeyedLimit, KeyedLimiter, Limiter, SystemClock, Timer};
#[cfg(feature = "shared")]
use tidegate_redis::SharedLimit;

use crate::time::Time;

/// A limit of a layer: a [`KeyedLimiter`], a [`Limiter`] for all requests together, a `SharedLimit` (feature `shared`), or a
/// [custom limit](Self::own). Cheap to clone; clones share the limit.
pub struct Limit<C = SystemClock>(pub(crate) Kind<C>);

pub(crate) enum Kind<C> {
    Keyed(Arc<KeyedLimiter<C>>),
    Unkeyed(Arc<Limiter<C>>),
    #[cfg(feature = "shared")]
    Shared(SharedLimit),
    Own(Arc<dyn Own>),
}

/// A [`KeyedLimit`] as a trait object.
pub(crate) trait Own: Send + Sync {
    fn decide<'a>(&'a self, key: &'a [u8], cost: u64) -> Pin<Box<dyn Future<Output = Decision> + Send + 'a>>;
    fn policy(&self) -> Policy;
}

impl<L: KeyedLimit> Own for L {
    fn decide<'a>(&'a self, key: &'a [u8], cost: u64) -> Pin<Box<dyn Future<Output = Decision> + Send + 'a>> {
        Box::pin(KeyedLimit::decide(self, key, cost))
    }

    fn policy(&self) -> Policy {
        KeyedLimit::policy(self)
    }
}

impl Limit {
    /// A custom limit. It cannot refund: its units stay taken even if another limit of the same layer denies. It is therefore
    /// decided last.
    pub fn own(limit: impl KeyedLimit + 'static) -> Self {
        Self(Kind::Own(Arc::new(limit)))
    }
}

impl<C: Timer + 'static> Limit<C> {
    /// The policy of keys without an override.
    #[must_use]
    pub fn policy(&self) -> Policy {
        match &self.0 {
            Kind::Keyed(limiter) => KeyedLimit::policy(&**limiter),
            Kind::Unkeyed(limiter) => KeyedLimit::policy(&**limiter),
            #[cfg(feature = "shared")]
            Kind::Shared(limit) => *limit.policy(),
            Kind::Own(limit) => Own::policy(&**limit),
        }
    }

    /// A number that is another one after each change of the policy, if there is one.
    pub(crate) fn policy_version(&self) -> Option<u64> {
        match &self.0 {
            Kind::Keyed(limiter) => Some(limiter.policy_version()),
            Kind::Unkeyed(limiter) => Some(limiter.policy_version()),
            // Its policy never changes.
            #[cfg(feature = "shared")]
            Kind::Shared(_) => Some(0),
            Kind::Own(_) => None,
        }
    }

    /// Whether this process decides without waiting for a store.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.0, Kind::Keyed(_) | Kind::Unkeyed(_))
    }

    pub(crate) fn time(&self) -> Arc<dyn Time> {
        match &self.0 {
            Kind::Keyed(limiter) => Arc::new(limiter.clock().clone()) as Arc<dyn Time>,
            Kind::Unkeyed(limiter) => Arc::new(limiter.clock().clone()),
            #[cfg(feature = "shared")]
            Kind::Shared(_) => Arc::new(SystemClock::new()),
            Kind::Own(_) => Arc::new(SystemClock::new()),
        }
    }
}

impl<C> Clone for Limit<C> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Kind::Keyed(limiter) => Kind::Keyed(Arc::clone(limiter)),
            Kind::Unkeyed(limiter) => Kind::Unkeyed(Arc::clone(limiter)),
            #[cfg(feature = "shared")]
            Kind::Shared(limit) => Kind::Shared(limit.clone()),
            Kind::Own(limit) => Kind::Own(Arc::clone(limit)),
        })
    }
}

impl<C> fmt::Debug for Limit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Keyed(limiter) => limiter.fmt(f),
            Kind::Unkeyed(limiter) => limiter.fmt(f),
            #[cfg(feature = "shared")]
            Kind::Shared(limit) => limit.fmt(f),
            Kind::Own(_) => f.write_str("Own"),
        }
    }
}

/// Types that convert into a [`Limit`]: a limiter, an [`Arc`] of one, a `SharedLimit`, a [`Limit`].
pub trait IntoLimit {
    /// The clock used for waiting. All limits of a layer have the same clock type.
    type Clock: Timer + 'static;

    /// Converts into a limit.
    fn into_limit(self) -> Limit<Self::Clock>;
}

impl<C: Timer + 'static> IntoLimit for Limit<C> {
    type Clock = C;

    fn into_limit(self) -> Self {
        self
    }
}

impl<C: Timer + 'static> IntoLimit for Arc<KeyedLimiter<C>> {
    type Clock = C;

    fn into_limit(self) -> Limit<C> {
        Limit(Kind::Keyed(self))
    }
}

impl<C: Timer + 'static> IntoLimit for KeyedLimiter<C> {
    type Clock = C;

    fn into_limit(self) -> Limit<C> {
        Arc::new(self).into_limit()
    }
}

impl<C: Timer + 'static> IntoLimit for Arc<Limiter<C>> {
    type Clock = C;

    fn into_limit(self) -> Limit<C> {
        Limit(Kind::Unkeyed(self))
    }
}

impl<C: Timer + 'static> IntoLimit for Limiter<C> {
    type Clock = C;

    fn into_limit(self) -> Limit<C> {
        Arc::new(self).into_limit()
    }
}

#[cfg(feature = "shared")]
impl IntoLimit for SharedLimit {
    type Clock = SystemClock;

    fn into_limit(self) -> Limit {
        Limit(Kind::Shared(self))
    }
}
