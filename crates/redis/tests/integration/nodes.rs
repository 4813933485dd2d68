//! Without the store, each node admits its share of a limit.

use std::{net::TcpListener, time::Duration};

use tidegate_core::{
    Policy, Quota,
    algorithm::{Concurrency, SlidingWindow},
};
use tidegate_redis::{SharedLimit, Source, Store};

/// A store at an address where nothing listens.
fn unreachable() -> Store {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
    let port = listener
        .local_addr()
        .expect("a bound socket has an address")
        .port();
    drop(listener);
    Store::open(&format!("redis://127.0.0.1:{port}")).expect("the address is well formed")
}

async fn admitted(store: &Store) -> usize {
    let policy = Policy::fixed_window("90/365d".parse().expect("the quota is well formed"));
    let limit = store
        .limit("x", policy)
        .build()
        .expect("the policy can be shared");
    let mut admitted = 0;
    for _ in 0..100 {
        let answer = limit.acquire("k", 1).await;
        assert!(matches!(answer.source, Source::Local(_)), "{answer:?}");
        admitted += usize::from(answer.is_allowed());
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_while_the_store_is_down_share_one_limit() {
    let alone = unreachable();
    assert_eq!(admitted(&alone).await, 90, "it knows of no other");
    let told = unreachable();
    told.set_least_nodes(3);
    assert_eq!(admitted(&told).await, 30);
    let recalls = unreachable();
    recalls.recall_nodes(2);
    assert_eq!(admitted(&recalls).await, 45);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_number_of_nodes_applies_to_forty_limits_immediately() {
    let store = unreachable();
    let log =
        Policy::sliding_log("600/20s".parse().expect("well formed")).expect("the log is short");
    let limits: Vec<_> = (0..40)
        .map(|at| {
            store
                .limit(&format!("l{at}"), log)
                .build()
                .expect("the policy can be shared")
        })
        .collect();
    // The first decisions may wait until the connection is refused.
    for limit in &limits {
        let _ = limit.acquire("k", 1).await;
    }
    let mut slowest = Duration::ZERO;
    for nodes in [3, 2, 1] {
        store.set_least_nodes(nodes);
        for limit in &limits {
            let begun = tokio::time::Instant::now();
            let answer = limit.acquire("k", 1).await;
            slowest = slowest.max(begun.elapsed());
            assert!(matches!(answer.source, Source::Local(_)), "{answer:?}");
            assert_eq!(answer.decision.limit(), u64::from(600 / nodes));
        }
    }
    assert!(slowest < Duration::from_millis(60), "{slowest:?}");
}

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn limit(store: &Store, policy: Policy) -> SharedLimit {
    store
        .limit("x", policy)
        .build()
        .expect("the policy can be shared")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_is_the_limit_divided_by_the_nodes_and_at_least_one() {
    let policies: [Policy; 7] = [
        Policy::fixed_window(quota("100/365d")),
        Policy::sliding_log(quota("100/1h")).expect("the log is short"),
        SlidingWindow::new(quota("100/1h")).balanced().into(),
        Policy::sliding_counter(quota("100/365d")),
        Policy::token_bucket(quota("100/1h")),
        Policy::leaky_bucket(quota("100/1h")),
        Concurrency::new(100)
            .hold(Duration::from_hours(1))
            .expect("the hold is short")
            .into(),
    ];
    let store = unreachable();
    for policy in policies {
        for (nodes, fits) in [(1, 100), (3, 33), (4, 25), (30, 3), (100, 1), (1_000, 1)] {
            store.set_least_nodes(nodes);
            let limit = limit(&store, policy);
            let beyond = limit.acquire("k", fits + 1).await;
            assert!(
                beyond.is_denied() && beyond.decision.retry_after().is_none(),
                "{policy:?}, {nodes} nodes"
            );
            let all = limit.acquire("k", fits).await;
            assert!(all.is_allowed(), "{policy:?}, {nodes} nodes: {all:?}");
            assert_eq!(all.decision.limit(), fits, "{policy:?}, {nodes} nodes");
            // A leaky bucket's limit is its highest cost, and later requests wait.
            if policy.name() != "leaky-bucket" {
                assert_eq!(all.decision.remaining(), 0, "{policy:?}, {nodes} nodes");
                assert!(
                    limit.acquire("k", 1).await.is_denied(),
                    "{policy:?}, {nodes} nodes"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_shared_by_four_fills_four_times_as_slowly() {
    let store = unreachable();
    store.set_least_nodes(4);
    let limit = limit(&store, Policy::token_bucket(quota("100/1h")));
    assert!(limit.acquire("k", 25).await.is_allowed());
    let wait = limit
        .acquire("k", 1)
        .await
        .decision
        .retry_after()
        .expect("it fits later");
    assert!(
        wait > Duration::from_secs(110) && wait <= Duration::from_secs(144),
        "{wait:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_admits_no_more_than_its_largest_share_while_the_number_of_nodes_changes() {
    let store = unreachable();
    let limit = limit(&store, Policy::fixed_window(quota("90/365d")));
    let mut admitted = 0;
    for nodes in [3, 2, 3, 5, 2, 9] {
        store.set_least_nodes(nodes);
        while limit.acquire("k", 1).await.is_allowed() {
            admitted += 1;
        }
    }
    assert!((30..=45).contains(&admitted), "{admitted} admitted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_policy_has_room_for_its_keys() {
    let store = unreachable();
    for text in ["1/1h", "1000/1h", "30000/1h", "50000/1h", "1000000/1h"] {
        let limit = limit(
            &store,
            Policy::sliding_log(quota(text)).expect("the log is not too long"),
        );
        assert!(
            limit.acquire("k", quota(text).limit()).await.is_allowed(),
            "{text}"
        );
        assert!(limit.acquire("k", 1).await.is_denied(), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assumed_number_of_nodes_applies_until_one_is_known() {
    let store = unreachable();
    store.assume_nodes(10);
    assert_eq!(store.nodes(), 10);
    store.recall_nodes(5);
    store.assume_nodes(10);
    assert_eq!(store.nodes(), 5, "it is known");
    store.set_least_nodes(7);
    assert_eq!(store.nodes(), 7);
    store.set_least_nodes(0);
    assert_eq!(store.nodes(), 5);
}
