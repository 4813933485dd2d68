//! Limits that tenants share: the limit's own state is that of the empty key, and the part of a key
//! that names its tenant decides about its share.

use tidegate_core::{Decision, Estimate, Nanos};
use tidegate_limiter::{FairBuildError, FairTenants, KeyedLimiter, Stats, Terms, TotalStep};

use super::Limit;
use crate::rules::{LimitSpec, SharesSpec};

/// The key of the state of the whole limit.
pub(super) const TOTAL: &[u8] = b"";

/// A limit that tenants share, and the tenant of a key.
#[derive(Clone, Copy)]
pub struct OfTenant<'a> {
    pub tenants: &'a FairTenants,
    pub tenant: &'a [u8],
    total: &'a KeyedLimiter<()>,
}

impl OfTenant<'_> {
    pub fn take(&self, cost: u64, now: Nanos) -> Decision {
        let total = self.total;
        self.tenants
            .acquire_at(self.tenant, cost, now, |step| match step {
                TotalStep::Take => total.acquire_at(TOTAL, cost, now),
                TotalStep::Peek => total.peek_at(TOTAL, cost, now),
            })
    }

    pub fn take_up_to(&self, cost: u64, now: Nanos) -> (u64, Decision) {
        let total = self.total;
        self.tenants
            .acquire_up_to_at(self.tenant, cost, now, |step, cost| match step {
                TotalStep::Take => total.acquire_up_to_at(TOTAL, cost, now),
                TotalStep::Peek => (0, total.peek_at(TOTAL, cost, now)),
            })
    }

    pub fn peek(&self, cost: u64, now: Nanos) -> Decision {
        let total = || self.total.peek_at(TOTAL, cost, now);
        self.tenants.peek_at(self.tenant, cost, now, total)
    }

    pub fn charge(&self, cost: u64, now: Nanos) -> Decision {
        self.tenants.charge_at(self.tenant, cost, now);
        self.total.charge_at(TOTAL, cost, now)
    }

    pub fn refund(&self, cost: u64, now: Nanos) {
        self.tenants.refund_at(self.tenant, cost, now);
        self.total.refund_at(TOTAL, cost, now);
    }

    /// Corrects an estimate that [`take`](Self::take) took.
    pub fn settle(&self, estimate: Estimate, actual: u64, now: Nanos) {
        if actual > estimate.cost {
            let more = actual - estimate.cost;
            self.tenants.charge_at(self.tenant, more, now);
        } else {
            let less = estimate.cost - actual;
            self.tenants.refund_at(self.tenant, less, now);
        }
        self.total.settle_at(TOTAL, estimate, actual, now);
    }
}

impl Limit {
    /// The tenant of a key; `None` if each key has its own state.
    #[inline]
    pub fn of_tenant<'a>(&'a self, key: &'a [u8]) -> Option<OfTenant<'a>> {
        let tenants = self.memory.tenants.as_ref()?;
        Some(OfTenant {
            tenants,
            tenant: self.who(key),
            total: &self.memory.limiter,
        })
    }

    /// Whom the limit counts for a key: its tenant, or the key itself.
    #[inline]
    pub fn who<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        match &self.spec.shares {
            Some(shares) => shares.by.tenant(key),
            None => key,
        }
    }

    /// The key of the state that a request with this key changes.
    #[inline]
    pub(super) fn state_key<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        if self.memory.tenants.is_some() {
            TOTAL
        } else {
            key
        }
    }

    /// The statistics of the keys in memory, or of the tenants that share the limit.
    pub fn stats(&self) -> Stats {
        let own = self.memory.limiter.stats();
        let Some(tenants) = &self.memory.tenants else {
            return own;
        };
        let mut stats = tenants.stats();
        stats.bytes += own.bytes;
        stats
    }

    /// Where a key's units count now: see [`KeyedLimiter::place`].
    pub fn place(&self, key: &[u8]) -> u64 {
        self.memory.limiter.place(self.state_key(key))
    }

    /// Corrects an estimate that was taken in memory: see [`KeyedLimiter::settle_at`].
    pub fn settle_in_memory(&self, key: &[u8], estimate: Estimate, actual: u64, now: Nanos) {
        match self.of_tenant(key) {
            Some(of) => of.settle(estimate, actual, now),
            None => self.memory.limiter.settle_at(key, estimate, actual, now),
        }
    }

    /// Forgets what a key, or its tenant, has used in memory. What the tenants of a limit have used
    /// together stays.
    pub(super) fn reset_in_memory(&self, key: &[u8], now: Nanos) {
        match self.of_tenant(key) {
            Some(of) => of.tenants.reset_at(of.tenant, now),
            None => {
                self.memory.limiter.reset_at(key, now);
            }
        }
    }

    /// Forgets what all keys have used in memory.
    pub fn reset_all_in_memory(&self, now: Nanos) {
        if let Some(tenants) = &self.memory.tenants {
            tenants.reset_all_at(now);
        }
        self.memory.limiter.reset_all_at(now);
    }
}

/// The tenants of a limit with room for `max_tenants` of them; `None` if nobody shares it.
pub(super) fn tenants(
    spec: &LimitSpec,
    max_tenants: usize,
    limiter: &KeyedLimiter<()>,
) -> Result<Option<FairTenants>, FairBuildError> {
    let Some(shares) = &spec.shares else {
        return Ok(None);
    };
    let (others, named) = terms(shares)?;
    let (policy, hash) = (limiter.policy(), limiter.hash_keys());
    FairTenants::with_hash_keys(&policy, max_tenants, others, named, hash).map(Some)
}

/// Has the tenants follow a change of the rules and of the limit's policy.
pub(super) fn follow(
    tenants: &FairTenants,
    to: &LimitSpec,
    max_tenants: Option<usize>,
    limiter: &KeyedLimiter<()>,
    now: Nanos,
) -> Result<(), FairBuildError> {
    let Some(shares) = &to.shares else {
        return Ok(());
    };
    if let Some(max_tenants) = max_tenants {
        tenants.set_max_tenants_at(max_tenants, now)?;
    }
    let (others, named) = terms(shares)?;
    tenants.change_at(&limiter.policy(), others, named, now)
}

/// The terms of tenants without a name, and of those with one.
type AllTerms<'a> = (Terms, Vec<(&'a [u8], Terms)>);

fn terms(shares: &SharesSpec) -> Result<AllTerms<'_>, FairBuildError> {
    let (others, named) = shares.terms().map_err(|(_, error)| error)?;
    let named = named
        .into_iter()
        .map(|(name, terms)| (name.as_bytes(), terms));
    Ok((others, named.collect()))
}
