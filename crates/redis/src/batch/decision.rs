//! Decisions by the store, each on one key.

use std::{mem, sync::Arc};

use tidegate_core::{Decision, Nanos};
use tokio::sync::oneshot;

use super::{Batcher, Call, Queue, Request, Shard};
use crate::{
    Deadline, StoreError,
    script::{
        Plan,
        call::{self, Batch, Before},
    },
};

/// The result of a request: the decision, and the time that the state uses.
pub type Answer = Result<(Decision, Nanos), StoreError>;
/// The answers to a caller's requests on one key, in order.
pub type Answers = Vec<Answer>;

/// The task that had the request no longer exists: the runtime is shutting down.
const GONE: Answer = Err(StoreError::Down);

/// A decision request in flight.
pub struct Question {
    plan: Arc<Plan>,
    key: Vec<u8>,
    slot: u16,
    cost: u32,
    follows: bool,
    deadline: Deadline,
    answer: oneshot::Sender<Answer>,
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
        !self.answer.is_closed()
    }

    fn follows(&self) -> bool {
        self.follows
    }

    fn apart(&self) -> bool {
        false
    }

    async fn answer(batcher: Arc<Batcher>, shard: usize, call: Call<Self>) {
        let Call { limit: plan, keys, requests, deadline, .. } = call;
        let mut batch = Batch { keys, ..Batch::default() };
        for questions in &requests {
            batch.costs.extend(questions.iter().map(|question| question.cost));
            batch.counts.push(questions.len() as u32);
        }
        match batcher.decide_batch(shard, &plan, &batch, deadline).await {
            Ok((now, found)) => {
                for (before, questions) in found.into_iter().zip(requests) {
                    let costs: Vec<u32> = questions.iter().map(|question| question.cost).collect();
                    let mut questions = questions.into_iter();
                    each_answer(&plan, before, now, &costs, |given| {
                        if let Some(question) = questions.next() {
                            // The caller may have given up.
                            let _ = question.answer.send(given);
                        }
                    });
                }
            }
            Err(error) => {
                for question in requests.into_iter().flatten() {
                    let _ = question.answer.send(Err(error.clone()));
                }
            }
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
        cost: u32,
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
        cost: u32,
        deadline: Deadline,
    ) -> Answer {
        if let Some(_alone) = Question::queue(&self.shards[shard]).alone() {
            let mut answer = Err(StoreError::BadReply);
            // Boxed, so that the future of a request that shares a call is small: it is moved several times.
            Box::pin(self.decide_alone(shard, plan, key, &[cost], deadline, |given| answer = given)).await;
            return answer;
        }
        let (answer, answered) = oneshot::channel();
        let slot = self.monitor.slot(&key);
        let question = Question { plan: Arc::clone(plan), key, slot, cost, follows: false, deadline, answer };
        self.post(shard, [question]);
        match deadline.bound(answered).await {
            Ok(answer) => answer.unwrap_or(GONE),
            Err(_) => Err(self.timed_out(shard)),
        }
    }

    /// Decides on several requests for one key in one call: each separately, in this order. Keep the number to a few hundred,
    /// because other callers wait meanwhile.
    pub async fn decide_in_turn(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        costs: &[u32],
        deadline: Deadline,
    ) -> Answers {
        if costs.is_empty() {
            return Vec::new();
        }
        let shard = self.monitor.shard_of(&key);
        if let Err(error) = self.monitor.admit(shard) {
            return vec![Err(error); costs.len()];
        }
        let answers = self.decide_run(shard, plan, key, costs, deadline).await;
        for answer in &answers {
            self.monitor.decided(answer);
        }
        answers
    }

    async fn decide_run(
        self: &Arc<Self>,
        shard: usize,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        costs: &[u32],
        deadline: Deadline,
    ) -> Answers {
        let mut answers = Vec::with_capacity(costs.len());
        if let Some(_alone) = Question::queue(&self.shards[shard]).alone() {
            self.decide_alone(shard, plan, key, costs, deadline, |given| answers.push(given)).await;
            return answers;
        }
        let slot = self.monitor.slot(&key);
        let mut waiting = Vec::with_capacity(costs.len());
        let questions: Vec<Question> = costs
            .iter()
            .enumerate()
            .map(|(nth, &cost)| {
                let (answer, answered) = oneshot::channel();
                waiting.push(answered);
                let (plan, key, follows) = (Arc::clone(plan), key.clone(), nth > 0);
                Question { plan, key, slot, cost, follows, deadline, answer }
            })
            .collect();
        self.post(shard, questions);
        let all = async {
            for answered in waiting {
                answers.push(answered.await.unwrap_or(GONE));
            }
        };
        if deadline.bound(all).await.is_err() {
            let error = self.timed_out(shard);
            answers.resize(costs.len(), Err(error));
        }
        answers
    }

    /// Sends the requests of a caller when no other call is in flight.
    async fn decide_alone(
        &self,
        shard: usize,
        plan: &Plan,
        key: Vec<u8>,
        costs: &[u32],
        deadline: Deadline,
        mut give: impl FnMut(Answer),
    ) {
        let batch = Batch { keys: vec![key], costs: costs.to_vec(), counts: vec![costs.len() as u32] };
        let error = match self.decide_batch(shard, plan, &batch, deadline).await {
            Ok((now, mut found)) => match found.pop() {
                Some(before) => return each_answer(plan, before, now, costs, give),
                None => StoreError::BadReply,
            },
            Err(error) => error,
        };
        for _ in costs {
            give(Err(error.clone()));
        }
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

fn each_answer(plan: &Plan, before: Before, now: Nanos, costs: &[u32], mut give: impl FnMut(Answer)) {
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
