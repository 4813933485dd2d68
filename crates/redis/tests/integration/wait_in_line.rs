//! Waiting in line at the store.
#![cfg(feature = "servers")]

use crate::waiting;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    DenialReason, Penalty, Policy, Quota,
    algorithm::{Concurrency, FixedWindow},
};
use tidegate_redis::{
    Mode, OnError, Part, Queued, SharedDecision, SharedLimit, Source, Store, StoreError, Tried,
};
use tidegate_redis_servers::{Cluster, PATIENCE, Proxy, Server};
use tokio::sync::mpsc;
use waiting::{Until, reach, until};

const HOUR: Duration = Duration::from_hours(1);
/// Longer than any wait, whose units come back in a year.
const LONG: Duration = Duration::from_hours(24 * 360 * 99);

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

/// Limits whose units return only when they are given back.
fn slow() -> Vec<Policy> {
    vec![
        Policy::fixed_window(quota("4/360d")),
        FixedWindow::new(quota("4/360d")).first_hit().into(),
        Policy::sliding_window(quota("4/360d")),
        Policy::sliding_counter(quota("4/360d")),
        Policy::token_bucket(quota("4/4d")),
        Policy::sliding_log(quota("4/360d")).expect("the log is short"),
        Concurrency::new(4)
            .hold(24 * HOUR)
            .expect("the hold is short")
            .into(),
    ]
}

fn limit(store: &Store, name: &str, policy: Policy) -> SharedLimit {
    store
        .limit(name, policy)
        .line(true)
        .on_error(OnError::Closed)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

/// Waits until this many requests are in line.
async fn until_waiting(limit: &SharedLimit, key: &str, tickets: u64) {
    let until = Until::new("the tickets are in line");
    while until.is_yet_to_be(limit.waiting(key).await == Ok(tickets)) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A request for the key `key` that has to wait.
async fn queued(limit: &SharedLimit, cost: u64) -> Queued {
    let part = Part {
        limit,
        key: b"key",
        cost,
    };
    let tried = limit.store().try_wait_all(&[part], LONG).await;
    match tried.expect("the key is asked for once") {
        Tried::Waits(queued) => queued,
        Tried::Decided(granted) => panic!("it does not wait: {granted:?}"),
    }
}

/// A request that waits in the background and tells its number when it is answered.
fn waits(
    limit: &SharedLimit,
    (key, cost): (&'static str, u64),
    number: usize,
    answers: &mpsc::UnboundedSender<(usize, SharedDecision)>,
) -> tokio::task::JoinHandle<()> {
    let (limit, answers) = (limit.clone(), answers.clone());
    tokio::spawn(async move {
        let answer = limit.wait(key.as_bytes(), cost, LONG).await;
        answers.send((number, answer)).expect("the test still runs");
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_at_two_nodes_is_served_in_the_order_of_arrival_whatever_the_cost() {
    let server = Server::start(&[]);
    let (one, two) = (
        reach(&server.address()).await,
        reach(&server.address()).await,
    );
    for (at, policy) in slow().into_iter().enumerate() {
        let name = at.to_string();
        let nodes = [&one, &two].map(|store| limit(store, &name, policy));
        let [here, there] = &nodes;
        assert!(here.wait(b"key", 4, HOUR).await.is_allowed(), "{policy}");
        let (sender, mut answers) = mpsc::unbounded_channel();
        let costs = [3, 1, 4, 1, 2];
        for (number, cost) in costs.into_iter().enumerate() {
            waits(&nodes[number % 2], ("key", cost), number, &sender);
            until_waiting(here, "key", number as u64 + 1).await;
        }
        let mut free = 0;
        for (number, cost) in costs.into_iter().enumerate() {
            // One at a time: what returns is not enough for the first until the last one has come.
            while free < cost {
                // The other node notices within a second, which is tested once.
                let near = if at == 0 { there } else { &nodes[number % 2] };
                let _standing = near.refund("key", 1).await.expect("the store replies");
                free += 1;
                // Nobody overtakes who waits.
                let passing = here.acquire("key", 1).await;
                assert!(passing.is_denied(), "{policy}: {passing:?}");
            }
            let (served, answer) = answers.recv().await.expect("somebody waits");
            assert_eq!(served, number, "{policy}: {answer:?}");
            assert!(answer.is_allowed() && answer.source == Source::Store);
            free -= cost;
        }
        assert_eq!(here.waiting("key").await, Ok(0));
        assert!(here.acquire("key", 1).await.is_denied(), "{policy}");
        let _standing = there.refund("key", 1).await.expect("the store replies");
        assert!(here.acquire("key", 1).await.is_allowed(), "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_units_are_there() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let leaky: Policy = "leaky-bucket:max-wait=100ms 9/900ms"
        .parse()
        .expect("the policy is well formed");
    let quick = [
        Policy::fixed_window(quota("3/300ms")),
        Policy::sliding_window(quota("3/300ms")),
        Policy::sliding_counter(quota("3/300ms")),
        Policy::token_bucket(quota("3/300ms")),
        Policy::sliding_log(quota("3/300ms")).expect("the log is short"),
        leaky,
    ];
    for (at, policy) in quick.into_iter().enumerate() {
        let limit = limit(&store, &at.to_string(), policy);
        let waits = (0..9).map(|_| async {
            let answer = limit.wait(b"key", 1, PATIENCE).await;
            assert!(
                answer.is_allowed() && answer.decision.delay().is_zero(),
                "{answer:?}"
            );
        });
        futures_util::future::join_all(waits).await;
        assert_eq!(limit.waiting("key").await, Ok(0), "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_that_cannot_be_met_is_refused_at_once_and_nobody_is_held_up() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let bucket = limit(&store, "bucket", Policy::token_bucket(quota("10/10h")));
    assert_eq!(bucket.mode(), Mode::Exact);
    assert!(bucket.wait(b"key", 8, HOUR).await.is_allowed());
    let denied = bucket.wait(b"key", 5, HOUR).await;
    // Two are there, so three must come.
    let wait = denied.decision.retry_after().expect("it fits some time");
    assert!(wait > 2 * HOUR && wait <= 3 * HOUR, "{denied:?}");
    assert_eq!(bucket.waiting("key").await, Ok(0));
    assert!(bucket.acquire("key", 1).await.is_allowed());
    // Above the limit.
    assert!(bucket.wait(b"key", 11, HOUR).await.decision.exceeds_limit());
    // The time counts those in front.
    let (sender, _answers) = mpsc::unbounded_channel();
    let first = waits(&bucket, ("key", 10), 0, &sender);
    until_waiting(&bucket, "key", 1).await;
    let behind = bucket
        .wait(b"key", 1, 9 * HOUR)
        .await
        .decision
        .retry_after();
    assert!(
        behind > Some(9 * HOUR) && behind <= Some(11 * HOUR),
        "{behind:?}"
    );
    // A caller that goes away leaves the line.
    first.abort();
    until_waiting(&bucket, "key", 0).await;
    assert!(bucket.acquire("key", 1).await.is_allowed());
    // When permits return is unknown, so this one waits until its time is over.
    let permits = Concurrency::new(1).hold(HOUR).expect("the hold is short");
    let permits = limit(&store, "permits", permits.into());
    assert!(permits.acquire("key", 1).await.is_allowed());
    let denied = permits.wait(b"key", 1, Duration::from_millis(20)).await;
    assert_eq!(denied.decision.reason(), Some(DenialReason::InFlight));
    until_waiting(&permits, "key", 0).await;
    // Without a line nothing waits.
    let plain = store.limit("plain", Policy::token_bucket(quota("1/1s")));
    let plain = plain.deadline(PATIENCE).build().expect("it can be shared");
    assert!(plain.wait(b"key", 1, HOUR).await.is_allowed());
    assert!(plain.wait(b"key", 1, HOUR).await.is_denied());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_unit_is_lost_or_given_twice_while_callers_come_and_go_at_two_nodes() {
    const UNITS: u64 = 300;
    let server = Server::start(&[]);
    let (one, two) = (
        reach(&server.address()).await,
        reach(&server.address()).await,
    );
    let policy = Policy::fixed_window(quota("300/360d"));
    let nodes = [&one, &two].map(|store| limit(store, "units", policy));
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    assert!(nodes[0].acquire("key", UNITS).await.is_allowed());
    let (sender, mut answers) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    let mut costs = Vec::new();
    let mut returned = 0;
    for number in 0..400 {
        costs.push(1 + below(4));
        let node = &nodes[below(2) as usize];
        tasks.push(waits(node, ("key", costs[number]), number, &sender));
        if below(3) == 0 {
            // Also one that is being served at this moment.
            tasks[below(tasks.len() as u64) as usize].abort();
        }
        let back = below(4).min(UNITS - returned);
        if back > 0 {
            let node = &nodes[below(2) as usize];
            let _standing = node.refund("key", back).await.expect("the store replies");
            returned += back;
        }
    }
    for task in tasks {
        task.abort();
        // An error: it was aborted.
        let _ = task.await;
    }
    drop(sender);
    let mut admitted = 0;
    while let Some((number, answer)) = answers.recv().await {
        assert!(answer.is_allowed(), "{answer:?}");
        admitted += costs[number];
    }
    until_waiting(&nodes[0], "key", 0).await;
    // What was granted to callers that had just left comes back.
    let used = UNITS - returned + admitted;
    let until = Until::new("all units are back that nobody has");
    let mut left = u64::MAX;
    while until.is_yet_to_be(left == UNITS - used) {
        left = nodes[1].peek("key", 0).await.decision.remaining();
        assert!(left <= UNITS - used, "{left} are left, and {used} are used");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(admitted > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_frees_its_places() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let (dying, other) = (
        reach(&proxy.address()).await,
        reach(&server.address()).await,
    );
    let policy = Policy::token_bucket(quota("4/4d"));
    let [dying, other] = [&dying, &other].map(|store| limit(store, "dies", policy));
    assert!(other.acquire("key", 4).await.is_allowed());
    let (sender, mut answers) = mpsc::unbounded_channel();
    waits(&dying, ("key", 4), 0, &sender);
    until_waiting(&other, "key", 1).await;
    waits(&other, ("key", 1), 1, &sender);
    until_waiting(&other, "key", 2).await;
    proxy.refuse(true);
    proxy.cut();
    let (number, answer) = answers.recv().await.expect("it is answered");
    // The store is down for it, and the limit fails closed.
    assert_eq!(number, 0);
    assert_eq!(
        answer.decision.reason(),
        Some(DenialReason::StoreDown),
        "{answer:?}"
    );
    let _standing = other.refund("key", 1).await.expect("the store replies");
    let (number, answer) = answers.recv().await.expect("it is answered");
    assert!(number == 1 && answer.is_allowed(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_frees_its_places_also_when_the_clock_goes_back_an_hour() {
    let server = Server::with_clock();
    let proxy = Proxy::before(server.port());
    server.shift_clock(3_600);
    let (dying, other) = (
        reach(&proxy.address()).await,
        reach(&server.address()).await,
    );
    let policy = Policy::token_bucket(quota("4/4d"));
    let [dying, other] = [&dying, &other].map(|store| limit(store, "dies", policy));
    assert!(other.acquire("key", 4).await.is_allowed());
    let (sender, mut answers) = mpsc::unbounded_channel();
    waits(&dying, ("key", 4), 0, &sender);
    until_waiting(&other, "key", 1).await;
    waits(&other, ("key", 1), 1, &sender);
    until_waiting(&other, "key", 2).await;
    proxy.refuse(true);
    proxy.cut();
    let (number, _failed) = answers.recv().await.expect("it is answered");
    assert_eq!(number, 0);
    // By this clock, the tickets of the node that has died would stay for an hour.
    server.shift_clock(0);
    until("the clock is seen", || {
        other.store().stats().clock_went_back
    })
    .await;
    let _standing = other.refund("key", 1).await.expect("the store replies");
    // The time for which they stay.
    server.shift_clock(6);
    let served = tokio::time::timeout(PATIENCE, answers.recv()).await;
    let (number, answer) = served.expect("it is served").expect("it is answered");
    assert!(number == 1 && answer.is_allowed(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_the_store_has_lost_forms_again() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let permits = Concurrency::new(1).hold(HOUR).expect("the hold is short");
    let limit = limit(&store, "lost", permits.into());
    let (sender, mut answers) = mpsc::unbounded_channel();
    assert!(limit.acquire("key", 1).await.is_allowed());
    for number in 0..4 {
        waits(&limit, ("key", 1), number, &sender);
        until_waiting(&limit, "key", number as u64 + 1).await;
    }
    server.ask(&["FLUSHALL"]);
    for number in 0..4 {
        let (served, answer) = answers.recv().await.expect("it is answered");
        assert!(served == number && answer.is_allowed(), "{answer:?}");
        let _standing = limit.refund("key", 1).await.expect("the store replies");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_on_error_decides_for_those_who_wait() {
    for (on_error, admits) in [
        (OnError::Open, true),
        (OnError::Closed, false),
        (OnError::Local, true),
    ] {
        let server = Server::start(&[]);
        let store = reach(&server.address()).await;
        let limit = store
            .limit("down", Policy::token_bucket(quota("4/4d")))
            .line(true)
            .on_error(on_error)
            .deadline(PATIENCE)
            .build()
            .expect("the policy can be shared");
        assert!(limit.acquire("key", 4).await.is_allowed());
        let (sender, mut answers) = mpsc::unbounded_channel();
        for number in 0..3 {
            waits(&limit, ("key", 1), number, &sender);
        }
        until_waiting(&limit, "key", 3).await;
        drop(server);
        for _ in 0..3 {
            let (_, answer) = answers.recv().await.expect("it is answered");
            assert_eq!(answer.is_allowed(), admits, "{on_error:?}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn if_the_task_of_a_line_panics_on_error_decides_for_those_who_wait_and_a_new_line_is_served()
{
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let limit = limit(&store, "panics", Policy::fixed_window(quota("4/360d")));
    assert!(limit.acquire("key", 4).await.is_allowed());
    let fails = Arc::new(AtomicBool::new(false));
    let mut waiting = Vec::new();
    for number in 0..3 {
        let queued = queued(&limit, 1).await;
        let (in_force, fails) = (limit.clone(), Arc::clone(&fails));
        let now = Arc::new(move || {
            let panics = fails.load(Ordering::SeqCst);
            assert!(!panics, "this panic is part of the test");
            (vec![in_force.clone()], true)
        });
        waiting.push(tokio::spawn(queued.answer(now)));
        until_waiting(&limit, "key", number + 1).await;
    }
    fails.store(true, Ordering::SeqCst);
    // The task asks at once, and panics before it does.
    let _standing = limit.refund("key", 1).await.expect("the store replies");
    for answer in waiting {
        let granted = answer.await.expect("it is answered");
        let answer = &granted.answers()[0];
        assert_eq!(answer.source, Source::Failed(StoreError::LineEnded));
        assert!(answer.is_denied(), "{answer:?}");
    }
    // The tickets of the line that has ended expire.
    until_waiting(&limit, "key", 0).await;
    assert!(limit.acquire("key", 1).await.is_allowed());
    let (sender, mut answers) = mpsc::unbounded_channel();
    waits(&limit, ("key", 1), 3, &sender);
    until_waiting(&limit, "key", 1).await;
    let _standing = limit.refund("key", 1).await.expect("the store replies");
    let (_, answer) = answers.recv().await.expect("it is answered");
    assert!(answer.is_allowed(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_is_in_the_slot_of_its_key_in_a_cluster() {
    let cluster = Cluster::start(3);
    let addresses = format!("redis+cluster://{}", cluster.addresses().join(","));
    let (one, two) = (reach(&addresses).await, reach(&addresses).await);
    let permits = Concurrency::new(1).hold(HOUR).expect("the hold is short");
    let nodes = [&one, &two].map(|store| limit(store, "x", permits.into()));
    for key in ["key", "{tag}key", "}{", ""] {
        // The cluster's client learns which node has a slot.
        for node in &nodes {
            let until = Until::new("the store decides");
            while until.is_yet_to_be(node.peek(key, 0).await.source == Source::Store) {}
        }
        assert!(nodes[0].acquire(key, 1).await.is_allowed(), "{key}");
        let (sender, mut answers) = mpsc::unbounded_channel();
        for number in 0..4 {
            waits(&nodes[number % 2], (key, 1), number, &sender);
            until_waiting(&nodes[0], key, number as u64 + 1).await;
        }
        for number in 0..4 {
            let _standing = nodes[0].refund(key, 1).await.expect("the store replies");
            let (served, answer) = answers.recv().await.expect("somebody waits");
            assert!(served == number && answer.is_allowed(), "{key}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_may_hear_of_any_number_of_returned_units_while_another_is_first() {
    let server = Server::start(&[]);
    let nodes = [
        reach(&server.address()).await,
        reach(&server.address()).await,
    ];
    let policy = Policy::fixed_window(quota("1000/360d"));
    let [first, second] = nodes
        .each_ref()
        .map(|store| limit(store, "returned", policy));
    assert!(first.acquire("key", 1_000).await.is_allowed());
    // It is first, and takes nothing.
    let queued = queued(&first, 1).await;
    let limit = first.clone();
    let now = Arc::new(move || (vec![limit.clone()], false));
    let holds = tokio::spawn(queued.answer(now));
    until_waiting(&first, "key", 1).await;
    let (sender, mut answers) = mpsc::unbounded_channel();
    waits(&second, ("key", 1), 7, &sender);
    until_waiting(&first, "key", 2).await;
    // Each makes the second node ask at once.
    for _ in 0..400 {
        let _standing = second.refund("key", 1).await.expect("the store replies");
    }
    holds.abort();
    let answer = tokio::time::timeout(PATIENCE, answers.recv()).await;
    let (number, answer) = answer.expect("it is served").unwrap();
    assert!(number == 7 && answer.is_allowed(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_starves_and_nothing_is_over_while_connections_break() {
    const CALLERS: u64 = 150;
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let direct = reach(&server.address()).await;
    let broken = reach(&proxy.address()).await;
    let policy = Policy::fixed_window(quota("1000/360d"));
    let [direct, broken] = [&direct, &broken].map(|store| limit(store, "breaks", policy));
    assert!(direct.acquire("key", 1_000).await.is_allowed());
    let (sender, mut answers) = mpsc::unbounded_channel();
    for number in 0..CALLERS {
        let node = if number % 2 == 0 { &direct } else { &broken };
        waits(node, ("key", 2), number as usize, &sender);
    }
    let (mut returned, mut admitted, mut denied) = (0, 0, 0);
    while admitted + denied < CALLERS {
        // Also between a call and its reply. What a lost reply has taken is charged.
        if returned < 1_000 {
            // Then the rest suffices for all.
            if returned < 400 {
                proxy.cut();
            }
            let _standing = direct.refund("key", 4).await.expect("the store replies");
            returned += 4;
        }
        match tokio::time::timeout(Duration::from_millis(5), answers.recv()).await {
            Ok(Some((_, answer))) if answer.source == Source::Store => {
                assert!(answer.is_allowed(), "{answer:?}");
                admitted += 1;
            }
            // Three calls in a row have failed, and the limit fails closed.
            Ok(answer) => {
                assert!(answer.is_some_and(|(_, answer)| answer.is_denied()));
                denied += 1;
            }
            Err(_) => {}
        }
    }
    assert!(2 * admitted <= returned, "{admitted} of {returned}");
    until_waiting(&direct, "key", 0).await;
    let left = direct.peek("key", 0).await.decision.remaining();
    assert!(left <= returned - 2 * admitted, "{left} are left");
    assert!(admitted >= CALLERS / 2, "{denied} were denied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_asks_for_its_first_caller_alone() {
    const CALLERS: usize = 200;
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let policy = Policy::token_bucket(quota("4/4d"));
    let limit = limit(&store, "calls", policy);
    assert!(limit.acquire("key", 4).await.is_allowed());
    let (sender, mut answers) = mpsc::unbounded_channel();
    let before = store.stats().calls;
    let tasks: Vec<_> = (0..CALLERS)
        .map(|number| waits(&limit, ("key", 1), number, &sender))
        .collect();
    let mut looks = 1;
    while limit.waiting("key").await != Ok(CALLERS as u64) {
        looks += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for _ in 0..CALLERS {
        let _standing = limit.refund("key", 1).await.expect("the store replies");
        let (_, answer) = answers.recv().await.expect("somebody waits");
        assert!(answer.is_allowed());
    }
    // One to ask, at most one to join, a refund, and two for each admission: the next one is told
    // to wait. A refund may come between these two, and one call each second keeps the tickets.
    let calls = store.stats().calls - before - looks;
    assert!(calls < 8 * CALLERS as u64, "{calls} calls");
    for task in tasks {
        task.await.expect("it has ended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_is_no_denial_that_blocks_its_key() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let penalty = Penalty::new(&[HOUR]).expect("the span is short");
    let policy = Policy::sliding_log(quota("2/360d")).expect("the log is short");
    let limit = limit(&store, "blocks", policy.block_for(penalty));
    let (sender, mut answers) = mpsc::unbounded_channel();
    assert!(limit.wait(b"key", 2, HOUR).await.is_allowed());
    assert!(
        limit.wait(b"key", 1, HOUR).await.is_denied(),
        "it is too late"
    );
    waits(&limit, ("key", 1), 0, &sender);
    until_waiting(&limit, "key", 1).await;
    let _standing = limit.refund("key", 1).await.expect("the store replies");
    let (_, answer) = answers.recv().await.expect("it is answered");
    assert!(answer.is_allowed(), "{answer:?}");
    // One that does not wait blocks the key, and this holds up those who wait.
    waits(&limit, ("key", 1), 1, &sender);
    until_waiting(&limit, "key", 1).await;
    assert!(limit.acquire("key", 1).await.is_denied());
    let _standing = limit.refund("key", 2).await.expect("the store replies");
    assert!(limit.wait(b"key", 2, HOUR / 2).await.is_denied());
    assert_eq!(limit.waiting("key").await, Ok(1));
    assert_eq!(limit.unblock("key").await, Ok(true));
    let (number, answer) = answers.recv().await.expect("it is answered");
    assert!(number == 1 && answer.is_allowed(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_limit_decides_for_those_who_already_wait() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let before = limit(&store, "changed", Policy::fixed_window(quota("4/360d")));
    let larger = limit(&store, "changed", Policy::fixed_window(quota("6/360d")));
    let smaller = limit(&store, "changed", Policy::fixed_window(quota("2/360d")));
    assert!(before.acquire("key", 4).await.is_allowed());
    let now = Arc::new(std::sync::Mutex::new((before.clone(), true, 0)));
    let ask = |cost| {
        let (limit, now) = (before.clone(), Arc::clone(&now));
        tokio::spawn(async move {
            let queued = queued(&limit, cost).await;
            let now = move || {
                let mut now = now.lock().expect("no thread has panicked");
                now.2 += 1;
                (vec![now.0.clone()], now.1)
            };
            queued.answer(Arc::new(now)).await.keep()
        })
    };
    let set = |limit: &SharedLimit, takes| {
        let mut now = now.lock().expect("no thread has panicked");
        *now = (limit.clone(), takes, 0);
    };
    let large = ask(3);
    until_waiting(&before, "key", 1).await;
    let small = ask(2);
    until_waiting(&before, "key", 2).await;
    set(&smaller, true);
    let (denied, taken) = large.await.expect("it is answered");
    assert!(
        denied[0].decision.exceeds_limit() && taken.is_empty(),
        "{denied:?}"
    );
    until_waiting(&before, "key", 1).await;
    // It may take nothing for now, although it fits.
    set(&larger, false);
    let asked = || now.lock().expect("no thread has panicked").2;
    until("the store has been asked", || asked() > 1).await;
    assert_eq!(before.waiting("key").await, Ok(1));
    set(&larger, true);
    let (answer, taken) = small.await.expect("it is answered");
    assert!(answer[0].is_allowed() && taken[0].cost() == 2, "{answer:?}");
    assert_eq!(larger.peek("key", 0).await.decision.remaining(), 0);
}
