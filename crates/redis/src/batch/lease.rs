//! Lease requests to the store. Each request ends exactly once, with or without an answer, and the
//! lease learns of it.

use std::sync::Arc;

use super::{Batched, Batcher, Call, Queue, Shard, Waiting, collect::Place};
use crate::{
    Deadline, StoreError,
    connection::beside,
    health::random,
    lease::{Held, Leases},
    script::call::{self, Before},
};
use tidegate_core::lease::{GiveBack, Grant, Request as Asked};
use tidegate_core::{Clock, Decision, Nanos};

/// A lease request in flight. If it is dropped without an answer (a call fails, a runtime ends),
/// the request counts as failed, so the lease does not wait for it.
pub struct Errand {
    pub(super) leases: Arc<Leases>,
    pub(super) held: Arc<Held>,
    /// `None` once the request has ended.
    pub(super) request: Option<Asked>,
    caller: Option<Place>,
}

impl Batched for Errand {
    type Limit = Leases;
    /// As for decisions, but a step takes about twice as long. More calls would be no faster: those
    /// of a sweep follow each other.
    const KEYS: usize = 128;
    const REQUESTS: usize = 256;

    fn queue(shard: &Shard) -> &Queue<Waiting<Self>> {
        &shard.leases
    }

    /// Other callers can use the result, too.
    fn is_wanted(&self) -> bool {
        true
    }

    fn gives_back(&self) -> bool {
        self.request
            .is_some_and(|request| matches!(request.back, Some(GiveBack { units: 1.., .. })))
    }

    async fn answer(batcher: Arc<Batcher>, shard: usize, call: Call<Self>) {
        let Call {
            limit: leases,
            keys,
            requests,
            counts,
            deadline,
        } = call;
        match batcher
            .grant_batch(shard, &leases, &keys, (&requests, &counts), deadline)
            .await
        {
            Ok((now, found)) => {
                let mut requests = requests.into_iter();
                for (before, &count) in found.into_iter().zip(&counts) {
                    let errands: Vec<Self> = requests.by_ref().take(count as usize).collect();
                    match grants(&leases, before, now, &errands) {
                        Ok(grants) => {
                            for (errand, grant) in errands.into_iter().zip(&grants) {
                                errand.granted(&batcher, grant, grant.decision);
                            }
                        }
                        Err(error) => errands
                            .into_iter()
                            .for_each(|errand| errand.failed(&batcher, &error)),
                    }
                }
            }
            Err(error) => requests
                .into_iter()
                .for_each(|errand| errand.failed(&batcher, &error)),
        }
    }
}

impl Errand {
    pub(super) fn new(
        leases: &Arc<Leases>,
        held: Arc<Held>,
        request: Asked,
        caller: Option<Place>,
    ) -> Self {
        leases.request_goes_out();
        Self {
            leases: Arc::clone(leases),
            held,
            request: Some(request),
            caller,
        }
    }

    /// The request was granted. The caller gets `decision`.
    pub(super) fn granted(mut self, batcher: &Arc<Batcher>, grant: &Grant, decision: Decision) {
        let Some(request) = self.request.take() else {
            return;
        };
        let now = batcher.monitor.clock.now();
        let _granted = self.held.lease.granted(request, grant, now);
        if let Some(caller) = self.caller.take() {
            // The caller may have given up. The lease keeps everything else that the answer
            // brought.
            caller.give(Ok((decision, grant.now)));
        }
        // If the lease was closed in the meantime, its units are given back immediately.
        while self.held.is_closed()
            && let Some(request) = self.held.lease.returning(now)
        {
            batcher.send_errand(&self.leases, &self.held, request);
        }
    }

    pub(super) fn failed(mut self, batcher: &Batcher, error: &StoreError) {
        let caller = self.caller.take();
        // The lease records the failure first, so that a caller who retries finds it.
        drop(self);
        match caller {
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
    /// In a cluster, units are given back in a separate request.
    fn send_back_apart(
        self: &Arc<Self>,
        leases: &Arc<Leases>,
        held: &Arc<Held>,
        request: &mut Asked,
    ) {
        let says_more = request.cost > 0 || request.ahead > 0 || request.spent > 0;
        if says_more
            && self.monitor.is_cluster()
            && let Some(back) = request.back.take()
        {
            let alone = Asked {
                cost: 0,
                ahead: 0,
                back: Some(back),
                spent: 0,
                sent: request.sent,
            };
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
        if leases.has_tenants() {
            for (held, request) in requests {
                self.allot(Errand::new(leases, held, request, None), deadline);
            }
            return;
        }
        let errand = |(held, mut request): (Arc<Held>, Asked)| {
            self.send_back_apart(leases, &held, &mut request);
            let (shard, key) = (self.monitor.shard_of(held.key()), held.key().to_vec());
            let errand = Errand::new(leases, held, request, None);
            self.monitor.admit(shard).ok()?;
            Some((shard, self.waiting(leases, key, errand, deadline)))
        };
        self.post(requests.into_iter().filter_map(errand).collect());
    }

    /// Sends requests, and waits for the answers until the deadline. Neighbours about the same key
    /// are decided in this order. If the deadline passes or the caller gives up, the requests
    /// continue, because their grants also serve other callers.
    pub async fn ask_for_leases(
        self: &Arc<Self>,
        leases: &Arc<Leases>,
        requests: impl IntoIterator<Item = (Arc<Held>, Asked), IntoIter: ExactSizeIterator>,
        deadline: Deadline,
    ) -> Vec<Result<Decision, StoreError>> {
        let latest = deadline.max(leases.deadline(&self.monitor));
        if leases.has_tenants() {
            return self
                .ask_for_tenants(leases, requests, latest, deadline)
                .await;
        }
        let errand = |(held, mut request): (Arc<Held>, Asked)| {
            self.send_back_apart(leases, &held, &mut request);
            (held.key().to_vec(), move |place| {
                Errand::new(leases, held, request, Some(place))
            })
        };
        let answers = self
            .ask(leases, requests.into_iter().map(errand), latest, deadline)
            .await;
        answers.into_iter().map(|answer| Ok(answer?.0)).collect()
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
        let arguments = call::lease_arguments(
            &leases.plan,
            leases.terms.mode(),
            requests,
            counts.iter().copied(),
        );
        let gives_back = errands.iter().any(Errand::gives_back);
        let mut all: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        // Giving back twice would free units of other callers (charging twice is safe). The cluster
        // client repeats calls on its own. An extra key lets the script recognize a repeated call.
        let once = (gives_back && self.monitor.is_cluster()).then(|| {
            let text = format!("{}:returned:", self.monitor.runner.connector.prefix());
            beside(
                &keys[0],
                &text,
                &format!("{:016x}{:016x}", random(), random()),
            )
        });
        all.extend(once.as_deref());
        let reply = self
            .monitor
            .call(
                shard,
                &leases.script,
                &all,
                &arguments,
                deadline,
                !gives_back,
            )
            .await?;
        call::parse(reply, keys.len())
    }
}

fn grants(
    leases: &Leases,
    before: Before,
    now: Nanos,
    errands: &[Errand],
) -> Result<Vec<Grant>, StoreError> {
    let requests: Vec<&Asked> = errands
        .iter()
        .filter_map(|errand| errand.request.as_ref())
        .collect();
    let grants = leases
        .plan
        .grants(&leases.terms, before?.as_deref(), now, requests.into_iter());
    grants.ok_or(StoreError::NotOurs)
}
