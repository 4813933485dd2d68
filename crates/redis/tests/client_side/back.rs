//! The first decisions after an outage.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Clock, Nanos, Policy, Quota, clock::SystemClock};
use tidegate_redis::{Health, OnError, SharedLimit, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server, eventually};

fn limit(store: &Store) -> SharedLimit {
    let quota: Quota = "1000000/1h".parse().expect("the quota is well formed");
    let limit = store
        .limit("x", Policy::token_bucket(quota))
        .on_error(OnError::Closed);
    limit
        .deadline(Duration::from_secs(5))
        .build()
        .expect("the policy can be shared")
}

/// Waits until the store decides again.
async fn decides(limit: &SharedLimit) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if limit.acquire("k", 1).await.source == Source::Store {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store does not decide: {:?}", limit.store().trouble());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_limit_admits_soon_after_the_store_is_back() {
    let mut server = Server::start(&[]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = limit(&store);
    for outage in 0..3 {
        decides(&limit).await;
        let failed = || store.stats().errors.iter().sum::<u64>();
        server.kill();
        eventually("the store is known to be down", || {
            store.health() == Health::Down
        });
        let before = failed();
        // Long enough for the longest pause between two heartbeats.
        eventually("many heartbeats have failed", || failed() > before + 8);
        server.start_again();
        let clock = SystemClock::new();
        let back = clock.now();
        decides(&limit).await;
        let late = clock.now().saturating_since(back);
        // Half a second, and as much again for a busy machine.
        assert!(
            late < Nanos::from_millis(1_000),
            "outage {outage}: {late:?}"
        );
    }
}
