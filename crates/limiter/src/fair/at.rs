//! The operations of a limit that tenants share, at a time that the caller gives.

use std::fmt;

use tidegate_core::fair::Terms;
use tidegate_core::{Decision, Key, Nanos, Policy};

use super::{FairBuildError, FairLimiter, TenantsAt, TotalStep};
use crate::{LimiterAt, SystemClock};

/// A [`FairLimiter`] at one time: each method is an operation at that time, and reads no clock.
/// [`FairLimiter::at`] makes it. It is a reference and a number, so a copy costs nothing.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{FairLimiter, Nanos, Policy, Quota};
/// let api = FairLimiter::builder(Policy::token_bucket(Quota::per_minute(60))).build()?;
/// let then = api.at(Nanos::from_secs(10));
/// assert_eq!(then.acquire("acme", 50).remaining(), 10);
/// assert_eq!(then.share("acme"), 1.0);
/// assert_eq!(api.at(Nanos::from_secs(12)).peek("acme", 1).remaining(), 11);
/// # Ok::<(), tidegate::FairBuildError>(())
/// ```
///
/// [`KeyedAt`](crate::KeyedAt) says when to use it, and what a time before that of an earlier call
/// does.
pub struct FairAt<'a, C = SystemClock> {
    pub(super) limiter: &'a FairLimiter<C>,
    pub(super) now: Nanos,
}

impl<C> Clone for FairAt<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for FairAt<'_, C> {}

impl<C> fmt::Debug for FairAt<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairAt")
            .field("limiter", &self.limiter)
            .field("now", &self.now)
            .finish()
    }
}

impl<C> FairLimiter<C> {
    /// The limiter at a given time: operations that read no clock.
    #[inline]
    #[must_use]
    pub const fn at(&self, now: Nanos) -> FairAt<'_, C> {
        FairAt { limiter: self, now }
    }
}

impl<'a, C> FairAt<'a, C> {
    /// The tenants and the total.
    pub(super) const fn parts(self) -> (TenantsAt<'a>, LimiterAt<'a, C>) {
        let Self { limiter, now } = self;
        (limiter.tenants.at(now), limiter.total.at(now))
    }

    /// Asks for `cost` for a tenant. A cost of 0 is a peek at the total.
    ///
    /// The `retry_after` of a denial is a promise for the tenant's present share: without other
    /// traffic the request is admitted after at most that long.
    pub fn acquire(self, tenant: impl Key, cost: u64) -> Decision {
        let (tenants, total) = self.parts();
        tenants.acquire(tenant, cost, |step| match step {
            TotalStep::Take => total.acquire(cost),
            TotalStep::Peek => total.peek(cost),
        })
    }

    /// Takes as much of `cost` as is available to a tenant; returns that amount and the decision on
    /// it.
    pub fn acquire_up_to(self, tenant: impl Key, cost: u64) -> (u64, Decision) {
        let (tenants, total) = self.parts();
        tenants.acquire_up_to(tenant, cost, |step, cost| match step {
            TotalStep::Take => total.acquire_up_to(cost),
            TotalStep::Peek => (0, total.peek(cost)),
        })
    }

    /// The decision on `cost` for a tenant, without taking it.
    pub fn peek(self, tenant: impl Key, cost: u64) -> Decision {
        let (tenants, total) = self.parts();
        tenants.peek(tenant, cost, || total.peek(cost))
    }

    /// Takes `cost` for a tenant even if it does not fit, for a cost that is known only after the
    /// work (see [`LimiterAt::charge`]). It counts in the tenant's share.
    pub fn charge(self, tenant: impl Key, cost: u64) -> Decision {
        let (tenants, total) = self.parts();
        tenants.charge(tenant, cost);
        total.charge(cost)
    }

    /// Returns up to `cost` of the units that a tenant took last.
    pub fn refund(self, tenant: impl Key, cost: u64) {
        let (tenants, total) = self.parts();
        tenants.refund(tenant, cost);
        total.refund(cost);
    }

    /// Changes the policy and the terms of all tenants, and keeps what was used. `others` are the
    /// terms of tenants without their own.
    ///
    /// # Errors
    /// If the policy does not support shares, or the guarantees exceed 100 %; nothing has changed
    /// then.
    pub fn change<'n>(
        self,
        policy: impl Into<Policy>,
        others: Terms,
        named: impl IntoIterator<Item = (&'n [u8], Terms)>,
    ) -> Result<(), FairBuildError> {
        let (tenants, total) = self.parts();
        let policy = policy.into();
        tenants.change(&policy, others, named)?;
        total.set_policy(policy);
        Ok(())
    }

    /// Forgets what all tenants have used, and what the limit has.
    pub fn reset_all(self) {
        let (tenants, total) = self.parts();
        tenants.reset_all_with(|| {
            total.reset();
        });
    }

    /// A tenant's part of the limit, from 0 to 1, while all tenants that asked lately want more
    /// than they get.
    pub fn share(self, tenant: impl Key) -> f64 {
        let (tenants, _) = self.parts();
        tenants.share(tenant)
    }

    /// The part of the limit, from 0, that a tenant has used in the last seconds (or windows, if they
    /// are longer than a second), what was charged included. It takes as long to follow a change.
    /// `None` if the tenant did not ask lately.
    pub fn used(self, tenant: impl Key) -> Option<f64> {
        let (tenants, _) = self.parts();
        tenants.used(tenant)
    }
}
