//! The store's health. Heartbeats and calls report it, breakers keep callers away from a store that
//! is down, and decisions read the number of nodes and the distance to the store.

mod breaker;
mod distance;
mod examination;
mod heartbeat;
mod lines;
mod nodes;
mod patience;
mod store_clock;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use breaker::Breaker;
pub use distance::{Distance, Pace};
use examination::Examination;

use nodes::Identity;
pub use nodes::{Nodes, SeenNode, random, seen};
pub use patience::{Patience, Wait};
use redis::Value;
use store_clock::StoreClock;
use tidegate_core::{Clock, lease::Mode};
use tidegate_limiter::SystemClock;
use tokio::sync::Notify;

use crate::{
    Deadline, StoreError, Timeout,
    connection::{SLOTS, slot},
    script::{Plan, Runner, Script},
    stats::StoreCounters,
    sync::lock,
};

/// The number of cluster slots that share a breaker and a queue.
const SLOTS_A_SHARD: usize = 128;

/// The health of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The store replies.
    Up,
    /// The store replies, but most decisions miss their deadline.
    Slow,
    /// A part of a cluster does not reply.
    Partly,
    /// The store does not reply, or has not been reached yet.
    Down,
}

/// Monitors a store. A cluster has many shards, each with a breaker; any other store has one.
pub struct Monitor {
    pub runner: Runner,
    pub clock: SystemClock,
    pub nodes: Nodes,
    identity: Identity,
    pub distance: Distance,
    pub patience: Patience,
    breakers: Vec<Breaker>,
    /// The clock of each shard's server.
    clocks: Vec<StoreClock>,
    /// Triggers a heartbeat.
    wake: Arc<Notify>,
    /// The error that last opened a breaker.
    why: Mutex<Option<StoreError>>,
    punctual: Punctual,
    pub examination: Examination,
}

impl Monitor {
    /// Starts the heartbeat of a node with this name, which runs for as long as the monitor exists.
    pub fn start(runner: Runner, name: &str) -> Arc<Self> {
        let monitor = Self::silent(runner, name);
        heartbeat::keep(&monitor);
        monitor
    }

    /// A monitor without a heartbeat, whose node the others do not count.
    pub fn silent(runner: Runner, name: &str) -> Arc<Self> {
        let shards = if runner.connector.address().is_cluster() {
            SLOTS / SLOTS_A_SHARD
        } else {
            1
        };
        Arc::new(Self {
            runner,
            clock: SystemClock::new(),
            nodes: Nodes::default(),
            identity: Identity::new(name),
            distance: Distance::default(),
            patience: Patience::default(),
            breakers: (0..shards).map(|_| Breaker::default()).collect(),
            clocks: (0..shards).map(|_| StoreClock::default()).collect(),
            wake: Arc::default(),
            why: Mutex::default(),
            punctual: Punctual::default(),
            examination: Examination::default(),
        })
    }

    pub fn counters(&self) -> &StoreCounters {
        &self.runner.counters
    }

    pub fn is_cluster(&self) -> bool {
        self.runner.connector.address().is_cluster()
    }

    /// This node's name, for the others.
    pub fn node_name(&self) -> &str {
        self.identity.name()
    }

    /// The number of shards, each with a breaker.
    pub fn shards(&self) -> usize {
        self.breakers.len()
    }

    /// The slot of a key; 0 unless the store is a cluster.
    pub fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster() { slot(key) } else { 0 }
    }

    /// The shard of a key.
    pub fn shard_of(&self, key: &[u8]) -> usize {
        usize::from(self.slot(key)) / SLOTS_A_SHARD
    }

    /// Whether a shard is down.
    pub fn is_down(&self, shard: usize) -> bool {
        self.breakers[shard].is_open()
    }

    /// Whether any shard is down.
    fn any_open(&self) -> bool {
        self.breakers.iter().any(Breaker::is_open)
    }

    /// Whether a heartbeat is due for any shard.
    fn is_in_doubt(&self) -> bool {
        self.breakers.iter().any(Breaker::is_in_doubt)
    }

    /// The store's health. In a cluster, only shards that were asked or are down count.
    pub fn health(&self) -> Health {
        let asked = self
            .breakers
            .iter()
            .filter(|breaker| breaker.is_asked() || breaker.is_open());
        let (open, all) = asked.fold((0, 0), |(open, all), breaker| {
            (open + usize::from(breaker.is_open()), all + 1)
        });
        match open {
            _ if self.runner.connector.made() == 0 => Health::Down,
            _ if self.examination.verdict().is_some() => Health::Down,
            0 if self.punctual.is_slow() => Health::Slow,
            0 => Health::Up,
            open if open < all => Health::Partly,
            _ => Health::Down,
        }
    }

    /// Has the store examined with these scripts, too.
    pub fn needs(
        &self,
        plan: &Arc<Plan>,
        decides: &Arc<Script>,
        leases: Option<(Mode, &Arc<Script>)>,
    ) {
        if self.examination.needs(plan, decides, leases) {
            self.wake.notify_one();
        }
    }

    /// The error that made the store down or slow.
    pub fn trouble(&self) -> Option<StoreError> {
        match self.health() {
            Health::Up => None,
            Health::Slow => Some(StoreError::TimedOut),
            Health::Partly | Health::Down => self.examination.verdict().or_else(|| self.why()),
        }
    }

    /// The current timeout of a decision. A fixed timeout counts as a limit's deadline while the
    /// result is kept.
    pub fn wait(&self, timeout: Timeout) -> Wait {
        match timeout {
            Timeout::After(wait) => Wait::Set(self.patience.claim(wait)),
            Timeout::Auto => Wait::Auto,
        }
    }

    /// How far the store's clock is ahead of this node's, in milliseconds, and whether it has shown
    /// a later time than now. In a cluster, the server with the largest difference counts.
    pub fn store_clock(&self) -> (Option<i64>, bool) {
        let ahead = self
            .clocks
            .iter()
            .filter_map(StoreClock::ahead)
            .max_by_key(|ahead| ahead.unsigned_abs());
        (ahead, self.clocks.iter().any(StoreClock::went_back))
    }

    /// Fails if the store may not be asked.
    pub fn admit(&self, shard: usize) -> Result<(), StoreError> {
        if self.breakers[shard].admits() {
            return Ok(());
        }
        self.counters().count(&StoreError::Down);
        Err(StoreError::Down)
    }

    /// Runs a script until a deadline and learns from the outcome. `may_repeat` says whether to try
    /// again if a connection broke, which may be after the script ran.
    pub async fn call<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        shard: usize,
        script: &Script,
        keys: &[K],
        arguments: &[A],
        deadline: Deadline,
        may_repeat: bool,
    ) -> Result<Value, StoreError> {
        let sent = self.clock.now();
        let clock = &self.clocks[shard];
        let script = if clock.went_back() {
            script.after_step()
        } else {
            script
        };
        let outcome = deadline
            .bound(self.runner.run(script, keys, arguments, may_repeat))
            .await
            .flatten();
        match &outcome {
            Ok(reply) => {
                self.distance
                    .measured(self.clock.now().saturating_since(sent));
                let doubtful = script
                    .time(reply)
                    .is_some_and(|now| clock.saw(now, self.clock.now()));
                if doubtful && self.breakers[shard].suspect() {
                    self.wake.notify_one();
                }
            }
            Err(error) => self.failed(shard, error),
        }
        outcome
    }

    /// Records a failure: a conclusive one opens the breaker, any other triggers a heartbeat.
    pub fn failed(&self, shard: usize, error: &StoreError) {
        // A store that was never reached already counts as down. The caller should see the reason
        // without waiting for a heartbeat.
        if *error == StoreError::TimedOut && self.runner.connector.made() == 0 {
            self.blame(error);
        }
        if error.is_refusal() && self.examination.suspect() {
            self.wake.notify_one();
        }
        if error.is_certain() {
            self.open(shard, error);
        } else if !error.is_about_the_key() && self.breakers[shard].suspect() {
            self.wake.notify_one();
        }
    }

    /// Records the outcome of a decision: whether it was in time, and its error. A request that was
    /// not [admitted](Self::admit) was counted there.
    pub fn decided<T>(&self, answer: &Result<T, StoreError>) {
        match answer {
            Ok(_) => {
                self.punctual.in_time.fetch_add(1, Ordering::Relaxed);
                self.counters().decided.add(1);
            }
            Err(StoreError::Down) => {}
            Err(error) => {
                if *error == StoreError::TimedOut {
                    self.punctual.late.fetch_add(1, Ordering::Relaxed);
                }
                self.counters().error(error);
            }
        }
    }

    /// Marks the shard as down.
    fn open(&self, shard: usize, error: &StoreError) {
        self.blame(error);
        if self.breakers[shard].open() {
            self.counters().opened.add(1);
            self.wake.notify_one();
        }
    }

    /// Marks the shard as up: it accepts writes.
    fn close(&self, shard: usize) {
        if self.breakers[shard].close() {
            self.counters().closed.add(1);
        }
    }

    fn blame(&self, error: &StoreError) {
        *lock(&self.why) = Some(self.runner.connector.explain(error));
    }

    fn why(&self) -> Option<StoreError> {
        lock(&self.why).clone()
    }
}

/// Whether decisions are in time. Heartbeats can be fast while decisions are slow.
#[derive(Debug, Default)]
struct Punctual {
    // Relaxed: counts that guard no other memory.
    in_time: AtomicU64,
    late: AtomicU64,
    /// The result at the latest heartbeat.
    slow: AtomicU64,
}

impl Punctual {
    /// Fewer late decisions than this prove nothing.
    const FEW: u64 = 10;

    fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
    }

    /// Evaluates the counts since the last call. With too few decisions the last result stays.
    /// Without any, the store counts as quick, like its heartbeats.
    fn update(&self) {
        let (in_time, late) = (
            self.in_time.swap(0, Ordering::Relaxed),
            self.late.swap(0, Ordering::Relaxed),
        );
        if in_time + late == 0 || in_time >= late {
            self.slow.store(0, Ordering::Relaxed);
        } else if late >= Self::FEW {
            self.slow.store(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_slow_while_most_decisions_are_late() {
        let punctual = Punctual::default();
        let after = |in_time, late| {
            punctual.in_time.fetch_add(in_time, Ordering::Relaxed);
            punctual.late.fetch_add(late, Ordering::Relaxed);
            punctual.update();
            punctual.is_slow()
        };
        assert!(!after(0, 9), "few say nothing");
        assert!(!after(100, 100) && after(99, 100));
        assert!(after(0, 3), "few say nothing");
        assert!(!after(5, 3));
        assert!(after(0, 10) && !after(0, 0), "nobody asks any more");
    }
}
