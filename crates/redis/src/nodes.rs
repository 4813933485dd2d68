//! Who shares the store: each node leaves a sign of life in a sorted set.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::Value;

use crate::{StoreError, script::Script, store::Inner};

/// How often a node gives a sign of life; with a share of chance, so that nodes do not keep step.
const EVERY: Duration = Duration::from_secs(2);
/// After so long without one it counts no more.
const GONE_MS: u64 = 10_000;
/// A store that does not answer the sign of life is down.
const PATIENCE: Duration = Duration::from_secs(1);

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

/// Gives signs of life for as long as the store exists.
pub fn keep_registered(store: &Arc<Inner>) {
    let (name, weak) = (format!("{:016x}{:016x}", random(), random()), Arc::downgrade(store));
    let script = Script::new(SCRIPT.into());
    let key = format!("{}:nodes", store.prefix).into_bytes();
    store.runtime.spawn(async move {
        while let Some(store) = weak.upgrade() {
            let at = store.part_of(&key);
            let gone = GONE_MS.to_string();
            let arguments = [name.as_bytes(), gone.as_bytes()];
            match store.call(at, &script, &[&key], &arguments, PATIENCE, true).await {
                Ok(Value::Int(nodes)) => {
                    store.nodes.store(u32::try_from(nodes).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
                }
                Ok(_) => store.counters.error(&StoreError::BadReply),
                // The next sign of life tries again.
                Err(error) => store.counters.error(&error),
            }
            drop(store);
            tokio::time::sleep(EVERY.mul_f64(0.75 + (random() % 1_000) as f64 / 2_000.0)).await;
        }
    });
}
