//! When a failing store counts as down, for how long, and what that costs.
#![cfg(feature = "servers")]

use crate::waiting;

use std::{
    future::Future,
    net::TcpListener,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Health, Mode, OnError, Part, SharedLimit, Source, Store, StoreError};
use tidegate_redis_servers::{PATIENCE, Proxy, Server, eventually};
use tokio::time::{Instant, pause, sleep};
use waiting::{Until, reach, until};

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn log(text: &str) -> Policy {
    Policy::sliding_log(quota(text)).expect("the log is short")
}

fn limit(store: &Store, name: &str, policy: Policy) -> SharedLimit {
    store
        .limit(name, policy)
        .remember_denials(false)
        .build()
        .expect("the policy can be shared")
}

fn open(address: &str) -> Store {
    Store::open(address).expect("the address is well formed")
}

/// Asks until the store decides.
async fn until_decided(limit: &SharedLimit) {
    for at in 0..PATIENCE.as_millis() / 5 {
        if limit.acquire(format!("decided{at}"), 1).await.source == Source::Store {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("the store does not decide: {:?}", limit.store());
}

/// The answer, which must be there without a wait.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a decision waits for a store that is down"),
    }
}

/// Asks for used-up keys and for new ones: denials, which write nothing, and admissions, which do.
async fn mixed(limit: &SharedLimit, round: u64) {
    let _ = limit.acquire(format!("used{}", round % 10), 1).await;
    let _ = limit.acquire(format!("new{round}"), 1).await;
    sleep(Duration::from_millis(2)).await;
}

/// Asks until the store has counted eight errors of a kind.
async fn eight_errors(limit: &SharedLimit, kind: &str) {
    let (store, began) = (limit.store(), Instant::now());
    for round in 0.. {
        if store.stats().errors_of(kind) >= 8 {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "no eight errors of {kind}: {store:?}, {:?}",
            store.trouble()
        );
        mixed(limit, round).await;
    }
}

/// Asks until the store has refused several requests with this error, and checks that it stays
/// down.
async fn refused(limit: &SharedLimit, error: &str) {
    let store = limit.store();
    eight_errors(limit, error).await;
    assert_eq!(
        (store.stats().opened, store.stats().closed, store.health()),
        (1, 0, Health::Down)
    );
}

/// A limit of one in a store that has been reached, with ten keys used up. Its deadline is long, so
/// that a busy machine does not affect the store's health.
async fn used(server: &Server) -> SharedLimit {
    let store = reach(&server.address()).await;
    let limit = store
        .limit("x", log("1/1h"))
        .deadline(PATIENCE)
        .remember_denials(false);
    let limit = limit.build().expect("the policy can be shared");
    for at in 0..10 {
        let answer = limit.acquire(format!("used{at}"), 1).await;
        assert!(
            answer.is_allowed() && answer.source == Source::Store,
            "{answer:?}"
        );
    }
    limit
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_down_no_decision_waits_or_asks_it() {
    // It accepts connections and never replies.
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
    let address = silent.local_addr().expect("a bound socket has an address");
    let store = open(&format!("redis://{address}"));
    let exact = limit(&store, "exact", log("1000/1h"));
    let leased = store
        .limit("leased", Policy::token_bucket(quota("1000/1s")))
        .mode(Mode::Leased)
        .build();
    let leased = leased.expect("the policy can be shared");
    until("the store is found to be down", || {
        store.stats().opened == 1
    })
    .await;
    let begun = store.stats();
    // Several more heartbeats fail meanwhile.
    let mut asked = 0;
    let failed = Until::new("five heartbeats fail");
    while failed
        .is_yet_to_be(store.stats().errors_of("timed-out") >= begun.errors_of("timed-out") + 5)
    {
        for _ in 0..10 {
            let answer = at_once(exact.acquire("k", 1));
            assert_eq!(answer.source, Source::Local(StoreError::Down));
            let part = Part {
                limit: &exact,
                key: b"k",
                cost: 1,
            };
            let answers = at_once(store.acquire_all(&[part])).expect("one key is of one slot");
            assert_eq!(answers[0].source, Source::Local(StoreError::Down));
            asked += 2;
        }
        assert!(matches!(
            leased.acquire("k", 1).await.source,
            Source::Local(_)
        ));
        asked += 1;
        sleep(Duration::from_millis(1)).await;
    }
    let ended = store.stats();
    assert_eq!(
        ended.errors_of("down") - begun.errors_of("down"),
        asked,
        "each is counted, once"
    );
    assert_eq!(
        (ended.opened, ended.closed, store.health()),
        (1, 0, Health::Down)
    );
}

/// The virtual time that a future takes while nothing else happens.
async fn took<T>(what: impl Future<Output = T>) -> Duration {
    let begun = Instant::now();
    what.await;
    begun.elapsed()
}

#[tokio::test]
async fn every_decision_is_made_within_the_default_deadline() {
    let server = Server::start(&[]);
    for reached in [true, false] {
        for kind in ["exact", "leased", "joint"] {
            let proxy = Proxy::before(server.port());
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
            let silent = listener
                .local_addr()
                .expect("a bound socket has an address");
            let store = if reached {
                reach(&proxy.address()).await
            } else {
                open(&format!("redis://{silent}"))
            };
            let mode = if kind == "leased" {
                Mode::Leased
            } else {
                Mode::Exact
            };
            let limit = store
                .limit("x", Policy::token_bucket(quota("1000/1s")))
                .mode(mode)
                .build();
            let limit = limit.expect("the policy can be shared");
            proxy.silence();
            pause();
            let part = Part {
                limit: &limit,
                key: b"k",
                cost: 1,
            };
            let ask = async || {
                if kind == "joint" {
                    let _ = store.acquire_all(&[part]).await;
                } else {
                    let _ = limit.acquire("k", 1).await;
                }
            };
            // The first sends its own call, the second starts a task, and the others wait for that
            // task.
            let all = took(Box::pin(async { tokio::join!(ask(), ask(), ask(), ask()) })).await;
            let usual = Duration::from_millis(50)..Duration::from_millis(60);
            assert!(usual.contains(&all), "{kind}, reached: {reached}: {all:?}");
            tokio::time::resume();
        }
    }
}

#[tokio::test]
async fn a_silent_store_is_found_down_within_four_seconds_without_requests() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = reach(&proxy.address()).await;
    let _limit = limit(&store, "x", log("5/1h"));
    proxy.silence();
    // Only time passes.
    pause();
    let found = took(async {
        while store.health() == Health::Up {
            sleep(Duration::from_millis(10)).await;
        }
    });
    let found = found.await;
    assert!(found < Duration::from_secs(4), "{found:?}");
    assert_eq!((store.health(), store.stats().opened), (Health::Down, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_still_denies_is_not_taken_for_a_master() {
    let server = Server::start(&[]);
    let limit = used(&server).await;
    let store = limit.store();
    let before = store.stats();
    // The master does not exist, so the replica keeps its data.
    server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    refused(&limit, "read-only").await;
    let after = store.stats();
    let refusals = after.errors_of("read-only");
    assert!(
        after.connections - before.connections <= refusals,
        "at most one for each refusal: {after:?}"
    );
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    until_decided(&limit).await;
    assert_eq!(
        (store.stats().opened, store.stats().closed, store.health()),
        (1, 1, Health::Up)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_is_down_even_though_it_can_still_deny() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let limit = used(&server).await;
    let store = limit.store();
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    refused(&limit, "out-of-memory").await;
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    until_decided(&limit).await;
    assert_eq!((store.stats().closed, store.health()), (1, Health::Up));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_writes_for_any_other_reason_is_down_too() {
    let server = Server::start(&[]);
    let limit = used(&server).await;
    let store = limit.store();
    server.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    until("it is found to be down", || store.health() == Health::Down).await;
    refused(&limit, "server").await;
    server.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    until_decided(&limit).await;
    assert_eq!(store.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_save_and_so_refuses_writes_is_down_until_it_can() {
    let server = Server::start(&["--stop-writes-on-bgsave-error", "yes"]);
    let limit = used(&server).await;
    let store = limit.store();
    let build = |on_error| {
        store
            .limit("x", log("1/1h"))
            .deadline(PATIENCE)
            .on_error(on_error)
            .build()
    };
    let (opens, closes) = (
        build(OnError::Open).expect("as any"),
        build(OnError::Closed).expect("as any"),
    );
    // No user, not even root, can create a file where a directory is. The server refuses writes
    // only if automatic saving is enabled.
    let taken = server.directory().join("dump.rdb");
    std::fs::create_dir(&taken).expect("its own directory can be written");
    server.ask(&["CONFIG", "SET", "save", "3600 1000000"]);
    let save = |result: &str| {
        let told = format!("rdb_last_bgsave_status:{result}\r");
        // If a save is already running, ask again.
        eventually(&told, || {
            server.ask(&["BGSAVE"]);
            server.ask(&["INFO", "persistence"]).text().contains(&told)
        });
    };
    save("err");
    until("it is found to be down", || store.health() == Health::Down).await;
    let found = store.stats();
    eight_errors(&limit, "server").await;
    assert_eq!(
        (store.stats().opened, store.stats().closed),
        (found.opened, found.closed),
        "it stays so"
    );
    let why = || {
        store
            .trouble()
            .map_or(String::new(), |error| error.to_string())
    };
    until("the reason is reported", || {
        why().contains("MISCONF") && why().contains("save")
    })
    .await;
    let (open, closed) = (
        opens.acquire("used0", 1).await,
        closes.acquire("new", 1).await,
    );
    assert!(
        open.is_allowed() && closed.is_denied(),
        "{open:?} {closed:?}"
    );
    assert!(
        [open, closed]
            .iter()
            .all(|answer| matches!(answer.source, Source::Failed(_)))
    );
    assert!(matches!(
        limit.acquire("new", 1).await.source,
        Source::Local(_)
    ));
    std::fs::remove_dir(&taken).expect("it is empty");
    save("ok");
    until_decided(&closes).await;
    until("it recovers", || store.health() == Health::Up).await;
    assert!(store.stats().closed > found.closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_without_permission_for_its_keys_affects_no_other() {
    let server = Server::start(&[]);
    let keys = ["~tidegate:nodes", "~tidegate:probe:*", "~tidegate:good:*"];
    let user = ["ACL", "SETUSER", "app", "on", ">secret", "+@all"];
    server.ask(&[&user[..], &keys].concat());
    let store = reach(&format!("redis://app:secret@127.0.0.1:{}", server.port())).await;
    let build = |name| store.limit(name, log("1000/1h")).deadline(PATIENCE).build();
    let (good, bad) = (
        build("good").expect("as any"),
        build("bad").expect("as any"),
    );
    for at in 0..50 {
        let refused = bad.acquire("k", 1).await;
        assert!(
            matches!(&refused.source, Source::Local(error) if *error != StoreError::Down),
            "{refused:?}"
        );
        assert_eq!(
            good.acquire(format!("k{at}"), 1).await.source,
            Source::Store
        );
    }
    let stats = store.stats();
    assert_eq!(
        (stats.opened, stats.connections, store.health()),
        (0, 1, Health::Up)
    );
    assert_eq!(stats.errors_of("forbidden"), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_slower_than_a_second_is_down_until_it_is_fast_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = reach(&proxy.address()).await;
    let limit = limit(&store, "x", log("1000/1h"));
    until_decided(&limit).await;
    let quick = store.stats();
    proxy.delay(Duration::from_millis(1_500));
    let mut round = 0;
    // Enough failures that no earlier request is still in flight.
    while store.health() != Health::Down
        || store.stats().errors_of("timed-out") < quick.errors_of("timed-out") + 8
    {
        mixed(&limit, round).await;
        round += 1;
    }
    let opened = store.stats();
    // From now on only the heartbeats ask.
    let failed = Until::new("six heartbeats fail");
    while failed
        .is_yet_to_be(store.stats().errors_of("timed-out") >= opened.errors_of("timed-out") + 6)
    {
        mixed(&limit, round).await;
        round += 1;
    }
    let slow = store.stats();
    assert_eq!(
        (slow.opened - opened.opened, slow.closed - opened.closed),
        (0, 0),
        "{slow:?}"
    );
    assert_eq!(store.health(), Health::Down);
    proxy.delay(Duration::ZERO);
    until_decided(&limit).await;
    assert_eq!(store.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_distant_store_is_up_for_limits_with_long_deadlines() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = open(&proxy.address());
    let patient = store
        .limit("x", log("1000/1h"))
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared");
    until_decided(&patient).await;
    proxy.delay(Duration::from_millis(100));
    let calls = store.stats().calls;
    // Heartbeats and decisions work.
    until("more heartbeats", || store.stats().calls >= calls + 3).await;
    assert_eq!(patient.acquire("k", 1).await.source, Source::Store);
    assert_eq!((store.stats().opened, store.health()), (0, Health::Up));
    // A limit with a short deadline changes nothing for the others.
    let hasty = limit(&store, "y", log("1000/1h"));
    assert!(matches!(
        hasty.acquire("k", 1).await.source,
        Source::Local(_)
    ));
    let calls = store.stats().calls;
    until("more heartbeats", || store.stats().calls >= calls + 3).await;
    assert_eq!(patient.acquire("k", 1).await.source, Source::Store);
    assert_eq!((store.stats().opened, store.health()), (0, Health::Up));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_goes_silent_while_the_store_is_down_is_given_up() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = reach(&proxy.address()).await;
    let limit = limit(&store, "x", log("1000/1h"));
    until_decided(&limit).await;
    proxy.delay(Duration::from_millis(1_500));
    let down = Until::new("the store is found to be down");
    while down.is_yet_to_be(store.stats().opened > 0) {
        let _ = limit.acquire("k", 1).await;
    }
    let connections = store.stats().connections;
    let another = || store.stats().connections > connections && store.health() == Health::Down;
    until("it is tried by another connection", another).await;
    // The host dies silently; new connections would lead to another one.
    proxy.silence();
    proxy.delay(Duration::ZERO);
    until_decided(&limit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_that_is_no_longer_polled_delays_no_other() {
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let build = |name, mode| {
        let limit = store
            .limit(name, Policy::sliding_window(quota("100000/1h")))
            .mode(mode)
            .deadline(PATIENCE);
        limit.build().expect("the policy can be shared")
    };
    let (exact, leased) = (build("exact", Mode::Exact), build("leased", Mode::Leased));
    // On a busy machine the answer may be there before the first poll has ended.
    let forgotten = loop {
        let mut asking = Box::pin(exact.acquire("a", 1));
        if asking
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            break asking;
        }
    };
    for at in 0..20 {
        let others = ["b", "c"].map(|key| {
            let exact = exact.clone();
            tokio::spawn(async move { exact.acquire(key, 1).await.source })
        });
        for other in others {
            assert_eq!(
                other.await.expect("no task panics"),
                Source::Store,
                "round {at}"
            );
        }
        let answer = leased.acquire("b", 1).await;
        assert!(
            matches!(answer.source, Source::Store | Source::Lease),
            "{answer:?}"
        );
    }
    store.close().await;
    assert_eq!(store.stats().opened, 0);
    assert_eq!(
        forgotten.await.source,
        Source::Store,
        "it has its answer as soon as it is polled"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_never_reached_is_down() {
    let store = open("redis+cluster://127.0.0.1:1,127.0.0.1:2");
    let limit = store
        .limit("x", log("10/1h"))
        .on_error(OnError::Closed)
        .build()
        .expect("as any");
    assert!(limit.acquire("k", 1).await.is_denied());
    until("that is found out", || store.stats().opened > 0).await;
    assert_eq!(store.health(), Health::Down);
}
