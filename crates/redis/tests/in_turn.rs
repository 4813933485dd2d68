//! Several requests for one key in one call.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Policy, Quota, algorithm::Concurrency};
use tidegate_redis::{Health, SharedDecision, Store};
use tidegate_redis_servers::{PATIENCE, Server, eventually};

/// Windows that do not end within a test.
fn policies() -> Vec<Policy> {
    let quota = |text: &str| text.parse::<Quota>().expect("the quota is well formed");
    let log = |text| Policy::sliding_log(quota(text)).expect("the log is not too long");
    let permits = Concurrency::new(40).hold(Duration::from_hours(24)).expect("the hold is short");
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
        let limit = store.limit("turn", policy).remember_denials(false).deadline(PATIENCE);
        let limit = limit.build().expect("the policy can be shared");
        // Other callers, so that there is a queue.
        let others: Vec<_> = (0..200)
            .map(|at| {
                let limit = limit.clone();
                tokio::spawn(async move { limit.acquire(format!("other{at}"), 1).await })
            })
            .collect();
        let costs: Vec<u32> = (0..60).map(|at| [3, 0, 5, 1, 50, 1_000][at % 6]).collect();
        let told = limit.acquire_in_turn("many", &costs).await;
        for other in others {
            assert!(other.await.expect("no task panics").is_allowed());
        }
        let room = |answer: &SharedDecision| (answer.is_allowed(), answer.decision.remaining());
        for (at, (&cost, answer)) in costs.iter().zip(&told).enumerate() {
            let one = limit.acquire("one by one", cost).await;
            assert_eq!(room(answer), room(&one), "{policy:?}, {at}: {answer:?}, {one:?}");
        }
        assert!(limit.acquire_in_turn("many", &[]).await.is_empty());
        let before = store.stats().calls;
        assert_eq!(limit.acquire_in_turn("alone", &costs).await.len(), costs.len());
        let calls = store.stats().calls - before;
        assert!(calls < 10, "{calls} calls, with a few heartbeats");
        server.ask(&["FLUSHALL"]);
    }
}
