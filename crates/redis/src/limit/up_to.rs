//! Decisions that take what fits of a cost.

use tidegate_core::{Decision, Key};

use super::{
    OnError, Part, SharedDecision, SharedLimit, Source,
    joint::{by_all, decide_up_to, formers_of, of_formers},
};
use crate::{Deadline, StoreError};

impl SharedLimit {
    /// Takes as much of `cost` as is available; returns that amount and the decision on it: a
    /// denial if it is 0.
    ///
    /// The store makes each of these decisions, in one step. What nodes hold of a
    /// [leased](Self::mode) limit counts as used. If the store makes no decision, the limit's
    /// [`OnError`] decides: open admits the whole cost, closed nothing.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire_up_to(&self, key: impl Key, cost: u64) -> (u64, SharedDecision) {
        self.acquire_up_to_by(key, cost, self.deadline()).await
    }

    /// [`acquire_up_to`](Self::acquire_up_to) until a deadline.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire_up_to_by(
        &self,
        key: impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> (u64, SharedDecision) {
        let key = key.with_bytes(<[u8]>::to_vec);
        let decided = Box::pin(self.up_to_in_store(&key, cost, deadline)).await;
        let monitor = self.monitor();
        monitor.decided(&decided);
        match decided {
            Ok((granted, decision)) => (granted, SharedDecision::by_store(decision)),
            Err(error) => self.up_to_without_store(&key, cost, error),
        }
    }

    async fn up_to_in_store(
        &self,
        key: &[u8],
        cost: u64,
        deadline: Deadline,
    ) -> Result<(u64, Decision), StoreError> {
        let part = Part {
            limit: self,
            key,
            cost,
        };
        let formers = formers_of(&[part], deadline).await?;
        let mut requests = vec![self.request(key, cost)];
        requests.extend(of_formers(&formers[0], &key, cost));
        let (granted, decisions) = decide_up_to(self.store(), &requests, deadline).await?;
        let decisions = by_all(&decisions, &formers).ok_or(StoreError::BadReply)?;
        let decision = decisions.first().ok_or(StoreError::BadReply)?;
        Ok((granted, *decision))
    }

    fn up_to_without_store(
        &self,
        key: &[u8],
        cost: u64,
        error: StoreError,
    ) -> (u64, SharedDecision) {
        let Some(local) = self.local().filter(|_| self.0.on_error == OnError::Local) else {
            let answer = self.without_store(key, cost, error);
            let granted = if answer.is_allowed() { cost } else { 0 };
            return (granted, answer);
        };
        let counters = self.monitor().counters();
        counters.tell_of(&error, &self.0.prefix);
        counters.local.add(1);
        let (granted, decision) = local.decide_up_to(key, cost, self.local_unit());
        let source = Source::Local(error);
        (granted, SharedDecision { decision, source })
    }
}
