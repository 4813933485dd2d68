//! Requests of many callers, joined into few calls: decisions, and the requests of leases.
//!
//! ```text
//! caller ─┬─ alone ─────────────► a call of its own
//!         └─ queue of the shard ─► a call for each limit, by a task ─► each request's answer
//! ```
//!
//! A caller who is alone sends its own request, without a queue or a task. For the next one a task is started. Whoever comes
//! while that waits for an answer waits in the queue: of a store that is near, until an answer is there or enough requests
//! have gathered; a store that is far away has its calls follow each other without waiting for answers (see
//! [`Pace`](crate::health::Pace)). Nobody waits for the first caller's own call: its program may have stopped polling it.

mod decision;
mod group;
mod lease;
mod queue;

use std::sync::Arc;

use group::{Call, group};
use queue::{Queue, Turn};

use crate::{Deadline, StoreError, health::Monitor, script::Scripts};

/// What callers ask of a store, in one queue for each shard and kind of request.
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
    /// Requests about the same one of these share a call.
    type Limit: Send + Sync + 'static;
    /// Keys in one call, and requests in one call, many for one key: other calls wait meanwhile.
    const KEYS: usize;
    const REQUESTS: usize;

    fn queue(shard: &Shard) -> &Queue<Self>;
    fn limit(&self) -> &Arc<Self::Limit>;
    fn slot(&self) -> u16;
    fn key(&self) -> &[u8];
    /// The key, which is not wanted any more.
    fn take_key(&mut self) -> Vec<u8>;
    fn deadline(&self) -> Deadline;
    /// Whether anybody still waits for it.
    fn is_wanted(&self) -> bool;
    /// Goes in one call with the request before it, and behind it: it is about the same key, by the same caller.
    fn follows(&self) -> bool;
    /// Shares no call with those of which this is not so.
    fn apart(&self) -> bool;
    /// Makes a call, and answers every request in it.
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

    /// Keeps requests back until the result is dropped. A cluster has a queue for each shard, too many to stop and start.
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

    /// Sends requests, and then those that have come meanwhile.
    async fn send<R: Request>(self: Arc<Self>, shard: usize, mut requests: Vec<R>) {
        loop {
            // Dropped in mid-call (the runtime ends), the place goes to the next.
            let under_way = UnderWay::<R> { batcher: &self, shard, queue: R::queue(&self.shards[shard]) };
            self.call_each(shard, requests).await;
            // Those who were just answered may ask again at once: in the next call together.
            tokio::task::yield_now().await;
            let turn = under_way.end();
            match turn {
                Turn::Send(more) => requests = more,
                turn => return self.take_turn(shard, turn),
            }
        }
    }

    /// One call for each limit: the last here, the others in tasks of their own. Returns when all have ended.
    async fn call_each<R: Request>(self: &Arc<Self>, shard: usize, requests: Vec<R>) {
        let mut calls = group(requests);
        let Some(last) = calls.pop() else { return };
        let runtime = self.monitor.runner.connector.runtime();
        let spawn = |call| runtime.spawn(R::answer(Arc::clone(self), shard, call));
        let others: Vec<_> = calls.into_iter().map(spawn).collect();
        R::answer(Arc::clone(self), shard, last).await;
        for other in others {
            // It ends early only with the runtime.
            let _ = other.await;
        }
    }

    /// A caller whose deadline has passed: its call may have a longer one, and tell only later that the store does not answer.
    fn timed_out(&self, shard: usize) -> StoreError {
        self.monitor.failed(shard, &StoreError::TimedOut);
        StoreError::TimedOut
    }
}

/// Keeps requests back.
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

/// A task's call under way.
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
