//! Batching: joins the requests of many callers, decisions and lease requests, into few calls.
//!
//! ```text
//! caller ─┬─ alone ─────────────► its own call
//!         └─ queue of the shard ─► a call for each limit, by a task ─► each request's answer
//! ```
//!
//! If no call is in flight, a caller sends its own request, without a queue or a task. The next
//! caller starts a task. Requests that arrive while the task's call is in flight wait in the queue.
//! If the store is near, they wait until a reply arrives or enough requests have gathered. If the
//! store is far away, calls follow each other without waiting for replies (see
//! [`Pace`](crate::health::Pace)). No request waits for the first caller's own call, because its
//! program may have stopped polling it.

mod collect;
mod decision;
mod group;
mod lease;
mod queue;
mod sweep;
mod tenants;

use std::sync::Arc;

use collect::{BatchAnswer, Collector, Place};
use group::{Call, group};
use queue::{Queue, Turn};
use sweep::Sweeper;

use crate::{Deadline, StoreError, health::Monitor, script::Scripts};

/// The task that had the request no longer exists: the runtime is shutting down.
const GONE: BatchAnswer = Err(StoreError::Down);

/// The callers' requests to a store, with one queue per shard and kind of request.
pub struct Batcher {
    pub monitor: Arc<Monitor>,
    pub scripts: Scripts,
    pub sweeper: Sweeper,
    shards: Vec<Shard>,
}

#[derive(Default)]
struct Shard {
    decisions: Queue<Waiting<decision::Question>>,
    leases: Queue<Waiting<lease::Errand>>,
}

/// A request that can share a call with others.
trait Batched: Sized + Send + 'static {
    /// Requests with the same value share a call.
    type Limit: Send + Sync + 'static;
    /// The maximum number of keys, and of requests, in one call. Other calls wait while Redis
    /// executes it.
    const KEYS: usize;
    const REQUESTS: usize;

    fn queue(shard: &Shard) -> &Queue<Waiting<Self>>;
    /// Whether a caller still waits for it.
    fn is_wanted(&self) -> bool;
    /// Whether it gives units back.
    fn gives_back(&self) -> bool;
    /// Makes a call and answers every request in it.
    fn answer(
        batcher: Arc<Batcher>,
        shard: usize,
        call: Call<Self>,
    ) -> impl Future<Output = ()> + Send;
}

/// A request that waits for a call.
struct Waiting<R: Batched> {
    limit: Arc<R::Limit>,
    key: Vec<u8>,
    slot: u16,
    /// Whether it must go in the same call as the request before it, and after it: the same caller
    /// asks about the same key.
    follows: bool,
    /// Requests for which this differs never share a call. In a cluster, a call that gives back has
    /// one more key. While a slot moves, such a call may have to wait, and other requests should
    /// not wait with it.
    apart: bool,
    deadline: Deadline,
    request: R,
}

impl Batcher {
    pub fn new(monitor: Arc<Monitor>) -> Arc<Self> {
        let shards = (0..monitor.shards()).map(|_| Shard::default()).collect();
        Arc::new(Self {
            monitor,
            scripts: Scripts::new(),
            sweeper: Sweeper::default(),
            shards,
        })
    }

    fn waiting<R: Batched>(
        &self,
        limit: &Arc<R::Limit>,
        key: Vec<u8>,
        request: R,
        deadline: Deadline,
    ) -> Waiting<R> {
        let (limit, slot) = (Arc::clone(limit), self.monitor.slot(&key));
        let apart = self.monitor.is_cluster() && request.gives_back();
        Waiting {
            limit,
            key,
            slot,
            follows: false,
            apart,
            deadline,
            request,
        }
    }

    /// Puts requests into the queues of their shards. Neighbours of one shard leave together.
    fn post<R: Batched>(self: &Arc<Self>, mut requests: Vec<(usize, Waiting<R>)>) {
        while let Some((shard, _)) = requests.first() {
            let shard = *shard;
            let end = requests
                .iter()
                .position(|(other, _)| *other != shard)
                .unwrap_or(requests.len());
            let together = requests.drain(..end).map(|(_, request)| request);
            let queue = R::queue(&self.shards[shard]);
            self.take_turn(
                shard,
                queue.put(together, self.monitor.distance.pace(), self.now()),
            );
        }
    }

    /// Sends one caller's requests, each with its key, and waits for the answers until the
    /// deadline. Neighbours with the same key are decided in this order. Their calls may take until
    /// `latest`.
    async fn ask<R: Batched, F: FnOnce(Place) -> R>(
        self: &Arc<Self>,
        limit: &Arc<R::Limit>,
        requests: impl ExactSizeIterator<Item = (Vec<u8>, F)>,
        latest: Deadline,
        deadline: Deadline,
    ) -> Vec<BatchAnswer> {
        let (collector, places) = Collector::new(requests.len());
        let mut sent = Vec::with_capacity(requests.len());
        let mut together: Vec<(usize, Waiting<R>)> = Vec::with_capacity(requests.len());
        for ((key, request), place) in requests.zip(places) {
            let (shard, request) = (self.monitor.shard_of(&key), request(place));
            let admitted = self.monitor.admit(shard);
            if admitted.is_ok() {
                let mut waiting = self.waiting(limit, key, request, latest);
                waiting.follows = together
                    .last()
                    .is_some_and(|(_, last)| last.key == waiting.key);
                together.push((shard, waiting));
            }
            sent.push(admitted.map(|()| shard));
        }
        self.post(together);
        let (answers, in_time) = collector.wait(deadline).await;
        let answer = |(answer, sent): (Option<BatchAnswer>, Result<usize, StoreError>)| match (
            answer, sent?,
        ) {
            (Some(answer), _) => answer,
            (None, _) if in_time => GONE,
            // The call started later than this deadline counts, so its own result comes later.
            (None, shard) => Err(self.timed_out(shard)),
        };
        let answers = answers.into_iter().zip(sent).map(answer);
        answers
            .inspect(|answer| self.monitor.decided(answer))
            .collect()
    }

    /// Holds requests back until the result is dropped. A cluster's queues are too many to hold and
    /// release.
    pub fn gather(self: &Arc<Self>) -> Gathering<'_> {
        let shard = if let [only] = &self.shards[..] {
            Some(only)
        } else {
            None
        };
        if let Some(shard) = shard {
            shard.decisions.hold();
            shard.leases.hold();
        }
        Gathering {
            batcher: self,
            shard,
        }
    }

    fn now(&self) -> tidegate_core::Nanos {
        tidegate_core::Clock::now(&self.monitor.clock)
    }

    fn take_turn<R: Batched>(self: &Arc<Self>, shard: usize, turn: Turn<Waiting<R>>) {
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
    async fn send<R: Batched>(self: Arc<Self>, shard: usize, mut requests: Vec<Waiting<R>>) {
        loop {
            // If the call is dropped (the runtime ends), the next task takes over.
            let under_way = UnderWay::<R> {
                batcher: &self,
                shard,
                queue: R::queue(&self.shards[shard]),
            };
            self.call_each(shard, requests).await;
            // Callers that were just answered may ask again immediately. Yielding puts their
            // requests into one call.
            tokio::task::yield_now().await;
            let turn = under_way.end();
            match turn {
                Turn::Send(more) => requests = more,
                turn => return self.take_turn(shard, turn),
            }
        }
    }

    /// Makes one call per limit, the last one in this task and the others in separate tasks.
    /// Returns when all have ended.
    async fn call_each<R: Batched>(self: &Arc<Self>, shard: usize, requests: Vec<Waiting<R>>) {
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

    /// Handles a caller whose deadline has passed. Its call may have a longer deadline and report
    /// the failure only later.
    fn timed_out(&self, shard: usize) -> StoreError {
        self.monitor.failed(shard, &StoreError::TimedOut);
        StoreError::TimedOut
    }
}

/// Holds requests to a store back until it is dropped; see [`Store::gather`](crate::Store::gather).
pub struct Gathering<'a> {
    batcher: &'a Arc<Batcher>,
    shard: Option<&'a Shard>,
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        let Some(shard) = self.shard else { return };
        let (pace, now) = (self.batcher.monitor.distance.pace(), self.batcher.now());
        self.batcher
            .take_turn(0, shard.decisions.release(pace, now));
        self.batcher.take_turn(0, shard.leases.release(pace, now));
    }
}

/// A task's call in flight.
struct UnderWay<'a, R: Batched> {
    batcher: &'a Arc<Batcher>,
    shard: usize,
    queue: &'a Queue<Waiting<R>>,
}

impl<R: Batched> UnderWay<'_, R> {
    fn end(self) -> Turn<Waiting<R>> {
        let turn = self.turn();
        std::mem::forget(self);
        turn
    }

    fn turn(&self) -> Turn<Waiting<R>> {
        self.queue
            .ended(self.batcher.monitor.distance.pace(), self.batcher.now())
    }
}

impl<R: Batched> Drop for UnderWay<'_, R> {
    fn drop(&mut self) {
        self.batcher.take_turn(self.shard, self.turn());
    }
}
