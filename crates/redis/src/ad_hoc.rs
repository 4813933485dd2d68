//! Limits that come with each request.

use std::{fmt, sync::Arc};

use crate::{Deadline, Plan, SharedDecision, Store, StoreError, Timeout, health::Wait, limit::denials::Ask};

/// Decides by limits that come with each request, as those of `CL.THROTTLE` do; from [`Store::ad_hoc`]. A limit that stays is
/// rather a [`SharedLimit`](crate::SharedLimit), which also knows what to answer when the store does not.
///
/// For as long as it exists, its deadline counts as one of the store's limits' (see
/// [`LimitBuilder::deadline`](crate::LimitBuilder::deadline)).
pub struct AdHoc {
    store: Store,
    wait: Wait,
}

impl AdHoc {
    pub(crate) fn new(store: Store, deadline: Timeout) -> Self {
        let wait = store.batcher().monitor.wait(deadline);
        Self { store, wait }
    }

    /// Decides on one request. `key` is the whole key in Redis. A denial is remembered until its time, except of permits, which
    /// come back before it: the same request by the same plan then costs no round trip.
    ///
    /// # Errors
    /// When the store gave no decision within the deadline. The request may still be charged then.
    pub async fn decide(
        &self,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        cost: u32,
    ) -> Result<SharedDecision, StoreError> {
        let denials = self.store.denials();
        let tag = plan.hold().is_none().then(|| denials.tag(&key) ^ denials.tag(plan.numbers()));
        let deadline = Deadline::after(self.wait.get(&self.store.batcher().monitor));
        self.store.decide(Ask { plan, key, cost, tag, deadline }).await.map(|(told, _)| told)
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
