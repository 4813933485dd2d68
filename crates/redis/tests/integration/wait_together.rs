//! Waiting in line at the store for several limits together, and for reservations.
#![cfg(feature = "servers")]

use crate::waiting;

use std::{sync::Arc, time::Duration};

use tidegate_core::{Policy, Quota, algorithm::Concurrency};
use tidegate_redis::{
    Corrected, Correction, OnError, Part, SharedDecision, SharedGrant, SharedLimit, Source, Store,
    StoreError, Tried,
};
use tidegate_redis_servers::{Cluster, PATIENCE, Proxy, Reply, Server};
use tokio::sync::mpsc;
use waiting::{Until, reach};

const MINUTE: Duration = Duration::from_mins(1);
/// Longer than any wait, whose units come back in a year.
const LONG: Duration = Duration::from_hours(24 * 360 * 99);

fn limit(store: &Store, name: &str, policy: Policy) -> SharedLimit {
    store
        .limit(name, policy)
        .line(true)
        .on_error(OnError::Closed)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

/// A limit whose units return only when they are given back.
fn units(store: &Store, name: &str, units: u64) -> SharedLimit {
    let quota: Quota = format!("{units}/360d").parse().expect("it is well formed");
    limit(store, name, Policy::fixed_window(quota))
}

/// Two limits of 4 in each of two nodes.
fn pairs(nodes: [&Store; 2]) -> [[SharedLimit; 2]; 2] {
    nodes.map(|store| ["a", "b"].map(|name| units(store, name, 4)))
}

fn parts<'a>(limits: &[&'a SharedLimit], cost: u64) -> Vec<Part<'a>> {
    let part = |limit: &&'a SharedLimit| Part {
        limit,
        key: b"{key}",
        cost,
    };
    limits.iter().map(part).collect()
}

async fn until_waiting(limit: &SharedLimit, tickets: u64) {
    let until = Until::new("the tickets are in line");
    while until.is_yet_to_be(limit.waiting("{key}").await == Ok(tickets)) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn back(limit: &SharedLimit, units: u64) {
    let _standing = limit
        .refund("{key}", units)
        .await
        .expect("the store replies");
}

type Answers = mpsc::UnboundedSender<(usize, Vec<SharedDecision>)>;

/// A request that waits in the background and tells its number when it is answered.
fn waits(
    limits: &[&SharedLimit],
    cost: u64,
    number: usize,
    answers: &Answers,
) -> tokio::task::JoinHandle<()> {
    let answers = answers.clone();
    let limits: Vec<SharedLimit> = limits.iter().map(|limit| (*limit).clone()).collect();
    tokio::spawn(async move {
        let limits: Vec<_> = limits.iter().collect();
        let store = limits[0].store().clone();
        let all = store.wait_all(&parts(&limits, cost), LONG).await;
        let answer = all.expect("the keys are in one place");
        answers.send((number, answer)).expect("the test still runs");
    })
}

fn all_allowed(answers: &[SharedDecision]) -> bool {
    answers
        .iter()
        .all(|answer| answer.is_allowed() && answer.source == Source::Store)
}

/// Waits in line, and returns what was granted.
async fn granted(limits: &[&SharedLimit], cost: u64) -> SharedGrant {
    let tried = limits[0]
        .store()
        .try_wait_all(&parts(limits, cost), LONG)
        .await;
    match tried.expect("the keys are in one place") {
        Tried::Decided(granted) => granted,
        Tried::Waits(queued) => {
            let limits: Vec<_> = limits.iter().map(|limit| (*limit).clone()).collect();
            queued
                .answer(Arc::new(move || (limits.clone(), true)))
                .await
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_several_limits_keeps_its_place_in_each_line() {
    let server = Server::start(&[]);
    let address = server.address();
    let (one, two) = (reach(&address).await, reach(&address).await);
    let [[a, b], [a_there, b_there]] = &pairs([&one, &two]);
    assert!(all_allowed(
        &one.wait_all(&parts(&[a, b], 4), LONG)
            .await
            .expect("one place")
    ));
    let (sender, mut answers) = mpsc::unbounded_channel();
    // In the other order at the other node: neither may wait for the other.
    waits(&[a, b], 2, 0, &sender);
    until_waiting(a, 1).await;
    waits(&[b_there, a_there], 1, 1, &sender);
    until_waiting(a, 2).await;
    waits(&[a], 1, 2, &sender);
    until_waiting(a, 3).await;
    waits(&[b_there], 4, 3, &sender);
    until_waiting(b, 3).await;
    // Enough for all at one limit is not enough: nobody takes a part.
    back(a, 4).await;
    assert!(a_there.acquire("{key}", 1).await.is_denied());
    assert_eq!(a.waiting("{key}").await, Ok(3));
    assert_eq!(a.peek("{key}", 0).await.decision.remaining(), 4);
    back(b, 1).await;
    assert_eq!(b.peek("{key}", 0).await.decision.remaining(), 1);
    back(b_there, 1).await;
    let mut served = Vec::new();
    let mut next = async || {
        let (number, answer) = answers.recv().await.expect("somebody waits");
        assert!(all_allowed(&answer), "{number}: {answer:?}");
        number
    };
    served.push(next().await);
    back(b, 1).await;
    // The one behind it waits for one limit, and its units are there.
    served.extend([next().await, next().await]);
    served[1..].sort_unstable();
    assert_eq!(served, [0, 1, 2]);
    assert_eq!(a.peek("{key}", 0).await.decision.remaining(), 0);
    back(b, 4).await;
    assert_eq!(next().await, 3);
    assert_eq!(
        (a.waiting("{key}").await, b.waiting("{key}").await),
        (Ok(0), Ok(0))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_met_or_asked_is_refused_at_once() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let bucket: Policy = "token-bucket 10/10h".parse().expect("it is well formed");
    let bucket = limit(&store, "bucket", bucket);
    let calm = units(&store, "calm", 10);
    let plain = store
        .limit("plain", *calm.policy())
        .deadline(PATIENCE)
        .build();
    let plain = plain.expect("it can be shared");
    let ask = async |limits: &[&SharedLimit], cost| {
        store.wait_all(&parts(limits, cost), 2 * MINUTE).await
    };
    assert!(all_allowed(
        &ask(&[&calm, &bucket], 8).await.expect("one place")
    ));
    let late = ask(&[&calm, &bucket], 3).await.expect("one place");
    let wait = late[1].decision.retry_after().expect("it fits some time");
    assert!(wait > 59 * MINUTE && wait <= 60 * MINUTE, "{late:?}");
    let large = ask(&[&calm, &bucket], 11).await.expect("one place");
    assert!(large[1].decision.exceeds_limit());
    // One without a line: its denial is final.
    assert!(ask(&[&plain, &calm], 2).await.expect("one place")[0].is_allowed());
    assert!(ask(&[&plain, &bucket], 9).await.expect("one place")[0].is_denied());
    assert_eq!(ask(&[&calm, &calm], 1).await, Err(StoreError::OneKey));
    for limit in [&calm, &bucket] {
        assert_eq!(limit.waiting("{key}").await, Ok(0));
    }
    assert_eq!(calm.peek("{key}", 0).await.decision.remaining(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_unit_is_lost_or_given_twice_while_callers_come_and_go() {
    const UNITS: u64 = 200;
    let server = Server::start(&[]);
    let address = server.address();
    let (one, two) = (reach(&address).await, reach(&address).await);
    let nodes = [&one, &two].map(|store| ["a", "b"].map(|name| units(store, name, UNITS)));
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    for limit in &nodes[0] {
        assert!(limit.acquire("{key}", UNITS).await.is_allowed());
    }
    let (sender, mut answers) = mpsc::unbounded_channel();
    let (mut tasks, mut asked) = (Vec::new(), Vec::new());
    let mut returned = [0; 2];
    for number in 0..300 {
        let [a, b] = &nodes[below(2) as usize];
        let (limits, which): (Vec<&SharedLimit>, _) = match below(4) {
            0 => (vec![a], [true, false]),
            1 => (vec![b], [false, true]),
            2 => (vec![b, a], [true, true]),
            _ => (vec![a, b], [true, true]),
        };
        let cost = 1 + below(3);
        asked.push((which, cost));
        tasks.push(waits(&limits, cost, number, &sender));
        if below(3) == 0 {
            // Also one that is being served at this moment.
            tasks[below(tasks.len() as u64) as usize].abort();
        }
        for (limit, returned) in nodes[below(2) as usize].iter().zip(&mut returned) {
            let units = below(4).min(UNITS - *returned);
            if units > 0 {
                back(limit, units).await;
                *returned += units;
            }
        }
    }
    for task in tasks {
        task.abort();
        // An error: it was aborted.
        let _ = task.await;
    }
    drop(sender);
    let (mut admitted, mut together) = ([0; 2], 0);
    while let Some((number, answer)) = answers.recv().await {
        assert!(all_allowed(&answer), "{answer:?}");
        let (which, cost) = asked[number];
        for (takes, admitted) in which.into_iter().zip(&mut admitted) {
            *admitted += if takes { cost } else { 0 };
        }
        together += u32::from(which == [true, true]);
    }
    assert!(together > 0);
    for (at, limit) in nodes[1].iter().enumerate() {
        until_waiting(limit, 0).await;
        // What was granted to callers that had just left comes back.
        let free = returned[at] - admitted[at];
        let until = Until::new("all units are back that nobody has");
        let mut left = u64::MAX;
        while until.is_yet_to_be(left == free) {
            left = limit.peek("{key}", 0).await.decision.remaining();
            assert!(left <= free, "{left} are left of {free}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_was_lost_at_one_key_forms_again_at_both_and_nobody_waits_for_ever() {
    let server = Server::start(&[]);
    let address = server.address();
    let (one, two) = (reach(&address).await, reach(&address).await);
    let [[a, b], [a_there, b_there]] = &pairs([&one, &two]);
    for limit in [a, b] {
        assert!(limit.acquire("{key}", 4).await.is_allowed());
    }
    let (sender, mut answers) = mpsc::unbounded_channel();
    for number in 0..3 {
        waits(&[a, b], 1, 2 * number, &sender);
        waits(&[b_there, a_there], 1, 2 * number + 1, &sender);
        until_waiting(a, 2 * number as u64 + 2).await;
    }
    // The key of the line at `a`, as `line.lua` has it: a sorted set.
    let keys = server.ask(&["KEYS", "*:a:q:*"]);
    let Reply::Array(keys) = keys else {
        panic!("{keys:?}");
    };
    let [line] = &keys[..] else {
        panic!("{keys:?}");
    };
    server.ask(&["DEL", line.text()]);
    back(a, 3).await;
    back(b, 3).await;
    back(b_there, 1).await;
    back(a_there, 1).await;
    let mut served = Vec::new();
    for _ in 0..4 {
        let (number, answer) = answers.recv().await.expect("somebody waits");
        assert!(all_allowed(&answer), "{answer:?}");
        served.push(number);
    }
    back(a, 2).await;
    back(b, 2).await;
    for _ in 0..2 {
        served.push(answers.recv().await.expect("somebody waits").0);
    }
    // Each node serves its own callers in their order.
    for node in 0..2 {
        let own: Vec<_> = served
            .iter()
            .filter(|number| **number % 2 == node)
            .collect();
        assert!(own.is_sorted(), "{served:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_is_recorded_after_the_wait_and_its_settlement_moves_the_line() {
    let server = Server::start(&[]);
    let address = server.address();
    let (one, two) = (reach(&address).await, reach(&address).await);
    let permits = Concurrency::new(4).hold(60 * MINUTE).expect("it is short");
    let log = Policy::sliding_log("4/360d".parse().expect("it is well formed"));
    let policies = [
        Policy::fixed_window("4/360d".parse().expect("it is well formed")),
        Policy::token_bucket("4/4d".parse().expect("it is well formed")),
        log.expect("the log is short"),
        permits.into(),
    ];
    for (at, policy) in policies.into_iter().enumerate() {
        let [a, b] = ["a", "b"].map(|name| limit(&one, &format!("{name}{at}"), policy));
        let there = limit(&two, &format!("b{at}"), policy);
        let is_held = at == 3;
        let id_of = |number: u128| 10 * at as u128 + number;
        let first = granted(&[&a, &b], 4).await;
        let reserved = one
            .reserve_granted(id_of(1), first, b"text", MINUTE, 2)
            .await;
        let id = reserved.expect("the store replies").expect("there is room");
        assert_eq!(two.reserved(id).await, Ok(Some(b"text".to_vec())));
        // The room is for one more in all.
        let second = async {
            let granted = granted(&[&a, &b], 3).await;
            one.reserve_granted(id_of(2), granted, b"text", MINUTE, 2)
                .await
        };
        let settle = async |id, actual| {
            let part = |(at, limit)| Correction {
                at,
                limit,
                key: b"{key}",
                actual,
                is_unused: false,
            };
            let parts: Vec<_> = [&a, &b].into_iter().enumerate().map(part).collect();
            one.settle(id, &parts).await
        };
        let settled = async {
            until_waiting(&there, 1).await;
            // Permits all return, for any use.
            assert_eq!(settle(id, 1).await, Ok(Corrected::Now(vec![4, 4])));
        };
        let (second, ()) = tokio::join!(second, settled);
        let second = second.expect("the store replies").expect("there is room");
        let left = |limit: &SharedLimit| {
            let limit = limit.clone();
            async move { limit.peek("{key}", 0).await.decision.remaining() }
        };
        assert_eq!(
            (left(&a).await, left(&b).await),
            if is_held { (1, 1) } else { (0, 0) }
        );
        // Too many are open: what was granted returns.
        let full = granted(&[&there], 0).await;
        assert_eq!(
            one.reserve_granted(id_of(3), full, b"text", MINUTE, 1)
                .await,
            Ok(None)
        );
        assert_eq!(settle(second, 0).await, Ok(Corrected::Now(vec![3, 3])));
        assert_eq!(settle(second, 0).await, Ok(Corrected::Before));
        let free = if is_held { 4 } else { 3 };
        assert_eq!((left(&a).await, left(&b).await), (free, free), "{policy}");
        let full = granted(&[&a, &b], 2).await;
        let other = granted(&[&there], 1).await;
        let open = one
            .reserve_granted(id_of(4), other, b"text", MINUTE, 1)
            .await;
        let open = open.expect("the store replies").expect("there is room");
        assert_eq!(
            one.reserve_granted(id_of(5), full, b"text", MINUTE, 1)
                .await,
            Ok(None)
        );
        let until = Until::new("the units are back");
        while until.is_yet_to_be(left(&a).await == free) {}
        let part = Correction {
            at: 0,
            limit: &b,
            key: b"{key}",
            actual: 0,
            is_unused: false,
        };
        assert_eq!(one.settle(open, &[part]).await, Ok(Corrected::Now(vec![1])));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_over_while_connections_break_and_all_are_answered() {
    const CALLERS: u64 = 100;
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let direct = reach(&server.address()).await;
    let broken = reach(&proxy.address()).await;
    let [[a, b], [a_broken, b_broken]] =
        &[&direct, &broken].map(|store| ["a", "b"].map(|name| units(store, name, 1_000)));
    for limit in [a, b] {
        assert!(limit.acquire("{key}", 1_000).await.is_allowed());
    }
    let (sender, mut answers) = mpsc::unbounded_channel();
    for number in 0..CALLERS {
        let limits = if number % 2 == 0 {
            [a, b]
        } else {
            [b_broken, a_broken]
        };
        waits(&limits, 2, number as usize, &sender);
    }
    let (mut returned, mut admitted, mut denied) = (0, 0, 0);
    while admitted + denied < CALLERS {
        if returned < 1_000 {
            // Then the rest suffices for all.
            if returned < 300 {
                proxy.cut();
            }
            back(a, 4).await;
            back(b, 4).await;
            returned += 4;
        }
        match tokio::time::timeout(Duration::from_millis(5), answers.recv()).await {
            Ok(Some((_, answer))) if all_allowed(&answer) => admitted += 1,
            // Three calls in a row have failed, and the limits fail closed.
            Ok(answer) => {
                let answer = answer.expect("the callers still wait").1;
                assert!(answer.iter().all(SharedDecision::is_denied), "{answer:?}");
                denied += 1;
            }
            Err(_) => {}
        }
    }
    for limit in [a, b] {
        until_waiting(limit, 0).await;
        let left = limit.peek("{key}", 0).await.decision.remaining();
        assert!(left <= returned - 2 * admitted, "{left} are left");
    }
    assert!(admitted >= CALLERS / 2, "{denied} were denied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_pauses_keeps_the_order_and_every_caller() {
    const CALLERS: usize = 16;
    let server = Server::start(&[]);
    let address = server.address();
    let (one, two) = (reach(&address).await, reach(&address).await);
    let nodes = [&one, &two].map(|store| ["a", "b"].map(|name| units(store, name, 80)));
    for limit in &nodes[0] {
        assert!(limit.acquire("{key}", 80).await.is_allowed());
    }
    let (sender, mut answers) = mpsc::unbounded_channel();
    for number in 0..CALLERS {
        let [a, b] = &nodes[number % 2];
        let limits: &[&SharedLimit] = if number % 4 < 2 { &[a, b] } else { &[a] };
        waits(limits, 2, number, &sender);
        until_waiting(a, number as u64 + 1).await;
    }
    let mut of_b = 0;
    for number in 0..CALLERS {
        let waits_for_b = number % 4 < 2;
        // The calls that renew the tickets are late, and so are the units.
        if number % 4 == 1 {
            server.ask(&["CLIENT", "PAUSE", "150", "ALL"]);
        }
        let [a, b] = &nodes[(number + 1) % 2];
        back(a, 1).await;
        if waits_for_b {
            back(b, 2).await;
            of_b += 2;
        }
        assert!(a.acquire("{key}", 1).await.is_denied(), "nobody overtakes");
        back(a, 1).await;
        let (served, answer) = answers.recv().await.expect("somebody waits");
        assert!(all_allowed(&answer), "{served}: {answer:?}");
        assert_eq!(served, number);
    }
    assert_eq!(of_b, CALLERS as u64);
    for limit in &nodes[0] {
        assert_eq!(limit.peek("{key}", 0).await.decision.remaining(), 0);
    }
    assert_eq!(nodes[0][0].waiting("{key}").await, Ok(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_keys_with_one_hash_tag_are_waited_for_together() {
    let cluster = Cluster::start(3);
    let addresses = format!("redis+cluster://{}", cluster.addresses().join(","));
    let store = reach(&addresses).await;
    let [a, b] = ["a", "b"].map(|name| units(&store, name, 1));
    for limit in [&a, &b] {
        // The cluster's client learns which node has a slot.
        let until = Until::new("the store decides");
        while until.is_yet_to_be(limit.peek("{key}", 0).await.source == Source::Store) {}
    }
    let (sender, mut answers) = mpsc::unbounded_channel();
    let first = granted(&[&a, &b], 1).await;
    let reserved = store.reserve_granted(7, first, b"text", MINUTE, 9).await;
    let id = reserved.expect("the store replies").expect("there is room");
    waits(&[&b, &a], 1, 0, &sender);
    until_waiting(&a, 1).await;
    let part = |(at, limit)| Correction {
        at,
        limit,
        key: b"{key}",
        actual: 0,
        is_unused: false,
    };
    let parts: Vec<_> = [&a, &b].into_iter().enumerate().map(part).collect();
    assert_eq!(
        store.settle(id, &parts).await,
        Ok(Corrected::Now(vec![1, 1]))
    );
    let (_, answer) = answers.recv().await.expect("somebody waits");
    assert!(all_allowed(&answer), "{answer:?}");
    let apart = [&a, &b]
        .into_iter()
        .zip(["x", "y"])
        .map(|(limit, key)| Part {
            limit,
            key: key.as_bytes(),
            cost: 1,
        });
    let apart: Vec<_> = apart.collect();
    assert_eq!(
        store.wait_all(&apart, MINUTE).await,
        Err(StoreError::CrossSlot)
    );
}
