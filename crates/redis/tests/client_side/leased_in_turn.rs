//! Requests that a connection pipelines to a leased limit, over a store that is far away.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Clock, Nanos, Policy, Quota};
use tidegate_limiter::SystemClock;
use tidegate_redis::{Health, Mode, OnError, SharedDecision, SharedLimit, Store, Timeout};
use tidegate_redis_servers::{PATIENCE, Proxy, Server, eventually};

fn window(text: &str) -> Policy {
    Policy::sliding_window(text.parse::<Quota>().expect("the quota is well formed"))
}

fn far(server: &Server, millis: u64) -> (Proxy, Store) {
    let proxy = Proxy::before(server.port());
    proxy.delay(Duration::from_millis(millis));
    let store = Store::open(&proxy.address()).expect("the address is well formed");
    eventually("the store is reached", || {
        store.health() == Health::Up && store.round_trip().is_some()
    });
    (proxy, store)
}

fn limit(store: &Store, name: &str, policy: Policy, mode: Mode) -> SharedLimit {
    let limit = store
        .limit(name, policy)
        .mode(mode)
        .on_error(OnError::Closed)
        .deadline(PATIENCE);
    limit.build().expect("the policy can be shared")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_one_round_trip_and_is_decided_in_order() {
    let (server, millis) = (Server::start(&[]), 80);
    let (_proxy, store) = far(&server, millis);
    let clock = SystemClock::new();
    for mode in [Mode::Leased, Mode::Reported] {
        let limit = limit(&store, mode_name(mode), window("40/1h"), mode);
        // The node learns how far the store is.
        assert!(limit.acquire("other", 1).await.is_allowed());
        let costs = [1, 50, 1, 0];
        let requests: Vec<_> = (0..64).map(|at| ("hot", costs[at % 4])).collect();
        let (begun, before) = (clock.now(), store.stats().calls);
        let told = limit.acquire_many(&requests).await;
        let (took, calls) = (
            clock.now().saturating_since(begun),
            store.stats().calls - before,
        );
        // One by one, 64 requests took 64 round trips.
        assert!(took < Nanos::from_millis(8 * millis), "{mode:?}: {took:?}");
        assert!(calls < 6, "{calls} calls, with a few heartbeats");
        for (at, (told, (_, cost))) in told.iter().zip(&requests).enumerate() {
            assert_eq!(told.is_allowed(), *cost < 50, "{mode:?}, {at}: {told:?}");
        }
        assert_eq!(
            told.last().expect("there are 64").decision.remaining(),
            8,
            "{mode:?}: 32 were taken"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_requests_of_a_batch_have_one_deadline() {
    let server = Server::start(&[]);
    let (proxy, store) = far(&server, 0);
    let limit = store
        .limit("x", window("1000/1h"))
        .mode(Mode::Leased)
        .on_error(OnError::Closed);
    let limit = limit
        .deadline(Timeout::After(Duration::from_millis(50)))
        .build()
        .expect("it can be shared");
    proxy.delay(PATIENCE);
    let (clock, requests) = (SystemClock::new(), vec![("hot", 1); 64]);
    let begun = clock.now();
    let told = limit.acquire_many(&requests).await;
    let took = clock.now().saturating_since(begun);
    assert!(told.iter().all(SharedDecision::is_denied), "{told:?}");
    assert!(
        took < Nanos::from_millis(64 * 50 / 4),
        "each waited for its own deadline: {took:?}"
    );
}

fn mode_name(mode: Mode) -> &'static str {
    if mode == Mode::Leased {
        "leased"
    } else {
        "other"
    }
}

/// How much a connection that pipelines `depth` requests on one key gets in `span`, in units
/// admitted.
async fn admitted(limit: SharedLimit, depth: usize, span: Duration) -> usize {
    let (clock, requests) = (SystemClock::new(), vec![("hot", 1); depth]);
    let (begun, mut admitted) = (clock.now(), 0);
    while clock.now().saturating_since(begun) < span.into() {
        admitted += limit
            .acquire_many(&requests)
            .await
            .iter()
            .filter(|told| told.is_allowed())
            .count();
    }
    admitted
}

/// The units that such connections get of four algorithms' limits, all at the same time.
async fn of_each_algorithm(store: &Store, mode: Mode) -> usize {
    let span = Duration::from_secs(3);
    let policies = [
        "500/1s",
        "token-bucket 500/1s",
        "sliding-log 500/1s",
        "fixed-window 500/1s",
    ];
    let asking = policies.map(|policy| {
        let policy: Policy = policy.parse().expect("the policy is well formed");
        let name = format!("{}-{}", policy.name(), mode_name(mode));
        tokio::spawn(admitted(limit(store, &name, policy, mode), 64, span))
    });
    let mut all = 0;
    for asking in asking {
        all += asking.await.expect("no task panics");
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_pipelines_gets_nearly_what_an_exact_limit_gives_it() {
    for millis in [5, 40, 80] {
        let mut found = Vec::new();
        // A busy machine may keep one of them from asking for a while.
        for _ in 0..3 {
            let server = Server::start(&[]);
            let (_proxy, store) = far(&server, millis);
            let (exact, leased) = tokio::join!(
                of_each_algorithm(&store, Mode::Exact),
                of_each_algorithm(&store, Mode::Leased)
            );
            found.push((exact, leased));
            if leased * 100 >= exact * 97 {
                break;
            }
        }
        println!("{millis} ms: {found:?}");
        let enough = |(exact, leased): &(usize, usize)| leased * 100 >= exact * 97;
        assert!(found.last().is_some_and(enough), "{millis} ms: {found:?}");
    }
}
