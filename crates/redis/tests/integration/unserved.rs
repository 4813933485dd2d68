//! A cluster slot that no master serves.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::Policy;
use tidegate_redis::{OnError, SharedLimit, Source, Store};
use tidegate_redis_servers::{Cluster, PATIENCE};

/// Asks until the store decides, or until it does not, each time with a new key in one slot.
async fn until(limit: &SharedLimit, tag: &str, decided: bool) {
    for at in 0..PATIENCE.as_millis() / 10 {
        let answer = limit.acquire(format!("{{{tag}}}{decided}{at}"), 1).await;
        if (answer.source == Source::Store) == decided {
            assert_eq!(
                answer.is_allowed(),
                decided,
                "without the store the limit is closed"
            );
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!(
        "whether the store decides on {tag}: {}; {:?}",
        !decided,
        limit.store()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unserved_slot_is_reported_affects_no_other_and_is_used_again_later() {
    let cluster = Cluster::start(3);
    let store = Store::open(&format!(
        "redis+cluster://{}",
        cluster.addresses().join(",")
    ))
    .expect("the address is well formed");
    let policy = Policy::token_bucket("10/1h".parse().expect("the quota is well formed"));
    let limit = store
        .limit("x", policy)
        .on_error(OnError::Closed)
        .deadline(Duration::from_secs(2));
    let limit = limit.build().expect("the policy can be shared");
    until(&limit, "lost", true).await;
    until(&limit, "other", true).await;

    let slot = cluster.servers[0]
        .ask(&["CLUSTER", "KEYSLOT", "lost"])
        .text()
        .to_owned();
    let owner = &cluster.servers[slot.parse::<usize>().expect("a slot") * 3 / 16_384];
    for server in &cluster.servers {
        server.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    // Each server has its own view of who serves a slot.
    for server in &cluster.servers {
        server.ask(&["CLUSTER", "DELSLOTS", &slot]);
    }
    until(&limit, "lost", false).await;
    for _ in 0..PATIENCE.as_millis() / 10 {
        if store.stats().errors_of("cluster-down") > 0 {
            break;
        }
        until(&limit, "lost", false).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(store.stats().errors_of("cluster-down") > 0, "{store:?}");
    until(&limit, "other", true).await;

    owner.ask(&["CLUSTER", "ADDSLOTS", &slot]);
    until(&limit, "lost", true).await;
}
