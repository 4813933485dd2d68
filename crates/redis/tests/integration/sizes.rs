//! The size of a limit in Redis: one small value, whatever the algorithm.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{
    Policy, Quota,
    algorithm::{Concurrency, SlidingWindow},
};
use tidegate_redis::{Source, Store};
use tidegate_redis_servers::{PATIENCE, Server};

/// A fixed window as one would write it by hand.
const BARE: &str = "redis.call('INCRBY', KEYS[1], 1) redis.call('PEXPIRE', KEYS[1], 3600000)";

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_state_except_a_log_is_one_string_of_a_few_bytes() {
    let server = Server::start(&[]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    // An hour of sixty slots with counts of one byte, and of two: the current slot, the older ones,
    // and their sum.
    let slots = |text| {
        SlidingWindow::new(quota(text))
            .slots(60)
            .expect("the slots make sense")
            .into()
    };
    let permits = Concurrency::new(20)
        .hold(Duration::from_hours(1))
        .expect("the hold is short")
        .into();
    for (at, (policy, bytes)) in [
        (Policy::fixed_window(quota("1000/1h")), 11),
        (Policy::sliding_counter(quota("65534/1h")), 11),
        (Policy::sliding_counter(quota("65535/1h")), 15),
        (slots("200/1h"), 7 + 62),
        (slots("1000/1h"), 7 + 2 * 62),
        (Policy::token_bucket(quota("3600/1h")), 18),
        (Policy::token_bucket(quota("999983/1h")), 32),
        (Policy::token_bucket(quota("4294967291/1h")), 34),
        (Policy::leaky_bucket(quota("3600/1h")), 7),
        (permits, 8 + 16 * 20),
    ]
    .into_iter()
    .enumerate()
    {
        let limit = store.limit(&format!("l{at}"), policy).deadline(PATIENCE);
        let limit = limit.build().expect("the policy can be shared");
        for _ in 0..100 {
            let answer = limit.acquire("k", 1).await;
            assert!(
                matches!(answer.source, Source::Store | Source::Remembered),
                "{answer:?}"
            );
        }
        let key = String::from_utf8(limit.redis_key("k")).expect("the key is text");
        assert_eq!(server.ask(&["TYPE", &key]).text(), "string", "{policy:?}");
        let length: usize = server
            .ask(&["STRLEN", &key])
            .text()
            .parse()
            .expect("a number of bytes");
        assert!(
            length <= bytes,
            "{policy:?}: {length} bytes, more than {bytes}"
        );
    }
    let keys = server
        .ask(&["DBSIZE"])
        .text()
        .parse::<u32>()
        .expect("a number of keys");
    assert!(
        (10..=11).contains(&keys),
        "each has one key, and the nodes have one, perhaps already: {keys}"
    );
}

/// The memory of a key with its name, compared with the smallest possible limit: a number with a
/// TTL under a name of the same length.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_takes_little_more_than_a_bare_counter_with_a_ttl() {
    let server = Server::start(&[]);
    // Redis is built with jemalloc by default. The C library's allocator rounds a bare counter up
    // less.
    let is_jemalloc = server
        .ask(&["INFO", "memory"])
        .text()
        .contains("mem_allocator:jemalloc");
    let tenths = if is_jemalloc { 13 } else { 14 };
    // A token bucket's value includes the rule that wrote it.
    let bucket_tenths = |policy: &Policy| match policy.name() {
        "token-bucket" => tenths + 5,
        _ => tenths,
    };
    let store = Store::open(&server.address()).expect("the address is well formed");
    let memory = |key: &str| {
        let reply = server.ask(&["MEMORY", "USAGE", key, "SAMPLES", "0"]);
        reply.text().parse::<u32>().expect("a number of bytes")
    };
    for (at, policy) in [
        Policy::fixed_window(quota("4294967295/1h")),
        Policy::sliding_counter(quota("1000/1h")),
        Policy::sliding_counter(quota("65534/1m")),
        Policy::token_bucket(quota("1000/1m")),
        Policy::token_bucket(quota("7/1s")),
        Policy::token_bucket(quota("1000000007/1m")),
        Policy::leaky_bucket(quota("7/1s")),
    ]
    .into_iter()
    .enumerate()
    {
        let limit = store.limit(&format!("l{at}"), policy).deadline(PATIENCE);
        let limit = limit.build().expect("the policy can be shared");
        // An allocator may hand out a free piece that is larger than it need be: the smallest of
        // five keys counts.
        let keys = ["alice", "basil", "carol", "david", "erika"];
        let names =
            keys.map(|key| String::from_utf8(limit.redis_key(key)).expect("the key is text"));
        let bare = names.each_ref().map(|name| format!("{}b", &name[1..]));
        for name in &bare {
            server.ask(&["EVAL", BARE, "1", name]);
        }
        let least = |names: &[String; 5]| {
            names
                .iter()
                .map(|name| memory(name))
                .min()
                .expect("there are five")
        };
        // Measured after the first write, and after writes in place.
        for nth in 0..3 {
            for key in keys {
                let answer = limit.acquire(key, 1).await;
                assert_eq!(answer.source, Source::Store, "{answer:?}");
            }
            let (ours, bare) = (least(&names), least(&bare));
            assert!(
                10 * ours <= bucket_tenths(&policy) * bare,
                "{policy:?}, decision {nth}: {ours} bytes compared with {bare}"
            );
        }
    }
}
