//! Limits in a store that fails: what is decided meanwhile, and that the store is used again
//! afterwards.
#![cfg(feature = "servers")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::{Clock, Policy, Quota};
use tidegate_limiter::SystemClock;
use tidegate_redis::{Health, OnError, SharedDecision, SharedLimit, Source, Store};
use tidegate_redis_servers::{PATIENCE, Proxy, Sentinel, Server, eventually};

/// The time limit of any decision. The deadline is 50 ms; the rest allows for a busy machine.
const NEVER_LONGER: Duration = Duration::from_secs(10);

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn log(text: &str) -> Policy {
    Policy::sliding_log(quota(text)).expect("the log is short")
}

fn limit(store: &Store, policy: Policy, on_error: OnError) -> SharedLimit {
    let limit = store
        .limit("x", policy)
        .on_error(on_error)
        .remember_denials(false);
    limit.build().expect("the policy can be shared")
}

/// Makes one decision and checks that it is in time.
async fn ask(limit: &SharedLimit, key: &str) -> SharedDecision {
    let clock = SystemClock::new();
    let before = clock.now();
    let answer = limit.acquire(key, 1).await;
    let took = Duration::from(clock.now().saturating_since(before));
    assert!(took < NEVER_LONGER, "a decision took {took:?}: {answer:?}");
    answer
}

/// Asks until the store decides again. Returns whether it admitted.
async fn until_decided(limit: &SharedLimit, key: &str) -> bool {
    for _ in 0..PATIENCE.as_millis() / 10 {
        let answer = ask(limit, key).await;
        if answer.source == Source::Store {
            return answer.is_allowed();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store does not decide again: {:?}", limit.store());
}

/// Asks until the store is known to fail with this error.
async fn until_failing(limit: &SharedLimit, error: &str) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        let _ = ask(limit, "probe").await;
        if limit.store().stats().errors_of(error) > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store never fails with {error}: {:?}", limit.store());
}

/// Callers that ask in a loop, each with its own key, until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    admitted: Arc<[AtomicU64; 8]>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(limit: &SharedLimit) -> Self {
        let (stop, admitted) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new([const { AtomicU64::new(0) }; 8]),
        );
        let tasks = (0..16)
            .map(|at| {
                let (limit, stop, admitted) =
                    (limit.clone(), Arc::clone(&stop), Arc::clone(&admitted));
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let answer = ask(&limit, &format!("load{}", at % 8)).await;
                        if answer.source == Source::Store && answer.is_allowed() {
                            admitted[at % 8].fetch_add(1, Ordering::Relaxed);
                        }
                        // Leaves time to other tasks. A store that is down answers immediately.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                })
            })
            .collect();
        Self {
            stop,
            admitted,
            tasks,
        }
    }

    /// How often the store admitted each key.
    async fn end(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no caller panics");
        }
        self.admitted
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_starts_late_is_used_once_it_is_up() {
    let mut server = Server::start(&[]);
    server.kill();
    let store =
        Store::open(&server.address()).expect("opening never fails because the store is down");
    let local = limit(&store, log("2/1h"), OnError::Local);
    let answers: Vec<_> = [
        ask(&local, "k").await,
        ask(&local, "k").await,
        ask(&local, "k").await,
    ]
    .into();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer.source, Source::Local(_))),
        "{answers:?}"
    );
    assert_eq!(
        answers.iter().filter(|answer| answer.is_allowed()).count(),
        2,
        "the limit holds in memory"
    );
    assert!(
        ask(&limit(&store, log("2/1h"), OnError::Open), "k")
            .await
            .is_allowed()
    );
    assert!(
        ask(&limit(&store, log("2/1h"), OnError::Closed), "k")
            .await
            .is_denied()
    );
    assert_eq!(store.health(), Health::Down);
    let stats = store.stats();
    assert!(
        stats.opened == 1 && stats.failed_open == 1 && stats.failed_closed == 1,
        "{stats:?}"
    );
    server.start_again();
    assert!(until_decided(&local, "k").await);
    assert_eq!(store.health(), Health::Up);
    assert_eq!(store.stats().closed, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_restarted_is_used_again() {
    let mut server = Server::start(&[]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = limit(&store, log("20/1h"), OnError::Closed);
    until_decided(&limit, "k").await;
    let load = Load::start(&limit);
    let lives = 3;
    for _ in 1..lives {
        server.kill();
        until_failing(&limit, "down").await;
        server.start_again();
        until_decided(&limit, "k").await;
    }
    for admitted in load.end().await {
        // Without persistence each life starts from zero.
        assert!(
            admitted <= 20 * lives,
            "{admitted} admitted of 20 in each of {lives} lives"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_delays_no_decision_and_is_used_again_after_it_thaws() {
    let server = Server::start(&[]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = limit(&store, log("50/1h"), OnError::Local);
    until_decided(&limit, "k").await;
    let load = Load::start(&limit);
    server.freeze();
    until_failing(&limit, "down").await;
    assert!(store.stats().errors_of("timed-out") > 0);
    assert_eq!(store.health(), Health::Down);
    // While the store is down, decisions are immediate: of a hundred at most a few ask the store.
    let before = store.stats();
    for _ in 0..100 {
        let _ = ask(&limit, "k").await;
    }
    let after = store.stats();
    assert!(
        after.errors_of("down") > before.errors_of("down") + 50,
        "{after:?}"
    );
    server.thaw();
    until_decided(&limit, "k").await;
    for admitted in load.end().await {
        assert!(admitted <= 50, "{admitted} admitted of 50");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_not_used_as_a_master() {
    let master = Server::start(&[]);
    let server = Server::start(&[]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = limit(&store, log("1000/1h"), OnError::Closed);
    until_decided(&limit, "k").await;
    server.ask(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    until_failing(&limit, "read-only").await;
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    until_decided(&limit, "k").await;
    assert_eq!(store.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_the_new_master_is_used_with_all_replicated_use() {
    let mut master = Server::start(&[]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let sentinel = Sentinel::watch(&master, 1);
    let address = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port());
    let store = Store::open(&address).expect("the address is well formed");
    let limit = limit(&store, log("5/1h"), OnError::Closed);
    until_decided(&limit, "k").await;
    while until_decided(&limit, "k").await {}
    master.until_replicated_to(&replica);
    master.kill();
    eventually("the sentinel has made the replica master", || {
        sentinel.master() == Some(replica.port())
    });
    assert!(
        !until_decided(&limit, "k").await,
        "what was used before counts"
    );
    assert!(until_decided(&limit, "other").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_never_admits_too_much_over_a_slow_and_broken_network() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = Store::open(&proxy.address()).expect("the address is well formed");
    let limit = limit(&store, log("30/1h"), OnError::Closed);
    until_decided(&limit, "k").await;
    let load = Load::start(&limit);
    for _ in 0..5 {
        proxy.cut();
        until_decided(&limit, "k").await;
    }
    proxy.delay(Duration::from_millis(200));
    until_failing(&limit, "timed-out").await;
    proxy.refuse(true);
    proxy.cut();
    until_failing(&limit, "down").await;
    proxy.refuse(false);
    proxy.delay(Duration::ZERO);
    until_decided(&limit, "k").await;
    for admitted in load.end().await {
        assert!(admitted <= 30, "{admitted} admitted of 30");
    }
    assert!(store.stats().connections > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_and_data_flushed_under_load_are_restored_immediately() {
    let server = Server::start(&[]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = limit(
        &store,
        Policy::token_bucket(quota("1000000/1h")),
        OnError::Closed,
    );
    until_decided(&limit, "k").await;
    let load = Load::start(&limit);
    for _ in 0..20 {
        server.ask(&["SCRIPT", "FLUSH"]);
        server.ask(&["FLUSHALL"]);
        until_decided(&limit, "k").await;
    }
    load.end().await;
    let stats = store.stats();
    assert!(stats.script_loads > 10, "{stats:?}");
    assert_eq!(stats.errors_of("server"), 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_out_of_memory_is_reported_and_used_again_later() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = limit(&store, log("1000/1h"), OnError::Closed);
    until_decided(&limit, "k").await;
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    until_failing(&limit, "out-of-memory").await;
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    until_decided(&limit, "k").await;
    assert_eq!(store.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loading_server_is_reported_and_used_once_it_has_loaded() {
    // Loading takes six seconds (heartbeats are at most two apart). The server polls its sockets
    // every 2 MiB.
    let mut server = Server::start(&["--key-load-delay", "200000", "--rdbcompression", "no"]);
    for key in 0..30 {
        server.ask(&["SET", &format!("filler{key}"), &"x".repeat(1 << 20)]);
    }
    server.ask(&["SAVE"]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    // The server replies twice a second while it loads, and heartbeats wait as long as callers do.
    let limit = store
        .limit("x", log("1000/1h"))
        .on_error(OnError::Closed)
        .deadline(Duration::from_secs(1));
    let limit = limit.build().expect("the policy can be shared");
    until_decided(&limit, "k").await;
    let told = || limit.store().stats().errors_of("loading") > 0;
    // This process may be delayed for as long as the server loads, but not every time.
    for _ in 0..10 {
        server.launch();
        while !told() && ask(&limit, "k").await.source != Source::Store {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if told() {
            break;
        }
    }
    assert!(told());
    server.ask(&["CONFIG", "SET", "key-load-delay", "0"]);
    until_decided(&limit, "k").await;
}
