//! One limit of a joint decision.

use std::{borrow::Cow, sync::Arc};

use tidegate_core::{Decision, Nanos};
use tidegate_limiter::{Estimate, repeats::Asked};
use tidegate_redis::SharedLimit;

use super::{Act, Answer};
use crate::decide::limits::Limit;

/// One limit of a joint decision.
pub struct Part<'a> {
    pub(super) limit: Arc<Limit>,
    pub(super) key: &'a [u8],
    pub(super) cost: u64,
}

impl<'a> Part<'a> {
    /// The limit's name, the key and the cost.
    pub(super) fn asked(&self) -> Asked<'_> {
        (&self.limit.spec().name, self.key, self.cost)
    }

    pub fn new(limit: Arc<Limit>, key: &'a [u8], cost: u64) -> Self {
        Self { limit, key, cost }
    }

    /// Whether tenants share the limit.
    pub(super) fn is_shared(&self) -> bool {
        self.limit.spec().shares.is_some()
    }

    /// Whether its units may return to where a step notes that they count. A leaky bucket keeps the
    /// start times that it gave out.
    pub(super) fn returns(&self) -> bool {
        self.cost > 0 && self.limit.spec().policy.algorithm.name() != "leaky-bucket"
    }

    /// The units that it takes if it is admitted.
    pub(super) fn estimate(&self, now: Nanos) -> Estimate {
        Estimate {
            cost: self.cost,
            taken: now,
            place: self.limit.place(self.key),
        }
    }

    pub fn is_enforced(&self) -> bool {
        !self.limit.spec().shadow
    }

    /// Whether the limit allows the work.
    pub(super) fn allows(&self, decision: &Decision) -> bool {
        decision.is_allowed() || !self.is_enforced()
    }

    pub(super) fn answer(self, decision: Decision) -> Answer {
        Answer {
            limit: self.limit,
            key: self.key.to_vec(),
            decision,
        }
    }

    /// The same, of a part that is still needed.
    pub(super) fn answered(&self, decision: Decision) -> Answer {
        Answer {
            limit: Arc::clone(&self.limit),
            key: self.key.to_vec(),
            decision,
        }
    }

    pub fn is_stored(&self) -> bool {
        self.limit.store().is_some()
    }

    /// The limit in the store for this key; `None` if a change of the rules has moved it out of the
    /// store.
    pub fn stored(&self) -> Option<Cow<'_, SharedLimit>> {
        Some(self.limit.store()?.of(self.key))
    }

    /// This limit's decision in the joint step, counted.
    pub(super) fn counted(&self, decided: Decision, admitted: bool, now: Nanos) -> Decision {
        let decision = self.limit.explained(self.key, decided);
        // A limit that would have admitted what another denied counts as neither.
        if admitted || decision.is_denied() {
            self.limit
                .count(Act::Take, self.key, self.cost, &decision, now);
        }
        decision
    }
}
