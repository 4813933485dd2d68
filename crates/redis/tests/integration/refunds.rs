//! Refunds of shared limits.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{
    Algorithm, Policy, Quota,
    algorithm::{Concurrency, FixedWindow},
};
use tidegate_redis::{Health, SharedLimit, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server, eventually};

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn log(text: &str) -> Policy {
    Policy::sliding_log(quota(text)).expect("the log is not too long")
}

fn permits(limit: u32, hold: Duration) -> Policy {
    Concurrency::new(limit)
        .hold(hold)
        .expect("the hold is short")
        .into()
}

/// One policy of each algorithm, with windows that do not end within a test.
fn policies() -> Vec<Policy> {
    vec![
        FixedWindow::new(quota("40/366d")).first_hit().into(),
        Policy::sliding_window(quota("40/360d")),
        Policy::sliding_counter(quota("40/366d")),
        Policy::token_bucket(quota("40/366d")),
        Policy::leaky_bucket(quota("40/366d")),
        log("40/366d"),
        log("400/366d"),
        permits(40, Duration::from_hours(24)),
    ]
}

/// A store that has been reached.
fn open(server: &Server) -> Store {
    let store = Store::open(&server.address()).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn limit(store: &Store, name: &str, policy: Policy) -> SharedLimit {
    store
        .limit(name, policy)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

async fn refund(limit: &SharedLimit, key: &str, cost: u64) -> u64 {
    let told = limit.refund(key, cost).await.expect("the store answers");
    assert_eq!(told.source, Source::Store);
    told.decision.remaining()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_can_refund_and_a_refund_clears_the_remembered_denial() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server), open(&server));
    for (at, policy) in policies().into_iter().enumerate() {
        let name = format!("l{at}");
        let (here, there) = (limit(&one, &name, policy), limit(&two, &name, policy));
        let whole = policy.limit();
        // A leaky bucket delays, and denies only beyond its longest wait, so it admits one more
        // than its limit.
        let all = if policy.name() == "leaky-bucket" {
            whole + 1
        } else {
            whole
        };
        for _ in 0..all {
            assert!(here.acquire("k", 1).await.is_allowed(), "{policy:?}");
        }
        assert!(here.acquire("k", 1).await.is_denied(), "{policy:?}");
        refund(&here, "k", 3).await;
        assert!(
            here.acquire("k", 2).await.is_allowed(),
            "{policy:?}: the denial is forgotten"
        );
        let left = refund(&there, "k", u64::MAX).await;
        assert_eq!(left, whole, "{policy:?}: all is back, and no more than all");
        assert!(here.acquire("k", whole).await.is_allowed(), "{policy:?}");
        assert_eq!(refund(&here, "never seen", 5).await, whole);
        let key = String::from_utf8(here.redis_key("never seen")).expect("the key is text");
        assert_eq!(server.ask(&["EXISTS", &key]).text(), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_remembers_a_denial_notices_the_refund_at_another_node() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server), open(&server));
    let [here, there] = [&one, &two].map(|store| limit(store, "x", log("5/366d")));
    assert!(here.acquire("a", 5).await.decision.is_allowed());
    assert!(there.acquire("a", 1).await.decision.is_denied());
    assert_eq!(refund(&here, "a", 5).await, 5);
    let begun = tokio::time::Instant::now();
    while there.acquire("a", 1).await.decision.is_denied() {
        assert!(
            begun.elapsed() < PATIENCE,
            "the denial is remembered for a year"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_granted_without_the_store_are_refunded_in_memory() {
    let mut server = Server::start(&[]);
    let store = open(&server);
    let (jobs, rate) = (
        limit(&store, "jobs", permits(3, Duration::from_hours(1))),
        limit(&store, "rate", policies().remove(0)),
    );
    assert!(jobs.acquire("k", 3).await.is_allowed() && rate.acquire("k", 40).await.is_allowed());
    server.kill();
    eventually("the store is found to be down", || {
        store.health() == Health::Down
    });
    assert!(jobs.acquire("k", 2).await.is_allowed());
    let here = rate.refund("k", 5).await.expect("it is decided in memory");
    assert!(matches!(here.source, Source::Local(_)), "{here:?}");
    server.start_again();
    eventually("the store is back", || store.health() == Health::Up);
    // The store's own permits were lost with its data.
    assert!(jobs.acquire("k", 3).await.is_allowed());
    assert_eq!(
        refund(&jobs, "k", 2).await,
        0,
        "the two permits that the store does not know were refunded in memory"
    );
    assert_eq!(refund(&jobs, "k", 2).await, 2);
}
