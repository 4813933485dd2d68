//! Limits that tenants share, over the store: what a decision of each kind does to the shares, at two
//! nodes, in a cluster, and without the store. Nothing refills within a test. What tenants get over
//! time is held to the library's shares in `differential`.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{DenialReason, Policy, fair::Terms};
use tidegate_redis::{
    Corrected, Correction, Health, LimitError, Mode, OnError, Part, Reserved, SharedDecision,
    SharedLimit, Source, Store, StoreError,
};
use tidegate_redis_servers::{Cluster, PATIENCE, Server, eventually};

/// A hundred units, of which half is spare. Two tenants that ask get 25 units of it for each of four
/// equal weights, and the other half as time passes.
const POLICIES: [&str; 5] = [
    "token-bucket:burst=100 100/366d",
    "fixed-window:first_hit=true 100/366d",
    "sliding-window:slots=10 100/360d",
    "sliding-counter 100/366d",
    "sliding-log 100/366d",
];

fn open(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn before_slash(key: &[u8]) -> &[u8] {
    key.split(|byte| *byte == b'/').next().unwrap_or(key)
}

fn shared(store: &Store, name: &str, policy: &str, on_error: OnError) -> SharedLimit {
    shared_in(Mode::Exact, store, name, policy, on_error)
}

fn shared_in(
    mode: Mode,
    store: &Store,
    name: &str,
    policy: &str,
    on_error: OnError,
) -> SharedLimit {
    let heavy = Terms::new().with_weight(3).expect("a weight");
    let capped = Terms::new().with_ceiling(0.2).expect("a ceiling");
    let named = [(&b"heavy"[..], heavy), (b"capped", capped)];
    let limit = store
        .limit(name, policy.parse::<Policy>().expect("a policy"))
        .tenants(before_slash, Terms::new(), named)
        .mode(mode)
        .deadline(PATIENCE)
        .on_error(on_error);
    limit.build().expect("it can be shared")
}

/// How many units a key's tenant gets, one by one.
async fn fill(limit: &SharedLimit, key: &str) -> u64 {
    for taken in 0..1_000 {
        if limit.acquire(key, 1).await.is_denied() {
            return taken;
        }
    }
    panic!("{key} is never denied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_serve_tenants_by_their_weights() {
    let server = Server::start(&[]);
    let [one, other] = [(); 2].map(|()| open(&server.address()));
    for (at, policy) in POLICIES.into_iter().enumerate() {
        let name = format!("alone-{at}");
        let limit = shared(&one, &name, policy, OnError::Closed);
        assert_eq!(limit.mode(), Mode::Exact);
        // A tenant that is alone gets all, whichever of its keys asks.
        assert_eq!(limit.acquire("a/1", 60).await.decision.remaining(), 40);
        assert_eq!(fill(&limit, "a/2").await, 40, "{policy}");
        let denied = limit.acquire("a/3", 1).await;
        assert!(denied.is_denied() && denied.decision.retry_after().is_some());

        let name = format!("two-{at}");
        let [here, there] =
            [&one, &other].map(|store| shared(store, &name, policy, OnError::Closed));
        for (node, key) in [(&here, "heavy"), (&there, "light/x")] {
            assert!(node.acquire(key, 1).await.is_allowed(), "{policy}");
        }
        let (heavy, light) = (fill(&there, "heavy").await, fill(&here, "light/y").await);
        let total = 100 - here.peek("light", 0).await.decision.remaining();
        assert_eq!(total, 2 + heavy + light, "{policy}");
        let ratio = (heavy + 1) as f64 / (light + 1) as f64;
        assert!(
            (2.7..=3.3).contains(&ratio),
            "{policy}: {heavy} and {light}"
        );
        let seen = here.share_seen("light/z").expect("it asked");
        assert!((0.2..=0.3).contains(&seen.part), "{policy}: {seen:?}");
        assert!(seen.used > 0.0, "{policy}: {seen:?}");
        assert_eq!(here.share_seen("nobody"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ceiling_holds_and_a_refusal_by_a_share_takes_nothing() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    for (at, policy) in POLICIES.into_iter().enumerate() {
        let limit = shared(&store, &format!("c-{at}"), policy, OnError::Closed);
        // An eighth of a window of its ceiling at once.
        let capped = fill(&limit, "capped").await;
        assert!((2..=3).contains(&capped), "{policy}: {capped}");
        let denied = limit.acquire("capped/x", 1).await;
        assert_eq!(denied.decision.reason(), Some(DenialReason::Quota));
        assert!(denied.decision.retry_after() > Some(Duration::from_hours(1)));
        assert_eq!(denied.decision.remaining(), 0);
        assert_eq!(limit.peek("a", 0).await.decision.remaining(), 100 - capped);
        // A look neither takes nor counts the tenant as active.
        for key in ["a", "b", "c", "d"] {
            assert!(limit.peek(key, 1).await.is_allowed());
        }
        assert!(limit.acquire("a", 40).await.is_allowed(), "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_every_kind_count_in_the_shares() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    all_kinds(&store, "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_every_kind_count_in_the_shares_of_a_cluster() {
    let cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let store = open(&address);
    for name in ["x", "y", "z"] {
        all_kinds(&store, name).await;
    }
}

async fn all_kinds(store: &Store, name: &str) {
    for (at, policy) in POLICIES.into_iter().enumerate() {
        let fresh = |kind: &str| {
            let name = format!("{name}-{at}-{kind}");
            shared(store, &name, policy, OnError::Closed)
        };
        // The low bits are those of a cluster's slot.
        let id_of = |number: u128| (number + 10 * at as u128) << 20;
        let left = async |limit: &SharedLimit| limit.peek("a", 0).await.decision.remaining();
        let both_ask = async |limit: &SharedLimit| {
            for key in ["a", "b"] {
                assert!(limit.acquire(key, 1).await.is_allowed(), "{policy}");
            }
        };

        // What fits of a cost: the share's part of it.
        let limit = fresh("up-to");
        both_ask(&limit).await;
        let (granted, decision) = limit.acquire_up_to("a/x", 80).await;
        assert!(
            (24..=26).contains(&granted) && decision.is_allowed(),
            "{policy}: {granted}"
        );
        let (granted, decision) = limit.acquire_up_to("a/x", 80).await;
        assert!(granted == 0 && decision.is_denied(), "{policy}: {granted}");
        assert!(fill(&limit, "b").await >= 23, "{policy}");

        // The first of several limits, and two limits at once.
        let (limit, next) = (fresh("any"), fresh("next"));
        both_ask(&limit).await;
        let used = fill(&limit, "a").await;
        assert!((23..=26).contains(&used), "{policy}: {used}");
        if store.address().is_cluster() {
            let parts = [(&limit, 1), (&next, 1)].map(|(limit, cost)| part(limit, "a", cost));
            let all = store.acquire_all(&parts).await;
            assert!(
                matches!(all, Err(StoreError::CrossSlot)),
                "{policy}: {all:?}"
            );
        } else {
            let parts = [(&limit, 1), (&next, 1)].map(|(limit, cost)| part(limit, "a", cost));
            assert_eq!(store.acquire_any(&parts).await.chosen, Some(1), "{policy}");
            let all = store.acquire_all(&parts).await.unwrap();
            assert!(all[0].is_denied() && all[1].is_allowed(), "{policy}");
            assert_eq!(left(&next).await, 99, "{policy}");
            let parts = [(&limit, 1), (&next, 1)].map(|(limit, cost)| part(limit, "b", cost));
            assert_eq!(store.acquire_any(&parts).await.chosen, Some(0), "{policy}");
            let all = store.acquire_all(&parts).await.unwrap();
            assert!(all.iter().all(SharedDecision::is_allowed), "{policy}");
            assert_eq!(left(&next).await, 98, "{policy}");
        }
        let twice = ["a", "b"].map(|key| part(&limit, key, 1));
        let twice = store.acquire_all(&twice).await;
        assert!(
            matches!(twice, Err(StoreError::OneKey)),
            "{policy}: {twice:?}"
        );

        // The same id is another request for another tenant.
        let limit = fresh("once");
        for (key, remaining) in [("a", 95), ("b", 90), ("a", 95), ("b", 90)] {
            let answer = limit.acquire_once(b"id", key.as_bytes(), 5).await;
            assert_eq!(answer.decision.remaining(), remaining, "{policy}, {key}");
        }
        assert_eq!(left(&limit).await, 90, "{policy}");

        // Units that were not used come back to the limit and to the share, and what is charged
        // counts in both.
        let limit = fresh("settle");
        both_ask(&limit).await;
        let (answer, estimate) = limit.acquire_estimate("a/x", 20).await;
        assert!(answer.is_allowed(), "{policy}");
        limit.settle("a/x", estimate, 0).await.unwrap();
        let part_of_a = (part(&limit, "a/x", 20), false);
        let hour = Duration::from_hours(1);
        let reserved = store
            .reserve(id_of(7), &[part_of_a], b"text", hour, 10)
            .await
            .unwrap();
        let Reserved::Decided(id, decisions) = reserved else {
            panic!("{policy}: {reserved:?}");
        };
        assert!(decisions[0].is_allowed(), "{policy}");
        let refused = (part(&limit, "a/y", 20), false);
        let reserved = store
            .reserve(id_of(8), &[refused], b"text", hour, 10)
            .await
            .unwrap();
        assert!(
            matches!(&reserved, Reserved::Decided(_, all) if all[0].is_denied()),
            "{policy}: {reserved:?}"
        );
        let correction = Correction {
            at: 0,
            limit: &limit,
            key: b"a/x",
            actual: 5,
            is_unused: false,
        };
        let settled = store.settle(id, &[correction]).await.unwrap();
        assert_eq!(settled, Corrected::Now(vec![20]), "{policy}");
        assert_eq!(left(&limit).await, 100 - 2 - 5, "{policy}");
        let rest = fill(&limit, "a").await;
        assert!((18..=21).contains(&rest), "{policy}: {rest}");
        // The share is shut until much more has come, and then open again.
        let _ = limit.refund("a/x", 10).await.unwrap();
        let again = fill(&limit, "a").await;
        assert!((9..=11).contains(&again), "{policy}: {again}");
        let charged = limit.charge("a", 10).await;
        assert_eq!(charged.source, Source::Store, "{policy}");
        let _ = limit.refund("a", 5).await.unwrap();
        assert!(limit.acquire("a", 1).await.is_denied(), "{policy}");
        let before = left(&limit).await;
        limit.reset("a/x").await.unwrap();
        assert_eq!(left(&limit).await, before, "{policy}: the sum stays");
        assert!(limit.acquire("a", 1).await.is_allowed(), "{policy}");
        assert!(fill(&limit, "b").await >= 20, "{policy}");
    }
}

fn part<'a>(limit: &'a SharedLimit, key: &'a str, cost: u64) -> Part<'a> {
    Part {
        limit,
        key: key.as_bytes(),
        cost,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_a_node_shares_its_part_of_the_limit() {
    let mut server = Server::start(&[]);
    let store = open(&server.address());
    let modes = [Mode::Exact, Mode::Leased];
    let cases = POLICIES
        .iter()
        .flat_map(|policy| modes.map(|mode| (*policy, mode)));
    for (at, (policy, mode)) in cases.enumerate() {
        let name = format!("down-{at}");
        let [local, open, closed] =
            [OnError::Local, OnError::Open, OnError::Closed].map(|on_error| {
                shared_in(
                    mode,
                    &store,
                    &format!("{name}-{on_error:?}"),
                    policy,
                    on_error,
                )
            });
        assert!(local.acquire("a", 1).await.is_allowed());
        store.set_least_nodes(2);
        server.kill();
        eventually("the store is down", || store.health() == Health::Down);
        for key in ["heavy", "light/x"] {
            let answer = local.acquire(key, 1).await;
            assert!(
                matches!(answer.source, Source::Local(_)),
                "{policy}: {answer:?}"
            );
            assert!(answer.is_allowed(), "{policy}");
        }
        // Half of the limit, of which half is spare.
        let (heavy, light) = (fill(&local, "heavy/x").await, fill(&local, "light").await);
        assert!(
            (16..=20).contains(&heavy) && (4..=7).contains(&light),
            "{policy}: {heavy} {light}"
        );
        assert!(local.refund("light/y", 3).await.is_ok(), "{policy}");
        assert_eq!(fill(&local, "light").await, 3, "{policy}");
        assert!(local.acquire("other", 1).await.is_allowed(), "{policy}");
        let (granted, _) = local.acquire_up_to("other", 40).await;
        assert!((1..=6).contains(&granted), "{policy}: {granted}");
        assert!(open.acquire("a", 1).await.is_allowed());
        // A node denies by itself what no allotment can ever have.
        let is_exact = open.mode() == Mode::Exact;
        assert_eq!(open.acquire("a", 1_000).await.is_allowed(), is_exact);
        assert!(closed.acquire("a", 1).await.is_denied());
        server.start_again();
        eventually("the store is up", || store.health() == Health::Up);
        store.set_least_nodes(1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_has_lost_starts_fresh() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    let limit = shared(&store, "lost", POLICIES[0], OnError::Closed);
    for key in ["a", "b"] {
        assert!(limit.acquire(key, 1).await.is_allowed());
    }
    let first = fill(&limit, "a").await;
    // A tenant's virtual time means nothing without the common state.
    let keys = server.ask(&["KEYS", "*:o:*"]);
    let tidegate_redis_servers::Reply::Array(keys) = &keys else {
        panic!("{keys:?}");
    };
    assert_eq!(keys.len(), 1);
    server.ask(&["DEL", keys[0].text()]);
    assert!(limit.acquire("b", 1).await.is_allowed());
    assert!(limit.acquire("a", 1).await.is_allowed());
    let second = fill(&limit, "a").await;
    assert!(first.abs_diff(second) <= 2, "{first} and {second}");
    // Another program's value under one of the keys is an error, and nothing is taken.
    server.ask(&["SET", keys[0].text(), "mine"]);
    let answer = limit.acquire("a", 1).await;
    assert_eq!(answer.source, Source::Failed(StoreError::NotOurs));
    server.ask(&["DEL", keys[0].text()]);
    server.ask(&["RPUSH", keys[0].text(), "mine"]);
    let answer = limit.acquire("a", 1).await;
    assert_eq!(answer.source, Source::Failed(StoreError::WrongType));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_shared_is_refused() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    let policy = |text: &str| text.parse::<Policy>().expect("a policy");
    for text in [
        "leaky-bucket:max-wait=1s 10/1s",
        "sliding-log:block-for=1s 10/1s",
    ] {
        let limit = store.limit("no", policy(text));
        let built = limit.tenants(before_slash, Terms::new(), []).build();
        assert!(
            matches!(built, Err(LimitError::Tenants(_))),
            "{text}: {built:?}"
        );
    }
    let limit = store.limit("no", policy("sliding-log 10/1s")).line(true);
    let built = limit.tenants(before_slash, Terms::new(), []).build();
    assert!(matches!(built, Err(LimitError::LineOfTenants)), "{built:?}");
    let half = Terms::new().with_guarantee(0.6).expect("a guarantee");
    let named = [(&b"a"[..], half), (b"b", half)];
    let limit = store.limit("no", policy("sliding-log 10/1s"));
    let built = limit.tenants(before_slash, Terms::new(), named).build();
    let error = built.expect_err("120 % are guaranteed").to_string();
    assert!(error.contains("120 %"), "{error}");
}
