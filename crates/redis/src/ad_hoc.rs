//! Limits whose policy comes with each request.

use std::{fmt, sync::Arc};

use crate::{Deadline, Plan, SharedDecision, Store, StoreError, Timeout, health::Wait, limit::Ask};

/// Decides with a policy that each request brings along, as `CL.THROTTLE` does. [`Store::ad_hoc`]
/// returns it. For a fixed limit use a [`SharedLimit`](crate::SharedLimit), which also decides when
/// the store does not reply.
///
/// While it exists, its deadline counts as the deadline of one of the store's limits (see
/// [`LimitBuilder::deadline`](crate::LimitBuilder::deadline)).
pub struct AdHoc {
    store: Store,
    wait: Wait,
}

impl Store {
    /// Decides with policies that come with each request, each decision within `deadline`.
    #[must_use]
    pub fn ad_hoc(&self, deadline: impl Into<Timeout>) -> AdHoc {
        AdHoc::new(self.clone(), deadline.into())
    }
}

impl AdHoc {
    fn new(store: Store, deadline: Timeout) -> Self {
        let wait = store.batcher().monitor.wait(deadline);
        Self { store, wait }
    }

    /// Decides on one request. `key` is the whole key in Redis. A denial is remembered until its
    /// wait is over, so repeating the same request with the same plan costs no round trip. Denials
    /// of permits are not remembered, because permits can be released early.
    ///
    /// # Errors
    /// When the store makes no decision within the deadline. The request may still be charged.
    pub async fn decide(
        &self,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        cost: u64,
    ) -> Result<SharedDecision, StoreError> {
        let denials = self.store.denials();
        let tag = plan
            .hold()
            .is_none()
            .then(|| denials.tag(&key) ^ denials.tag(plan.numbers()));
        let deadline = Deadline::after(self.wait.get(&self.store.batcher().monitor));
        self.store
            .decide(Ask {
                plan,
                key,
                cost,
                tag,
                deadline,
            })
            .await
            .map(|(answer, _)| answer)
    }
}

impl fmt::Debug for AdHoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdHoc")
            .field("store", &self.store)
            .field("deadline", &self.wait.get(&self.store.batcher().monitor))
            .finish_non_exhaustive()
    }
}
