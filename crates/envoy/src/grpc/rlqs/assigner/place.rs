//! The limit that a bucket's descriptor matches, and how units of it are taken and given back.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use tidegate_core::Nanos;
use tidegate_redis::Mode;
use tidegate_service::decide::{
    limits::Limit,
    service::{Act, InForce},
};

use super::super::{terms::Terms, wire::Bucket};
use crate::descriptors::{Descriptors, counts::Fate};

/// The rule that a bucket's descriptor matches, with its limit.
#[derive(Clone)]
pub(super) enum Place {
    /// No rule, or a rule without a limit, or one that never denies.
    Free {
        rule: Option<usize>,
    },
    Limited(Arc<Charged>),
    /// Tenants share the limit. It is decided for each request, so nothing is assigned.
    ForCalls,
}

/// The limit and the key that a bucket is charged to. Those of the same limit with the same key are
/// equal.
pub(super) struct Charged {
    rule: usize,
    pub limit: Arc<Limit>,
    pub key: Vec<u8>,
    pub terms: Terms,
}

impl PartialEq for Charged {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.limit, &other.limit) && self.key == other.key
    }
}

impl Eq for Charged {}

impl Hash for Charged {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.limit), &self.key).hash(state);
    }
}

impl Charged {
    /// Takes what is due, as far as it is available, and then, except for a reserve, what is wanted
    /// within the budget. Returns how much of the wanted units was taken, and what is left beyond
    /// the reserve.
    pub async fn take_within_budget(
        &self,
        due: u64,
        reserve: u64,
        wanted: u64,
        now: Nanos,
    ) -> (u64, u64) {
        // A window of one second needs no reserve.
        let reserve = if self.terms.window == 1 { 0 } else { reserve };
        // Another client may take units between the look and the step.
        for _ in 0..3 {
            let room = self.room(now).await;
            let due = due.min(room);
            let free = (room - due).saturating_sub(reserve);
            let wanted = wanted.min(self.terms.budget(free));
            if due + wanted == 0 {
                return (0, free);
            }
            if self.take_exactly(due + wanted, now).await {
                return (wanted, free - wanted);
            }
        }
        (0, 0)
    }

    /// Takes `units`, or as many as are left.
    pub async fn take(&self, units: u64, now: Nanos) {
        for _ in 0..3 {
            let units = units.min(self.room(now).await);
            if units == 0 || self.take_exactly(units, now).await {
                return;
            }
        }
    }

    async fn room(&self, now: Nanos) -> u64 {
        match self.limit.decide(Act::Peek, &self.key, 0, now).await {
            Ok(decision) if decision.is_allowed() => decision.remaining().min(u32::MAX.into()),
            _ => 0,
        }
    }

    async fn take_exactly(&self, units: u64, now: Nanos) -> bool {
        self.limit
            .decide(Act::Take, &self.key, units, now)
            .await
            .is_ok_and(|decision| decision.is_allowed())
    }

    pub async fn give_back(&self, units: u64, now: Nanos) {
        if units > 0
            && self
                .limit
                .decide(Act::Refund, &self.key, units, now)
                .await
                .is_err()
        {
            // The units stay charged until their window ends.
            tracing::debug!(
                limit = self.limit.spec().name,
                units,
                "an unused share could not be given back"
            );
        }
    }
}

/// The rule, the limit and the key for a bucket's descriptor.
pub(super) fn place(in_force: &InForce, domain: &str, bucket: &Bucket) -> Place {
    let descriptors = Descriptors::of(in_force);
    let mut key = Vec::new();
    let Some(found) = descriptors.domains.find_unordered(domain, bucket, &mut key) else {
        return Place::Free { rule: None };
    };
    let (rule, limit) = (found.index, descriptors.limits[found.index].as_ref());
    let Some(limit) = limit.filter(|limit| !limit.spec().shadow) else {
        return Place::Free { rule: Some(rule) };
    };
    let (spec, policy) = (limit.spec(), limit.policy_of(&key));
    if spec.shares.is_some() {
        return Place::ForCalls;
    }
    let is_exact =
        limit.store().is_none() || spec.sharing.mode.is_none_or(|mode| mode == Mode::Exact);
    // Other algorithms remember when units were taken, which is unknown when they are given back.
    let is_aligned = policy.algorithm.name() == "fixed-window" && policy.options().is_empty();
    let window = policy.window.map_or(1, |window| window.as_secs().max(1));
    let terms = Terms {
        limit: policy.limit,
        window,
        gives_back: window > 1 && is_aligned && is_exact,
    };
    Place::Limited(Arc::new(Charged {
        rule,
        limit: Arc::clone(limit),
        key,
        terms,
    }))
}

/// Counts an Envoy's report for dashboards.
pub(super) fn count(in_force: &InForce, place: &Place, admitted: u64, denied: u64) {
    let (rule, limit) = match place {
        Place::Free { rule: Some(rule) } => (*rule, 0),
        Place::Limited(charged) => (charged.rule, charged.terms.limit),
        Place::Free { rule: None } | Place::ForCalls => return,
    };
    let counts = &Descriptors::of(in_force).counts[rule];
    for (hits, is_denied) in [(admitted, false), (denied, true)] {
        if hits > 0 {
            // Envoy does not report how near the limit was.
            let (decided, near, remaining) = (hits, limit, limit);
            let fate = Fate {
                hits,
                decided,
                is_denied,
                limit,
                near,
                remaining,
                ..Fate::default()
            };
            counts.add(None, fate);
        }
    }
}
