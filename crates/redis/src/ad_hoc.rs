//! Limits that come with each request.

use std::{fmt, sync::Arc, time::Duration};

use crate::{Plan, SharedDecision, Store, StoreError, deadline::Deadline};

/// Decides by limits that come with each request, as those of `CL.THROTTLE` do; from [`Store::ad_hoc`]. A limit that stays is
/// rather a [`SharedLimit`](crate::SharedLimit), which also knows what to answer when the store does not.
///
/// For as long as it exists, its deadline counts as one of the store's limits' (see
/// [`LimitBuilder::deadline`](crate::LimitBuilder::deadline)).
pub struct AdHoc {
    store: Store,
    deadline: Deadline,
}

impl Store {
    /// Decides by limits that come with each request, each decision within a deadline.
    #[must_use]
    pub fn ad_hoc(&self, deadline: Duration) -> AdHoc {
        AdHoc { store: self.clone(), deadline: Deadline::new(self, deadline) }
    }
}

impl AdHoc {
    /// Decides on one request. `key` is the whole key in Redis. A denial is remembered until its time, except of permits, which
    /// come back before it: the same request by the same plan then costs no round trip.
    ///
    /// # Errors
    /// As [`Store::decide`].
    pub async fn decide(
        &self,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        cost: u32,
    ) -> Result<SharedDecision, StoreError> {
        let denials = &self.store.inner().denials;
        let tag = plan.hold().is_none().then(|| denials.tag(&key) ^ denials.tag(plan.numbers()));
        let deadline = || Ok(self.deadline.get());
        self.store.decide_seen(plan, key, cost, tag, deadline).await.map(|(told, _)| told)
    }
}

impl fmt::Debug for AdHoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdHoc").field("store", &self.store).field("deadline", &self.deadline.get()).finish()
    }
}
