//! Who shares the store: each node leaves a sign of life in a sorted set. In a cluster there is a set in each part, so that
//! the part that holds it is known to take writes; the nodes are counted in the first.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::Ordering,
    time::Duration,
};

use redis::Value;

use crate::{StoreError, script::Script, store::Inner};

/// After so long without a sign of life a node counts no more.
const GONE_MS: &str = "10000";

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

/// The signs of life of one node.
pub struct SignOfLife {
    name: String,
    script: Script,
    /// A key in each part.
    keys: Vec<Vec<u8>>,
    /// Where the nodes are counted.
    pub home: usize,
}

impl SignOfLife {
    pub fn new(store: &Inner) -> Self {
        let first = format!("{}:nodes", store.prefix).into_bytes();
        let home = store.part_of(&first);
        let mut keys = vec![Vec::new(); store.parts()];
        let mut missing = keys.len() - 1;
        keys[home] = first;
        // Some hundreds of names until each of a cluster's parts has one.
        for number in 0_u32.. {
            if missing == 0 {
                break;
            }
            let key = format!("{}:nodes:{number}", store.prefix).into_bytes();
            let at = store.part_of(&key);
            if keys[at].is_empty() {
                keys[at] = key;
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

    /// Leaves a sign of life in a part of the store: a small write, as a replica or a full server would refuse.
    pub async fn give(&self, store: &Inner, at: usize, deadline: Duration) -> Result<(), StoreError> {
        let (keys, arguments) = ([&self.keys[at]], [self.name.as_bytes(), GONE_MS.as_bytes()]);
        let call = store.try_call(&self.script, &keys, &arguments, true);
        match tokio::time::timeout(deadline, call).await.unwrap_or(Err(StoreError::TimedOut))? {
            Value::Int(nodes) if at == self.home => {
                store.nodes.store(u32::try_from(nodes).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
                Ok(())
            }
            Value::Int(_) => Ok(()),
            _ => Err(StoreError::BadReply),
        }
    }
}
