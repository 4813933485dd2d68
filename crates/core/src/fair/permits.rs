//! Shares of permits in flight: the tenant that has the fewest for its weight gets the next one.
//!
//! A permit cannot be taken back, and nothing says when it returns. So nothing is given out by time.
//! A request that finds no permit leaves a *claim* for half a second: its tenant is to get the next
//! ones, before all that would have more for their weight. Those are admitted only if the total
//! leaves what is claimed. A tenant that asks again within that time keeps its turn.

use super::{FairState, Grant, Refusal, TenantStates, Terms, Way};
use crate::{Algorithm, Nanos, Policy};

/// The maximum number of claims. A tenant that has more for its weight than all of them gets none;
/// it asks again.
pub(super) const MOST_CLAIMS: usize = 8;

/// How long a claim lasts after its tenant asked.
const CLAIM: Nanos = Nanos::from_millis(500);

/// After a permit the claim to another one lasts this many times the span after which the tenant
/// had asked again.
const AGAIN: u64 = 8;

/// How permits are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Permits {
    /// The total's. The same one counts what a tenant has in flight.
    policy: Policy,
}

/// A tenant's claim to the next permits. All zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Claim {
    /// A hash of its name.
    pub(super) tenant: u32,
    pub(super) cost: u64,
    pub(super) rank: f64,
    /// When the tenant last asked.
    pub(super) asked: Nanos,
    pub(super) until: Nanos,
}

impl Claim {
    fn is_valid(&self, now: Nanos) -> bool {
        // A claim of a clock that went back has ended.
        self.until > now && self.until.saturating_since(now) <= CLAIM
    }
}

impl Permits {
    pub const fn new(policy: Policy) -> Self {
        Self { policy }
    }

    fn in_flight(&self, tenant: &TenantStates<'_>, now: Nanos) -> u64 {
        self.policy.used(tenant.share, now)
    }

    /// A part of the limit in whole permits, at least one.
    fn permits(&self, part: f64) -> u64 {
        // A product of a decimal fraction may be just below a whole number.
        super::whole(self.policy.limit() as f64 * part + 1e-6).max(1)
    }

    /// What a tenant would have for its weight with these permits. Those of its guarantee come
    /// before all others.
    fn rank(&self, terms: &Terms, permits: u64) -> f64 {
        match terms.guarantee() {
            Some(part) if permits <= self.permits(part) => 0.0,
            _ => permits as f64 / terms.weight(),
        }
    }

    /// See [`FairShares::ask`](super::FairShares::ask).
    pub fn ask(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        cost: u64,
    ) -> Result<Grant, Refusal> {
        tenant.note.meet(state, terms);
        let in_flight = self.in_flight(tenant, state.now);
        tenant.note.taken = in_flight as f32;
        let permits = in_flight.saturating_add(cost);
        let is_above = |ceiling| permits > self.permits(ceiling);
        if terms.ceiling().is_some_and(is_above) {
            return Err(Refusal {
                retry_after: None,
                by_ceiling: true,
            });
        }
        let rank = self.rank(terms, permits);
        let goes_first = |claim: &&Claim| {
            claim.is_valid(state.now) && claim.tenant != tenant.note.name && claim.rank < rank
        };
        let mut leave = 0_u64;
        let mut until = state.now;
        for claim in state.claims.iter().filter(goes_first) {
            leave = leave.saturating_add(claim.cost);
            until = until.max(claim.until);
        }
        Ok(Grant {
            way: Way::Share,
            cost,
            more: 0.0,
            leave,
            until,
        })
    }

    /// The tenant is to get the next permits, unless those that have fewer for their weight have
    /// all claims.
    pub fn claim(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &TenantStates<'_>,
        grant: Grant,
    ) {
        let now = state.now;
        let permits = self.in_flight(tenant, now).saturating_add(grant.cost);
        let claim = Claim {
            tenant: tenant.note.name,
            cost: grant.cost,
            rank: self.rank(terms, permits),
            asked: now,
            until: now.saturating_add(CLAIM),
        };
        let own = |other: &Claim| other.tenant == claim.tenant && other.is_valid(now);
        let order = |claim: &Claim| {
            if claim.is_valid(now) {
                claim.rank
            } else {
                f64::INFINITY
            }
        };
        let last = || {
            (1..MOST_CLAIMS).fold(0, |last, at| {
                if order(&state.claims[at]) > order(&state.claims[last]) {
                    at
                } else {
                    last
                }
            })
        };
        let known = state.claims.iter().position(own);
        let place = known.unwrap_or_else(last);
        if known.is_none() && order(&state.claims[place]) <= claim.rank {
            return;
        }
        state.claims[place] = claim;
    }

    /// Takes what was granted. Others of the tenant's requests may still be without a permit: its
    /// claim stays for a few times the span in which it asked again.
    pub fn take(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        grant: Grant,
    ) {
        let (name, now) = (tenant.note.name, state.now);
        self.policy.record(tenant.share, now, grant.cost);
        let in_flight = self.in_flight(tenant, now);
        tenant.note.taken = in_flight as f32;
        let own = |claim: &&mut Claim| claim.tenant == name && claim.is_valid(now);
        if let Some(claim) = state.claims.iter_mut().find(own) {
            let again = now.saturating_since(claim.asked).get();
            let until = now.saturating_add(Nanos::new(again.saturating_mul(AGAIN)));
            claim.rank = self.rank(terms, in_flight.saturating_add(claim.cost));
            claim.until = claim.until.min(until);
            claim.asked = now;
        }
    }

    pub fn charge(&self, state: &FairState, tenant: &mut TenantStates<'_>, cost: u64) {
        self.policy.charge(tenant.share, state.now, cost);
        tenant.note.taken = self.in_flight(tenant, state.now) as f32;
    }

    pub fn give_back(
        &self,
        state: &FairState,
        tenant: &mut TenantStates<'_>,
        taken: Nanos,
        cost: u64,
    ) {
        self.policy
            .release_permits(tenant.share, state.now, taken, cost);
        tenant.note.taken = self.in_flight(tenant, state.now) as f32;
    }

    pub fn refund(&self, state: &FairState, tenant: &mut TenantStates<'_>, cost: u64) {
        self.policy.refund(tenant.share, state.now, cost);
        tenant.note.taken = self.in_flight(tenant, state.now) as f32;
    }
}
