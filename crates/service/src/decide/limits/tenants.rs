//! Limits that tenants share: the limit's own state is that of the empty key, and the part of a key
//! that names its tenant decides about its share.

use std::{cmp::Reverse, sync::Arc};

use tidegate_core::{Decision, Estimate, Nanos};
use tidegate_limiter::{FairBuildError, FairTenants, KeyedLimiter, Stats, Terms, TotalStep};

use super::Limit;
use crate::observe::heavy::TopKey;
use crate::rules::{AllTerms, LimitSpec, SharesSpec};

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
        let total = self.total.at(now);
        self.tenants
            .at(now)
            .acquire(self.tenant, cost, |step| match step {
                TotalStep::Take => total.acquire(TOTAL, cost),
                TotalStep::Peek => total.peek(TOTAL, cost),
            })
    }

    /// [`take`](Self::take), with what was taken of the limit, if anything.
    pub fn take_noted(&self, cost: u64, now: Nanos) -> (Decision, Option<Estimate>) {
        let total = self.total.at(now);
        let mut taken = None;
        let decision = self
            .tenants
            .at(now)
            .acquire(self.tenant, cost, |step| match step {
                TotalStep::Take => {
                    let (decision, estimate) = total.acquire_estimate(TOTAL, cost);
                    taken = Some(estimate);
                    decision
                }
                TotalStep::Peek => total.peek(TOTAL, cost),
            });
        (decision, taken)
    }

    pub fn take_up_to(&self, cost: u64, now: Nanos) -> (u64, Decision) {
        let total = self.total.at(now);
        self.tenants
            .at(now)
            .acquire_up_to(self.tenant, cost, |step, cost| match step {
                TotalStep::Take => total.acquire_up_to(TOTAL, cost),
                TotalStep::Peek => (0, total.peek(TOTAL, cost)),
            })
    }

    pub fn peek(&self, cost: u64, now: Nanos) -> Decision {
        let total = || self.total.at(now).peek(TOTAL, cost);
        self.tenants.at(now).peek(self.tenant, cost, total)
    }

    pub fn charge(&self, cost: u64, now: Nanos) -> Decision {
        self.tenants.at(now).charge(self.tenant, cost);
        self.total.at(now).charge(TOTAL, cost)
    }

    pub fn refund(&self, cost: u64, now: Nanos) {
        self.tenants.at(now).refund(self.tenant, cost);
        self.total.at(now).refund(TOTAL, cost);
    }

    /// Corrects an estimate that [`take`](Self::take) took.
    pub fn settle(&self, estimate: Estimate, actual: u64, now: Nanos) {
        let policy = self.total.policy();
        // Units that do not return to the limit do not return to the share: a reset came between,
        // or the permits are free already.
        let counts = self.total.at(now).counts(TOTAL, &estimate);
        if policy.is_concurrency() {
            // All return, as the work is over.
            if counts {
                let Estimate { taken, cost, .. } = estimate;
                self.tenants.at(now).give_back(self.tenant, taken, cost);
            }
        } else if actual > estimate.cost {
            let more = actual - estimate.cost;
            self.tenants.at(now).charge(self.tenant, more);
        } else if counts {
            let less = estimate.cost - actual;
            self.tenants.at(now).refund(self.tenant, less);
        }
        self.total.at(now).settle(TOTAL, estimate, actual);
    }
}

/// A tenant as operators see it.
#[derive(Clone, Debug)]
pub struct TenantStanding {
    pub name: Arc<[u8]>,
    pub terms: Terms,
    /// Its part of the limit while all tenants that asked lately want more than they get, from 0 to
    /// 1.
    pub share: f64,
    /// The part of the limit that it has used in the last seconds; 0 if it did not ask lately.
    pub used: f64,
    /// Its requests of the last minutes, as heavy keys are counted.
    pub requests: u64,
    /// Its denials, likewise.
    pub denials: u64,
}

impl TenantStanding {
    /// The part of the limit that it uses beyond its share, from what others leave.
    pub fn borrowed(&self) -> f64 {
        (self.used - self.share).max(0.0)
    }
}

impl Limit {
    /// The standing of a key's tenant, without its requests; `None` if the limit has no tenants, or
    /// is in the store and this server has not seen the tenant lately.
    pub fn tenant_standing(&self, key: &[u8], now: Nanos) -> Option<TenantStanding> {
        let tenant = self.who(key);
        let (terms, share, used) = if let Some(store) = &self.store {
            let seen = store.share_seen(key)?;
            (store.terms_of(key)?, seen.part, seen.used)
        } else {
            let tenants = self.of_tenant(key)?.tenants;
            let used = tenants.at(now).used(tenant).unwrap_or(0.0);
            (tenants.terms(tenant), tenants.at(now).share(tenant), used)
        };
        Some(TenantStanding {
            name: tenant.into(),
            terms,
            share,
            used,
            requests: 0,
            denials: 0,
        })
    }

    /// The tenants with the most requests and those with the most denials, at most `most` of each,
    /// the ones with the most requests first. Empty if the limit has no tenants, or keeps no
    /// names.
    pub fn busiest_tenants(&self, most: usize, now: Nanos) -> Vec<TenantStanding> {
        if self.spec.shares.is_none() {
            return Vec::new();
        }
        // All names, so that each has both of its numbers.
        let Some(top) = self.top(usize::MAX, now) else {
            return Vec::new();
        };
        let count = |list: &[TopKey], key: &[u8]| {
            let found = list.iter().find(|top| &*top.key == key);
            found.map_or(0, |top| top.count)
        };
        let busiest = top.asked.iter().take(most);
        let mut names: Vec<&[u8]> = busiest
            .chain(top.denied.iter().take(most))
            .map(|top| &*top.key)
            .collect();
        names.sort_unstable();
        names.dedup();
        let standing = |name: &[u8]| {
            Some(TenantStanding {
                requests: count(&top.asked, name),
                denials: count(&top.denied, name),
                ..self.tenant_standing(name, now)?
            })
        };
        let mut all: Vec<_> = names.into_iter().filter_map(standing).collect();
        all.sort_by_key(|tenant| Reverse(tenant.requests));
        all
    }

    /// The tenants that share the limit in this server's memory.
    pub fn tenants(&self) -> Option<&FairTenants> {
        self.memory.tenants.as_ref()
    }

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

    /// Where units that count at a place now count in a copy of the states: see
    /// [`KeyedLimiter::place_in_copy`].
    pub fn place_in_copy(&self, key: &[u8], place: u64) -> u64 {
        let key = self.state_key(key);
        self.memory.limiter.place_in_copy(key, place)
    }

    /// Corrects an estimate that was taken in memory: see [`KeyedAt::settle`](tidegate_limiter::KeyedAt::settle).
    pub fn settle_in_memory(&self, key: &[u8], estimate: Estimate, actual: u64, now: Nanos) {
        match self.of_tenant(key) {
            Some(of) => of.settle(estimate, actual, now),
            None => self.memory.limiter.at(now).settle(key, estimate, actual),
        }
    }

    /// Forgets the use of a key, or of its tenant, in memory. The sum of what tenants have used
    /// stays.
    pub(super) fn reset_in_memory(&self, key: &[u8], now: Nanos) {
        match self.of_tenant(key) {
            Some(of) => of.tenants.at(now).reset(of.tenant),
            None => {
                self.memory.limiter.at(now).reset(key);
            }
        }
    }

    /// Forgets what all keys have used in memory.
    pub fn reset_all_in_memory(&self, now: Nanos) {
        let reset_total = || self.memory.limiter.at(now).reset_all();
        match &self.memory.tenants {
            Some(tenants) => tenants.at(now).reset_all_with(reset_total),
            None => reset_total(),
        }
    }
}

/// The tenants of a limit with room for `max_tenants` of them; `None` for another kind.
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

/// Has the tenants follow a change of their terms and of the limit's policy.
pub(super) fn follow(
    tenants: &FairTenants,
    shares: Option<&SharesSpec>,
    max_tenants: Option<usize>,
    limiter: &KeyedLimiter<()>,
    now: Nanos,
) -> Result<(), FairBuildError> {
    let Some(shares) = shares else {
        return Ok(());
    };
    if let Some(max_tenants) = max_tenants {
        tenants.at(now).set_max_tenants(max_tenants)?;
    }
    let (others, named) = terms(shares)?;
    tenants.at(now).change(&limiter.policy(), others, named)
}

fn terms(shares: &SharesSpec) -> Result<AllTerms<'_, [u8]>, FairBuildError> {
    let (others, named) = shares.terms().map_err(|(_, error)| error)?;
    let named = named
        .into_iter()
        .map(|(name, terms)| (name.as_bytes(), terms));
    Ok((others, named.collect()))
}
