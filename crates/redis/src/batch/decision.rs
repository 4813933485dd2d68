//! Decisions by the store, each on one key.

use std::{mem, sync::Arc};

use tidegate_core::Nanos;

use super::{
    Batcher, Call, Queue, Request, Shard,
    collect::{Answer, Collector, Place},
};
use crate::{
    Deadline, StoreError,
    script::{
        Plan,
        call::{self, Batch, Before},
    },
};

/// The task that had the request no longer exists: the runtime is shutting down.
const GONE: Answer = Err(StoreError::Down);

/// A decision request in flight.
pub struct Question {
    plan: Arc<Plan>,
    key: Vec<u8>,
    slot: u16,
    cost: u64,
    follows: bool,
    deadline: Deadline,
    place: Place,
}

impl Request for Question {
    type Limit = Plan;
    /// A call of this size blocks Redis for about a third of a millisecond.
    const KEYS: usize = 128;
    const REQUESTS: usize = 512;

    fn queue(shard: &Shard) -> &Queue<Self> {
        &shard.decisions
    }

    fn limit(&self) -> &Arc<Plan> {
        &self.plan
    }

    fn slot(&self) -> u16 {
        self.slot
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn take_key(&mut self) -> Vec<u8> {
        mem::take(&mut self.key)
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn is_wanted(&self) -> bool {
        self.place.is_wanted()
    }

    fn follows(&self) -> bool {
        self.follows
    }

    fn apart(&self) -> bool {
        false
    }

    async fn answer(batcher: Arc<Batcher>, shard: usize, call: Call<Self>) {
        let Call { limit: plan, keys, requests, counts, deadline } = call;
        let costs = requests.iter().map(|question| question.cost).collect();
        let batch = Batch { keys, costs, counts };
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
            Err(error) => requests.into_iter().for_each(|question| question.place.give(Err(error.clone()))),
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
    ) -> Answer {
        let shard = self.monitor.shard_of(&key);
        self.monitor.admit(shard)?;
        let answer = self.decide_admitted(shard, plan, key, cost, deadline).await;
        self.monitor.decided(&answer);
        answer
    }

    async fn decide_admitted(
        self: &Arc<Self>,
        shard: usize,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        cost: u64,
        deadline: Deadline,
    ) -> Answer {
        if let Some(_alone) = Question::queue(&self.shards[shard]).alone() {
            // Boxed, so that the future of a request that shares a call is small: it is moved several times.
            return Box::pin(self.decide_alone(shard, plan, key, cost, deadline)).await;
        }
        self.ask(plan, [(shard, key, cost)], deadline).await.pop().unwrap_or(GONE)
    }

    /// Decides on several requests: each separately, and neighbours with the same key in this order. Keep the number to a few
    /// hundred, because other callers wait for the call.
    pub async fn decide_many(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        requests: Vec<(Vec<u8>, u64)>,
        deadline: Deadline,
    ) -> Vec<Answer> {
        let mut refused = Vec::with_capacity(requests.len());
        let mut asked = Vec::with_capacity(requests.len());
        for (key, cost) in requests {
            let shard = self.monitor.shard_of(&key);
            let admitted = self.monitor.admit(shard);
            if admitted.is_ok() {
                asked.push((shard, key, cost));
            }
            refused.push(admitted.err());
        }
        let mut told = self.ask(plan, asked, deadline).await.into_iter();
        let mut answers = Vec::with_capacity(refused.len());
        for refused in refused {
            let answer = refused.map_or_else(|| told.next().unwrap_or(GONE), Err);
            self.monitor.decided(&answer);
            answers.push(answer);
        }
        answers
    }

    /// Queues requests, each with its shard, and waits for their answers.
    async fn ask(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        requests: impl IntoIterator<Item = (usize, Vec<u8>, u64), IntoIter: ExactSizeIterator>,
        deadline: Deadline,
    ) -> Vec<Answer> {
        let requests = requests.into_iter();
        let mut shards = Vec::with_capacity(requests.len());
        let (collector, places) = Collector::new(requests.len());
        let mut asked: Vec<(usize, Question)> = Vec::with_capacity(requests.len());
        for ((shard, key, cost), place) in requests.zip(places) {
            let follows = asked.last().is_some_and(|(_, last)| last.key == key);
            let slot = self.monitor.slot(&key);
            asked.push((
                shard,
                Question { plan: Arc::clone(plan), key, slot, cost, follows, deadline, place },
            ));
            shards.push(shard);
        }
        self.post_together(asked);
        let (answers, in_time) = collector.wait(deadline).await;
        let missing = |shard| if in_time { GONE } else { Err(self.timed_out(shard)) };
        let answer = |(answer, shard): (Option<Answer>, usize)| answer.unwrap_or_else(|| missing(shard));
        answers.into_iter().zip(shards).map(answer).collect()
    }

    /// Sends the request of a caller when no other call is in flight.
    async fn decide_alone(
        &self,
        shard: usize,
        plan: &Plan,
        key: Vec<u8>,
        cost: u64,
        deadline: Deadline,
    ) -> Answer {
        let batch = Batch { keys: vec![key], costs: vec![cost], counts: vec![1] };
        let (now, mut found) = self.decide_batch(shard, plan, &batch, deadline).await?;
        let mut answer = Err(StoreError::BadReply);
        if let Some(before) = found.pop() {
            each_answer(plan, before, now, &[cost], |given| answer = given);
        }
        answer
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
        let reply = self.monitor.call(shard, script, &batch.keys, &arguments, deadline, true).await?;
        call::parse(reply, batch.keys.len())
    }
}

fn each_answer(plan: &Plan, before: Before, now: Nanos, costs: &[u64], mut give: impl FnMut(Answer)) {
    let told = before.value().and_then(|value| {
        let told =
            plan.decisions(value.as_deref(), now, costs, |_, decision, seen| give(Ok((decision, seen))));
        told.ok_or(StoreError::NotOurs)
    });
    if let Err(error) = told {
        for _ in costs {
            give(Err(error.clone()));
        }
    }
}
