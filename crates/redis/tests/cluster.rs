//! Limits in a cluster of three masters, each with a replica.
#![cfg(feature = "servers")]

#[path = "integration/waiting/mod.rs"]
mod waiting;

use std::time::Duration;

use tidegate_core::{Policy, Quota};
use tidegate_redis::{
    Corrected, Correction, Health, Mode, OnError, Order, Part, Reserved, SharedDecision,
    SharedLimit, Source, Store, StoreError,
};
use tidegate_redis_servers::{Cluster, PATIENCE, eventually};
use waiting::Until;

fn limit(store: &Store, name: &str) -> SharedLimit {
    let quota: Quota = "10/1h".parse().expect("the quota is well formed");
    let policy = Policy::sliding_log(quota).expect("the log is short");
    let limit = store
        .limit(name, policy)
        .on_error(OnError::Closed)
        .remember_denials(false);
    limit
        .deadline(Duration::from_secs(20))
        .build()
        .expect("the policy can be shared")
}

/// How often the store admits a key before it denies.
async fn use_up(limit: &SharedLimit, key: &str) -> u32 {
    let mut admitted = 0;
    for _ in 0..PATIENCE.as_millis() / 10 {
        let answer = limit.acquire(key, 1).await;
        match (&answer.source, answer.is_allowed()) {
            (Source::Store, true) => admitted += 1,
            (Source::Store, false) => return admitted,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    panic!("{key} is never denied: {:?}", limit.store());
}

/// The slot of `{moving}`, its master, and another master.
fn move_of(cluster: &Cluster) -> (u16, usize, usize) {
    let slot = cluster.servers[0]
        .ask(&["CLUSTER", "KEYSLOT", "moving"])
        .text()
        .parse()
        .expect("a slot");
    let from = usize::from(slot) * 3 / 16_384;
    (slot, from, (from + 1) % 3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_in_a_cluster_while_slots_move_and_masters_die() {
    let mut cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let store = Store::open(&address).expect("the address is well formed");
    let limit = limit(&store, "x");

    store
        .order("x", b"{blocked}", Order::Block, None)
        .await
        .expect("the cluster takes it");
    assert!(store.orders("x").blocked_for(b"{blocked}").is_some());

    // Concurrent requests for keys on all masters.
    let tasks: Vec<_> = (0..30)
        .map(|at| {
            let limit = limit.clone();
            tokio::spawn(async move { use_up(&limit, &format!("key{at}")).await })
        })
        .collect();
    let mut all = 0;
    for task in tasks {
        let admitted = task.await.expect("no task panics");
        assert!(admitted <= 10, "{admitted} admitted of 10");
        all += admitted;
    }
    // On a busy machine a reply may be lost although the request was charged.
    assert!(all > 250, "{all} admitted of 300");

    let part = |key: &'static str| Part {
        limit: &limit,
        key: key.as_bytes(),
        cost: 1,
    };
    assert_eq!(
        store.acquire_all(&[part("a"), part("b")]).await,
        Err(StoreError::CrossSlot)
    );
    let by_store = |told: &SharedDecision| told.is_allowed() && told.source == Source::Store;
    let together = [part("{t}a"), part("{t}b")];
    let mut told = store
        .acquire_all(&together)
        .await
        .expect("they have one slot");
    while !told.iter().all(by_store) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        told = store
            .acquire_all(&together)
            .await
            .expect("they have one slot");
    }

    // A reservation is in the slot of its keys, which its id names.
    let reserved = together.map(|part| (part, false));
    let told = store
        .reserve(u128::MAX, &reserved, b"[]", Duration::from_mins(1), 9)
        .await;
    let Ok(Reserved::Decided(id, _)) = told else {
        panic!("{told:?}")
    };
    let other = Store::open(&address).expect("the address is well formed");
    assert_eq!(other.reserved(id).await, Ok(Some(b"[]".to_vec())));
    let corrections = [("{t}a", 0), ("{t}b", 1)];
    let corrections = corrections.map(|(key, at)| Correction {
        at,
        limit: &limit,
        key: key.as_bytes(),
        actual: 0,
        is_unused: false,
    });
    assert_eq!(
        other.settle(id, &corrections).await,
        Ok(Corrected::Now(vec![1, 1]))
    );
    assert_eq!(store.settle(id, &corrections).await, Ok(Corrected::Before));
    let scattered = [(part("a"), false), (part("b"), false)];
    let scattered = store
        .reserve(1, &scattered, b"[]", Duration::from_mins(1), 9)
        .await;
    assert_eq!(scattered, Err(StoreError::CrossSlot));

    // Moves a slot while its key is in use.
    let (slot, from, to) = move_of(&cluster);
    let load = tokio::spawn({
        let limit = limit.clone();
        async move { use_up(&limit, "{moving}1").await + use_up(&limit, "{moving}2").await }
    });
    cluster.begin_move(slot, from, to);
    let third = use_up(&limit, "{moving}3").await;
    cluster.end_move(slot, from, to);
    let others = load.await.expect("no task panics");
    assert!(
        (1..=10).contains(&third) && (2..=20).contains(&others),
        "{third} and {others}"
    );
    for key in ["{moving}1", "{moving}2", "{moving}3"] {
        assert_eq!(
            use_up(&limit, key).await,
            0,
            "the use of {key} moved with the slot"
        );
    }

    // A master dies, and its replica takes over with everything that was replicated.
    cluster.servers[from].until_replicated_to(&cluster.servers[3 + from]);
    cluster.servers[from].kill();
    for at in 0..30 {
        let admitted = use_up(&limit, &format!("key{at}")).await;
        assert_eq!(admitted, 0, "key{at}");
    }
    assert_eq!(store.stats().errors_of("server"), 0, "{:?}", store.stats());
}

/// Asks until the limit is used up, which shows as a long wait. Returns how much was admitted, and
/// how much of that from allotments.
async fn drain(limit: &SharedLimit, key: &str) -> (u64, u64) {
    let (mut admitted, mut leased) = (0, 0);
    let (waiting, mut used_up) = (Until::new("the limit is used up"), false);
    while waiting.is_yet_to_be(used_up) {
        let answer = limit.acquire(key, 1).await;
        if answer.is_allowed() {
            admitted += 1;
            leased += u64::from(answer.source == Source::Lease);
        } else if !matches!(answer.source, Source::Failed(_))
            && answer
                .decision
                .retry_after()
                .is_none_or(|wait| wait > Duration::from_mins(5))
        {
            used_up = true;
        } else {
            // Another caller of this node has a request in flight, or the slot is between two
            // masters.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    (admitted, leased)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_allotments_are_never_over_while_a_slot_moves_and_refunds_are_made_once() {
    let cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let total = 80_000;
    let quota: Quota = format!("{total}/12h")
        .parse()
        .expect("the quota is well formed");
    let node = || {
        let store = Store::open(&address).expect("the address is well formed");
        eventually("the store is reached", || store.health() == Health::Up);
        let limit = store
            .limit("x", Policy::sliding_window(quota))
            .mode(Mode::Leased);
        limit
            .deadline(PATIENCE)
            .on_error(OnError::Closed)
            .build()
            .expect("the policy can be shared")
    };
    let nodes = [node(), node(), node()];
    // Keys on different masters, one of them in a slot that moves. Two callers on each node use
    // them.
    let keys = ["{moving}", "b", "c"];
    let tasks: Vec<_> = keys
        .iter()
        .flat_map(|&key| {
            nodes
                .iter()
                .flat_map(move |node| [(key, node.clone()), (key, node.clone())])
        })
        .map(|(key, node)| (key, tokio::spawn(async move { drain(&node, key).await })))
        .collect();
    let (slot, from, to) = move_of(&cluster);
    cluster.begin_move(slot, from, to);
    cluster.end_move(slot, from, to);
    let (mut of_each, mut from_allotments) = ([0; 3], 0);
    for (key, task) in tasks {
        let (admitted, leased) = task.await.expect("no task panics");
        of_each[keys
            .iter()
            .position(|&known| known == key)
            .expect("it is one of them")] += admitted;
        from_allotments += leased;
    }
    assert!(from_allotments > 0, "nothing was decided in memory");
    // If a key had not moved with its slot, its whole limit would be available again.
    for (key, admitted) in keys.iter().zip(&mut of_each) {
        *admitted += drain(&nodes[0], key).await.0;
    }
    assert!(
        of_each
            .iter()
            .all(|admitted| (1..=total).contains(admitted)),
        "{of_each:?} admitted of {total}"
    );

    let exact = limit(nodes[0].store(), "exact");
    for key in ["a", "b", "{t}c", "c{t}", "d}e", "{}f", "{g", "h}{", ""] {
        assert!(exact.acquire(key, 6).await.is_allowed(), "{key}");
        let told = exact.refund(key, 2).await.expect("the store answers");
        assert_eq!(told.decision.remaining(), 6, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_master_is_a_partial_outage_until_its_replica_serves_even_without_requests() {
    let cluster = Cluster::start(3);
    let store = Store::open(&format!(
        "redis+cluster://{}",
        cluster.addresses().join(",")
    ))
    .expect("the address is well formed");
    let limit = limit(&store, "x");
    for at in 0..30 {
        use_up(&limit, &format!("key{at}")).await;
    }
    assert_eq!(store.health(), Health::Up);
    // The other masters continue to serve, and the replica takes over, however long that takes.
    for server in &cluster.servers {
        server.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        server.ask(&["CONFIG", "SET", "cluster-replica-validity-factor", "0"]);
    }
    // Pick a master other than the one that gets a heartbeat in any case.
    let home = cluster.servers[0]
        .ask(&["CLUSTER", "KEYSLOT", "tidegate:nodes"])
        .text()
        .parse::<usize>();
    let silent = (home.expect("a slot") * 3 / 16_384 + 1) % 3;
    let replica = &cluster.servers[3 + silent];
    replica.freeze();
    cluster.servers[silent].freeze();
    let condition = async |what: &str, health: Health| {
        for _ in 0..PATIENCE.as_millis() / 10 {
            if store.health() == health {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("still false: {what}: {store:?}");
    };
    // Concurrent callers find this out, each at its deadline.
    let quota: Quota = "10/1h".parse().expect("the quota is well formed");
    let hasty = store
        .limit("y", Policy::token_bucket(quota))
        .deadline(Duration::from_millis(500));
    let hasty = hasty.build().expect("the policy can be shared");
    let asked = (0..30).map(|at| {
        let hasty = hasty.clone();
        tokio::spawn(async move { hasty.acquire(format!("key{at}"), 0).await })
    });
    for asked in asked.collect::<Vec<_>>() {
        let _ = asked.await.expect("no task panics");
    }
    condition("a part is down", Health::Partly).await;
    drop(hasty);
    let asked = (0..30).map(|at| {
        let limit = limit.clone();
        tokio::spawn(async move { limit.acquire(format!("key{at}"), 0).await.source })
    });
    let mut decided = 0;
    for asked in asked.collect::<Vec<_>>() {
        decided += usize::from(asked.await.expect("no task panics") == Source::Store);
    }
    assert!(
        decided >= 10,
        "of 30 keys the other masters decide on {decided}"
    );
    replica.thaw();
    condition("the replica serves, and that is found out", Health::Up).await;
    for at in 0..30 {
        let again = use_up(&limit, &format!("key{at}")).await;
        assert!(
            again <= 10,
            "key{at}: what was not replicated may be admitted again, and no more"
        );
    }
    condition("the cluster is well", Health::Up).await;
    assert!(
        store.stats().opened > 0 && store.stats().closed > 0,
        "{store:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_gone_are_reported_as_refused() {
    let mut cluster = Cluster::start(3);
    let store = Store::open(&format!(
        "redis+cluster://{}",
        cluster.addresses().join(",")
    ))
    .expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    let limit = limit(&store, "x");
    let told = async |health: Health| {
        for at in 0..PATIENCE.as_millis() / 10 {
            // Each key is in another shard, which is not known to be down yet.
            let _ = limit.acquire(format!("key{at}"), 1).await;
            if store.health() == health && matches!(store.trouble(), Some(StoreError::Refused(_))) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "still not {health:?} with the error `refused`: {:?} {store:?}",
            store.trouble()
        );
    };
    // The others keep serving, however long it takes to find out.
    for server in &cluster.servers {
        server.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        server.ask(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    }
    cluster.servers[0].kill();
    told(Health::Partly).await;
    assert!(store.stats().errors_of("refused") > 0);
    for server in &mut cluster.servers {
        server.kill();
    }
    told(Health::Down).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_leased_units_are_given_back_once_in_a_cluster_too() {
    let cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let open = async || {
        let store = Store::open(&address).expect("the address is well formed");
        eventually("the store is reached", || store.health() == Health::Up);
        store
    };
    let log = || {
        Policy::sliding_log("4000/1h".parse::<Quota>().expect("well formed"))
            .expect("the log is short")
    };
    let window = || {
        Policy::sliding_window(
            "4000/1h"
                .parse::<Quota>()
                .expect("the quota is well formed"),
        )
    };
    for policy in [window(), log()] {
        let node = open().await;
        let name = policy.name();
        let leased = node
            .limit(name, policy)
            .mode(Mode::Leased)
            .on_error(OnError::Closed)
            .deadline(PATIENCE);
        let leased = leased.build().expect("the policy can be shared");
        let keys = ["a", "b", "{c}d", "e}f", "{}g"];
        let mut used = [0_u64; 5];
        let leased_often = Until::new("a thousand decisions are made from allotments");
        while leased_often.is_yet_to_be(node.stats().leased >= 1_000) {
            for (key, used) in keys.iter().zip(&mut used) {
                *used += u64::from(leased.acquire(key, 1).await.is_allowed());
            }
        }
        node.close().await;
        let other = open().await;
        // The leased limit's own plan, so that both have the same state.
        let exact = other
            .limit(name, *leased.plan().policy())
            .deadline(PATIENCE)
            .build();
        let exact = exact.expect("the policy can be shared");
        for (key, used) in keys.iter().zip(used) {
            let told = exact.peek(key, 0).await;
            assert_eq!(told.source, Source::Store);
            assert_eq!(
                told.decision.remaining(),
                4_000 - used,
                "{name}, {key}: {used} used"
            );
        }
        // A busy machine may be late with an answer.
        let stats = node.stats();
        let errors = stats.errors.iter().sum::<u64>() - stats.errors_of("timed-out");
        assert_eq!(errors, 0, "{stats:?}");
    }
}
