//! Requests of leases on their way to the store: each ends in exactly one answer, or in none, for its lease.

use std::{collections::HashMap, sync::Arc, time::Duration};

use rapidhash::fast::RandomState;
use tidegate_core::lease::{GiveBack, Grant, Request};
use tidegate_core::{Clock, Decision, Nanos};
use tokio::sync::oneshot;

use crate::{
    StoreError,
    call::{self, Before},
    lane,
    leases::{Held, Leases},
    store::Inner,
};

/// Keys in one call, as for exact decisions; a step here is about twice as long.
const KEYS: usize = 64;
/// Requests in one call.
const REQUESTS: usize = 256;

/// A request that is out. Dropped without an answer (a call that fails, a runtime that ends), it has failed: the lease must
/// not wait for it.
pub struct Exchange {
    leases: Arc<Leases>,
    held: Arc<Held>,
    /// Until it has ended.
    request: Option<Request>,
    caller: Option<oneshot::Sender<Result<Decision, StoreError>>>,
    slot: u16,
}

impl Exchange {
    fn new(
        store: &Inner,
        leases: &Arc<Leases>,
        held: &Arc<Held>,
        mut request: Request,
        caller: Option<oneshot::Sender<Result<Decision, StoreError>>>,
    ) -> Self {
        if store.lanes.len() > 1 {
            // The cluster's client repeats a call whose connection broke, and giving back must not be repeated. What is
            // not given back stays charged until the algorithm forgets it.
            request.back = None;
        }
        leases.request_goes_out();
        let slot = store.slot(&held.key);
        Self { leases: Arc::clone(leases), held: Arc::clone(held), request: Some(request), caller, slot }
    }

    fn granted(mut self, store: &Arc<Inner>, grant: &Grant) {
        let Some(request) = self.request.take() else { return };
        let now = store.clock.now();
        let decision = self.held.lease.granted(request, grant, now);
        if let Some(caller) = self.caller.take() {
            store.counters.decided.add(1);
            // Whoever asked may have given up; what else came with the answer is the lease's.
            let _ = caller.send(Ok(decision));
        }
        // What came for a lease that was closed meanwhile goes back at once.
        while self.held.is_closed()
            && let Some(request) = self.held.lease.returning(now)
        {
            send(store, &self.leases, &self.held, request);
        }
    }

    fn failed(mut self, store: &Inner, error: &StoreError) {
        // First, so that the caller who asks again finds it so.
        if let Some(request) = self.request.take() {
            self.held.lease.failed(request);
        }
        match self.caller.take() {
            // Counted by whoever asked.
            Some(caller) => drop(caller.send(Err(error.clone()))),
            None => store.counters.error(error),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.held.lease.failed(request);
        }
        self.leases.request_has_ended();
    }
}

/// Sends a request that nobody waits for.
pub fn send(store: &Arc<Inner>, leases: &Arc<Leases>, held: &Arc<Held>, request: Request) {
    let exchange = Exchange::new(store, leases, held, request, None);
    let at = store.part_of(&held.key);
    if store.admit(at).is_ok() {
        lane::post(store, at, exchange);
    }
}

/// Sends a request that a caller waits for, until the deadline. When that passes first, or the caller goes away, the request
/// goes on: what it brings beside the decision is for others, too.
pub async fn ask(
    store: &Arc<Inner>,
    leases: &Arc<Leases>,
    held: &Arc<Held>,
    request: Request,
    deadline: Duration,
) -> Result<Decision, StoreError> {
    let (caller, answered) = oneshot::channel();
    let exchange = Exchange::new(store, leases, held, request, Some(caller));
    let at = store.part_of(&held.key);
    store.admit(at)?;
    lane::post(store, at, exchange);
    let answer = match tokio::time::timeout(deadline, answered).await {
        Ok(Ok(answer)) => answer,
        // The task that had the request has gone: the runtime is shutting down.
        Ok(Err(_)) => Err(StoreError::Down),
        Err(_) => {
            // The call was sent later, and will tell later.
            store.failed(at, &StoreError::TimedOut);
            Err(StoreError::TimedOut)
        }
    };
    if let Err(error) = &answer {
        store.counters.error(error);
    }
    answer
}

/// Requests of one limit (and in a cluster of one slot), those of each key together.
struct Group {
    leases: Arc<Leases>,
    slot: u16,
    keys: HashMap<Vec<u8>, usize, RandomState>,
    exchanges: Vec<Vec<Exchange>>,
    count: usize,
}

/// Sends what has gathered, one call for each limit.
pub async fn run(store: &Arc<Inner>, at: usize, all: Vec<Exchange>) {
    let mut groups: Vec<Group> = Vec::new();
    for exchange in all {
        let fits = |group: &Group| {
            Arc::ptr_eq(&group.leases, &exchange.leases)
                && group.slot == exchange.slot
                && group.count < REQUESTS
                && (group.keys.len() < KEYS || group.keys.contains_key(&exchange.held.key))
        };
        // From the end: the group that still has room.
        let found = groups.iter().rposition(fits).unwrap_or_else(|| {
            let (leases, slot) = (Arc::clone(&exchange.leases), exchange.slot);
            groups.push(Group { leases, slot, keys: HashMap::default(), exchanges: Vec::new(), count: 0 });
            groups.len() - 1
        });
        let group = &mut groups[found];
        let next = group.exchanges.len();
        let key = *group.keys.entry(exchange.held.key.clone()).or_insert(next);
        if key == next {
            group.exchanges.push(Vec::with_capacity(1));
        }
        group.exchanges[key].push(exchange);
        group.count += 1;
    }
    lane::side_by_side(store, groups, move |store, group| async move { answer(&store, at, group).await })
        .await;
}

async fn answer(store: &Arc<Inner>, at: usize, group: Group) {
    let Group { leases, exchanges, .. } = group;
    match call(store, at, &leases, &exchanges).await {
        Ok((now, found)) => {
            for (before, exchanges) in found.into_iter().zip(exchanges) {
                match grants(&leases, before, now, &exchanges) {
                    Ok(grants) => {
                        for (exchange, grant) in exchanges.into_iter().zip(&grants) {
                            exchange.granted(store, grant);
                        }
                    }
                    Err(error) => exchanges.into_iter().for_each(|exchange| exchange.failed(store, &error)),
                }
            }
        }
        Err(error) => exchanges.into_iter().flatten().for_each(|exchange| exchange.failed(store, &error)),
    }
}

/// One call.
async fn call(
    store: &Arc<Inner>,
    at: usize,
    leases: &Leases,
    exchanges: &[Vec<Exchange>],
) -> Result<(Nanos, Vec<Before>), StoreError> {
    let keys: Vec<&[u8]> =
        exchanges.iter().filter_map(|same| same.first()).map(|first| first.held.key.as_slice()).collect();
    let requests = || exchanges.iter().flatten().filter_map(|exchange| exchange.request.as_ref());
    let counts = exchanges.iter().map(|same| same.len() as u32);
    let arguments = call::lease_arguments(&leases.numbers, leases.terms.mode(), requests(), counts);
    // What is given back twice would be others' units; what is charged twice errs on the safe side.
    let gives_back = |request: &Request| matches!(request.back, Some(GiveBack { units: 1.., .. }));
    let may_repeat = !requests().any(gives_back);
    let reply = store.call(at, &leases.script, &keys, &arguments, leases.deadline, may_repeat).await?;
    call::parse(reply, keys.len())
}

fn grants(
    leases: &Leases,
    before: Before,
    now: Nanos,
    exchanges: &[Exchange],
) -> Result<Vec<Grant>, StoreError> {
    let value = match before {
        Before::WrongType => return Err(StoreError::WrongType),
        Before::NotOurs => return Err(StoreError::NotOurs),
        Before::Value(value) => value,
    };
    let requests: Vec<&Request> = exchanges.iter().filter_map(|exchange| exchange.request.as_ref()).collect();
    let grants = leases.plan.grants(&leases.terms, value.as_deref(), now, requests.into_iter());
    grants.ok_or(StoreError::NotOurs)
}
