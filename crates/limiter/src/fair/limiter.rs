//! A limit and the tenants that share it.

use std::{collections::HashMap, fmt};

use tidegate_core::fair::{Terms, TermsError};
use tidegate_core::{Clock, Decision, Denied, Estimate, Key, Policy};

use super::{FairAt, FairBuildError, FairTenants, TenantPermit, TotalStep};
use crate::{HashKeys, KeyedLimit, Limiter, Stats, SystemClock, limiter::NOTHING};

const DEFAULT_MAX_TENANTS: usize = 1 << 16;

/// One limit for all requests together, which tenants share by weight: none is starved, and what
/// one does not use is lent to the others.
///
/// * The total is a [`Limiter`] with any algorithm that does not delay, and keeps its bound.
/// * A tenant that is alone gets the whole limit, up to its ceiling.
/// * Under contention, admitted units follow weighted max-min fairness. Units that are
///   [charged](FairAt::charge) after the work count.
/// * A guarantee is available within a second, or within the window if that is longer, after its
///   owner returns. Of [permits in flight](Policy::concurrency) it is available as others return
///   theirs.
/// * Nobody gains by asking more often or by larger costs.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{FairLimiter, Policy, Quota};
///
/// let api = FairLimiter::builder(Policy::token_bucket(Quota::per_second(1_000)))
///     .weight("acme", 10)?
///     .guarantee("acme", 0.2)?
///     .build()?;
/// if api.acquire("acme", 1).is_denied() {
///     // ask acme to come back after `retry_after`
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [The decision record](https://docs.rs/tidegate-core/latest/tidegate_core/fair/) has the bounds.
pub struct FairLimiter<C = SystemClock> {
    pub(super) total: Limiter<C>,
    pub(super) tenants: FairTenants,
}

/// Options of a [`FairLimiter`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct FairBuilder<C = SystemClock> {
    policy: Policy,
    max_tenants: usize,
    others: Terms,
    named: HashMap<Vec<u8>, Terms>,
    hash: Option<HashKeys>,
    clock: C,
}

impl FairLimiter {
    /// A builder for a limit that tenants share.
    pub fn builder(policy: impl Into<Policy>) -> FairBuilder {
        FairBuilder {
            policy: policy.into(),
            max_tenants: DEFAULT_MAX_TENANTS,
            others: Terms::new(),
            named: HashMap::new(),
            hash: None,
            clock: SystemClock::new(),
        }
    }
}

impl<C> FairBuilder<C> {
    /// The number of tenants whose states are kept in memory (default 65,536). A tenant beyond it
    /// is served; one that is forgotten for it is level with the others when it returns.
    pub fn max_tenants(self, max_tenants: usize) -> Self {
        Self {
            max_tenants,
            ..self
        }
    }

    /// The most that one tenant may use, lent capacity included, as a part of the limit above 0 and
    /// up to 1. Set it before the tenants' own terms.
    ///
    /// # Errors
    /// If it is not such a part.
    pub fn ceiling(mut self, ceiling: f64) -> Result<Self, TermsError> {
        self.others = self.others.with_ceiling(ceiling)?;
        for terms in self.named.values_mut() {
            *terms = terms.with_ceiling(ceiling)?;
        }
        Ok(self)
    }

    /// A tenant's weight, from 1 to 1,000. Tenants without one have a weight of 1.
    ///
    /// # Errors
    /// If it is not such a weight.
    pub fn weight(self, tenant: impl Key, weight: u32) -> Result<Self, TermsError> {
        self.with_terms(tenant, |terms| terms.with_weight(weight))
    }

    /// The units that are available to a tenant whenever it asks, as a part of the limit from 0 to
    /// 1.
    ///
    /// # Errors
    /// If it is not such a part, or above the tenant's ceiling.
    pub fn guarantee(self, tenant: impl Key, guarantee: f64) -> Result<Self, TermsError> {
        self.with_terms(tenant, |terms| terms.with_guarantee(guarantee))
    }

    fn with_terms(
        mut self,
        tenant: impl Key,
        change: impl FnOnce(Terms) -> Result<Terms, TermsError>,
    ) -> Result<Self, TermsError> {
        let name = tenant.with_bytes(<[u8]>::to_vec);
        let terms = self.named.entry(name).or_insert(self.others);
        *terms = change(*terms)?;
        Ok(self)
    }

    /// Uses the hash keys of another limiter instead of random ones.
    pub fn hash_keys(self, hash: HashKeys) -> Self {
        Self {
            hash: Some(hash),
            ..self
        }
    }

    /// Uses another clock.
    pub fn clock<D>(self, clock: D) -> FairBuilder<D> {
        FairBuilder {
            policy: self.policy,
            max_tenants: self.max_tenants,
            others: self.others,
            named: self.named,
            hash: self.hash,
            clock,
        }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// If the policy does not support shares, the guarantees exceed 100 %, or memory is short.
    pub fn build(self) -> Result<FairLimiter<C>, FairBuildError> {
        let named = self.named.iter().map(|(name, terms)| (&name[..], *terms));
        Ok(FairLimiter {
            tenants: FairTenants::with_hash_keys(
                &self.policy,
                self.max_tenants,
                self.others,
                named,
                self.hash.unwrap_or_else(HashKeys::random),
            )?,
            total: Limiter::with_clock(self.policy, self.clock),
        })
    }
}

impl<C> FairLimiter<C> {
    /// The limit of all tenants together.
    pub const fn total(&self) -> &Limiter<C> {
        &self.total
    }

    /// A tenant's terms.
    pub fn terms(&self, tenant: impl Key) -> Terms {
        self.tenants.terms(tenant)
    }

    /// Statistics of the table of tenants.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.tenants.stats()
    }
}

impl<C: Clock> FairLimiter<C> {
    fn at_now(&self) -> FairAt<'_, C> {
        self.at(self.total.clock().now())
    }

    /// Asks for `cost` for a tenant at the current time (see [`FairAt::acquire`]).
    pub fn acquire(&self, tenant: impl Key, cost: u64) -> Decision {
        self.at_now().acquire(tenant, cost)
    }

    /// Takes `cost` for a tenant until the permit is dropped, for
    /// [`Policy::concurrency`]. The tenant with the fewest permits for its weight gets the next one
    /// that returns, if it asks again within half a second.
    ///
    /// A reset forgets the permits in use, so those from before it return nothing.
    ///
    /// # Errors
    /// The denial.
    pub fn permit(&self, tenant: impl Key, cost: u64) -> Result<TenantPermit<'_, C>, Denied> {
        let (tenants, total) = self.at_now().parts();
        let mut estimate = NOTHING;
        tenant.with_bytes(|tenant| {
            tenants
                .acquire(tenant, cost, |step| match step {
                    TotalStep::Take => {
                        let (decision, taken) = total.acquire_estimate(cost);
                        estimate = taken;
                        decision
                    }
                    TotalStep::Peek => total.peek(cost),
                })
                .into_result()?;
            Ok(TenantPermit {
                limiter: self,
                tenant: tenant.into(),
                estimate,
            })
        })
    }

    pub(super) fn give_back(&self, tenant: &[u8], estimate: Estimate) {
        let at = self.at_now();
        let (tenants, total) = at.parts();
        tenants.give_back_with(tenant, (estimate.taken, estimate.cost), || {
            let counts = self.total.counts(&estimate, at.now);
            total.settle(estimate, 0);
            counts
        });
    }

    /// Takes as much of `cost` as is available to a tenant now (see [`FairAt::acquire_up_to`]);
    /// returns that amount and the decision on it.
    pub fn acquire_up_to(&self, tenant: impl Key, cost: u64) -> (u64, Decision) {
        self.at_now().acquire_up_to(tenant, cost)
    }

    /// The decision on `cost` for a tenant now, without taking it (see [`FairAt::peek`]).
    pub fn peek(&self, tenant: impl Key, cost: u64) -> Decision {
        self.at_now().peek(tenant, cost)
    }

    /// Takes `cost` for a tenant even if it does not fit (see [`FairAt::charge`]).
    pub fn charge(&self, tenant: impl Key, cost: u64) -> Decision {
        self.at_now().charge(tenant, cost)
    }

    /// Returns up to `cost` of the units that a tenant took last (see [`FairAt::refund`]).
    pub fn refund(&self, tenant: impl Key, cost: u64) {
        self.at_now().refund(tenant, cost);
    }
}

/// The key is the tenant, so middleware shares one limit among the keys that it finds in requests.
impl<C: Clock> KeyedLimit for FairLimiter<C> {
    async fn decide(&self, key: &[u8], cost: u64) -> Decision {
        self.acquire(key, cost)
    }

    fn policy(&self) -> Policy {
        self.total.policy()
    }
}

impl<C> fmt::Debug for FairLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLimiter")
            .field("policy", &self.total.policy())
            .field("tenants", &self.tenants)
            .finish_non_exhaustive()
    }
}
