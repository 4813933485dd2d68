//! Many requests for one limit at once.

use std::sync::Arc;

use futures_util::future::join_all;
use tidegate_core::{Clock, Key, lease};

use super::{SharedDecision, SharedLimit, shared::from_lease};
use crate::{
    Deadline, StoreError,
    lease::{Held, LeaseAnswer, Leases},
};

impl SharedLimit {
    /// Asks for several keys, each separately and with its cost: like concurrent calls of
    /// [`acquire`](Self::acquire), but with less work for each. Neighbours with the same key are
    /// decided in this order, and in one round trip. Keep the number to a few hundred, because
    /// other callers wait for the call. While another [announced](crate::LimitBuilder::announced)
    /// rule binds this node, each request is a call, which does not wait for the reply to the one
    /// before.
    ///
    /// All have one deadline, and [`OnError`](crate::OnError) decides what the store has not
    /// decided by then.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire_many<K: Key>(&self, requests: &[(K, u64)]) -> Vec<SharedDecision> {
        self.acquire_many_by(requests, self.deadline()).await
    }

    /// Like [`acquire_many`](Self::acquire_many), with a given deadline (see
    /// [`acquire_by`](Self::acquire_by)).
    pub async fn acquire_many_by<K: Key>(
        &self,
        requests: &[(K, u64)],
        deadline: Deadline,
    ) -> Vec<SharedDecision> {
        match requests {
            [] => Vec::new(),
            [(key, cost)] => vec![self.acquire_by(key, *cost, deadline).await],
            _ if self.may_be_bound() => Box::pin(self.acquire_many_bound(requests, deadline)).await,
            _ => self.acquire_many_alone(requests, deadline).await,
        }
    }

    /// [`acquire_many_by`](Self::acquire_many_by) by this limit's rule alone.
    async fn acquire_many_alone<K: Key>(
        &self,
        requests: &[(K, u64)],
        deadline: Deadline,
    ) -> Vec<SharedDecision> {
        // A call for each request, too, if only joint decisions know all about the keys.
        if self.plan().is_joint() || requests.iter().any(|(_, cost)| self.is_large(*cost)) {
            let asked = requests.iter();
            return join_all(asked.map(|(key, cost)| self.acquire_alone(key, *cost, deadline)))
                .await;
        }
        match &self.0.leases {
            Some(leases) => Box::pin(self.acquire_many_leased(leases, requests, deadline)).await,
            None => self.acquire_many_exact(requests, deadline).await,
        }
    }

    /// [`acquire_many_by`](Self::acquire_many_by) while another rule may bind this node.
    async fn acquire_many_bound<K: Key>(
        &self,
        requests: &[(K, u64)],
        deadline: Deadline,
    ) -> Vec<SharedDecision> {
        let mut formers = Vec::with_capacity(requests.len());
        for (key, _) in requests {
            formers.push(self.formers(key, deadline).await);
        }
        if formers
            .iter()
            .all(|formers| formers.as_ref().is_ok_and(Vec::is_empty))
        {
            return self.acquire_many_alone(requests, deadline).await;
        }
        // Not in separate tasks, which could overtake each other: the calls leave in the order of
        // their first polls.
        let asked = requests.iter().zip(formers);
        join_all(
            asked.map(|((key, cost), formers)| self.acquire_after(formers, key, *cost, deadline)),
        )
        .await
    }

    /// Costs that the node holds too little for, and all behind them with the same key, go to the
    /// store in one call.
    async fn acquire_many_leased<K: Key>(
        &self,
        leases: &Arc<Leases>,
        requests: &[(K, u64)],
        deadline: Deadline,
    ) -> Vec<SharedDecision> {
        // As for a single request.
        tokio::task::consume_budget().await;
        let batcher = self.0.store.batcher();
        let now = batcher.monitor.clock.now();
        let evicted = |held: &_, request| batcher.send_errand(leases, held, request);
        // `None` for what the store is asked.
        let mut known = Vec::with_capacity(requests.len());
        let mut asked = Vec::new();
        let same = |(one, _): &(K, u64), (other, _): &(K, u64)| {
            one.with_bytes(|one| other.with_bytes(|other| one == other))
        };
        for run in requests.chunk_by(same) {
            let mut rest: Option<(Arc<Held>, lease::Request, Vec<u64>)> = None;
            for (key, cost) in run {
                if let Some((.., more)) = rest.as_mut().filter(|_| *cost <= leases.terms.limit()) {
                    more.push(*cost);
                    known.push(None);
                    continue;
                }
                match key.with_bytes(|key| leases.ask(key, *cost, now, evicted)) {
                    LeaseAnswer::Decided(decision) => known.push(Some(from_lease(decision))),
                    LeaseAnswer::Renew(decision, held, request) => {
                        batcher.send_errand(leases, &held, request);
                        known.push(Some(from_lease(decision)));
                    }
                    LeaseAnswer::Refill(held, request) => {
                        rest = Some((held, request, Vec::new()));
                        known.push(None);
                    }
                }
            }
            if let Some((held, first, more)) = rest {
                let requests = held.lease.in_turn(first, &more);
                asked.extend(
                    requests
                        .into_iter()
                        .map(|request| (Arc::clone(&held), request)),
                );
            }
        }
        let mut results = self
            .ask_for_leases(leases, asked, deadline)
            .await
            .into_iter();
        let answer = |(known, (key, cost)): (Option<SharedDecision>, &(K, u64))| {
            known.unwrap_or_else(|| {
                self.answer(
                    key,
                    *cost,
                    results.next().unwrap_or(Err(StoreError::BadReply)),
                )
            })
        };
        known.into_iter().zip(requests).map(answer).collect()
    }

    async fn acquire_many_exact<K: Key>(
        &self,
        requests: &[(K, u64)],
        deadline: Deadline,
    ) -> Vec<SharedDecision> {
        let now = self.monitor().clock.now();
        let mut tags = Vec::with_capacity(requests.len());
        let mut known = Vec::with_capacity(requests.len());
        let mut asked = Vec::with_capacity(requests.len());
        for (key, cost) in requests {
            let whole = self.redis_key(key);
            let tag = self.denial_tag(&whole);
            let remembered = tag.and_then(|tag| self.0.store.remembered(tag, *cost, now));
            if remembered.is_none() {
                asked.push((whole, *cost));
            }
            tags.push(tag);
            known.push(remembered);
        }
        let mut results = self
            .0
            .store
            .batcher()
            .decide_many(self.plan(), asked, deadline)
            .await
            .into_iter();
        let mut answers = Vec::with_capacity(requests.len());
        for (((key, cost), tag), known) in requests.iter().zip(tags).zip(known) {
            answers.push(known.unwrap_or_else(|| {
                let result = results
                    .next()
                    .unwrap_or(Err(StoreError::BadReply))
                    .map(|(decision, _)| decision);
                if let Ok(decision) = &result {
                    self.0.store.remember(tag, *cost, decision, now);
                }
                self.answer(key, *cost, result)
            }));
        }
        answers
    }
}
