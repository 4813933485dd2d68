//! Nothing takes longer than its deadline. The server accepts connections and never replies. The
//! clock advances only while all tasks wait.

use std::{future::Future, net::TcpListener, time::Duration};

use tidegate_core::{Policy, Quota, algorithm::Concurrency};
use tidegate_redis::{Deadline, Mode, OnError, Part, SharedLimit, Source, Store};
use tidegate_redis_servers::PATIENCE;
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_millis(300);

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

/// Holds connections open without a reply for as long as it exists.
fn silent() -> (TcpListener, Store) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
    let port = listener
        .local_addr()
        .expect("a bound socket has an address")
        .port();
    let store =
        Store::open(&format!("redis://127.0.0.1:{port}")).expect("the address is well formed");
    (listener, store)
}

/// How long a future takes, in milliseconds.
async fn taken<T>(something: impl Future<Output = T>) -> (u128, T) {
    let begun = Instant::now();
    let told = something.await;
    (begun.elapsed().as_millis(), told)
}

fn of(store: &Store, policy: impl Into<Policy>, mode: Mode) -> SharedLimit {
    let limit = store
        .limit("x", policy)
        .mode(mode)
        .deadline(DEADLINE)
        .local_keys(16);
    limit.build().expect("the policy can be shared")
}

#[tokio::test(start_paused = true)]
async fn every_request_is_answered_by_its_deadline() {
    let window = Policy::sliding_window(quota("100/1h"));
    let permits = Concurrency::new(9)
        .hold(Duration::from_hours(1))
        .expect("the hold is short");
    for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
        // Each request uses a new store, which is not known to be down yet.
        let (_listener, store) = silent();
        in_time(of(&store, window, mode).acquire("k", 1)).await;
        let (_listener, store) = silent();
        in_time(of(&store, window, mode).peek("k", 1)).await;
    }
    let (_listener, store) = silent();
    in_time(of(&store, permits, Mode::Exact).permit("k", 1)).await;
    let (_listener, store) = silent();
    in_time(of(&store, window, Mode::Exact).refund("k", 1)).await;
    let (_listener, store) = silent();
    let limit = of(&store, window, Mode::Exact);
    let parts = [
        Part {
            limit: &limit,
            key: b"k",
            cost: 1,
        },
        Part {
            limit: &limit,
            key: b"l",
            cost: 1,
        },
    ];
    in_time(store.acquire_all(&parts)).await;
}

/// The future ends at its deadline and not before. (A timer ends in the millisecond after it.)
async fn in_time<T>(something: impl Future<Output = T>) {
    let (took, _told) = taken(something).await;
    assert!((300..=302).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_decision_with_a_given_deadline_is_made_by_then() {
    let (_listener, store) = silent();
    for mode in [Mode::Exact, Mode::Leased] {
        let limit = of(&store, Policy::sliding_window(quota("100/1h")), mode);
        let soon = || Deadline::after(Duration::from_millis(40));
        let (took, told) = taken(limit.acquire_by("k", 1, soon())).await;
        assert!(
            took <= 42 && matches!(told.source, Source::Local(_)),
            "{mode:?}: {took} ms, {told:?}"
        );
        let (took, told) = taken(limit.peek_by("k", 1, soon())).await;
        assert!(
            took <= 42 && matches!(told.source, Source::Local(_)),
            "{mode:?}: {took} ms, {told:?}"
        );
    }
    // With no time left, the store is not asked and nothing is learned about it.
    let (_listener, store) = silent();
    for mode in [Mode::Exact, Mode::Leased] {
        let limit = of(&store, Policy::sliding_window(quota("100/1h")), mode);
        let now = Deadline::after(Duration::ZERO);
        for _ in 0..100 {
            let (took, told) = taken(limit.acquire_by("k", 1, now)).await;
            assert!(
                took == 0 && matches!(told.source, Source::Local(_)),
                "{mode:?}: {took} ms, {told:?}"
            );
            assert_eq!(taken(limit.peek_by("k", 1, now)).await.0, 0);
        }
    }
    let stats = store.stats();
    assert_eq!(
        (stats.calls, stats.opened, stats.errors_of("timed-out")),
        (0, 0, 400),
        "{stats:?}"
    );
}

/// The memory of the process follows the system's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_in_memory_that_outlived_its_hold_frees_nobody_elses() {
    let (_listener, store) = silent();
    let permits = Concurrency::new(1)
        .hold(Duration::from_secs(1))
        .expect("the hold is short");
    let limit = store.limit("held", Policy::from(permits));
    let limit = limit.deadline(Duration::from_millis(20)).local_keys(16);
    let limit = limit.on_error(OnError::Local).build();
    let limit = limit.expect("the policy can be shared");
    let late = limit.permit("k", 1).await.expect("there is room");
    assert!(matches!(late.decision().source, Source::Local(_)));
    let free = async {
        loop {
            match limit.permit("k", 1).await {
                Ok(other) => return other,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let other = tokio::time::timeout(PATIENCE, free).await;
    let other = other.expect("the hold has passed");
    drop(late);
    assert!(limit.permit("k", 1).await.is_err(), "the other is in use");
    drop(other);
    assert!(limit.permit("k", 1).await.is_ok());
}
