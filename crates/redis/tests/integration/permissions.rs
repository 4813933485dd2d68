//! Users with restricted permissions.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Policy, Quota, algorithm::Concurrency, algorithm::FixedWindow};
use tidegate_redis::{Corrected, Health, Mode, OnError, SharedLimit, Source, Store, StoreError};
use tidegate_redis_servers::{Cluster, PATIENCE, Reply, Sentinel, Server, eventually};

/// The permissions that the errors and the crate's documentation list.
const NEEDED: [&str; 22] = [
    "+eval",
    "+evalsha",
    "+time",
    "+get",
    "+mget",
    "+set",
    "+getrange",
    "+setrange",
    "+strlen",
    "+pexpire",
    "+pexpireat",
    "+del",
    "+zadd",
    "+zremrangebyscore",
    "+zcard",
    "+zrange",
    "+hget",
    "+hmget",
    "+hset",
    "+hdel",
    "+hlen",
    "+zrem",
];

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn log(text: &str) -> Policy {
    Policy::sliding_log(quota(text)).expect("the log is not too long")
}

/// A store, used by a user with these permissions.
fn open_as(server: &Server, name: &str, rights: &[&str]) -> Store {
    let user = [&["ACL", "SETUSER", name, "on", ">secret", "-@all"], rights].concat();
    assert_eq!(server.ask(&user).text(), "OK");
    let store = Store::open(&format!(
        "redis://{name}:secret@127.0.0.1:{}",
        server.port()
    ));
    store.expect("the address is well formed")
}

fn limit(store: &Store, name: &str, policy: Policy) -> SharedLimit {
    let limit = store
        .limit(name, policy)
        .on_error(OnError::Closed)
        .deadline(PATIENCE);
    limit
        .remember_denials(false)
        .build()
        .expect("the policy can be shared")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_listed_permissions_can_do_everything() {
    let server = Server::start(&[]);
    let store = open_as(&server, "app", &[&["~tidegate:*"], &NEEDED[..]].concat());
    eventually("the store is reached", || store.health() == Health::Up);
    let permits = Concurrency::new(40)
        .hold(Duration::from_hours(1))
        .expect("the hold is short");
    let policies = [
        FixedWindow::new(quota("40/366d")).first_hit().into(),
        Policy::sliding_window(quota("40/1h")),
        Policy::sliding_counter(quota("40/366d")),
        Policy::token_bucket(quota("40/1h")),
        Policy::leaky_bucket(quota("40/1h")),
        log("40/1h"),
        log("400/1h"),
        permits.into(),
    ];
    for (at, policy) in policies.into_iter().enumerate() {
        let limit = limit(&store, &format!("l{at}"), policy);
        for cost in [1, 30, 30, 300] {
            assert_eq!(
                limit.acquire("k", cost).await.source,
                Source::Store,
                "{policy:?}"
            );
        }
        assert_eq!(limit.peek("k", 1).await.source, Source::Store, "{policy:?}");
        assert_eq!(
            limit
                .refund("k", 3)
                .await
                .expect("the store answers")
                .source,
            Source::Store
        );
        let part = tidegate_redis::Part {
            limit: &limit,
            key: b"r",
            cost: 1,
        };
        let reserved = store
            .reserve(
                at as u128,
                &[(part, false)],
                b"[]",
                Duration::from_mins(1),
                9,
            )
            .await;
        assert!(reserved.is_ok(), "{policy:?}: {reserved:?}");
        let part = tidegate_redis::Correction {
            at: 0,
            limit: &limit,
            key: b"r",
            actual: 2,
            is_unused: false,
        };
        assert_eq!(
            store.settle(at as u128, &[part]).await,
            Ok(Corrected::Now(vec![1])),
            "{policy:?}"
        );
        if let Ok(mut permit) = limit.permit("k", 1).await
            && policy.name() == "concurrency"
        {
            assert_eq!(permit.renew().await, Ok(true));
        }
        for mode in [Mode::Leased, Mode::Reported] {
            let limit = store
                .limit(&format!("m{at}"), policy)
                .mode(mode)
                .on_error(OnError::Closed);
            let limit = limit
                .deadline(PATIENCE)
                .build()
                .expect("the policy can be shared");
            for _ in 0..60 {
                let answer = limit.acquire("k", 1).await;
                assert!(
                    !matches!(answer.source, Source::Failed(_)),
                    "{policy:?}: {answer:?}"
                );
            }
        }
    }
    assert_eq!(
        store
            .seen_nodes()
            .await
            .expect("the list may be read")
            .len(),
        1
    );
    store.close().await;
    assert!(
        store.stats().errors.iter().all(|&count| count == 0),
        "{:?}",
        store.stats()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_for_a_restricted_user_lists_every_permission_with_the_stores_prefix() {
    let server = Server::start(&[]);
    server.ask(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">secret",
        "-@all",
        "~mine:nodes",
        "+@all",
    ]);
    let address = format!("redis://app:secret@127.0.0.1:{}", server.port());
    let store = Store::at(address.parse().expect("it is well formed"), "mine")
        .expect("the prefix is a word");
    eventually("the store is reached", || store.health() == Health::Up);
    let told = limit(&store, "x", log("100/1h")).acquire("k", 1).await;
    let Source::Failed(error @ StoreError::Forbidden(_)) = told.source else {
        panic!("{told:?}")
    };
    for needed in NEEDED.iter().chain(&["~mine:*"]) {
        assert!(error.to_string().contains(needed), "{needed}: {error}");
    }
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_listed_by_name_and_a_user_who_may_not_list_them_can_still_decide() {
    let server = Server::start(&[]);
    let named = |name: &str| {
        let address = server.address().parse().expect("it is well formed");
        Store::named(address, "tidegate", name).expect("the prefix is a word")
    };
    let (one, long) = (named("one\n1"), named(&"x".repeat(200)));
    let rights: Vec<&str> = NEEDED
        .into_iter()
        .filter(|needed| *needed != "+zrange")
        .collect();
    let unnamed = open_as(&server, "app", &[&["~tidegate:*"], &rights[..]].concat());
    eventually("all are counted", || {
        [&one, &long, &unnamed]
            .iter()
            .all(|store| store.nodes() == 3)
    });
    let mut seen = one.seen_nodes().await.expect("the store replies");
    seen.sort_by(|one, other| one.name.cmp(&other.name));
    let names: Vec<_> = seen
        .iter()
        .map(|node| (node.name.clone(), node.is_self))
        .collect();
    let long_name = "x".repeat(128);
    assert_eq!(
        names,
        [
            (String::new(), false),
            ("one\u{fffd}1".to_owned(), true),
            (long_name, false)
        ]
    );
    assert!(
        seen.iter().all(|node| node.ago < Duration::from_secs(11)),
        "{seen:?}"
    );
    let refused = unnamed.seen_nodes().await.expect_err("it may not");
    assert!(refused.to_string().contains("+zrange"), "{refused}");
    let decided = limit(&unnamed, "x", log("2/1h")).acquire("k", 1).await;
    assert_eq!(
        (decided.source, unnamed.health()),
        (Source::Store, Health::Up)
    );
}

/// Servers of two versions share a store while one replaces the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_as_version_0_1_writes_it_counts() {
    let server = Server::start(&[]);
    // The name is the node's number and the name for people, and the score is the time in
    // milliseconds.
    let member = "00c0ffee00c0ffee0123456789abcdef shop-7";
    let script = "return redis.call('ZADD', KEYS[1], redis.call('TIME')[1] * 1000, ARGV[1])";
    server.ask(&["EVAL", script, "1", "tidegate:nodes", member]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    eventually("both are counted", || store.nodes() == 2);
    let seen = store.seen_nodes().await.expect("the store replies");
    assert!(
        seen.iter()
            .any(|node| node.name == "shop-7" && !node.is_self),
        "{seen:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_needs_only_the_limits_own_key() {
    let server = Server::start(&[]);
    let store = open_as(&server, "app", &["~tidegate:*", "+@all"]);
    eventually("the store is reached", || store.health() == Health::Up);
    for key in ["plain", "a}b", "{}x", "{t}a", "{"] {
        let limit = limit(&store, "x", log("2/1h"));
        let free = limit.peek(key, 2).await;
        assert!(
            free.source == Source::Store && free.is_allowed(),
            "{key}: {free:?}"
        );
        assert!(limit.acquire(key, 2).await.is_allowed(), "{key}");
        let denied = limit.peek(key, 1).await;
        assert!(
            denied.source == Source::Store && denied.is_denied(),
            "{key}: {denied:?}"
        );
        assert!(
            denied.decision.retry_after() > Some(Duration::from_mins(1)),
            "{key}: {denied:?}"
        );
    }
    let stats = store.stats();
    assert_eq!((stats.opened, stats.connections), (0, 1), "{stats:?}");
    assert!(stats.errors.iter().all(|&count| count == 0), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forbidden_key_is_reported_and_affects_no_other() {
    let server = Server::start(&[]);
    let store = open_as(
        &server,
        "app",
        &[
            "~tidegate:nodes",
            "~tidegate:probe:*",
            "~tidegate:fine:*",
            "+@all",
        ],
    );
    eventually("the store is reached", || store.health() == Health::Up);
    let (fine, other) = (
        limit(&store, "fine", log("1000/1h")),
        limit(&store, "other", log("1000/1h")),
    );
    for _ in 0..20 {
        let (told, peeked) = (other.acquire("k", 1).await, other.peek("k", 1).await);
        assert!(
            matches!(told.source, Source::Failed(StoreError::Forbidden(_))),
            "{told:?}"
        );
        assert!(
            matches!(peeked.source, Source::Failed(StoreError::Forbidden(_))),
            "{peeked:?}"
        );
        assert_eq!(fine.acquire("k", 1).await.source, Source::Store);
    }
    let stats = store.stats();
    assert_eq!(
        (store.health(), stats.opened, stats.connections),
        (Health::Up, 0, 1),
        "{stats:?}"
    );
    assert!(stats.errors_of("forbidden") >= 40, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_command_of_one_limit_is_reported_and_affects_no_other() {
    let server = Server::start(&[]);
    let rights: Vec<_> = NEEDED
        .into_iter()
        .filter(|right| *right != "+getrange")
        .collect();
    let store = open_as(&server, "app", &[&["~tidegate:*"], &rights[..]].concat());
    eventually("the store is reached", || store.health() == Health::Up);
    let (long, short) = (
        limit(&store, "long", log("1000/1h")),
        limit(&store, "short", log("100/1h")),
    );
    let told = long.acquire("k", 1).await;
    assert!(
        matches!(told.source, Source::Failed(StoreError::Script(_))),
        "{told:?}"
    );
    assert_eq!(short.acquire("k", 1).await.source, Source::Store);
    assert_eq!(store.stats().opened, 0);
}

/// Decisions work without `HDEL` and `ZREM`, and the ends of blocks do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_only_other_requests_need_are_named_while_decisions_work() {
    let server = Server::start(&[]);
    let rights: Vec<_> = NEEDED
        .into_iter()
        .filter(|right| !["+hdel", "+zrem"].contains(right))
        .collect();
    let store = open_as(&server, "app", &[&["~tidegate:*"], &rights[..]].concat());
    let here = limit(&store, "x", log("100/1h"));
    store.examine().await.expect("decisions work");
    assert_eq!(store.stats().missing_commands, ["HDEL", "ZREM"]);
    assert_eq!(here.acquire("k", 1).await.source, Source::Store);
    assert_eq!(store.health(), Health::Up);
    server.ask(&["ACL", "SETUSER", "app", "+hdel", "+zrem"]);
    let other = limit(&store, "y", Policy::token_bucket(quota("100/1h")));
    store.examine().await.expect("decisions work");
    assert_eq!(store.stats().missing_commands, [""; 0]);
    assert_eq!(other.acquire("k", 1).await.source, Source::Store);
    let keys = server.ask(&["KEYS", "*probe*"]);
    assert_eq!(
        keys,
        Reply::Array(Vec::new()),
        "the keys of the examination are gone"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_a_cluster_with_fewer_rights_keeps_the_store_from_being_up() {
    let cluster = Cluster::start(3);
    for (at, server) in cluster.servers.iter().enumerate() {
        let user = [
            "ACL",
            "SETUSER",
            "app",
            "on",
            ">secret",
            "-@all",
            "~tidegate:*",
        ];
        let least = if at == 2 { &NEEDED[..6] } else { &NEEDED[..] };
        let rights = [&user[..], &NEEDED_IN_A_CLUSTER, least].concat();
        assert_eq!(server.ask(&rights).text(), "OK");
    }
    let addresses = cluster.addresses().join(",");
    let store = Store::open(&format!("redis+cluster://app:secret@{addresses}"));
    let store = store.expect("the address is well formed");
    let _limit = limit(&store, "x", Policy::token_bucket(quota("100/1h")));
    let why = store.examine().await.expect_err("one server lacks a right");
    let why = why.to_string();
    assert!(
        why.contains("does not run GETRANGE") && why.contains("slot"),
        "{why}"
    );
    eventually("it counts as down", || store.health() == Health::Down);
    for right in NEEDED {
        cluster.servers[2].ask(&["ACL", "SETUSER", "app", right]);
    }
    store.examine().await.expect("all have the rights");
    assert_eq!(store.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_run_no_scripts_cannot_use_the_store() {
    let server = Server::start(&[]);
    let store = open_as(&server, "app", &["~tidegate:*", "+get"]);
    eventually("that is found out", || store.stats().opened > 0);
    let told = limit(&store, "x", log("100/1h")).acquire("k", 1).await;
    assert!(
        matches!(
            told.source,
            Source::Failed(StoreError::NotPermitted(_) | StoreError::Down)
        ),
        "{told:?}"
    );
    assert!(store.stats().errors_of("not-permitted") > 0);
}

/// What the documentation names for a cluster on top of the others.
const NEEDED_IN_A_CLUSTER: [&str; 2] = ["+cluster|slots", "+asking"];

/// What the documentation names for a sentinel's user, and for the store's on top of the others.
const NEEDED_AT_A_SENTINEL: [&str; 2] = ["+sentinel|masters", "+role"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_with_the_listed_permissions_can_use_sentinels_and_need_each() {
    let master = Server::start(&[]);
    let sentinel = Sentinel::watch(&master, 0);
    let user = |name: &str, left_out: &str| -> [Vec<String>; 2] {
        let begin = ["ACL", "SETUSER", name, "on", ">secret", "-@all"];
        let all = |rights: &[&str]| {
            let kept = rights.iter().filter(|right| **right != left_out);
            begin
                .iter()
                .chain(kept)
                .map(|part| (*part).to_owned())
                .collect()
        };
        let of_the_store = [&["~tidegate:*", "+role"], &NEEDED[..]].concat();
        [all(&of_the_store), all(&NEEDED_AT_A_SENTINEL)]
    };
    let open = |name: &str, left_out: &str| {
        let [store, watcher] = user(name, left_out);
        assert_eq!(
            master
                .ask(&store.iter().map(String::as_str).collect::<Vec<_>>())
                .text(),
            "OK"
        );
        assert_eq!(
            sentinel
                .ask(&watcher.iter().map(String::as_str).collect::<Vec<_>>())
                .text(),
            "OK"
        );
        let store = Store::open(&format!(
            "redis+sentinel://{name}:secret@127.0.0.1:{}/main?sentinel_username={name}&sentinel_password=secret",
            sentinel.port()
        ));
        store.expect("the address is well formed")
    };
    let store = open("app", "");
    eventually("the store is reached", || store.health() == Health::Up);
    let limit = limit(&store, "x", log("10/1h"));
    assert_eq!(limit.acquire("k", 1).await.source, Source::Store);
    for right in NEEDED_AT_A_SENTINEL {
        let store = open("less", right);
        let why = store.examine().await.expect_err("a right is missing");
        assert!(why.to_string().contains("permission"), "{right}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_listed_permissions_can_use_a_cluster_also_while_a_slot_moves() {
    let cluster = Cluster::start(3);
    for server in &cluster.servers {
        let user = [
            &[
                "ACL",
                "SETUSER",
                "app",
                "on",
                ">secret",
                "-@all",
                "~tidegate:*",
            ],
            &NEEDED[..],
            &NEEDED_IN_A_CLUSTER,
        ]
        .concat();
        assert_eq!(server.ask(&user).text(), "OK");
    }
    let addresses = cluster.addresses().join(",");
    let store = Store::open(&format!("redis+cluster://app:secret@{addresses}"));
    let store = store.expect("the address is well formed");
    let limit = limit(&store, "x", Policy::sliding_window(quota("1000/366d")));
    eventually("the cluster is up", || store.health() == Health::Up);
    let ask = async |key: &str| {
        let answer = limit.acquire(key, 1).await;
        assert_eq!(answer.source, Source::Store, "{key}: {answer:?}");
    };
    for at in 0..30 {
        ask(&format!("key{at}")).await;
    }
    let slot = cluster.servers[0].ask(&["CLUSTER", "KEYSLOT", "{moving}"]);
    let slot: u16 = slot.text().parse().expect("a slot is a number");
    let from = usize::from(slot) * 3 / 16_384;
    let to = (from + 1) % 3;
    ask("{moving}0").await;
    cluster.begin_move(slot, from, to);
    for at in 0..20 {
        // Keys that are still there, and new ones, which the other master has.
        ask("{moving}0").await;
        ask(&format!("{{moving}}{at}")).await;
    }
    cluster.end_move(slot, from, to);
    for at in 0..20 {
        ask(&format!("{{moving}}{at}")).await;
    }
    assert_eq!(store.health(), Health::Up);
}
