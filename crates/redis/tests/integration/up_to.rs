//! Decisions that take what fits of a cost, and decisions by the first limit that admits, by the store
//! and without it.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Algorithm as _, Policy, Quota, algorithm::FixedWindow};
use tidegate_redis::{AnyOf, Health, Mode, OnError, Part, SharedLimit, Source, Store};
use tidegate_redis_servers::{Cluster, PATIENCE, Server, eventually};

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

/// A thousand in a window that does not end within a test.
fn policies() -> Vec<Policy> {
    vec![
        FixedWindow::new(quota("1000/366d")).first_hit().into(),
        Policy::sliding_window(quota("1000/360d")),
        Policy::sliding_counter(quota("1000/366d")),
        Policy::token_bucket(quota("1000/366d")),
        Policy::sliding_log(quota("1000/366d")).expect("the log is not too long"),
    ]
}

fn open(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn limit(store: &Store, name: &str, policy: Policy, mode: Mode, on_error: OnError) -> SharedLimit {
    let builder = store.limit(name, policy).deadline(PATIENCE).mode(mode);
    let built = builder.on_error(on_error).build();
    built.expect("the policy can be shared")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_take_the_limit_together_and_no_more() {
    let server = Server::start(&[]);
    for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
        for (at, policy) in policies().into_iter().enumerate() {
            let name = format!("{mode:?}-{at}");
            let nodes = [(); 2].map(|()| open(&server.address()));
            let nodes = nodes.map(|store| limit(&store, &name, policy, mode, OnError::Closed));
            let mut asked = tokio::task::JoinSet::new();
            for turn in 0..40_u64 {
                let node = nodes[turn as usize % 2].clone();
                asked.spawn(async move { node.acquire_up_to("k", 30 + turn % 7).await });
            }
            let mut taken = 0;
            for (granted, decision) in asked.join_all().await {
                assert_eq!(decision.source, Source::Store);
                assert_eq!(decision.is_allowed(), granted > 0);
                taken += granted;
            }
            assert_eq!(taken, policy.limit(), "{policy} {mode:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_the_limit_decides_as_its_rule_says() {
    let mut server = Server::start(&[]);
    let store = open(&server.address());
    let bucket = || Policy::token_bucket(quota("100/366d"));
    let [open, closed, local] = [OnError::Open, OnError::Closed, OnError::Local]
        .map(|on_error| limit(&store, "x", bucket(), Mode::Exact, on_error));
    assert_eq!(local.acquire_up_to("k", 60).await.0, 60);
    store.set_least_nodes(3);
    server.kill();
    eventually("the store is down", || store.health() == Health::Down);
    let ask = async |limit: &SharedLimit| {
        let (granted, decision) = limit.acquire_up_to("k", 60).await;
        (
            granted,
            decision.is_allowed(),
            decision.decision.remaining(),
        )
    };
    assert_eq!(ask(&open).await, (60, true, 0));
    assert_eq!(ask(&closed).await, (0, false, 0));
    // A third of 100 for each node.
    assert_eq!(ask(&local).await, (33, true, 0));
    assert_eq!(ask(&local).await, (0, false, 0));
    let (granted, decision) = local.acquire_up_to("other", 7).await;
    assert!(granted == 7 && matches!(decision.source, Source::Local(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fits_by_a_former_rule_is_taken_while_another_node_has_it() {
    let server = Server::start(&[]);
    let node = |name: &str, policy: &str| {
        let address = server.address().parse().expect("it is well formed");
        let store = Store::named(address, "tidegate", name).expect("the prefix is a word");
        let policy: Policy = policy.parse().expect("the policy is well formed");
        let builder = store.limit("x", policy).deadline(PATIENCE).announced(true);
        builder.build().expect("the policy can be shared")
    };
    let former = node("one", "sliding-log 100/1h");
    assert_eq!(former.acquire_up_to("k", 90).await.0, 90);
    let new = node("two", "fixed-window:first-hit=true 200/366d");
    assert_eq!(new.acquire_up_to("k", 150).await.0, 10);
    let (granted, decision) = new.acquire_up_to("k", 150).await;
    assert!(granted == 0 && decision.is_denied() && decision.source == Source::Store);
    assert_eq!(former.acquire_up_to("k", 1).await.0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_decides_too() {
    let cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let store = Store::open(&address).expect("the address is well formed");
    for (at, policy) in policies().into_iter().enumerate() {
        let name = format!("limit-{at}");
        let limit = limit(&store, &name, policy, Mode::Exact, OnError::Closed);
        for key in ["a", "b", "c", "{d}e"] {
            eventually("the shard decides", || {
                let asked = limit.acquire_up_to(key, 700);
                let handle = tokio::runtime::Handle::current();
                let (granted, _) = tokio::task::block_in_place(|| handle.block_on(asked));
                granted == 700
            });
            assert_eq!(limit.acquire_up_to(key, 700).await.0, 300, "{policy} {key}");
        }
    }
}

/// A denial that counts for a block is made by a request that gets nothing, and by no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_request_that_gets_nothing_counts_as_a_denial() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    let penalty = tidegate_core::Penalty::new(&[Duration::from_hours(1)]).expect("whole ms");
    let policy = Policy::token_bucket(quota("100/366d")).block_for(penalty);
    let limit = limit(&store, "x", policy, Mode::Exact, OnError::Closed);
    assert_eq!(limit.acquire_up_to("k", 70).await.0, 70);
    let (granted, decision) = limit.acquire_up_to("k", 70).await;
    assert!(granted == 30 && decision.is_allowed(), "{decision:?}");
    let blocked = Some(tidegate_core::DenialReason::Blocked);
    assert_ne!(limit.peek("k", 1).await.decision.reason(), blocked);
    let (granted, decision) = limit.acquire_up_to("k", 70).await;
    assert!(
        granted == 0 && decision.decision.reason() == blocked,
        "{decision:?}"
    );
}

async fn any(store: &Store, parts: [(&SharedLimit, &str, u64); 2]) -> (Option<usize>, Source) {
    let parts = parts.map(|(limit, key, cost)| Part {
        limit,
        key: key.as_bytes(),
        cost,
    });
    let AnyOf { chosen, decisions } = store.acquire_any(&parts).await;
    assert_eq!(decisions.len(), if chosen.is_some() { 1 } else { 2 });
    assert!(
        decisions
            .iter()
            .all(|one| one.is_allowed() == chosen.is_some())
    );
    (chosen, decisions[0].source.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_take_from_each_limit_what_it_admits() {
    let server = Server::start(&[]);
    for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
        let nodes = [(); 2].map(|()| open(&server.address()));
        let mut asked = tokio::task::JoinSet::new();
        let all = policies();
        for turn in 0..60 {
            let store = nodes[turn % 2].clone();
            let [one, two] = [all[turn % 2 * 3], all[1]];
            let of = |name: &str, policy| {
                let name = format!("{mode:?}-{name}");
                limit(&store, &name, policy, mode, OnError::Closed)
            };
            // Each node knows the limits by its own objects.
            let (one, two) = (of(&format!("one-{}", turn % 2), one), of("two", two));
            asked.spawn(async move {
                let (chosen, source) = any(&store, [(&one, "k", 100), (&two, "k", 70)]).await;
                assert_eq!(source, Source::Store);
                chosen
            });
        }
        let chosen = asked.join_all().await;
        let count = |at| chosen.iter().filter(|chosen| **chosen == at).count();
        // Ten of each first limit, and as many of the second as fit.
        assert_eq!((count(Some(0)), count(Some(1))), (20, 14), "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_cannot_be_asked_in_one_step_are_asked_in_turn() {
    let cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let store = Store::open(&address).expect("the address is well formed");
    let bucket = || Policy::token_bucket(quota("100/366d"));
    let [one, two] =
        ["one", "two"].map(|name| limit(&store, name, bucket(), Mode::Exact, OnError::Closed));
    for key in ["a", "b"] {
        eventually("the shard decides", || {
            let handle = tokio::runtime::Handle::current();
            let asked = one.acquire(key, 1);
            tokio::task::block_in_place(|| handle.block_on(asked)).is_allowed()
        });
    }
    // Two slots, and twice one key.
    for keys in [["a", "b"], ["c", "c"]] {
        let second = if keys[0] == "c" { &one } else { &two };
        let ask = async |cost| {
            any(&store, [(&one, keys[0], cost), (second, keys[1], 40)])
                .await
                .0
        };
        let mut chosen = Vec::new();
        for _ in 0..5 {
            chosen.push(ask(90).await);
        }
        let expected = if keys[0] == "c" {
            [Some(0), None, None, None, None]
        } else {
            [Some(0), Some(1), Some(1), None, None]
        };
        assert_eq!(chosen, expected, "{keys:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_the_first_limit_that_admits_by_itself_is_taken() {
    let mut server = Server::start(&[]);
    let store = open(&server.address());
    let bucket = || Policy::token_bucket(quota("100/366d"));
    let [open, closed, local] = [OnError::Open, OnError::Closed, OnError::Local]
        .map(|on_error| limit(&store, "x", bucket(), Mode::Exact, on_error));
    server.kill();
    eventually("the store is down", || store.health() == Health::Down);
    let of = async |one, two| any(&store, [(one, "k", 60), (two, "k", 60)]).await.0;
    assert_eq!(of(&closed, &local).await, Some(1));
    assert_eq!(of(&local, &closed).await, None);
    assert_eq!(of(&local, &open).await, Some(1));
}
