//! Permits of tenants, which are released when they are dropped.

use std::fmt;

use tidegate_core::{Clock, Estimate};

use super::FairLimiter;
use crate::SystemClock;

/// Units of a tenant that return when the work is over, as those of a [`Permit`](crate::Permit).
#[must_use = "a permit that is dropped is given back at once"]
pub struct TenantPermit<'a, C: Clock = SystemClock> {
    pub(super) limiter: &'a FairLimiter<C>,
    pub(super) tenant: Box<[u8]>,
    pub(super) estimate: Estimate,
}

impl<C: Clock> TenantPermit<'_, C> {
    /// The number of units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.estimate.cost
    }
}

impl<C: Clock> Drop for TenantPermit<'_, C> {
    fn drop(&mut self) {
        self.limiter.give_back(&self.tenant, self.estimate);
    }
}

impl<C: Clock> fmt::Debug for TenantPermit<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantPermit")
            .field("cost", &self.cost())
            .finish_non_exhaustive()
    }
}
