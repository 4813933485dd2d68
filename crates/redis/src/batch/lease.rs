//! Requests of leases on their way to the store: each ends in exactly one answer, or in none, for its lease.

use std::sync::Arc;

use tidegate_core::lease::{GiveBack, Grant, Request as Asked};
use tidegate_core::{Clock, Decision, Nanos};
use tokio::sync::oneshot;

use super::{Batcher, Call, Queue, Request, Shard};
use crate::{
    Deadline, StoreError,
    connection::beside,
    health::random,
    lease::{Held, Leases},
    script::call::{self, Before},
};

/// A request that is out. Dropped without an answer (a call that fails, a runtime that ends), it has failed: the lease must
/// not wait for it.
pub struct Errand {
    leases: Arc<Leases>,
    held: Arc<Held>,
    /// Until it has ended.
    request: Option<Asked>,
    caller: Option<oneshot::Sender<Result<Decision, StoreError>>>,
    slot: u16,
    is_cluster: bool,
    deadline: Deadline,
}

impl Request for Errand {
    type Limit = Leases;
    /// As for decisions; a step here is about twice as long.
    const KEYS: usize = 64;
    const REQUESTS: usize = 256;

    fn queue(shard: &Shard) -> &Queue<Self> {
        &shard.leases
    }

    fn limit(&self) -> &Arc<Leases> {
        &self.leases
    }

    fn slot(&self) -> u16 {
        self.slot
    }

    fn key(&self) -> &[u8] {
        &self.held.key
    }

    fn take_key(&mut self) -> Vec<u8> {
        self.held.key.clone()
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// What it brings is for others, too.
    fn is_wanted(&self) -> bool {
        true
    }

    fn follows(&self) -> bool {
        false
    }

    /// In a cluster a call that gives back has a key more: while a slot moves it may have to wait, and nobody with it.
    fn apart(&self) -> bool {
        self.is_cluster && self.gives_back()
    }

    async fn answer(batcher: Arc<Batcher>, shard: usize, call: Call<Self>) {
        let Call { limit: leases, keys, requests, deadline, .. } = call;
        match batcher.grant_batch(shard, &leases, &keys, &requests, deadline).await {
            Ok((now, found)) => {
                for (before, errands) in found.into_iter().zip(requests) {
                    match grants(&leases, before, now, &errands) {
                        Ok(grants) => {
                            for (errand, grant) in errands.into_iter().zip(&grants) {
                                errand.granted(&batcher, grant);
                            }
                        }
                        Err(error) => errands.into_iter().for_each(|errand| errand.failed(&batcher, &error)),
                    }
                }
            }
            Err(error) => requests.into_iter().flatten().for_each(|errand| errand.failed(&batcher, &error)),
        }
    }
}

impl Errand {
    fn gives_back(&self) -> bool {
        self.request.is_some_and(|request| matches!(request.back, Some(GiveBack { units: 1.., .. })))
    }

    fn granted(mut self, batcher: &Arc<Batcher>, grant: &Grant) {
        let Some(request) = self.request.take() else { return };
        let now = batcher.monitor.clock.now();
        let decision = self.held.lease.granted(request, grant, now);
        if let Some(caller) = self.caller.take() {
            // Whoever asked may have given up; what else came with the answer is the lease's.
            let _ = caller.send(Ok(decision));
        }
        // What came for a lease that was closed meanwhile goes back at once.
        while self.held.is_closed()
            && let Some(request) = self.held.lease.returning(now)
        {
            batcher.send_errand(&self.leases, &self.held, request);
        }
    }

    fn failed(mut self, batcher: &Batcher, error: &StoreError) {
        // First, so that the caller who asks again finds it so.
        if let Some(request) = self.request.take() {
            self.held.lease.failed(request);
        }
        match self.caller.take() {
            // Counted by whoever asked.
            Some(caller) => drop(caller.send(Err(error.clone()))),
            None => batcher.monitor.counters().error(error),
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.held.lease.failed(request);
        }
        self.leases.request_has_ended();
    }
}

impl Batcher {
    fn errand(
        &self,
        leases: &Arc<Leases>,
        held: &Arc<Held>,
        request: Asked,
        caller: Option<oneshot::Sender<Result<Decision, StoreError>>>,
        deadline: Deadline,
    ) -> Errand {
        leases.request_goes_out();
        let (slot, is_cluster) = (self.monitor.slot(&held.key), self.monitor.is_cluster());
        let (leases, held, request) = (Arc::clone(leases), Arc::clone(held), Some(request));
        Errand { leases, held, request, caller, slot, is_cluster, deadline }
    }

    /// What goes with a request in a cluster only by itself: what it gives back.
    fn send_back_apart(self: &Arc<Self>, leases: &Arc<Leases>, held: &Arc<Held>, request: &mut Asked) {
        let says_more = request.cost > 0 || request.ahead > 0 || request.spent > 0;
        if says_more
            && self.monitor.is_cluster()
            && let Some(back) = request.back.take()
        {
            let alone = Asked { cost: 0, ahead: 0, back: Some(back), spent: 0, sent: request.sent };
            self.send_errand(leases, held, alone);
        }
    }

    /// Sends a request that nobody waits for.
    pub fn send_errand(self: &Arc<Self>, leases: &Arc<Leases>, held: &Arc<Held>, mut request: Asked) {
        self.send_back_apart(leases, held, &mut request);
        let errand = self.errand(leases, held, request, None, leases.deadline(&self.monitor));
        let shard = self.monitor.shard_of(&held.key);
        if self.monitor.admit(shard).is_ok() {
            self.post(shard, [errand]);
        }
    }

    /// Sends a request that a caller waits for, until the deadline. When that passes first, or the caller goes away, the
    /// request goes on: what it brings beside the decision is for others, too.
    pub async fn ask_for_lease(
        self: &Arc<Self>,
        leases: &Arc<Leases>,
        held: &Arc<Held>,
        mut request: Asked,
        deadline: Deadline,
    ) -> Result<Decision, StoreError> {
        self.send_back_apart(leases, held, &mut request);
        let (caller, answered) = oneshot::channel();
        let errand =
            self.errand(leases, held, request, Some(caller), deadline.max(leases.deadline(&self.monitor)));
        let shard = self.monitor.shard_of(&held.key);
        self.monitor.admit(shard)?;
        self.post(shard, [errand]);
        let answer = match deadline.bound(answered).await {
            // Without an answer the task that had the request has gone: the runtime is shutting down.
            Ok(answer) => answer.unwrap_or(Err(StoreError::Down)),
            // The call was sent later, and will tell later.
            Err(_) => Err(self.timed_out(shard)),
        };
        self.monitor.decided(&answer);
        answer
    }

    /// One call.
    async fn grant_batch(
        &self,
        shard: usize,
        leases: &Leases,
        keys: &[Vec<u8>],
        errands: &[Vec<Errand>],
        deadline: Deadline,
    ) -> Result<(Nanos, Vec<Before>), StoreError> {
        let requests = || errands.iter().flatten().filter_map(|errand| errand.request.as_ref());
        let counts = errands.iter().map(|same| same.len() as u32);
        let arguments = call::lease_arguments(&leases.numbers, leases.terms.mode(), requests(), counts);
        let gives_back = errands.iter().flatten().any(Errand::gives_back);
        let mut all: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        // What is given back twice would be others' units (what is charged twice errs on the safe side). A cluster's client
        // repeats calls by itself; by one more key the script knows the second one.
        let once = (gives_back && self.monitor.is_cluster()).then(|| {
            let text = format!("{}:returned:", self.monitor.runner.connector.prefix());
            beside(&keys[0], &text, &format!("{:016x}{:016x}", random(), random()))
        });
        all.extend(once.as_deref());
        let reply = self.monitor.call(shard, &leases.script, &all, &arguments, deadline, !gives_back).await?;
        call::parse(reply, keys.len())
    }
}

fn grants(leases: &Leases, before: Before, now: Nanos, errands: &[Errand]) -> Result<Vec<Grant>, StoreError> {
    let value = before.value()?;
    let requests: Vec<&Asked> = errands.iter().filter_map(|errand| errand.request.as_ref()).collect();
    let grants = leases.plan.grants(&leases.terms, value.as_deref(), now, requests.into_iter());
    grants.ok_or(StoreError::NotOurs)
}
