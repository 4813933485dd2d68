//! Lease requests to the store. Each request ends exactly once, with or without an answer, and the lease learns of it.

use std::sync::Arc;

use super::{
    Batcher, Call, Queue, Request, Shard,
    collect::{Answer, Collector, Place},
};
use crate::{
    Deadline, StoreError,
    connection::beside,
    health::random,
    lease::{Held, Leases},
    script::call::{self, Before},
};
use tidegate_core::lease::{GiveBack, Grant, Request as Asked};
use tidegate_core::{Clock, Decision, Nanos};

/// A lease request in flight. If it is dropped without an answer (a call fails, a runtime ends), the request counts as failed,
/// so the lease does not wait for it.
pub struct Errand {
    leases: Arc<Leases>,
    held: Arc<Held>,
    /// `None` once the request has ended.
    request: Option<Asked>,
    caller: Option<Place>,
    follows: bool,
    slot: u16,
    is_cluster: bool,
    deadline: Deadline,
}

impl Request for Errand {
    type Limit = Leases;
    /// As for decisions, but a step takes about twice as long. More calls would be no faster: those of a sweep follow each other.
    const KEYS: usize = 128;
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

    /// Other callers can use the result, too.
    fn is_wanted(&self) -> bool {
        true
    }

    fn follows(&self) -> bool {
        self.follows
    }

    /// In a cluster, a call that gives back has one more key. While a slot moves, such a call may have to wait, and other
    /// requests should not wait with it.
    fn apart(&self) -> bool {
        self.is_cluster && self.gives_back()
    }

    async fn answer(batcher: Arc<Batcher>, shard: usize, call: Call<Self>) {
        let Call { limit: leases, keys, requests, counts, deadline } = call;
        match batcher.grant_batch(shard, &leases, &keys, (&requests, &counts), deadline).await {
            Ok((now, found)) => {
                let mut requests = requests.into_iter();
                for (before, &count) in found.into_iter().zip(&counts) {
                    let errands: Vec<Self> = requests.by_ref().take(count as usize).collect();
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
            Err(error) => requests.into_iter().for_each(|errand| errand.failed(&batcher, &error)),
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
            // The caller may have given up. The lease keeps everything else that the answer brought.
            caller.give(Ok((decision, grant.now)));
        }
        // If the lease was closed in the meantime, its units are given back immediately.
        while self.held.is_closed()
            && let Some(request) = self.held.lease.returning(now)
        {
            batcher.send_errand(&self.leases, &self.held, request);
        }
    }

    fn failed(mut self, batcher: &Batcher, error: &StoreError) {
        // Record the failure first, so that a caller who retries finds it.
        if let Some(request) = self.request.take() {
            self.held.lease.failed(request);
        }
        match self.caller.take() {
            // The caller counts the error.
            Some(caller) => caller.give(Err(error.clone())),
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
        caller: Option<Place>,
        deadline: Deadline,
    ) -> Errand {
        leases.request_goes_out();
        let (slot, is_cluster) = (self.monitor.slot(&held.key), self.monitor.is_cluster());
        let (leases, held, request) = (Arc::clone(leases), Arc::clone(held), Some(request));
        Errand { leases, held, request, caller, follows: false, slot, is_cluster, deadline }
    }

    /// In a cluster, units are given back in a separate request.
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

    /// Sends a request that no caller waits for.
    pub fn send_errand(self: &Arc<Self>, leases: &Arc<Leases>, held: &Arc<Held>, request: Asked) {
        self.send_errands(leases, [(Arc::clone(held), request)]);
    }

    /// Sends requests that no caller waits for. Those of one shard leave together.
    pub fn send_errands(
        self: &Arc<Self>,
        leases: &Arc<Leases>,
        requests: impl IntoIterator<Item = (Arc<Held>, Asked)>,
    ) {
        let deadline = leases.deadline(&self.monitor);
        let errand = |(held, mut request): (Arc<Held>, Asked)| {
            self.send_back_apart(leases, &held, &mut request);
            let errand = self.errand(leases, &held, request, None, deadline);
            let shard = self.monitor.shard_of(&held.key);
            self.monitor.admit(shard).is_ok().then_some((shard, errand))
        };
        self.post_together(requests.into_iter().filter_map(errand).collect());
    }

    /// Sends requests, and waits for the answers until the deadline. Neighbours about the same key are decided in this order. If the
    /// deadline passes or the caller gives up, the requests continue, because their grants also serve other callers.
    pub async fn ask_for_leases(
        self: &Arc<Self>,
        leases: &Arc<Leases>,
        requests: impl IntoIterator<Item = (Arc<Held>, Asked), IntoIter: ExactSizeIterator>,
        deadline: Deadline,
    ) -> Vec<Result<Decision, StoreError>> {
        let requests = requests.into_iter();
        let latest = deadline.max(leases.deadline(&self.monitor));
        let (collector, places) = Collector::new(requests.len());
        let mut sent = Vec::with_capacity(requests.len());
        // Those of one shard leave together.
        let mut together: Vec<(usize, Errand)> = Vec::with_capacity(requests.len());
        for ((held, mut request), place) in requests.zip(places) {
            self.send_back_apart(leases, &held, &mut request);
            let mut errand = self.errand(leases, &held, request, Some(place), latest);
            errand.follows = together.last().is_some_and(|(_, last)| Arc::ptr_eq(&last.held, &held));
            let shard = self.monitor.shard_of(&held.key);
            let admitted = self.monitor.admit(shard);
            if admitted.is_ok() {
                together.push((shard, errand));
            }
            sent.push(admitted.map(|()| shard));
        }
        self.post_together(together);
        let (answers, in_time) = collector.wait(deadline).await;
        let answer = |(answer, sent): (Option<Answer>, Result<usize, StoreError>)| match (answer, sent?) {
            (Some(answer), _) => answer.map(|(decision, _)| decision),
            // The task no longer exists, because the runtime is shutting down.
            (None, _) if in_time => Err(StoreError::Down),
            // The call started later than this deadline counts, so its own result comes later.
            (None, shard) => Err(self.timed_out(shard)),
        };
        let answers: Vec<_> = answers.into_iter().zip(sent).map(answer).collect();
        for answer in &answers {
            self.monitor.decided(answer);
        }
        answers
    }

    /// Makes one call.
    async fn grant_batch(
        &self,
        shard: usize,
        leases: &Leases,
        keys: &[Vec<u8>],
        (errands, counts): (&[Errand], &[u32]),
        deadline: Deadline,
    ) -> Result<(Nanos, Vec<Before>), StoreError> {
        let requests = errands.iter().filter_map(|errand| errand.request.as_ref());
        let arguments =
            call::lease_arguments(&leases.plan, leases.terms.mode(), requests, counts.iter().copied());
        let gives_back = errands.iter().any(Errand::gives_back);
        let mut all: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        // Giving back twice would free units of other callers (charging twice is safe). The cluster client repeats calls on
        // its own. An extra key lets the script recognize a repeated call.
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
