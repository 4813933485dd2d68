//! Decisions by the store, each on one key.

use std::sync::Arc;

use tidegate_core::Nanos;

use super::{
    Batched, Batcher, Call, GONE, Queue, Shard, Waiting,
    collect::{BatchAnswer, Place},
};
use crate::{
    Deadline, StoreError,
    script::{
        Plan,
        call::{self, Batch, Before},
    },
};

/// A decision request in flight.
pub struct Question {
    cost: u64,
    place: Place,
}

impl Batched for Question {
    type Limit = Plan;
    /// A call of this size blocks Redis for about a third of a millisecond.
    const KEYS: usize = 128;
    const REQUESTS: usize = 512;

    fn queue(shard: &Shard) -> &Queue<Waiting<Self>> {
        &shard.decisions
    }

    fn is_wanted(&self) -> bool {
        self.place.is_wanted()
    }

    fn gives_back(&self) -> bool {
        false
    }

    async fn answer(batcher: Arc<Batcher>, shard: usize, call: Call<Self>) {
        let Call {
            limit: plan,
            keys,
            requests,
            counts,
            deadline,
        } = call;
        let costs = requests.iter().map(|question| question.cost).collect();
        let batch = Batch {
            keys,
            costs,
            counts,
        };
        match batcher.decide_batch(shard, &plan, &batch, deadline).await {
            Ok((now, found)) => {
                let (mut questions, mut costs) = (requests.into_iter(), &batch.costs[..]);
                for (before, &count) in found.into_iter().zip(&batch.counts) {
                    let of_this_key;
                    (of_this_key, costs) = costs.split_at(count as usize);
                    each_answer(&plan, before, now, of_this_key, |given| {
                        if let Some(question) = questions.next() {
                            question.place.give(given);
                        }
                    });
                }
            }
            Err(error) => requests
                .into_iter()
                .for_each(|question| question.place.give(Err(error.clone()))),
        }
    }
}

impl Batcher {
    /// Decides on one request before the deadline. `key` is the whole key in Redis.
    ///
    /// # Errors
    /// When the store makes no decision in time. The request may still be charged.
    pub async fn decide(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        cost: u64,
        deadline: Deadline,
    ) -> BatchAnswer {
        let shard = self.monitor.shard_of(&key);
        let Some(_alone) = Question::queue(&self.shards[shard]).alone() else {
            return self
                .decide_many(plan, [(key, cost)], deadline)
                .await
                .pop()
                .unwrap_or(GONE);
        };
        self.monitor.admit(shard)?;
        // Boxed, so that the future of a request that shares a call is small: it is moved several
        // times.
        let answer: BatchAnswer = Box::pin(async {
            let batch = Batch {
                keys: vec![key],
                costs: vec![cost],
                counts: vec![1],
            };
            let (now, mut found) = self.decide_batch(shard, plan, &batch, deadline).await?;
            let mut answer = Err(StoreError::BadReply);
            if let Some(before) = found.pop() {
                each_answer(plan, before, now, &[cost], |given| answer = given);
            }
            answer
        })
        .await;
        self.monitor.decided(&answer);
        answer
    }

    /// Decides on several requests: each separately, and neighbours with the same key in this
    /// order. Keep the number to a few hundred, because other callers wait for the call.
    pub async fn decide_many(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        requests: impl IntoIterator<Item = (Vec<u8>, u64), IntoIter: ExactSizeIterator>,
        deadline: Deadline,
    ) -> Vec<BatchAnswer> {
        let question = |(key, cost)| (key, move |place| Question { cost, place });
        self.ask(plan, requests.into_iter().map(question), deadline, deadline)
            .await
    }

    /// Makes one call.
    async fn decide_batch(
        &self,
        shard: usize,
        plan: &Plan,
        batch: &Batch,
        deadline: Deadline,
    ) -> Result<(Nanos, Vec<Before>), StoreError> {
        let script = self.scripts.batch(plan.kind());
        let arguments = batch.arguments(plan);
        let reply = self
            .monitor
            .call(shard, script, &batch.keys, &arguments, deadline, true)
            .await?;
        call::parse(reply, batch.keys.len())
    }
}

fn each_answer(
    plan: &Plan,
    before: Before,
    now: Nanos,
    costs: &[u64],
    mut give: impl FnMut(BatchAnswer),
) {
    let recomputed = before.and_then(|value| {
        let recomputed = plan.decisions(value.as_deref(), now, costs, |_, decision, seen| {
            give(Ok((decision, seen)));
        });
        recomputed.ok_or(StoreError::NotOurs)
    });
    if let Err(error) = recomputed {
        for _ in costs {
            give(Err(error.clone()));
        }
    }
}
