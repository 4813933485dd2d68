//! What tenants do at a time that the caller gives.

use std::convert::Infallible;

use tidegate_core::fair::{FairShares, FairState, Terms};
use tidegate_core::{Decision, Key, Nanos, Policy};

use super::{
    FairBuildError, FairTenants, Inner, Joined, TotalStep, WORDS, largest_admitted, name_of,
    would_grant,
};
use crate::BuildError;

/// [`FairTenants`] at one time: each method is an operation at that time. [`FairTenants::at`] makes
/// it. It is a reference and a number, so a copy costs nothing.
///
/// Decide on the total at the same time. [`KeyedAt`](crate::KeyedAt) says when to use a given time,
/// and what a time before that of an earlier call does.
#[derive(Clone, Copy, Debug)]
pub struct TenantsAt<'a> {
    pub(in crate::fair) tenants: &'a FairTenants,
    pub(in crate::fair) now: Nanos,
}

impl FairTenants {
    /// The tenants at a given time.
    #[inline]
    #[must_use]
    pub const fn at(&self, now: Nanos) -> TenantsAt<'_> {
        TenantsAt { tenants: self, now }
    }
}

impl TenantsAt<'_> {
    /// Decides on `cost` for a tenant. `total` is called with [`TotalStep::Take`] if the tenant's
    /// share admits, and otherwise with [`TotalStep::Peek`]; of permits that others are to get first
    /// it is called with both, in reverse. The answer has the total's limit. The units that remain,
    /// and when to retry, are the tenant's if its share refused.
    ///
    /// `retry_after` is a promise for the tenant's present share: without other traffic the request
    /// is admitted after at most that long.
    pub fn acquire(
        self,
        tenant: impl Key,
        cost: u64,
        mut total: impl FnMut(TotalStep) -> Decision,
    ) -> Decision {
        self.acquire_with(tenant, cost, |step| {
            let decision = total(step);
            let is_taken = decision.is_allowed();
            Ok::<_, Infallible>(Joined { decision, is_taken })
        })
        .unwrap_or_else(|never| match never {})
    }

    /// [`acquire`](Self::acquire) of a limit that decides together with others: `total`
    /// returns the limit's own decision, and whether all admitted, so that the cost was taken.
    ///
    /// # Errors
    /// Those of `total`; then nothing is taken.
    pub fn acquire_with<E>(
        self,
        tenant: impl Key,
        cost: u64,
        mut total: impl FnMut(TotalStep) -> Result<Joined, E>,
    ) -> Result<Decision, E> {
        let Self { tenants, now } = self;
        if cost == 0 {
            return Ok(total(TotalStep::Take)?.decision);
        }
        tenant.with_bytes(|name| {
            tenants.with(name, now, |shares, state, terms, states| {
                match shares.ask(state, terms, states, cost, now) {
                    Err(refusal) => Ok(shares.refused(&total(TotalStep::Peek)?.decision, refusal)),
                    Ok(grant) => {
                        if grant.leave() > 0 {
                            let Joined { decision, .. } = total(TotalStep::Peek)?;
                            if let Err(refusal) = shares.check_left(state, &grant, &decision) {
                                shares.total_refused(state, terms, states, grant);
                                return Ok(shares.refused(&decision, refusal));
                            }
                        }
                        let Joined { decision, is_taken } = total(TotalStep::Take)?;
                        if is_taken {
                            shares.take(state, terms, states, grant);
                        } else if decision.is_denied() {
                            shares.total_refused(state, terms, states, grant);
                        }
                        Ok(decision)
                    }
                }
            })
        })
    }

    /// Takes as much of `cost` as the tenant's share and the total admit. `total` is called with the
    /// units that the share admits: with [`TotalStep::Take`] it takes as many of them as are
    /// available, and returns how many and the decision on them; with [`TotalStep::Peek`] it returns
    /// the decision on `cost`. It is called once, or first to peek if others are to get permits
    /// first.
    pub fn acquire_up_to(
        self,
        tenant: impl Key,
        cost: u64,
        mut total: impl FnMut(TotalStep, u64) -> (u64, Decision),
    ) -> (u64, Decision) {
        let Self { tenants, now } = self;
        if cost == 0 {
            return total(TotalStep::Peek, 0);
        }
        tenant.with_bytes(|name| {
            tenants.with(name, now, |shares, state, terms, states| {
                // A refusal of all counts, so that the tenant's share grows.
                let asked = shares.ask(state, terms, states, cost, now).err();
                let most = match asked {
                    None => cost,
                    Some(_) => largest_admitted(cost, |cost| {
                        would_grant(shares, state, terms, states, cost, now).is_ok()
                    }),
                };
                if let (0, Some(refusal)) = (most, asked) {
                    let (_, decision) = total(TotalStep::Peek, cost);
                    return (0, shares.refused(&decision, refusal));
                }
                let Ok(grant) = shares.ask(state, terms, states, most, now) else {
                    unreachable!("a share admits what it admitted in the same step");
                };
                let mut may_take = most;
                if grant.leave() > 0 {
                    let (_, decision) = total(TotalStep::Peek, most);
                    let own = if decision.is_allowed() { most } else { 0 };
                    let room = decision.remaining().saturating_add(own);
                    may_take = most.min(room.saturating_sub(grant.leave()));
                    if may_take == 0 {
                        shares.total_refused(state, terms, states, grant);
                        return match shares.check_left(state, &grant, &decision) {
                            Err(refusal) => (0, shares.refused(&decision, refusal)),
                            Ok(()) => (0, decision),
                        };
                    }
                }
                let (taken, decision) = total(TotalStep::Take, may_take);
                if taken < most {
                    shares.total_refused(state, terms, states, grant);
                }
                // Fewer units than were admitted are admitted, too.
                if taken > 0
                    && let Ok(grant) = shares.ask(state, terms, states, taken, now)
                {
                    shares.take(state, terms, states, grant);
                }
                (taken, decision)
            })
        })
    }

    /// The decision on `cost`, without taking it and without counting the tenant as active. `total`
    /// is the total's.
    pub fn peek(self, tenant: impl Key, cost: u64, total: impl FnOnce() -> Decision) -> Decision {
        let Self { tenants, now } = self;
        let decision = total();
        if cost == 0 || decision.is_denied() {
            return decision;
        }
        let refusal = tenant.with_bytes(|name| {
            tenants.with(name, now, |shares, state, terms, states| match would_grant(
                shares, state, terms, states, cost, now,
            ) {
                Ok(grant) => shares.check_left(state, &grant, &decision).err(),
                Err(refusal) => Some(refusal),
            })
        });
        match refusal {
            None => decision,
            Some(refusal) => tenants.lock().shares.refused(&decision, refusal),
        }
    }

    /// Takes a cost of a tenant that is known only after the work. The owner charges the total.
    pub fn charge(self, tenant: impl Key, cost: u64) {
        let Self { tenants, now } = self;
        tenant.with_bytes(|name| {
            tenants.with(name, now, |shares, state, terms, states| {
                shares.charge(state, terms, states, cost, now);
            });
        });
    }

    /// Returns units of a tenant that were taken and not used. The owner refunds the total.
    pub fn refund(self, tenant: impl Key, cost: u64) {
        let Self { tenants, now } = self;
        tenant.with_bytes(|name| {
            tenants.with(name, now, |shares, state, terms, states| {
                shares.refund(state, terms, states, cost, now);
            });
        });
    }

    /// [`refund`](Self::refund) of units that were taken at `taken`: permits with a hold that were
    /// taken at other times end when their hold has passed.
    pub fn give_back(self, tenant: impl Key, taken: Nanos, cost: u64) {
        tenant.with_bytes(|name| self.give_back_with(name, (taken, cost), || true));
    }

    /// Forgets what a tenant has used.
    pub fn reset(self, tenant: impl Key) {
        let Self { tenants, now } = self;
        tenant.with_bytes(|name| {
            tenants.with(name, now, |_, _, _, states| {
                states.share.fill(0);
                let others = [&mut states.guarantee, &mut states.ceiling];
                for words in others.into_iter().flatten() {
                    words.fill(0);
                }
            });
        });
    }

    /// Returns units to a tenant if `total`, which returns them to the limit in the same step, says
    /// that they still counted there.
    pub(in crate::fair) fn give_back_with(
        self,
        tenant: &[u8],
        (taken, cost): (Nanos, u64),
        total: impl Fn() -> bool,
    ) {
        let Self { tenants, now } = self;
        tenants.with(tenant, now, |shares, state, terms, states| {
            if total() {
                shares.give_back(state, terms, states, (taken, cost), now);
            }
        });
    }

    /// Forgets what all tenants have used.
    pub fn reset_all(self) {
        self.reset_all_with(|| ());
    }

    /// [`reset_all`](Self::reset_all) in one step with a reset of the total.
    pub fn reset_all_with(self, total: impl FnOnce()) {
        let Self { tenants, now } = self;
        let mut inner = tenants.lock();
        total();
        inner.state = FairState::default();
        inner.notes.clear();
        for named in inner.named.values_mut() {
            named.guarantee = [0; WORDS];
        }
        for table in std::iter::once(&tenants.shares).chain(&tenants.ceilings) {
            table.at(now).reset_all();
        }
    }

    /// Follows a change of the total's policy, or of the tenants' terms. What tenants have used
    /// stays.
    ///
    /// # Errors
    /// The same as [`FairTenants::new`], and if a rate becomes permits or permits a rate; then
    /// nothing has changed.
    pub fn change<'a>(
        self,
        total: &Policy,
        others: Terms,
        named: impl IntoIterator<Item = (&'a [u8], Terms)>,
    ) -> Result<(), FairBuildError> {
        let Self { tenants, now } = self;
        let shares = FairShares::new(total)?;
        let mut inner = tenants.lock();
        if inner.shares.are_permits() != shares.are_permits() {
            return Err(FairBuildError::Kind);
        }
        inner.set_terms(others, named)?;
        if inner.shares != shares {
            for (table, now) in tenants.tables(&inner.state, now) {
                table.at(now).set_policy(*shares.bucket())?.finish_at(now);
            }
            // A guarantee's bucket has another rate now: it is full, as if its owner just came.
            for named in inner.named.values_mut() {
                named.guarantee = [0; WORDS];
            }
            shares.follow(&mut inner.state);
            inner.shares = shares;
        }
        Ok(())
    }

    /// Changes the number of tenants whose states are kept in memory, and keeps what tenants have
    /// used, as [`KeyedAt::set_max_keys`](crate::KeyedAt::set_max_keys) does.
    ///
    /// # Errors
    /// If it is 0, or memory is short.
    pub fn set_max_tenants(self, max_tenants: usize) -> Result<(), BuildError> {
        let Self { tenants, now } = self;
        let mut inner = tenants.lock();
        for (table, now) in tenants.tables(&inner.state, now) {
            table.at(now).set_max_keys(max_tenants)?.finish_at(now);
        }
        inner.notes.set_most(max_tenants);
        Ok(())
    }

    /// A tenant's part of the limit while all tenants that asked lately want more than they get:
    /// its weight's part of their weights, at least its guarantee, at most its ceiling, from 0 to
    /// 1.
    pub fn share(self, tenant: impl Key) -> f64 {
        let Self { tenants, now } = self;
        let terms = tenants.terms(tenant);
        let mut inner = tenants.lock();
        let Inner { shares, state, .. } = &mut *inner;
        shares.turn(state, now);
        let (active, _) = state.weights();
        let part = terms.weight() / active.max(terms.weight());
        let part = part.max(terms.guarantee().unwrap_or(0.0));
        part.min(terms.ceiling().unwrap_or(1.0))
    }

    /// The part of the limit, from 0, that a tenant has used in the last seconds (or windows, if they
    /// are longer than a second): see [`FairShares::used`]. `None` if nothing is known about it, as
    /// it did not ask lately.
    pub fn used(self, tenant: impl Key) -> Option<f64> {
        let Self { tenants, now } = self;
        let tag = tenants.shares.tag_of(&tenant);
        let mut inner = tenants.lock();
        let Inner {
            shares,
            state,
            notes,
            ..
        } = &mut *inner;
        shares.turn(state, now);
        let note = notes.find(name_of(tag))?;
        Some(shares.used(state, note))
    }
}
