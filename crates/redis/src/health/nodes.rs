//! The number of nodes that share the store. With every heartbeat, each node writes its name into a
//! sorted set. A cluster has one set in each shard, so that a heartbeat shows that the shard
//! accepts writes. Nodes are counted in the first shard.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use redis::Value;
use tidegate_core::{Clock, Nanos};
use tidegate_limiter::SystemClock;

use super::{Monitor, store_clock::STEP};
use crate::{Deadline, StoreError, script::Script};

/// A node no longer counts after this long without a heartbeat.
const GONE_MS: &str = "10000";
/// A smaller number of nodes is accepted only after this long without a larger one, because an
/// emptied store starts to count from one.
const PROOF: Nanos = Nanos::from_secs(15);

/// While the clock is behind a time that it has shown, the member `clock` keeps that time as its
/// score (see [`store_clock`](super::store_clock)). A user who may not list the nodes does not
/// share it. A time that no clock shows is removed: a former version took the text of a
/// reservation for a time, and kept it there.
const SCRIPT: &str = include_str!("beat.lua");

/// Lists the nodes with the milliseconds since their last heartbeats, at most as many as this, the
/// latest of them.
const LIST: &str = include_str!("nodes.lua");
/// How long a list may take: it is for people, so it may take longer than a decision.
const LIST_TIME: Duration = Duration::from_secs(2);
/// The longest name of a node, in characters.
const LONGEST_NAME: usize = 128;

/// A random number that is not secret: for names, seeds and jitter.
pub fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// In place of an assumed number once one was counted or restored.
const KNOWN: u32 = u32::MAX;

/// The number of nodes, for decisions.
#[derive(Debug, Default)]
pub struct Nodes {
    /// 0 as long as none was counted or restored.
    count: AtomicU32,
    /// A lower bound on the count; 0 for none.
    least: AtomicU32,
    /// The count as long as none is known; 0 if it is 1 then, and [`KNOWN`] once there was one.
    assumed: AtomicU32,
}

impl Nodes {
    // Relaxed throughout: the number guards no other memory.

    /// The number of nodes, at least 1.
    pub fn get(&self) -> u32 {
        let known = self
            .count
            .load(Ordering::Relaxed)
            .max(self.least.load(Ordering::Relaxed));
        known.max(self.assumed().unwrap_or(1))
    }

    /// Sets the number that applies until one is counted or restored. It changes nothing if that
    /// has happened already.
    pub fn assume(&self, nodes: u32) {
        let _ = self
            .assumed
            .compare_exchange(0, nodes, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The number that is assumed because none is known.
    pub fn assumed(&self) -> Option<u32> {
        Some(self.assumed.load(Ordering::Relaxed)).filter(|&nodes| nodes > 0 && nodes != KNOWN)
    }

    /// Sets a lower bound on the number of nodes.
    pub fn at_least(&self, nodes: u32) {
        self.least.store(nodes, Ordering::Relaxed);
    }

    /// Restores a count from before a start. It applies until heartbeats have shown fewer nodes for
    /// a while.
    pub fn recall(&self, nodes: u32) {
        self.count.fetch_max(nodes, Ordering::Relaxed);
        self.assumed.store(KNOWN, Ordering::Relaxed);
    }
}

/// The recent counts by heartbeats.
#[derive(Debug, Default)]
pub struct Census {
    /// The start of the current span, and the largest count since.
    since: Nanos,
    most: u32,
}

impl Census {
    /// Takes in a count. A larger one applies immediately, a smaller one after [`PROOF`].
    pub fn count(&mut self, nodes: &Nodes, counted: u32, now: Nanos) {
        let counted = counted.max(1);
        nodes.assumed.store(KNOWN, Ordering::Relaxed);
        let known = nodes.count.load(Ordering::Relaxed);
        if counted >= known {
            nodes.count.store(counted, Ordering::Relaxed);
            (self.since, self.most) = (now, 0);
            return;
        }
        if self.most == 0 {
            self.since = now;
        }
        self.most = self.most.max(counted);
        if now.saturating_since(self.since) >= PROOF {
            nodes.count.store(self.most, Ordering::Relaxed);
            (self.since, self.most) = (now, 0);
        }
    }
}

/// A node that shares the store, as its heartbeats show it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenNode {
    /// The name that it gave itself ([`Store::named`](crate::Store::named)); empty for none.
    pub name: String,
    /// The time since its last heartbeat, by the store's clock; about ten seconds at most.
    pub ago: Duration,
    /// Whether this is the node that asks.
    pub is_self: bool,
}

/// A node in the set: a random number, and its name.
pub struct Identity(String);

impl Identity {
    /// A node with this name. Control characters are replaced, and a long name is cut.
    pub fn new(name: &str) -> Self {
        let name: String = name
            .chars()
            .take(LONGEST_NAME)
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        let id = format!("{:016x}{:016x}", random(), random());
        Self(if name.is_empty() {
            id
        } else {
            format!("{id} {name}")
        })
    }

    /// The name alone; empty for none.
    pub fn name(&self) -> &str {
        self.0.split_once(' ').map_or("", |(_, name)| name)
    }

    /// The nodes in a script's reply.
    fn seen(&self, reply: Value) -> Option<Vec<SeenNode>> {
        let members: Vec<(Vec<u8>, i64)> = redis::from_redis_value(reply).ok()?;
        let node = |(member, ago): (Vec<u8>, i64)| {
            let member = String::from_utf8_lossy(&member);
            let name = member
                .split_once(' ')
                .map_or("", |(_, name)| name)
                .to_owned();
            // A master whose clock is behind the former one's makes it negative.
            let ago = Duration::from_millis(u64::try_from(ago).unwrap_or(0));
            SeenNode {
                name,
                ago,
                is_self: member == *self.0,
            }
        };
        Some(
            members
                .into_iter()
                .filter(|(member, _)| member != b"clock")
                .map(node)
                .collect(),
        )
    }
}

/// The nodes whose heartbeat reached the store in the last ten seconds, sorted by time; at most a
/// thousand.
pub async fn seen(monitor: &Monitor) -> Result<Vec<SeenNode>, StoreError> {
    let key = first_key(monitor);
    monitor.admit(monitor.shard_of(&key))?;
    let script = Script::new(LIST.into());
    let reply = Deadline::after(LIST_TIME)
        .bound(monitor.runner.run(&script, &[key], &[] as &[&[u8]], true))
        .await;
    monitor
        .identity
        .seen(reply.flatten()?)
        .ok_or(StoreError::BadReply)
}

/// The key in which nodes are counted.
fn first_key(monitor: &Monitor) -> Vec<u8> {
    format!("{}:nodes", monitor.runner.connector.prefix()).into_bytes()
}

/// A key for each shard, and the shard of the [first](first_key).
pub fn a_key_of_each_shard(monitor: &Monitor) -> (Vec<Vec<u8>>, usize) {
    let prefix = monitor.runner.connector.prefix();
    let first = first_key(monitor);
    let home = monitor.shard_of(&first);
    let mut keys = vec![Vec::new(); monitor.shards()];
    let mut missing = keys.len() - 1;
    keys[home] = first;
    // A few hundred names are tried until each shard of a cluster has one.
    for number in 0_u32.. {
        if missing == 0 {
            break;
        }
        let key = format!("{prefix}:nodes:{number}").into_bytes();
        let shard = monitor.shard_of(&key);
        if keys[shard].is_empty() {
            keys[shard] = key;
            missing -= 1;
        }
    }
    (keys, home)
}

/// The heartbeats of one node.
pub struct Beat {
    script: Script,
    /// One key for each shard.
    keys: Vec<Vec<u8>>,
    /// The shard in which nodes are counted.
    pub home: usize,
}

impl Beat {
    pub fn new(monitor: &Monitor) -> Self {
        let (keys, home) = a_key_of_each_shard(monitor);
        Self {
            script: Script::new(SCRIPT.into()),
            keys,
            home,
        }
    }

    /// Sends one heartbeat to a shard: a small write that a replica or a full server would refuse.
    /// Returns how many nodes the shard has seen recently.
    pub async fn give(
        &self,
        monitor: &Monitor,
        shard: usize,
        deadline: Deadline,
    ) -> Result<u32, StoreError> {
        let (clock, sent) = (&monitor.clocks[shard], SystemClock::new().now());
        let before = clock.latest();
        let millis = |time: Nanos| (time.get() / 1_000_000).to_string();
        let (latest, step) = (millis(before), millis(STEP));
        let arguments = [
            monitor.identity.0.as_bytes(),
            GONE_MS.as_bytes(),
            latest.as_bytes(),
            step.as_bytes(),
        ];
        let reply = deadline
            .bound(
                monitor
                    .runner
                    .run(&self.script, &[&self.keys[shard]], &arguments, true),
            )
            .await;
        let reply = reply.flatten().map_err(|error| match error {
            // A user that may not write a heartbeat cannot use the store at all.
            StoreError::Forbidden(why) | StoreError::Script(why) => StoreError::NotPermitted(why),
            error => error,
        })?;
        let (nodes, now, latest, removed): (_, _, _, u64) =
            redis::from_redis_value(reply).map_err(|_| StoreError::BadReply)?;
        if removed > 0 {
            clock.removed(Nanos::from_millis(removed));
        }
        let (now, latest) = (Nanos::from_millis(now), Nanos::from_millis(latest));
        clock.beat(now, before, latest);
        // The node's clock of decisions is monotonic, so it does not follow the system's time.
        clock.compare(now, sent, SystemClock::new().now());
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_store_does_not_let_every_node_take_the_whole_limit() {
        let (nodes, mut census) = (Nodes::default(), Census::default());
        let at = |seconds: u64| Nanos::from_secs(1_000 + seconds);
        census.count(&nodes, 3, at(0));
        assert_eq!(nodes.get(), 3);
        // The store was emptied, and the heartbeats return one after another.
        for (second, counted) in [(2, 1), (3, 2), (5, 3)] {
            census.count(&nodes, counted, at(second));
            assert_eq!(nodes.get(), 3);
        }
        // One node has left.
        for second in 6..21 {
            census.count(&nodes, 2, at(second));
            assert_eq!(nodes.get(), 3, "{second}");
        }
        census.count(&nodes, 2, at(21));
        assert_eq!(nodes.get(), 2);
    }
}
