//! Orders of operators about single keys, which every node follows.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Nanos, Policy, Quota};
use tidegate_redis::{Health, Mode, Order, OrderKind, SharedLimit, Store};
use tidegate_redis_servers::{PATIENCE, Proxy, Server, eventually};

fn open(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn shared(store: &Store, name: &str, mode: Mode, quota: &str) -> SharedLimit {
    let policy = Policy::sliding_window(quota.parse::<Quota>().expect("the quota is well formed"));
    store
        .limit(name, policy)
        .mode(mode)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

async fn block(store: &Store, key: &str, span: Option<Duration>) {
    store
        .order("logins", key.as_bytes(), Order::Block, span)
        .await
        .expect("the store takes it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_in_force_at_every_node_until_it_is_ended_or_replaced() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server.address()), open(&server.address()));
    let (here, there) = (one.orders("logins"), two.orders("logins"));
    block(&one, "alice", None).await;
    assert_eq!(
        here.blocked_for(b"alice"),
        Some(Nanos::MAX),
        "the node that gave it knows it at once"
    );
    let plan = |text| {
        one.order(
            "logins",
            b"\0bob:\xff",
            Order::Override(text),
            Some(Duration::from_mins(9)),
        )
    };
    plan("9/1m").await.expect("the store takes it");
    plan("70/1h").await.expect("the store takes it");
    eventually("the other follows", || {
        there.blocked_for(b"alice").is_some()
            && there.override_of(b"\0bob:\xff").as_deref() == Some("70/1h")
    });
    assert_eq!(
        (there.blocked_for(b"bob"), there.override_of(b"alice")),
        (None, None)
    );
    assert!(
        one.orders("others").blocked_for(b"alice").is_none(),
        "another limit has other orders"
    );
    let (count, list) = there.list(OrderKind::Override, 5);
    let until = list[0].until.expect("it has an end");
    assert!(
        count == 1 && *list[0].key == *b"\0bob:\xff" && &*list[0].text == "70/1h",
        "{list:?}"
    );
    assert!(until > Nanos::from_secs(1_700_000_000), "{list:?}");
    assert_eq!(
        two.end_order("logins", b"alice", OrderKind::Block).await,
        Ok(true)
    );
    assert_eq!(
        two.end_order("logins", b"alice", OrderKind::Block).await,
        Ok(false)
    );
    eventually("the block ends everywhere", || {
        here.blocked_for(b"alice").is_none()
    });
    // It may be given again.
    block(&two, "alice", None).await;
    eventually("it is back", || here.blocked_for(b"alice").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_orders_are_fetched_once_and_a_change_costs_one() {
    let server = Server::start(&[]);
    let one = open(&server.address());
    for at in 0..1_201 {
        one.order(
            "plans",
            format!("t{at}").as_bytes(),
            Order::Override("9/1m"),
            None,
        )
        .await
        .expect("it is up");
    }
    let two = open(&server.address());
    let there = two.orders("plans");
    eventually("all are there", || {
        there.list(OrderKind::Override, 3).0 == 1_201
    });
    let first = there.list(OrderKind::Override, 3).1;
    assert_eq!(
        first.iter().map(|given| &*given.key).collect::<Vec<_>>(),
        [b"t0".as_slice(), b"t1", b"t10"]
    );
    let fetched = || -> u64 {
        let stats = server.ask(&["INFO", "commandstats"]).text().to_owned();
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_hmget:calls="));
        line.and_then(|line| line.split(',').next()?.parse().ok())
            .expect("it was called")
    };
    let before = fetched();
    one.order("plans", b"t7", Order::Override("10/1m"), None)
        .await
        .expect("it is up");
    eventually("the change is there", || {
        there.override_of(b"t7").as_deref() == Some("10/1m")
    });
    // Each look asks for three fields; only those that find a change ask for values, too. Both
    // nodes look several times a second.
    assert!(fetched() - before < 60, "{} calls", fetched() - before);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn a_million_tenants_plans_reach_a_new_node() {
    const PLANS: usize = 1_000_000;
    let resident = || -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .expect("it has a size")
    };
    let server = Server::start(&[]);
    let one = open(&server.address());
    let givers = (0..64).map(|giver| {
        let one = one.clone();
        tokio::spawn(async move {
            for at in (giver..PLANS).step_by(64) {
                let (key, plan) = (format!("tenant-{at}"), format!("{}/1m", 1 + at % 100));
                let give = || one.order("plans", key.as_bytes(), Order::Override(&plan), None);
                // One of a million may be too late on a busy machine; then it is given again.
                if give().await.is_err() {
                    give().await.expect("it is up");
                }
            }
        })
    });
    for giver in givers.collect::<Vec<_>>() {
        giver.await.expect("it does not panic");
    }
    let before = resident();
    let two = open(&server.address());
    let there = two.orders("plans");
    eventually("all are there", || {
        there.list(OrderKind::Override, 1).0 == PLANS
    });
    let each = (resident() - before) * 1024 / PLANS;
    println!("a node needs {each} bytes for a plan");
    assert!(each < 300, "{each} bytes");
    assert_eq!(
        there.override_of(b"tenant-999999").as_deref(),
        Some("100/1m")
    );
    one.order("plans", b"tenant-7", Order::Override("10/1h"), None)
        .await
        .expect("it is up");
    eventually("a change is there", || {
        there.override_of(b"tenant-7").as_deref() == Some("10/1h")
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_end_by_the_clock_of_the_store() {
    let server = Server::with_clock();
    let store = open(&server.address());
    let orders = store.orders("logins");
    block(&store, "alice", Some(Duration::from_mins(10))).await;
    block(&store, "bob", Some(Duration::from_hours(2))).await;
    let left = orders.blocked_for(b"alice").expect("it is blocked");
    assert!(
        left > Nanos::from_secs(590) && left <= Nanos::from_secs(600),
        "{left:?}"
    );
    server.shift_clock(3_600);
    eventually("the first one has ended", || {
        orders.blocked_for(b"alice").is_none()
    });
    assert!(orders.blocked_for(b"bob").is_some());
    assert_eq!(orders.list(OrderKind::Block, 9).0, 1);
    assert_eq!(
        store.end_order("logins", b"alice", OrderKind::Block).await,
        Ok(false)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_missed_an_end_or_knew_another_store_starts_again() {
    let server = Server::with_clock();
    let proxy = Proxy::before(server.port());
    let (far, near) = (open(&proxy.address()), open(&server.address()));
    let orders = far.orders("logins");
    block(&near, "alice", None).await;
    block(&near, "bob", None).await;
    let both = || orders.blocked_for(b"alice").is_some() && orders.blocked_for(b"bob").is_some();
    eventually("it follows", both);
    proxy.refuse(true);
    proxy.cut();
    near.end_order("logins", b"alice", OrderKind::Block)
        .await
        .expect("it is up");
    // The store remembers an end for a day, and forgets it with the next order.
    server.shift_clock(2 * 86_400);
    block(&near, "carol", None).await;
    assert!(
        both(),
        "a node without the store goes on with the orders that it knows"
    );
    proxy.refuse(false);
    eventually("it has seen the end", || {
        orders.blocked_for(b"alice").is_none() && orders.blocked_for(b"carol").is_some()
    });
    assert!(orders.blocked_for(b"bob").is_some());
    proxy.refuse(true);
    proxy.cut();
    server.ask(&["FLUSHALL"]);
    block(&near, "dave", None).await;
    proxy.refuse(false);
    eventually(
        "the new order is in force, and those that the store lost",
        || {
            ["bob", "carol", "dave"]
                .iter()
                .all(|key| orders.blocked_for(key.as_bytes()).is_some())
        },
    );
    assert_eq!(orders.list(OrderKind::Block, 9).0, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_restarts_empty_is_given_its_orders_again() {
    let mut server = Server::start(&[]);
    let (one, two) = (open(&server.address()), open(&server.address()));
    let (here, there) = (one.orders("logins"), two.orders("logins"));
    block(&one, "for good", None).await;
    block(&one, "for an hour", Some(Duration::from_hours(1))).await;
    block(&one, "ended", None).await;
    let quota = Order::Override("70/1h");
    one.order("logins", b"bob", quota, None)
        .await
        .expect("the store takes it");
    eventually("the other follows", || {
        there.list(OrderKind::Block, 9).0 == 3 && there.override_of(b"bob").is_some()
    });
    one.end_order("logins", b"ended", OrderKind::Block)
        .await
        .expect("it is up");
    eventually("the other follows", || {
        there.list(OrderKind::Block, 9).0 == 2
    });
    let before = there
        .get(OrderKind::Block, b"for an hour")
        .expect("it is in force");
    server.start_again();
    let later = open(&server.address());
    let found = later.orders("logins");
    eventually("a node that starts later knows them", || {
        found.list(OrderKind::Block, 9).0 == 2
            && found.override_of(b"bob").as_deref() == Some("70/1h")
    });
    let after = found
        .get(OrderKind::Block, b"for an hour")
        .expect("it is in force");
    let apart = before
        .until
        .expect("it ends")
        .get()
        .abs_diff(after.until.expect("it ends").get());
    assert!(apart < 60_000_000_000, "{before:?} {after:?}");
    for orders in [&here, &there] {
        eventually("the others keep them", || {
            orders.list(OrderKind::Block, 9).0 == 2
        });
    }
    // Both may give the same order again.
    let given = one.stats().orders_given_again + two.stats().orders_given_again;
    let lost = one.stats().orders_lost + two.stats().orders_lost;
    assert!((3..=6).contains(&given) && lost == 0, "{given}, {lost}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_or_a_refund_at_one_node_unlocks_a_key_at_another_in_every_mode() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server.address()), open(&server.address()));
    for (at, mode) in [Mode::Exact, Mode::Leased, Mode::Reported]
        .into_iter()
        .enumerate()
    {
        let name = format!("mode-{at}");
        let (here, there) = (
            shared(&one, &name, mode, "60/1d"),
            shared(&two, &name, mode, "60/1d"),
        );
        assert_eq!(here.mode(), mode);
        for act in ["reset", "refund"] {
            let mut used = 0;
            while here.acquire(act, 1).await.is_allowed() {
                used += 1;
            }
            assert!(used >= 30, "{mode:?}: {used}");
            // The denial is remembered here until tomorrow, unless the node hears of the change.
            assert!(here.acquire(act, 1).await.is_denied());
            match act {
                "reset" => there.reset(act).await.expect("the store is up"),
                _ => drop(there.refund(act, 10).await.expect("the store is up")),
            }
            let mut admitted = 0;
            for _ in 0..PATIENCE.as_millis() / 20 {
                admitted = u32::from(here.acquire(act, 5).await.is_allowed());
                if admitted > 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(admitted, 1, "{mode:?}: {act}");
        }
        // A refund gives back no more than was asked.
        let mut after = 5;
        while here.acquire("refund", 1).await.is_allowed() {
            after += 1;
        }
        assert!(mode == Mode::Reported || after <= 10, "{mode:?}: {after}");
    }
}
