//! Batching: joins the requests of many callers, decisions and lease requests, into few calls.
//!
//! ```text
//! caller ─┬─ alone ─────────────► its own call
//!         └─ queue of the shard ─► a call for each limit, by a task ─► each request's answer
//! ```
//!
//! If no call is in flight, a caller sends its own request, without a queue or a task. The next caller starts a task. Requests
//! that arrive while the task's call is in flight wait in the queue. If the store is near, they wait until a reply arrives or
//! enough requests have gathered. If the store is far away, calls follow each other without waiting for replies (see
//! [`Pace`](crate::health::Pace)). No request waits for the first caller's own call, because its program may have stopped
//! polling it.

mod collect;
mod decision;
mod group;
mod lease;
mod queue;

use std::sync::Arc;

use group::{Call, group};
use queue::{Queue, Turn};

use crate::{Deadline, StoreError, health::Monitor, script::Scripts};

/// The callers' requests to a store, with one queue per shard and kind of request.
pub struct Batcher {
    pub monitor: Arc<Monitor>,
    pub scripts: Scripts,
    shards: Vec<Shard>,
}

#[derive(Default)]
struct Shard {
    decisions: Queue<decision::Question>,
    leases: Queue<lease::Errand>,
}

/// A request that can share a call with others.
trait Request: Sized + Send + 'static {
    /// Requests with the same value share a call.
    type Limit: Send + Sync + 'static;
    /// The maximum number of keys, and of requests, in one call. Other calls wait while Redis executes it.
    const KEYS: usize;
    const REQUESTS: usize;

    fn queue(shard: &Shard) -> &Queue<Self>;
    fn limit(&self) -> &Arc<Self::Limit>;
    fn slot(&self) -> u16;
    fn key(&self) -> &[u8];
    /// Moves the key out of the request.
    fn take_key(&mut self) -> Vec<u8>;
    fn deadline(&self) -> Deadline;
    /// Whether a caller still waits for it.
    fn is_wanted(&self) -> bool;
    /// Whether it must go in the same call as the request before it, and after it: the same caller asks about the same key.
    fn follows(&self) -> bool;
    /// Requests for which this differs never share a call.
    fn apart(&self) -> bool;
    /// Makes a call and answers every request in it.
    fn answer(batcher: Arc<Batcher>, shard: usize, call: Call<Self>) -> impl Future<Output = ()> + Send;
}

impl Batcher {
    pub fn new(monitor: Arc<Monitor>) -> Arc<Self> {
        let shards = (0..monitor.shards()).map(|_| Shard::default()).collect();
        Arc::new(Self { monitor, scripts: Scripts::new(), shards })
    }

    /// Puts requests into the queue of a shard.
    fn post<R: Request>(self: &Arc<Self>, shard: usize, requests: impl IntoIterator<Item = R>) {
        let queue = R::queue(&self.shards[shard]);
        let turn = queue.put(requests, self.monitor.distance.pace(), self.now());
        self.take_turn(shard, turn);
    }

    /// Puts requests into the queues of their shards. Neighbours of one shard leave together.
    fn post_together<R: Request>(self: &Arc<Self>, mut requests: Vec<(usize, R)>) {
        while let Some((shard, _)) = requests.first() {
            let shard = *shard;
            let end = requests.iter().position(|(other, _)| *other != shard).unwrap_or(requests.len());
            self.post(shard, requests.drain(..end).map(|(_, request)| request));
        }
    }

    /// Holds requests back until the result is dropped. A cluster's queues are too many to hold and release.
    pub fn hold(self: &Arc<Self>) -> Hold<'_> {
        let shard = if let [only] = &self.shards[..] { Some(only) } else { None };
        if let Some(shard) = shard {
            shard.decisions.hold();
            shard.leases.hold();
        }
        Hold { batcher: self, shard }
    }

    fn now(&self) -> tidegate_core::Nanos {
        tidegate_core::Clock::now(&self.monitor.clock)
    }

    fn take_turn<R: Request>(self: &Arc<Self>, shard: usize, turn: Turn<R>) {
        let runtime = self.monitor.runner.connector.runtime();
        match turn {
            Turn::Wait => {}
            Turn::Send(requests) => {
                let batcher = Arc::clone(self);
                runtime.spawn(async move { batcher.send(shard, requests).await });
            }
            Turn::Later(pause) => {
                let batcher = Arc::clone(self);
                runtime.spawn(async move {
                    tokio::time::sleep(pause.into()).await;
                    let queue = R::queue(&batcher.shards[shard]);
                    let turn = queue.woken(batcher.monitor.distance.pace(), batcher.now());
                    batcher.take_turn(shard, turn);
                });
            }
        }
    }

    /// Sends requests, and then those that have arrived during the call.
    async fn send<R: Request>(self: Arc<Self>, shard: usize, mut requests: Vec<R>) {
        loop {
            // If the call is dropped (the runtime ends), the next task takes over.
            let under_way = UnderWay::<R> { batcher: &self, shard, queue: R::queue(&self.shards[shard]) };
            self.call_each(shard, requests).await;
            // Callers that were just answered may ask again immediately. Yielding puts their requests into one call.
            tokio::task::yield_now().await;
            let turn = under_way.end();
            match turn {
                Turn::Send(more) => requests = more,
                turn => return self.take_turn(shard, turn),
            }
        }
    }

    /// Makes one call per limit, the last one in this task and the others in separate tasks. Returns when all have ended.
    async fn call_each<R: Request>(self: &Arc<Self>, shard: usize, requests: Vec<R>) {
        let mut calls = group(requests);
        let Some(last) = calls.pop() else { return };
        let runtime = self.monitor.runner.connector.runtime();
        let spawn = |call| runtime.spawn(R::answer(Arc::clone(self), shard, call));
        let others: Vec<_> = calls.into_iter().map(spawn).collect();
        R::answer(Arc::clone(self), shard, last).await;
        for other in others {
            // The task ends early only when the runtime shuts down.
            let _ = other.await;
        }
    }

    /// Handles a caller whose deadline has passed. Its call may have a longer deadline and report the failure only later.
    fn timed_out(&self, shard: usize) -> StoreError {
        self.monitor.failed(shard, &StoreError::TimedOut);
        StoreError::TimedOut
    }
}

/// Holds requests back.
pub struct Hold<'a> {
    batcher: &'a Arc<Batcher>,
    shard: Option<&'a Shard>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let Some(shard) = self.shard else { return };
        let (pace, now) = (self.batcher.monitor.distance.pace(), self.batcher.now());
        self.batcher.take_turn(0, shard.decisions.release(pace, now));
        self.batcher.take_turn(0, shard.leases.release(pace, now));
    }
}

/// A task's call in flight.
struct UnderWay<'a, R: Request> {
    batcher: &'a Arc<Batcher>,
    shard: usize,
    queue: &'a Queue<R>,
}

impl<R: Request> UnderWay<'_, R> {
    fn end(self) -> Turn<R> {
        let turn = self.turn();
        std::mem::forget(self);
        turn
    }

    fn turn(&self) -> Turn<R> {
        self.queue.ended(self.batcher.monitor.distance.pace(), self.batcher.now())
    }
}

impl<R: Request> Drop for UnderWay<'_, R> {
    fn drop(&mut self) {
        self.batcher.take_turn(self.shard, self.turn());
    }
}
