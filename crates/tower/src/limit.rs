//! The limits of a layer: limits of this process and shared limits behind one type.

use std::{fmt, pin::Pin, sync::Arc};

use tidegate_core::{Decision, Policy};
use tidegate_limiter::{KeyedLimit, KeyedLimiter, Limiter, SystemClock, Timer};
#[cfg(feature = "shared")]
use tidegate_redis::SharedLimit;

use crate::time::Time;

/// A limit of a layer: a [`KeyedLimiter`], a [`Limiter`] for all requests together, a `SharedLimit`
/// (feature `shared`), or a [custom limit](Self::own). Cheap to clone; clones share the limit.
pub struct Limit<C = SystemClock>(pub(crate) LimitKind<C>);

pub(crate) enum LimitKind<C> {
    Keyed(Arc<KeyedLimiter<C>>),
    Unkeyed(Arc<Limiter<C>>),
    #[cfg(feature = "shared")]
    Shared(SharedLimit),
    Own(Arc<dyn CustomLimit>),
}

/// A [`KeyedLimit`] as a trait object.
pub(crate) trait CustomLimit: Send + Sync {
    fn decide<'a>(
        &'a self,
        key: &'a [u8],
        cost: u64,
    ) -> Pin<Box<dyn Future<Output = Decision> + Send + 'a>>;
    fn policy(&self) -> Policy;
}

impl<L: KeyedLimit> CustomLimit for L {
    fn decide<'a>(
        &'a self,
        key: &'a [u8],
        cost: u64,
    ) -> Pin<Box<dyn Future<Output = Decision> + Send + 'a>> {
        Box::pin(KeyedLimit::decide(self, key, cost))
    }

    fn policy(&self) -> Policy {
        KeyedLimit::policy(self)
    }
}

impl Limit {
    /// A custom limit. It cannot refund: its units stay taken even if another limit of the same
    /// layer denies. It is therefore decided last.
    pub fn own(limit: impl KeyedLimit + 'static) -> Self {
        Self(LimitKind::Own(Arc::new(limit)))
    }
}

impl<C: Timer + 'static> Limit<C> {
    /// The policy of keys without an override.
    #[must_use]
    pub fn policy(&self) -> Policy {
        match &self.0 {
            LimitKind::Keyed(limiter) => KeyedLimit::policy(&**limiter),
            LimitKind::Unkeyed(limiter) => KeyedLimit::policy(&**limiter),
            #[cfg(feature = "shared")]
            LimitKind::Shared(limit) => *limit.policy(),
            LimitKind::Own(limit) => CustomLimit::policy(&**limit),
        }
    }

    /// A number that is another one after each change of the policy, if there is one.
    pub(crate) fn policy_version(&self) -> Option<u64> {
        match &self.0 {
            LimitKind::Keyed(limiter) => Some(limiter.policy_version()),
            LimitKind::Unkeyed(limiter) => Some(limiter.policy_version()),
            // Its policy never changes.
            #[cfg(feature = "shared")]
            LimitKind::Shared(_) => Some(0),
            LimitKind::Own(_) => None,
        }
    }

    /// Whether this process decides without waiting for a store.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.0, LimitKind::Keyed(_) | LimitKind::Unkeyed(_))
    }

    pub(crate) fn time(&self) -> Arc<dyn Time> {
        match &self.0 {
            LimitKind::Keyed(limiter) => Arc::new(limiter.clock().clone()) as Arc<dyn Time>,
            LimitKind::Unkeyed(limiter) => Arc::new(limiter.clock().clone()),
            #[cfg(feature = "shared")]
            LimitKind::Shared(_) => Arc::new(SystemClock::new()),
            LimitKind::Own(_) => Arc::new(SystemClock::new()),
        }
    }
}

impl<C> Clone for Limit<C> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            LimitKind::Keyed(limiter) => LimitKind::Keyed(Arc::clone(limiter)),
            LimitKind::Unkeyed(limiter) => LimitKind::Unkeyed(Arc::clone(limiter)),
            #[cfg(feature = "shared")]
            LimitKind::Shared(limit) => LimitKind::Shared(limit.clone()),
            LimitKind::Own(limit) => LimitKind::Own(Arc::clone(limit)),
        })
    }
}

impl<C> fmt::Debug for Limit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            LimitKind::Keyed(limiter) => limiter.fmt(f),
            LimitKind::Unkeyed(limiter) => limiter.fmt(f),
            #[cfg(feature = "shared")]
            LimitKind::Shared(limit) => limit.fmt(f),
            LimitKind::Own(_) => f.write_str("Own"),
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
        Limit(LimitKind::Keyed(self))
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
        Limit(LimitKind::Unkeyed(self))
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
        Limit(LimitKind::Shared(self))
    }
}
