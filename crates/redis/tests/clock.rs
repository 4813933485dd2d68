//! The store's clock jumps an hour forward for a moment and back.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Policy, Quota, algorithm::Concurrency};
use tidegate_redis::{Health, Mode, SharedLimit, Store};
use tidegate_redis_servers::{PATIENCE, Server, eventually};

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
