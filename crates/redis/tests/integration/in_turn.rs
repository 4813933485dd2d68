//! Several requests for one limit in one call.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Policy, Quota, algorithm::Concurrency};
use tidegate_redis::{Health, OnError, SharedDecision, SharedLimit, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server, eventually};
use tokio::task::JoinHandle;

/// Windows that do not end within a test.
fn policies() -> Vec<Policy> {
    let quota = |text: &str| text.parse::<Quota>().expect("the quota is well formed");
    let log = |text| Policy::sliding_log(quota(text)).expect("the log is not too long");
    let permits = Concurrency::new(40)
        .hold(Duration::from_hours(24))
        .expect("the hold is short");
    vec![
        Policy::sliding_window(quota("40/360d")),
        Policy::token_bucket(quota("40/366d")),
        log("40/366d"),
        log("400/366d"),
        permits.into(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_in_turn_are_decided_in_order_and_in_one_call_beside_other_callers() {
    let server = Server::start(&[]);
    for policy in policies() {
        let store = Store::open(&server.address()).expect("the address is well formed");
        eventually("the store is reached", || store.health() == Health::Up);
        // A remembered denial would return what was left then.
        let limit = store
            .limit("turn", policy)
            .remember_denials(false)
            .deadline(PATIENCE);
        let limit = limit.build().expect("the policy can be shared");
        // Other callers, so that there is a queue.
        let others: Vec<_> = (0..200)
            .map(|at| {
                let limit = limit.clone();
                tokio::spawn(async move { limit.acquire(format!("other{at}"), 1).await })
            })
            .collect();
        let costs: Vec<u64> = (0..60).map(|at| [3, 0, 5, 1, 50, 1_000][at % 6]).collect();
        let of = |key: &'static str| costs.iter().map(|cost| (key, *cost)).collect::<Vec<_>>();
        let answers = limit.acquire_many(&of("many")).await;
        for other in others {
            assert!(other.await.expect("no task panics").is_allowed());
        }
        let room = |answer: &SharedDecision| (answer.is_allowed(), answer.decision.remaining());
        for (at, (&cost, answer)) in costs.iter().zip(&answers).enumerate() {
            let one = limit.acquire("one by one", cost).await;
            assert_eq!(
                room(answer),
                room(&one),
                "{policy:?}, {at}: {answer:?}, {one:?}"
            );
        }
        assert!(limit.acquire_many::<&str>(&[]).await.is_empty());
        let before = store.stats().calls;
        assert_eq!(limit.acquire_many(&of("alone")).await.len(), costs.len());
        let calls = store.stats().calls - before;
        assert!(calls < 10, "{calls} calls, with a few heartbeats");
        server.ask(&["FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_share_a_call_and_each_request_has_its_own_answer() {
    let mut server = Server::start(&[]);
    for (at, policy) in policies().into_iter().enumerate() {
        let store = Store::open(&server.address()).expect("the address is well formed");
        eventually("the store is reached", || store.health() == Health::Up);
        let limit = |name| {
            store
                .limit(name, policy)
                .deadline(PATIENCE)
                .on_error(OnError::Open)
        };
        let many = limit("many").build().expect("the policy can be shared");
        let alone = limit("alone").build().expect("the policy can be shared");
        // Neighbours with one key are in order, and a denial is remembered for the second time
        // round.
        let requests: Vec<(String, u64)> = (0..90)
            .map(|nth| (format!("key{}", nth / 3), [30, 50, 11][nth % 3]))
            .collect();
        let room = |answer: &SharedDecision| (answer.is_allowed(), answer.decision.remaining());
        for round in 0..2 {
            let before = store.stats();
            let answers = many.acquire_many(&requests).await;
            let after = store.stats();
            for ((key, cost), answer) in requests.iter().zip(&answers) {
                let one = alone.acquire(key, *cost).await;
                assert_eq!(
                    room(answer),
                    room(&one),
                    "{policy:?}, round {round}, {key}: {answer:?}, {one:?}"
                );
            }
            let calls = after.calls - before.calls;
            assert!(calls < 10, "{calls} calls, with a few heartbeats");
            // The log of 400 denies nothing, and no denial of permits is remembered: they may be
            // given back at any time.
            let remembers = round == 1 && at < 3;
            assert_eq!(
                after.remembered > before.remembered,
                remembers,
                "{policy:?}: {before:?}, {after:?}"
            );
        }
        server.ask(&["FLUSHALL"]);
    }
    // Without the store, each request follows `on_error`.
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = store
        .limit("many", policies()[0])
        .on_error(OnError::Open)
        .build()
        .expect("it can be shared");
    server.kill();
    let answers = limit
        .acquire_many(&[("a", 1), ("b", 1_000), ("b", 1)])
        .await;
    assert_eq!(answers.len(), 3);
    for answer in answers {
        assert!(
            answer.is_allowed() && matches!(answer.source, Source::Failed(_)),
            "{answer:?}"
        );
    }
}

/// A hundred requests in turn, asked in a task. A runtime with one thread runs the task first that
/// was spawned last: separate tasks for the requests would be out of order.
fn in_a_task(limit: SharedLimit) -> JoinHandle<Vec<SharedDecision>> {
    tokio::spawn(async move { limit.acquire_many(&[("hot", 1); 100]).await })
}

/// Asserts that these are the answers of a limit of 5 to requests in turn.
fn assert_in_order(answers: &[SharedDecision]) {
    let answers = answers
        .iter()
        .map(|answer| (answer.is_allowed(), answer.decision.remaining()));
    let expected = (0..100).map(|at| (at < 5, 4_u64.saturating_sub(at)));
    assert!(
        answers.clone().eq(expected),
        "{:?}",
        answers.collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn costs_in_turn_are_decided_in_order_by_a_node_that_does_not_know_the_other_rules_yet() {
    for policy in ["sliding-log 5/1h", "5/366d"] {
        let server = Server::start(&[]);
        server.freeze();
        let store = Store::open(&server.address()).expect("the address is well formed");
        let limit = store.limit(
            "turn",
            policy.parse::<Policy>().expect("the policy is well formed"),
        );
        let limit = limit
            .announced(true)
            .deadline(PATIENCE)
            .build()
            .expect("the policy can be shared");
        let asked = in_a_task(limit);
        // The thread has run what it had to.
        tokio::spawn(async {})
            .await
            .expect("the task does not panic");
        assert!(!asked.is_finished(), "the store is frozen");
        server.thaw();
        assert_in_order(&asked.await.expect("the task does not panic"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn costs_in_turn_are_decided_in_order_while_another_rule_binds_the_node() {
    let server = Server::start(&[]);
    let node = |policy: &str| {
        let store = Store::open(&server.address()).expect("the address is well formed");
        let limit = store.limit(
            "turn",
            policy.parse::<Policy>().expect("the policy is well formed"),
        );
        limit
            .announced(true)
            .deadline(PATIENCE)
            .build()
            .expect("the policy can be shared")
    };
    let former = node("5/1h");
    assert!(former.acquire("other", 1).await.is_allowed());
    let new = node("sliding-log 5/1h");
    assert!(new.acquire("other", 1).await.is_allowed());
    assert_eq!(
        former.acquire("other", 0).await.decision.remaining(),
        3,
        "both rules are charged"
    );
    assert_in_order(&in_a_task(new).await.expect("the task does not panic"));
}
