//! A store at some distance.
#![cfg(feature = "servers")]

#[path = "integration/waiting/mod.rs"]
mod waiting;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::Policy;
use tidegate_redis::{Health, OnError, SharedLimit, Source, Store, Timeout};
use tidegate_redis_servers::{Proxy, Server};
use tokio::time::{Instant, sleep};
use waiting::{reach, until};

fn limit(store: &Store, deadline: Duration) -> SharedLimit {
    let policy = Policy::token_bucket("1000000/1s".parse().expect("the quota is well formed"));
    let limit = store
        .limit("x", policy)
        .on_error(OnError::Closed)
        .deadline(deadline);
    limit.build().expect("the policy can be shared")
}

/// How many decisions the store makes, and does not make, for this many callers in this time.
async fn asked(limit: &SharedLimit, callers: usize, length: Duration) -> (u64, u64) {
    let counts = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (limit, counts) = (limit.clone(), Arc::clone(&counts));
            tokio::spawn(async move {
                let begun = Instant::now();
                while begun.elapsed() < length {
                    let answer = limit.acquire(format!("k{caller}"), 1).await;
                    let count = if answer.source == Source::Store {
                        &counts.0
                    } else {
                        &counts.1
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    if answer.source != Source::Store {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    (
        counts.0.load(Ordering::Relaxed),
        counts.1.load(Ordering::Relaxed),
    )
}

/// Deadlines are ten times the default, so that a busy machine does not look like a distant store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_trip_of_four_fifths_of_the_deadline_fails_no_request() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    proxy.delay(Duration::from_millis(400));
    let store = reach(&proxy.address()).await;
    let limit = limit(&store, Duration::from_millis(500));
    let _ = asked(&limit, 1, Duration::from_secs(1)).await;
    for callers in [1, 2, 3, 5, 20, 100] {
        let (made, failed) = asked(&limit, callers, Duration::from_secs(2)).await;
        assert!(
            made >= 4 * callers as u64,
            "{callers} callers: {made} made, {failed} failed"
        );
        assert!(
            failed * 1_000 <= made,
            "{callers} callers: {made} made, {failed} failed"
        );
    }
    assert_eq!(store.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_fast_heartbeats_and_late_decisions_is_slow_until_decisions_are_in_time() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = reach(&proxy.address()).await;
    // Heartbeats may take 50 ms, but these decisions may not.
    let hasty = limit(&store, Duration::from_millis(15));
    assert_eq!(store.health(), Health::Up);
    proxy.delay(Duration::from_millis(30));
    let asking = tokio::spawn({
        let hasty = hasty.clone();
        async move {
            loop {
                let _ = asked(&hasty, 8, Duration::from_millis(100)).await;
            }
        }
    });
    until("it is found to be slow", || store.health() == Health::Slow).await;
    assert!(store.trouble().is_some(), "{store:?}");
    proxy.delay(Duration::ZERO);
    until("it is quick again", || store.health() == Health::Up).await;
    asking.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_automatic_deadline_is_long_enough_for_the_distance() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    proxy.delay(Duration::from_millis(100));
    let store = reach(&proxy.address()).await;
    until("the round trip is known", || store.round_trip().is_some()).await;
    assert!(
        store
            .round_trip()
            .is_some_and(|trip| trip >= Duration::from_millis(100)),
        "{store:?}"
    );
    let policy = Policy::token_bucket("1000000/1s".parse().expect("the quota is well formed"));
    let limit = store
        .limit("x", policy)
        .on_error(OnError::Closed)
        .deadline(Timeout::Auto);
    let limit = limit.build().expect("the policy can be shared");
    let wait = limit.deadline().left();
    assert!(
        wait >= Duration::from_millis(300) && wait <= Duration::from_secs(1),
        "{wait:?}"
    );
    let (made, failed) = asked(&limit, 10, Duration::from_secs(1)).await;
    assert!(failed == 0 && made >= 50, "{made} made, {failed} failed");
}

fn automatic(store: &Store, name: &str) -> SharedLimit {
    let policy = Policy::token_bucket("1000000/1s".parse().expect("the quota is well formed"));
    let limit = store
        .limit(name, policy)
        .on_error(OnError::Closed)
        .deadline(Timeout::Auto);
    limit.build().expect("the policy can be shared")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_with_a_short_deadline_does_not_close_a_distant_store_to_the_others() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    proxy.delay(Duration::from_millis(80));
    let store = reach(&proxy.address()).await;
    until("the round trip is known", || store.round_trip().is_some()).await;
    let (automatic, hasty) = (
        automatic(&store, "patient"),
        limit(&store, Duration::from_millis(50)),
    );
    // For three intervals of the heartbeat.
    let length = Duration::from_secs(6);
    let beside = tokio::spawn(async move { asked(&hasty, 4, length).await });
    let (made, failed) = asked(&automatic, 10, length).await;
    assert!(
        failed * 100 <= made && made >= 300,
        "{made} made, {failed} failed"
    );
    assert_ne!(store.health(), Health::Down);
    let (made, failed) = beside.await.expect("no task panics");
    assert!(
        made == 0 && failed > 0,
        "no reply can be in time for the short deadline"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn automatic_deadlines_follow_a_distance_that_grows() {
    for delay in [40, 80] {
        let server = Server::start(&[]);
        let proxy = Proxy::before(server.port());
        let store = reach(&proxy.address()).await;
        let automatic = automatic(&store, "x");
        let (made, _) = asked(&automatic, 10, Duration::from_millis(300)).await;
        assert!(made > 0);
        proxy.delay(Duration::from_millis(delay));
        let (made, failed) = asked(&automatic, 10, Duration::from_millis(500)).await;
        println!("{delay} ms, first half second: {made} made, {failed} failed");
        let (made, failed) = asked(&automatic, 10, Duration::from_secs(3)).await;
        println!("{delay} ms, afterwards: {made} made, {failed} failed");
        assert!(
            failed * 10 <= made && made >= 100,
            "{delay} ms: {made} made, {failed} failed"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_for_the_reply_to_another_caller() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let trip = Duration::from_millis(30);
    proxy.delay(trip);
    let store = reach(&proxy.address()).await;
    let limit = limit(&store, Duration::from_secs(2));
    until("the round trip is known", || store.round_trip().is_some()).await;
    let quickest = async |caller: usize| {
        let mut quickest = Duration::MAX;
        for _ in 0..12 {
            let begun = Instant::now();
            let answer = limit.acquire(format!("k{caller}"), 1).await;
            assert_eq!(answer.source, Source::Store);
            quickest = quickest.min(begun.elapsed());
        }
        quickest
    };
    let (a, b, c) = tokio::join!(quickest(0), quickest(1), quickest(2));
    let slowest = a.max(b).max(c);
    assert!(
        slowest < trip * 3 / 2,
        "{slowest:?}, where a round trip takes {trip:?}"
    );
}
