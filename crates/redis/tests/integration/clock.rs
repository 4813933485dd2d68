//! The store's clock jumps an hour forward for a moment and back.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Clock as _, Policy, Quota, algorithm::Concurrency};
use tidegate_redis::{
    Corrected, Correction, Health, Mode, Part, Reserved, SharedLimit, Store, StoreError,
};
use tidegate_redis_servers::{PATIENCE, Reply, Server, eventually};

const HOUR: i64 = 3_600;
/// Longer than the tests' steps take, shorter than a test may wait.
const WINDOW: &str = "4/3s";

fn quota() -> Quota {
    WINDOW.parse().expect("the quota is well formed")
}

fn policies() -> Vec<Policy> {
    vec![
        Policy::fixed_window(quota()),
        Policy::sliding_window(quota()),
        Policy::sliding_counter(quota()),
        Policy::token_bucket(quota()),
        Policy::leaky_bucket(quota()),
        Policy::sliding_log(quota()).expect("the log is short"),
        Concurrency::new(4)
            .hold(Duration::from_secs(3))
            .expect("the hold is short")
            .into(),
    ]
}

fn open(server: &Server) -> Store {
    let store = Store::open(&server.address()).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn limits(store: &Store, mode: Mode) -> Vec<SharedLimit> {
    let limit = |(at, policy)| {
        let limit = store
            .limit(&format!("limit-{at}"), policy)
            .mode(mode)
            .deadline(PATIENCE);
        limit.build().expect("the policy can be shared")
    };
    policies().into_iter().enumerate().map(limit).collect()
}

/// How many of five requests for one unit are admitted.
async fn admitted(limit: &SharedLimit, key: &str) -> u32 {
    let mut admitted = 0;
    for _ in 0..5 {
        admitted += u32::from(limit.acquire(key, 1).await.is_allowed());
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_an_hour_ahead_for_a_moment_locks_no_key() {
    let server = Server::with_clock();
    let store = open(&server);
    let all: Vec<SharedLimit> = [Mode::Exact, Mode::Leased]
        .into_iter()
        .flat_map(|mode| limits(&store, mode))
        .collect();
    server.shift_clock(HOUR);
    for (at, limit) in all.iter().enumerate() {
        assert!(
            admitted(limit, &format!("key-{at}")).await >= 4,
            "{limit:?}"
        );
    }
    server.shift_clock(0);
    eventually("the step back is noticed", || store.stats().clock_went_back);
    // A node that starts after the step learns of it from the store.
    let later = open(&server);
    assert!(later.stats().clock_went_back);
    eventually("both are counted, and only they", || later.nodes() == 2);
    let seen = later.seen_nodes().await.expect("the store replies");
    assert_eq!(seen.len(), 2, "{seen:?}");
    let exact = limits(&later, Mode::Exact);
    let leased = limits(&later, Mode::Leased);
    for (at, limit) in exact.iter().chain(&leased).enumerate() {
        let key = format!("key-{at}");
        // Its units count from now on.
        let told = limit.acquire(&key, 4).await;
        assert!(told.is_denied() || at % 7 == 4, "{limit:?}: {told:?}");
        let wait = told.decision.retry_after().unwrap_or_default();
        assert!(wait <= Duration::from_secs(8), "{limit:?}: {wait:?}");
    }
    for (at, limit) in exact.iter().chain(&leased).enumerate() {
        let key = format!("key-{at}");
        let mut free = false;
        for _ in 0..PATIENCE.as_millis() / 20 {
            free = limit.acquire(&key, 4).await.is_allowed();
            if free {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(free, "{limit:?} is locked");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_difference_of_the_clocks_is_measured_and_a_small_step_back_is_none() {
    let server = Server::with_clock();
    let store = open(&server);
    eventually("it is near", || {
        store
            .stats()
            .clock_ahead_ms
            .is_some_and(|ahead| ahead.abs() < 1_000)
    });
    server.shift_clock(-90);
    eventually("it is behind", || {
        store
            .stats()
            .clock_ahead_ms
            .is_some_and(|ahead| (-91_000..-89_000).contains(&ahead))
    });
    eventually("that is a step back", || store.stats().clock_went_back);
    server.shift_clock(1);
    eventually("the clock has caught up", || !store.stats().clock_went_back);
}

/// The latest time in the set of nodes, by its member.
fn latest_in_store(server: &Server) -> Option<(String, u64)> {
    let newest = server.ask(&["ZRANGE", "tidegate:nodes", "-1", "-1", "WITHSCORES"]);
    let Reply::Array(newest) = newest else {
        panic!("{newest:?}")
    };
    // The set expires when the clock steps forward.
    let [member, score] = &newest[..] else {
        return None;
    };
    let score = score.text().parse().expect("a score in whole milliseconds");
    Some((member.text().to_owned(), score))
}

/// Waits until a heartbeat of the store's node has reached it after this call.
fn after_a_heartbeat(server: &Server, store: &Store) {
    let before = latest_in_store(server);
    eventually("the heartbeat", || {
        let latest = latest_in_store(server);
        store.health() == Health::Up && latest.is_some() && latest != before
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_is_done_with_a_reservation_moves_the_clock() -> Result<(), StoreError> {
    let server = Server::start(&[]);
    let (store, day) = (open(&server), Duration::from_hours(24));
    let limits = limits(&store, Mode::Exact);
    let limit = &limits[0];
    let parts = [(
        Part {
            limit,
            key: b"k",
            cost: 1,
        },
        false,
    )];
    let correction = [Correction {
        at: 0,
        limit,
        key: b"k",
        actual: 0,
        is_unused: false,
    }];
    // Settled, as SETTLE and CANCEL do, and expired.
    for (id, expires) in [(1, false), (2, true)] {
        let ttl = Duration::from_millis(if expires { 1 } else { 60_000 });
        let text = b"[\"a text that is no time\"]";
        let reserved = store.reserve(id, &parts, text, ttl, 9).await?;
        assert!(matches!(reserved, Reserved::Decided(_, _)), "{reserved:?}");
        assert_eq!(store.reserved(id).await?, Some(text.to_vec()));
        store.extend(id, &parts).await?;
        if expires {
            while store.expire(id, &correction).await? == Corrected::Before {}
        } else {
            store.settle(id, &correction).await?;
        }
        // A reply with the server's time shows whether a later one was seen before.
        let _by_time = limit.acquire("k", 1).await;
        assert_eq!(store.reserved(id).await?, Some(text.to_vec()));
    }
    let _by_time = limit.acquire("k", 1).await;
    after_a_heartbeat(&server, &store);
    assert!(!store.stats().clock_went_back);
    let now = tidegate_limiter::SystemClock::new().now();
    let (member, score) = latest_in_store(&server).expect("the set has this node");
    assert!(
        u128::from(score) < (Duration::from(now) + day).as_millis(),
        "{member} {score}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_that_no_clock_shows_is_removed_from_the_store() {
    // What a former version stored: the latest possible time, in milliseconds.
    const DEFECT: &str = "4611686018427";
    let server = Server::start(&[]);
    for again in [false, true] {
        server.ask(&["ZADD", "tidegate:nodes", DEFECT, "clock"]);
        server.ask(&["PEXPIRE", "tidegate:nodes", "2800000000000"]);
        let store = open(&server);
        // The store counts as reached before the reply to the first heartbeat.
        eventually("the first heartbeat removes it", || {
            server.ask(&["ZSCORE", "tidegate:nodes", "clock"]) == Reply::Nil
        });
        let lives = server.ask(&["PTTL", "tidegate:nodes"]);
        let lives: u64 = lives.text().parse().expect("PTTL is a number");
        assert!(lives <= 10_000, "{lives}");
        eventually("the nodes are counted", || {
            store.nodes() == 1 + u32::from(again)
        });
        assert!(!store.stats().clock_went_back);
        // A server of that version writes it again.
        server.ask(&["ZADD", "tidegate:nodes", DEFECT, "clock"]);
        eventually("the heartbeat removes it", || {
            server.ask(&["ZSCORE", "tidegate:nodes", "clock"]) == Reply::Nil
        });
        assert!(!store.stats().clock_went_back);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_a_year_ahead_is_remembered() {
    let server = Server::with_clock();
    let store = open(&server);
    let limit = &limits(&store, Mode::Exact)[3];
    server.shift_clock(366 * 24 * HOUR);
    assert_eq!(admitted(limit, "k").await, 4);
    after_a_heartbeat(&server, &store);
    server.shift_clock(0);
    eventually("the step back is noticed", || store.stats().clock_went_back);
    assert!(open(&server).stats().clock_went_back, "from the store");
    // The units that were used in the future count from now on.
    let wait = limit.acquire("k", 4).await.decision.retry_after();
    assert!(
        wait.unwrap_or_default() <= Duration::from_secs(8),
        "{wait:?}"
    );
}
