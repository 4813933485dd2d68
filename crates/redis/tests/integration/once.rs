//! Decisions that are safe to repeat: an id counts once, at any node and through lost replies.
#![cfg(feature = "servers")]

use std::{collections::HashMap, time::Duration};

use tidegate_core::{Quota, algorithm::FixedWindow};
use tidegate_redis::{Health, Mode, Part, SharedLimit, Source, Store};
use tidegate_redis_servers::{Cluster, PATIENCE, Proxy, Reply, Server, eventually};

/// Shorter than any silence of the proxy, and as long as a slow machine needs.
const SHORT: Duration = Duration::from_millis(300);

/// Lets all ids expire.
const FORGET: &str =
    "for _, key in ipairs(redis.call('KEYS', 'tidegate:once:*')) do redis.call('DEL', key) end";
/// 1 if each id expires within a minute.
const ENDS: &str = "for _, key in ipairs(redis.call('KEYS', 'tidegate:once:*')) do
  local ttl = redis.call('PTTL', key)
  if ttl <= 0 or ttl > 60000 then return 0 end
end
return 1";

fn open(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn limit(store: &Store, quota: &str, mode: Mode, deadline: Duration) -> SharedLimit {
    let quota: Quota = quota.parse().expect("the quota is well formed");
    let limit = store.limit("calls", FixedWindow::new(quota).first_hit());
    let built = limit.mode(mode).deadline(deadline).build();
    built.expect("the policy can be shared")
}

fn kept(server: &Server) -> usize {
    match server.ask(&["KEYS", "tidegate:once:*"]) {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_id_counts_once_through_lost_replies_at_two_nodes() {
    const LIMIT: u64 = 500;
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let (one, two) = (open(&proxy.address()), open(&server.address()));
    let quota = format!("{LIMIT}/366d");
    let nodes = [
        limit(&one, &quota, Mode::Exact, PATIENCE),
        limit(&two, &quota, Mode::Exact, PATIENCE),
    ];
    let hasty = limit(&one, &quota, Mode::Exact, SHORT);
    let mut used: HashMap<String, u64> = HashMap::new();
    let mut first: HashMap<(u64, String, u64), (bool, u64)> = HashMap::new();
    let mut asked = Vec::new();
    let mut seed = 0x5EED_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let (mut repeats, mut lost) = (0, 0);
    for step in 0..4_000_u64 {
        let request = if asked.is_empty() || random(3) > 0 {
            let request = (step, format!("k{}", random(4)), random(3));
            asked.push(request.clone());
            request
        } else {
            asked[random(asked.len() as u64) as usize].clone()
        };
        let (id, key, cost) = &request;
        let (id, key, cost) = (id.to_le_bytes(), key.as_bytes(), *cost);
        if step % 500 == 499 && !first.contains_key(&request) {
            // The store decides, and its reply is lost.
            let before = kept(&server);
            proxy.silence();
            let answer = hasty.acquire_once(&id, key, cost).await;
            assert_ne!(answer.source, Source::Store, "the reply is lost");
            eventually("the store has decided", || kept(&server) == before + 1);
            proxy.cut();
            eventually("the store is back", || one.health() == Health::Up);
            lost += 1;
        } else if step % 1_000 == 700 {
            // The ids expire.
            server.ask(&["EVAL", FORGET, "0"]);
            first.clear();
        }
        let used = used.entry(request.1.clone()).or_default();
        let expected = *first.entry(request.clone()).or_insert_with(|| {
            let fits = *used + cost <= LIMIT;
            *used += if fits { cost } else { 0 };
            (fits, LIMIT - *used)
        });
        let part = Part {
            limit: &nodes[random(2) as usize],
            key,
            cost,
        };
        let once = part
            .limit
            .store()
            .acquire_all_once(&id, &[(part, false)])
            .await;
        let once = once.expect("the keys are together");
        repeats += u64::from(once.is_repeat);
        let decision = &once.decisions[0].decision;
        assert_eq!(
            (decision.is_allowed(), decision.remaining()),
            expected,
            "step {step}"
        );
        if step % 50 == 0 {
            let left = nodes[1].peek(&request.1, 0).await.decision.remaining();
            assert_eq!(left, LIMIT - *used, "step {step}");
        }
    }
    assert!(repeats > 400 && lost > 3, "{repeats} repeats, {lost} lost");
    let ttl = server.ask(&["EVAL", ENDS, "0"]);
    assert_eq!(ttl, Reply::Text("1".to_owned()), "each id ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_takes_one_round_trip() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    let limit = limit(&store, "10/366d", Mode::Exact, PATIENCE);
    for expected in [1, 2] {
        let before = store.stats().calls;
        assert!(limit.acquire_once(b"id", b"k", 4).await.is_allowed());
        assert_eq!(store.stats().calls, before + 1, "call {expected}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_counts_once_for_a_leased_limit() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server.address()), open(&server.address()));
    let here = limit(&one, "10/366d", Mode::Leased, PATIENCE);
    let there = limit(&two, "10/366d", Mode::Leased, PATIENCE);
    assert_eq!(
        here.acquire_once(b"id", b"k", 4).await.decision.remaining(),
        6
    );
    for limit in [&here, &there, &there] {
        let again = limit.acquire_once(b"id", b"k", 4).await;
        assert_eq!((again.is_allowed(), again.decision.remaining()), (true, 6));
    }
    // Another cost, key or id is another request.
    assert_eq!(
        there
            .acquire_once(b"id", b"k", 3)
            .await
            .decision
            .remaining(),
        3
    );
    assert_eq!(
        there
            .acquire_once(b"id", b"j", 4)
            .await
            .decision
            .remaining(),
        6
    );
    assert_eq!(
        here.acquire_once(b"other", b"k", 3)
            .await
            .decision
            .remaining(),
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_admitted_stays_admitted_if_the_rule_changes() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    let wide = limit(&store, "10/366d", Mode::Exact, PATIENCE);
    let narrow = limit(&store, "1/366d", Mode::Exact, PATIENCE);
    assert!(wide.acquire_once(b"a", b"k", 5).await.is_allowed());
    assert!(narrow.acquire_once(b"b", b"k", 5).await.is_denied());
    assert!(narrow.acquire_once(b"a", b"k", 5).await.is_allowed());
    assert!(
        wide.acquire_once(b"b", b"k", 5).await.is_denied(),
        "nothing was taken"
    );
    assert_eq!(wide.peek("k", 0).await.decision.remaining(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_counts_once_in_a_cluster() {
    let cluster = Cluster::start(3);
    let store = open(&format!(
        "redis+cluster://{}",
        cluster.addresses().join(",")
    ));
    let limit = limit(&store, "10/366d", Mode::Exact, PATIENCE);
    for key in ["{a}1", "b", "}{", "c"] {
        for _ in 0..3 {
            let answer = limit.acquire_once(b"id", key.as_bytes(), 2).await;
            assert_eq!(answer.decision.remaining(), 8, "{key}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_full_of_ids_counts_what_it_admitted_and_decides_again_once_they_end() {
    const LIMIT: u64 = 1_000_000;
    let server = Server::start(&[]);
    let store = open(&server.address());
    let limit = limit(&store, &format!("{LIMIT}/366d"), Mode::Exact, PATIENCE);
    let id = |at: u64| format!("{at:0>128}").into_bytes();
    assert!(limit.acquire_once(&id(0), b"k", 1).await.is_allowed());
    let used: u64 = {
        let info = server.ask(&["INFO", "memory"]);
        let line = info
            .text()
            .lines()
            .find(|line| line.starts_with("used_memory:"));
        let used = line.and_then(|line| line.trim().split(':').nth(1)?.parse().ok());
        used.expect("the server says how much it uses")
    };
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.ask(&[
        "CONFIG",
        "SET",
        "maxmemory",
        &(used + (1 << 20)).to_string(),
    ]);
    let mut admitted = 1;
    let refused = loop {
        let answer = limit.acquire_once(&id(admitted), b"k", 1).await;
        if answer.source != Source::Store {
            break answer;
        }
        assert!(answer.is_allowed());
        admitted += 1;
        assert!(admitted < 100_000, "a mebibyte has no room for so many ids");
    };
    assert!(matches!(refused.source, Source::Local(_)), "{refused:?}");
    assert!(admitted > 1_000, "{admitted}");
    assert!(store.stats().errors_of("out-of-memory") > 0);
    let full = kept(&server);
    assert_eq!(
        full as u64, admitted,
        "each admission has its id, and no refusal"
    );
    // The ids of the former minute end.
    server.ask(&["EVAL", FORGET, "0"]);
    eventually("the store is up again", || store.health() == Health::Up);
    let left = limit.peek("k", 0).await.decision.remaining();
    assert_eq!(left, LIMIT - admitted, "what was refused took nothing");
    let again = limit.acquire_once(&id(admitted), b"k", 1).await;
    assert_eq!(
        (again.source, again.decision.remaining()),
        (Source::Store, left - 1)
    );
}
