//! Exact limits in a store that is up.
#![cfg(feature = "servers")]

use std::{net::IpAddr, sync::Arc, time::Duration};

use tidegate_core::{
    Calendar, Clock, Period, Policy, Quota,
    algorithm::{Concurrency, FixedWindow, SlidingLog},
    clock::SystemClock,
};
use tidegate_redis::{
    Address, Health, LimitError, Mode, OnError, Part, PlanError, Source, Store, StoreError,
};
use tidegate_redis_servers::{PATIENCE, Reply, Server, eventually};
use tokio::task::JoinSet;

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn policies() -> Vec<Policy> {
    vec![
        FixedWindow::new(quota("40/1h")).first_hit().into(),
        Policy::sliding_window(quota("40/1h")),
        Policy::sliding_counter(quota("40/1h")),
        Policy::token_bucket(quota("40/1h")),
        Policy::leaky_bucket(quota("40/1h")),
        Policy::sliding_log(quota("40/1h")).expect("the log is short"),
        Policy::sliding_log(quota("400/1h")).expect("the log is short"),
        permits(40, Duration::from_hours(1)),
    ]
}

fn permits(limit: u32, hold: Duration) -> Policy {
    Concurrency::new(limit)
        .hold(hold)
        .expect("the hold is short")
        .into()
}

/// A store that has been reached.
fn store(server: &Server) -> Store {
    open(&server.address())
}

fn open(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn limit(store: &Store, name: &str, policy: Policy) -> tidegate_redis::SharedLimit {
    store
        .limit(name, policy)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_and_addresses_are_keys_as_they_are() {
    let server = Server::start(&[]);
    let store = store(&server);
    let limit = limit(&store, "any", Policy::fixed_window(quota("2/1h")));
    let address: IpAddr = "192.0.2.7".parse().expect("the address is well formed");
    for _ in 0..2 {
        assert!(limit.acquire(7_u64, 1).await.is_allowed());
        assert!(limit.acquire(address, 1).await.is_allowed());
    }
    // Equal bytes are equal keys, and other bytes are other keys.
    assert!(limit.acquire(7_u64.to_le_bytes(), 1).await.is_denied());
    assert!(limit.peek([192_u8, 0, 2, 7], 1).await.is_denied());
    assert!(limit.acquire(7_u32, 1).await.is_allowed());
    assert_eq!(
        limit
            .refund(address, 2)
            .await
            .map(|now| now.decision.remaining()),
        Ok(2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_year_ends_by_the_calendar_in_every_mode() {
    let server = Server::start(&[]);
    let store = store(&server);
    let policy: Policy = "fixed-window:time-zone=Europe/Berlin 3/year"
        .parse()
        .expect("it is well formed");
    let calendar = Calendar::new(Period::Year, "Europe/Berlin", 1).expect("the zone is known");
    let modes = [Mode::Exact, Mode::Leased, Mode::Reported];
    for (name, mode) in ["exact", "leased", "reported"].into_iter().zip(modes) {
        let limit = store
            .limit(name, policy)
            .mode(mode)
            .deadline(PATIENCE)
            .build()
            .expect("it can be shared");
        let (mut admitted, mut before) = (0, SystemClock::new().now());
        let denied = loop {
            let told = limit.acquire("alice", 1).await;
            if told.is_denied() {
                break told;
            }
            (admitted, before) = (admitted + 1, SystemClock::new().now());
            assert!(admitted < 10_000, "{name}");
        };
        if mode == Mode::Exact {
            assert_eq!(admitted, 3);
            let wait = denied
                .decision
                .retry_after()
                .expect("the limit allows a cost of 1");
            let end = Duration::from(calendar.end_of(before));
            // The store's answer came later, so its wait is shorter.
            let seen = Duration::from(before) + wait;
            let range = end.saturating_sub(PATIENCE)..=end + Duration::from_millis(1);
            assert!(range.contains(&seen), "{denied:?}, {end:?}, {seen:?}");
        }
        assert!(limit.charge("alice", 2).await.is_denied(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_of_one_key_share_calls_and_get_the_limit_exactly() {
    let server = Server::start(&[]);
    for policy in policies() {
        let store = store(&server);
        let limit = limit(&store, "shared", policy).clone();
        let expected = if policy.name() == "leaky-bucket" {
            41
        } else {
            tidegate_core::Algorithm::limit(&policy)
        };
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let limit = limit.clone();
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..10 {
                        let answer = limit.acquire("all", 1).await;
                        assert!(
                            matches!(answer.source, Source::Store | Source::Remembered),
                            "{answer:?}"
                        );
                        admitted += u64::from(answer.is_allowed());
                    }
                    admitted
                })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("no task panics");
        }
        // A counter's window may end during the test, once an hour; the previous count still has
        // its weight.
        let slack = u64::from(policy.name() == "sliding-counter");
        assert!(
            (expected..=expected + slack).contains(&admitted),
            "{}: {admitted}",
            policy.name()
        );
        let stats = store.stats();
        assert!(
            stats.calls < stats.decided + 4,
            "{}: {stats:?}",
            policy.name()
        );
        assert_eq!(stats.decided + stats.remembered, 640, "{stats:?}");
        assert_eq!(store.health(), Health::Up);
        server.ask(&["FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_share_a_limit_and_prefixes_keep_them_apart() {
    let server = Server::start(&[]);
    let (one, two) = (store(&server), store(&server));
    let apart = Store::at(server.address().parse().expect("it is an address"), "other")
        .expect("the prefix is a word");
    let policy = Policy::token_bucket(quota("3/1h"));
    let (one, two, apart) = (
        limit(&one, "x", policy),
        limit(&two, "x", policy),
        limit(&apart, "x", policy),
    );
    assert_eq!(one.acquire("k", 2).await.decision.remaining(), 1);
    assert_eq!(two.acquire("k", 1).await.decision.remaining(), 0);
    assert!(one.acquire("k", 1).await.is_denied());
    assert_eq!(apart.acquire("k", 1).await.decision.remaining(), 2);
    assert_eq!(one.acquire("k2", 0).await.decision.remaining(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_is_remembered_for_its_cost_and_costs_no_call() {
    let server = Server::start(&[]);
    let store = store(&server);
    let limit = limit(&store, "x", Policy::token_bucket(quota("4/1h")));
    assert!(limit.acquire("k", 3).await.is_allowed());
    let first = limit.acquire("k", 2).await;
    assert_eq!(first.source, Source::Store);
    let decided = store.stats().decided;
    for _ in 0..100 {
        let again = limit.acquire("k", 2).await;
        assert_eq!(again.source, Source::Remembered);
        assert!(again.decision.retry_after() <= first.decision.retry_after());
    }
    assert_eq!(store.stats().decided, decided);
    assert_eq!(
        limit.acquire("k", 1).await.source,
        Source::Store,
        "another cost is another request"
    );
    let stubborn = store
        .limit("x", Policy::token_bucket(quota("4/1h")))
        .remember_denials(false)
        .deadline(PATIENCE);
    let stubborn = stubborn.build().expect("the policy can be shared");
    assert_eq!(stubborn.acquire("k", 2).await.source, Source::Store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joint_decision_charges_all_limits_or_none() {
    let server = Server::start(&[]);
    let store = store(&server);
    let user = limit(
        &store,
        "user",
        Policy::sliding_log(quota("5/1h")).expect("the log is short"),
    );
    let tenant = limit(&store, "tenant", Policy::sliding_window(quota("8/1h")));
    let ask = async |cost: u64| {
        let parts = [
            Part {
                limit: &user,
                key: b"{t}:alice",
                cost,
            },
            Part {
                limit: &tenant,
                key: b"{t}",
                cost,
            },
        ];
        let told = store
            .acquire_all(&parts)
            .await
            .expect("the keys have one slot");
        let remaining = |at: usize| told[at].decision.remaining();
        (
            told.iter().all(tidegate_redis::SharedDecision::is_allowed),
            remaining(0),
            remaining(1),
        )
    };
    assert_eq!(ask(3).await, (true, 2, 5));
    assert_eq!(
        ask(3).await,
        (false, 2, 2),
        "the tenant would have admitted, and is not charged"
    );
    assert_eq!(ask(2).await, (true, 0, 3));
    let twice = [Part {
        limit: &tenant,
        key: b"{t}",
        cost: 2,
    }; 2];
    let told = store
        .acquire_all(&twice)
        .await
        .expect("the keys have one slot");
    assert!(
        told[0].is_allowed() && told[1].is_denied(),
        "requests of one key add up"
    );
    let told = store
        .acquire_all(&twice[..1])
        .await
        .expect("there is one key");
    assert!(told[0].is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_one_limit_each_share_calls_also_when_asked_as_joint_ones() {
    let server = Server::start(&[]);
    let store = store(&server);
    let limit = limit(&store, "user", Policy::token_bucket(quota("2/1h")));
    assert!(limit.acquire("warm", 1).await.is_allowed());
    let before = store.stats();
    for expected in [true, true, false] {
        let mut asked = JoinSet::new();
        for user in 0..64_u32 {
            let (store, limit) = (store.clone(), limit.clone());
            asked.spawn(async move {
                let part = Part {
                    limit: &limit,
                    key: &user.to_le_bytes(),
                    cost: 1,
                };
                store.acquire_all(&[part]).await.expect("there is one key")[0].is_allowed()
            });
        }
        assert_eq!(asked.join_all().await, [expected; 64]);
    }
    let stats = store.stats();
    let (decided, calls) = (stats.decided - before.decided, stats.calls - before.calls);
    assert_eq!(decided, 192);
    assert!(
        calls * 2 <= decided,
        "{calls} calls for {decided} decisions"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_one_name_with_different_numbers_cannot_decide_together_on_one_key() {
    let server = Server::start(&[]);
    let store = store(&server);
    let log = |text| Policy::sliding_log(quota(text)).expect("the log is short");
    let (wide, narrow) = (
        limit(&store, "x", log("10/1h")),
        limit(&store, "x", log("3/1h")),
    );
    let part = |limit, key| Part {
        limit,
        key,
        cost: 1,
    };
    let told = store
        .acquire_all(&[part(&wide, b"k"), part(&narrow, b"k")])
        .await;
    assert_eq!(told, Err(StoreError::OneKey));
    assert_eq!(
        wide.acquire("k", 0).await.decision.remaining(),
        10,
        "nothing is charged"
    );
    let same = limit(&store, "x", log("3/1h"));
    let fine = [
        part(&narrow, b"k"),
        part(&same, b"k"),
        part(&wide, b"other"),
    ];
    let told = store
        .acquire_all(&fine)
        .await
        .expect("each key has one limit");
    assert_eq!(
        told.iter()
            .map(|told| told.decision.remaining())
            .collect::<Vec<_>>(),
        [2, 1, 9]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires_within_six_seconds_after_its_limit_has_recovered() {
    let server = Server::start(&[]);
    let store = store(&server);
    for (at, policy) in policies().into_iter().enumerate() {
        let limit = limit(&store, &format!("l{at}"), policy);
        for cost in [1, 2] {
            let decision = limit.acquire("k", cost).await.decision;
            let key = String::from_utf8(limit.redis_key("k")).expect("the key is text");
            let left: u64 = server
                .ask(&["PTTL", &key])
                .text()
                .parse()
                .expect("the key expires");
            let reset = decision.reset_after().as_millis() as u64;
            assert!(
                left <= reset + 6_002 && left + 600_000 > reset,
                "{}: {left} of {reset}",
                policy.name()
            );
        }
        assert!(limit.acquire("unseen", 0).await.is_allowed());
        let key = String::from_utf8(limit.redis_key("unseen")).expect("the key is text");
        assert_eq!(
            server.ask(&["EXISTS", &key]).text(),
            "0",
            "a peek writes nothing"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_given_back_when_dropped_and_expire_when_their_holder_is_late() {
    let server = Server::start(&[]);
    let store = store(&server);
    let limit = limit(&store, "jobs", permits(3, Duration::from_hours(1)));
    let first = limit.permit("k", 2).await.expect("there is room");
    let second = limit.permit("k", 1).await.expect("there is room");
    let denied = limit.permit("k", 1).await.expect_err("all are out");
    assert!(denied.decision.retry_after().is_some());
    drop(first);
    let mut third = None;
    for _ in 0..1_000 {
        third = limit.permit("k", 2).await.ok();
        if third.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut third = third.expect("the dropped permit was given back");
    assert!(
        limit.permit("k", 1).await.is_err(),
        "and not more than that"
    );
    assert!(third.renew().await.expect("the store answers"));
    drop((second, third));
    let key = String::from_utf8(limit.redis_key("k")).expect("the key is text");
    eventually("nothing is left of permits that are all back", || {
        server.ask(&["EXISTS", &key]).text() == "0"
    });

    // The permit has expired: it may belong to another holder, and is not given back.
    let short = store
        .limit("short", permits(1, Duration::from_millis(5)))
        .deadline(PATIENCE);
    let short = short.build().expect("the policy can be shared");
    let mut late = short.permit("k", 1).await.expect("there is room");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(
        !late.renew().await.expect("the store answers"),
        "a permit that has expired is told to be lost"
    );
    assert!(short.permit("k", 1).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_program_is_reported_and_left_unchanged() {
    let server = Server::start(&[]);
    let store = store(&server);
    for (at, policy) in policies().into_iter().enumerate() {
        let limit = limit(&store, &format!("l{at}"), policy);
        let key = |name: &str| String::from_utf8(limit.redis_key(name)).expect("the key is text");
        server.ask(&["RPUSH", &key("list"), "theirs"]);
        server.ask(&["SET", &key("text"), "theirs"]);
        let (list, text) = (
            limit.acquire("list", 1).await,
            limit.acquire("text", 1).await,
        );
        assert_eq!(
            list.source,
            Source::Local(StoreError::WrongType),
            "{}",
            policy.name()
        );
        assert_eq!(
            text.source,
            Source::Local(StoreError::NotOurs),
            "{}",
            policy.name()
        );
        assert_eq!(
            server.ask(&["LRANGE", &key("list"), "0", "-1"]),
            Reply::Array(vec![Reply::Text("theirs".into())])
        );
        assert_eq!(server.ask(&["GET", &key("text")]).text(), "theirs");
        for (name, error) in [
            ("list", StoreError::WrongType),
            ("text", StoreError::NotOurs),
        ] {
            let part = |key: &'static str| Part {
                limit: &limit,
                key: key.as_bytes(),
                cost: 1,
            };
            let told = store
                .acquire_all(&[part("fine"), part(name)])
                .await
                .expect("there is one slot");
            assert!(
                told.iter()
                    .all(|told| told.source == Source::Local(error.clone())),
                "{told:?}"
            );
        }
        assert_eq!(
            server.ask(&["EXISTS", &key("fine")]).text(),
            "0",
            "all or nothing"
        );
        assert_eq!(limit.acquire("fine", 1).await.source, Source::Store);
    }
    assert_eq!(store.health(), Health::Up);
    assert_eq!(store.stats().errors_of("wrong-type"), 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_of_a_later_version_is_an_error_that_names_it_and_stays() {
    let server = Server::start(&[]);
    let store = store(&server);
    let write =
        "return redis.call('SET', KEYS[1], 'abcdef' .. string.char(255, 3) .. string.rep('x', 29))";
    for (at, policy) in policies().into_iter().enumerate() {
        let limit = limit(&store, &format!("l{at}"), policy);
        let key = String::from_utf8(limit.redis_key("k")).expect("the key is text");
        server.ask(&["EVAL", write, "1", &key]);
        let later = Source::Local(StoreError::LaterVersion(3));
        let told = limit.acquire("k", 1).await;
        assert_eq!(told.source, later, "{}", policy.name());
        assert_eq!(limit.peek("k", 1).await.source, later, "{}", policy.name());
        assert_eq!(
            limit.refund("k", 1).await,
            Err(StoreError::LaterVersion(3)),
            "{}",
            policy.name()
        );
        assert_eq!(server.ask(&["STRLEN", &key]).text(), "37");
    }
    assert!(
        StoreError::LaterVersion(3)
            .to_string()
            .contains("version 3")
    );
    assert_eq!(store.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sliding_log_takes_at_most_sixteen_bytes_an_entry() {
    let server = Server::start(&[]);
    let store = store(&server);
    let entries = 1_000;
    let limit = limit(
        &store,
        "log",
        SlidingLog::new(quota("1000/1h"))
            .expect("the log is short")
            .into(),
    );
    let memory = |key: &str| {
        let usage = server.ask(&["MEMORY", "USAGE", key, "SAMPLES", "0"]);
        usage.text().parse::<usize>().expect("a number of bytes")
    };
    let key = String::from_utf8(limit.redis_key("k")).expect("the key is text");
    for entry in 1..=entries {
        assert!(limit.acquire("k", 1).await.is_allowed());
        if entry >= 64 && entry % 64 == 0 {
            let bytes = memory(&key);
            assert!(
                bytes <= 16 * entry + 128,
                "{bytes} bytes for {entry} entries"
            );
        }
        server.ask(&[
            "ZADD",
            "sorted",
            &entry.to_string(),
            &format!("1763000000{entry:06}-{entry}"),
        ]);
    }
    assert!(limit.acquire("k", 1).await.is_denied());
    let (ours, sorted) = (memory(&key), memory("sorted"));
    assert!(
        ours * 4 < sorted,
        "{ours} bytes beside a sorted set's {sorted}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_resp3_databases_and_sockets_work() {
    let server = Server::start(&["--requirepass", "p@:/?#", "--unixsocket", "redis.sock"]);
    let port = server.port();
    let policy = Policy::fixed_window(quota("5/366d"));
    let socket = server.directory().join("redis.sock");
    for (address, password) in [
        (format!("redis://:p%40%3A%2F%3F%23@127.0.0.1:{port}"), None),
        (
            format!("redis://default@127.0.0.1:{port}/2"),
            Some("p@:/?#"),
        ),
        (
            format!("redis://default:p%40%3A%2F%3F%23@127.0.0.1:{port}/3?protocol=resp3"),
            None,
        ),
        (
            format!(
                "redis+unix://{}?pass=p%40%3A%2F%3F%23&db=4",
                socket.display()
            ),
            None,
        ),
    ] {
        let parsed: Address = address.parse().expect("the address is well formed");
        let parsed = password.map_or(parsed.clone(), |password| parsed.with_password(password));
        let store = Store::at(parsed, "tidegate").expect("the address can be used");
        let answer = limit(&store, "x", policy).acquire("k", 1).await;
        assert_eq!(
            (answer.source, answer.decision.remaining()),
            (Source::Store, 4),
            "{address}"
        );
    }
    for address in [
        format!("redis://:wrong@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}"),
    ] {
        let store = Store::open(&address).expect("the address is well formed");
        assert!(matches!(
            limit(&store, "x", policy).acquire("k", 1).await.source,
            Source::Local(_)
        ));
        eventually("the refusal is counted", || {
            store.stats().errors_of("not-permitted") > 0
        });
    }
    let tls =
        Store::open(&format!("rediss://127.0.0.1:{port}")).expect("the address is well formed");
    assert!(matches!(
        limit(&tls, "x", policy).acquire("k", 1).await.source,
        Source::Local(_)
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ambiguous_keys_and_inexact_limits_are_refused_with_the_reason() {
    let store = Store::open("redis://127.0.0.1:1").expect("the address is well formed");
    for name in ["", "a:b", "{a}"] {
        let built = store.limit(name, Policy::fixed_window(quota("1/1s")));
        assert!(matches!(built.build(), Err(LimitError::Name)), "{name}");
        let address = "redis://127.0.0.1:1".parse().expect("it is an address");
        assert_eq!(Store::at(address, name).err(), Some(StoreError::Prefix));
    }
    for (policy, error) in [
        (
            Policy::fixed_window(quota("1/1s")).count_denied(),
            PlanError::CountsDenied,
        ),
        (Policy::fixed_window(quota("1/1500ns")), PlanError::Window),
        (Policy::sliding_counter(quota("1/1ns")), PlanError::Window),
        (Policy::sliding_window(quota("1/5us")), PlanError::Slot),
        (Policy::concurrency(5), PlanError::NoHold),
        (
            permits(5_000, Duration::from_secs(1)),
            PlanError::TooManyPermits,
        ),
    ] {
        let built = store.limit("x", policy).build();
        assert!(
            matches!(&built, Err(LimitError::Plan(why)) if *why == error),
            "{error}"
        );
    }
    // By default a long log has fewer keys in memory. A larger number is refused if it does not
    // fit.
    let log = Policy::sliding_log(quota("1000000/1h")).expect("the log is not too long");
    assert!(store.limit("x", log).build().is_ok());
    let error = store
        .limit("x", log)
        .local_keys(1 << 20)
        .build()
        .expect_err("that is 8 TB");
    assert!(error.to_string().contains("lower local_keys"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_share_a_store_are_counted() {
    let server = Server::start(&[]);
    let stores = [store(&server), store(&server), store(&server)];
    for store in &stores {
        eventually("each node knows of all three", || store.stats().nodes == 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_give_up_do_not_cost_others_their_answers() {
    let server = Server::start(&[]);
    let store = store(&server);
    let limit = Arc::new(limit(
        &store,
        "x",
        Policy::token_bucket(quota("1000000/1h")),
    ));
    for round in 0..50 {
        let givers: Vec<_> = (0..40)
            .map(|at| {
                let limit = Arc::clone(&limit);
                tokio::spawn(async move { limit.acquire(format!("g{}", at % 7), 1).await })
            })
            .collect();
        let stayer = tokio::spawn({
            let limit = Arc::clone(&limit);
            async move { limit.acquire("stays", 1).await }
        });
        for (at, giver) in givers.into_iter().enumerate() {
            if (at + round) % 2 == 0 {
                giver.abort();
            }
        }
        assert_eq!(stayer.await.expect("nobody panics").source, Source::Store);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_returns_what_an_acquisition_would_and_takes_nothing() {
    let server = Server::start(&[]);
    // A leaky bucket delays where others deny.
    for policy in policies()
        .into_iter()
        .filter(|policy| policy.name() != "leaky-bucket")
    {
        let store = store(&server);
        let limit = limit(&store, "peeked", policy);
        let peek = limit.peek("k", 1).await;
        assert!(
            peek.source == Source::Store && peek.is_allowed(),
            "{policy:?}: {peek:?}"
        );
        let all = peek.decision.remaining() as u64;
        assert_eq!(
            peek.decision.remaining(),
            limit.acquire("k", 0).await.decision.remaining()
        );
        let _ = limit.acquire("k", all - 1).await;
        let peek = limit.peek("k", all).await;
        assert!(
            peek.source == Source::Store && peek.is_denied(),
            "{policy:?}: {peek:?}"
        );
        assert!(
            peek.decision.retry_after() > Some(Duration::ZERO),
            "{policy:?}: {peek:?}"
        );
        assert_eq!(
            limit.peek("k", 1).await.decision.remaining(),
            1,
            "{policy:?}"
        );
        assert!(limit.acquire("k", 1).await.is_allowed(), "{policy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joint_decision_without_the_store_is_all_or_nothing_too() {
    let mut server = Server::start(&[]);
    server.kill();
    let store = Store::open(&server.address()).expect("the address is well formed");
    let bucket = |name: &str, quota_text: &str, on_error| {
        let policy = Policy::sliding_log(quota(quota_text)).expect("the log is short");
        store
            .limit(name, policy)
            .on_error(on_error)
            .build()
            .expect("the policy can be shared")
    };
    let (wide, narrow) = (
        bucket("wide", "2/1h", OnError::Local),
        bucket("narrow", "1/1h", OnError::Local),
    );
    let (open, closed) = (
        bucket("open", "1/1h", OnError::Open),
        bucket("closed", "1/1h", OnError::Closed),
    );
    let ask = async |limits: &[&tidegate_redis::SharedLimit]| {
        let parts: Vec<_> = limits
            .iter()
            .map(|limit| Part {
                limit,
                key: b"k",
                cost: 1,
            })
            .collect();
        let answers = store
            .acquire_all(&parts)
            .await
            .expect("one server has one slot");
        answers
            .iter()
            .map(tidegate_redis::SharedDecision::is_allowed)
            .collect::<Vec<_>>()
    };
    assert_eq!(ask(&[&wide, &narrow, &open]).await, [true, true, true]);
    assert_eq!(ask(&[&wide, &narrow]).await, [true, false]);
    assert_eq!(ask(&[&wide, &closed]).await, [true, false]);
    assert_eq!(
        ask(&[&wide]).await,
        [true],
        "a request that another limit denied was refunded"
    );
    assert_eq!(ask(&[&wide]).await, [false]);
}
