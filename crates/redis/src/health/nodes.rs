//! How many nodes share the store. Each leaves its name in a sorted set with every heartbeat. In a cluster there is a set in
//! each shard, so that a heartbeat shows that the shard takes writes; the nodes are counted in the first.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU32, Ordering},
};

use redis::Value;
use tidegate_core::Nanos;

use super::Monitor;
use crate::{Deadline, StoreError, script::Script};

/// A node counts no more after so long without a heartbeat.
const GONE_MS: &str = "10000";
/// A smaller number of nodes is believed when it has been seen for so long, and nothing larger: a store that was emptied
/// counts from one again.
const PROOF: Nanos = Nanos::from_secs(15);

const SCRIPT: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', now - ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
";

/// Not for secrets: names, seeds, jitter.
pub fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The number of nodes, as decisions read it.
#[derive(Debug)]
pub struct Nodes {
    count: AtomicU32,
    /// However few are seen.
    least: AtomicU32,
}

impl Default for Nodes {
    fn default() -> Self {
        Self { count: AtomicU32::new(1), least: AtomicU32::new(1) }
    }
}

impl Nodes {
    // Relaxed throughout: a number that no other memory hangs on.

    /// At least 1.
    pub fn get(&self) -> u32 {
        self.count.load(Ordering::Relaxed).max(self.least.load(Ordering::Relaxed))
    }

    /// There are never fewer than so many.
    pub fn at_least(&self, nodes: u32) {
        self.least.store(nodes.max(1), Ordering::Relaxed);
    }

    /// So many there were when somebody last counted: they are believed until a heartbeat has shown fewer for a while.
    pub fn recall(&self, nodes: u32) {
        self.count.fetch_max(nodes, Ordering::Relaxed);
    }
}

/// What heartbeats have counted lately.
#[derive(Debug, Default)]
pub struct Census {
    /// Since when, and how many at most since then.
    since: Nanos,
    most: u32,
}

impl Census {
    /// Takes in a count: a larger one is believed at once, a smaller one after [`PROOF`].
    pub fn count(&mut self, nodes: &Nodes, counted: u32, now: Nanos) {
        let counted = counted.max(1);
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

/// The heartbeats of one node.
pub struct Beat {
    name: String,
    script: Script,
    /// A key in each shard.
    keys: Vec<Vec<u8>>,
    /// The shard where the nodes are counted.
    pub home: usize,
}

impl Beat {
    pub fn new(monitor: &Monitor) -> Self {
        let prefix = monitor.runner.connector.prefix();
        let first = format!("{prefix}:nodes").into_bytes();
        let home = monitor.shard_of(&first);
        let mut keys = vec![Vec::new(); monitor.shards()];
        let mut missing = keys.len() - 1;
        keys[home] = first;
        // Some hundreds of names until each of a cluster's shards has one.
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
        Self {
            name: format!("{:016x}{:016x}", random(), random()),
            script: Script::new(SCRIPT.into()),
            keys,
            home,
        }
    }

    /// One heartbeat in a shard: a small write, as a replica or a full server would refuse. Returns how many nodes the shard
    /// has heard of lately.
    pub async fn give(&self, monitor: &Monitor, shard: usize, deadline: Deadline) -> Result<u32, StoreError> {
        let (keys, arguments) = ([&self.keys[shard]], [self.name.as_bytes(), GONE_MS.as_bytes()]);
        let reply = deadline.bound(monitor.runner.run(&self.script, &keys, &arguments, true)).await;
        match reply.flatten() {
            Ok(Value::Int(nodes)) => Ok(u32::try_from(nodes).unwrap_or(u32::MAX)),
            Ok(_) => Err(StoreError::BadReply),
            // Who may not leave a heartbeat has no store.
            Err(StoreError::Forbidden(why) | StoreError::Script(why)) => Err(StoreError::NotPermitted(why)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_emptied_does_not_make_every_node_take_the_whole_limit() {
        let (nodes, mut census) = (Nodes::default(), Census::default());
        let at = |seconds: u64| Nanos::from_secs(1_000 + seconds);
        census.count(&nodes, 3, at(0));
        assert_eq!(nodes.get(), 3);
        // Emptied: one heartbeat after the other comes back.
        for (second, counted) in [(2, 1), (3, 2), (5, 3)] {
            census.count(&nodes, counted, at(second));
            assert_eq!(nodes.get(), 3);
        }
        // One has left.
        for second in 6..21 {
            census.count(&nodes, 2, at(second));
            assert_eq!(nodes.get(), 3, "{second}");
        }
        census.count(&nodes, 2, at(21));
        assert_eq!(nodes.get(), 2);
    }

    #[test]
    fn what_was_known_before_a_start_and_what_is_set_as_the_least_hold_before_anything_is_counted() {
        let (nodes, mut census) = (Nodes::default(), Census::default());
        nodes.recall(5);
        assert_eq!(nodes.get(), 5);
        nodes.at_least(3);
        for second in [0, 15, 16] {
            census.count(&nodes, 1, Nanos::from_secs(1_000 + second));
        }
        assert_eq!(nodes.get(), 3, "one is left, and three are the least");
        nodes.at_least(0);
        assert_eq!(nodes.get(), 1);
    }
}
