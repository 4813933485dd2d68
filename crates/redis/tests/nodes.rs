//! Without the store, each node admits its share of a limit.

use std::net::TcpListener;

use tidegate_core::Policy;
use tidegate_redis::{Source, Store};

/// A store at an address where nothing listens.
fn unreachable() -> Store {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
    let port = listener.local_addr().expect("a bound socket has an address").port();
    drop(listener);
    Store::open(&format!("redis://127.0.0.1:{port}")).expect("the address is well formed")
}

async fn admitted(store: &Store) -> usize {
    let policy = Policy::fixed_window("90/365d".parse().expect("the quota is well formed"));
    let limit = store.limit("x", policy).build().expect("the policy can be shared");
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
    let log = Policy::sliding_log("600/20s".parse().expect("well formed")).expect("the log is short");
    let limits: Vec<_> = (0..40)
        .map(|at| store.limit(&format!("l{at}"), log).build().expect("the policy can be shared"))
        .collect();
    // The first decisions may wait until the connection is refused.
    for limit in &limits {
        let _ = limit.acquire("k", 1).await;
    }
    let mut slowest = std::time::Duration::ZERO;
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
    assert!(slowest < std::time::Duration::from_millis(60), "{slowest:?}");
}
