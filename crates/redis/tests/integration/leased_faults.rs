//! Leased limits while the server forgets or hangs, and nodes take and give back allotments.
#![cfg(feature = "servers")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_core::{Algorithm, Policy, Quota};
use tidegate_redis::{Health, Mode, OnError, SharedLimit, Source, Stats, Store, StoreError};
use tidegate_redis_servers::{PATIENCE, Proxy, Sentinel, Server, eventually};

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

/// Windows that do not end within a test. Only the server can forget them.
fn policies() -> [Policy; 4] {
    let log = |text| Policy::sliding_log(quota(text)).expect("the log is not too long");
    [
        Policy::sliding_window(quota("3000/360d")),
        Policy::fixed_window(quota("3000/366d")),
        log("3000/1h"),
        log("120/1h"),
    ]
}

fn node(address: &str, policy: Policy, deadline: Duration) -> SharedLimit {
    let store = Store::open(address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    let limit = store
        .limit("x", policy)
        .mode(Mode::Leased)
        .deadline(deadline)
        .on_error(OnError::Closed);
    limit.build().expect("the policy can be shared")
}

/// Callers on all nodes that ask for one key until they are stopped.
struct Hot {
    nodes: Vec<SharedLimit>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<u64>>,
}

impl Hot {
    fn start(address: &str, policy: Policy, deadline: Duration) -> Self {
        let nodes: Vec<_> = (0..3).map(|_| node(address, policy, deadline)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..6)
            .map(|at| {
                let (limit, stop) = (nodes[at % nodes.len()].clone(), Arc::clone(&stop));
                tokio::spawn(async move {
                    let (mut admitted, mut turn) = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        turn += 1;
                        let cost = 1 + turn % 3;
                        if limit.acquire("hot", cost).await.is_allowed() {
                            admitted += cost;
                        }
                        // Leaves time to other tasks. A longer pause now and then leaves allotments
                        // unused.
                        let pause = if turn % 50 == 0 { 30 } else { 1 };
                        tokio::time::sleep(Duration::from_millis(pause)).await;
                    }
                    admitted
                })
            })
            .collect();
        Self { nodes, stop, tasks }
    }

    /// Waits until nodes have decided from allotments this often, or know that nothing is left,
    /// which they remember for long.
    async fn until_leased(&self, times: u64) {
        let sum = |count: fn(&Stats) -> u64| -> u64 {
            self.nodes
                .iter()
                .map(|node| count(&node.store().stats()))
                .sum()
        };
        let remembered = sum(|stats| stats.remembered);
        for _ in 0..PATIENCE.as_millis() / 5 {
            if sum(|stats| stats.leased) >= times
                || sum(|stats| stats.remembered) >= remembered + 50
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the nodes take no allotments: {:?}", self.nodes[0].store());
    }

    /// Waits until the store has failed each node like this. Other keys show it, too, because the
    /// limit may be used up.
    async fn until_failed(&self, like: impl Fn(&StoreError) -> bool) {
        for node in &self.nodes {
            let mut failed = false;
            for at in 0..PATIENCE.as_millis() / 10 {
                let asked = node.acquire(format!("other{at}"), 1).await;
                failed = matches!(&asked.source, Source::Failed(error) if like(error));
                if failed {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(failed, "the store does not fail: {:?}", node.store());
        }
    }

    /// How much all nodes were admitted in total, after everything unused was given back.
    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut admitted = 0;
        for task in self.tasks {
            admitted += task.await.expect("no caller panics");
        }
        for node in &self.nodes {
            node.store().close().await;
        }
        admitted
    }
}

async fn left(address: &str, policy: Policy) -> u64 {
    let answer = node(address, policy, PATIENCE).acquire("hot", 0).await;
    assert_eq!(answer.source, Source::Store);
    answer.decision.remaining()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_under_load_cost_no_units() {
    let mut loads = 0;
    for policy in policies() {
        let server = Server::start(&[]);
        let hot = Hot::start(&server.address(), policy, PATIENCE);
        for round in 1..=20 {
            server.ask(&["SCRIPT", "FLUSH"]);
            hot.until_leased(10 * round).await;
        }
        let nodes = hot.nodes.clone();
        let admitted = hot.end().await;
        let limit = policy.limit();
        assert_eq!(
            admitted + left(&server.address(), policy).await,
            limit,
            "{policy:?}: nothing is lost, and nothing over"
        );
        loads += nodes
            .iter()
            .map(|node| node.store().stats().script_loads)
            .sum::<u64>();
    }
    assert!(loads > 20, "{loads}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_flushed_under_load_is_granted_only_once_more() {
    for policy in policies() {
        let server = Server::start(&[]);
        let hot = Hot::start(&server.address(), policy, PATIENCE);
        let mut lives = 1;
        for round in 1..=5 {
            hot.until_leased(60 * round).await;
            server.ask(&["FLUSHALL"]);
            lives += 1;
        }
        hot.until_leased(360).await;
        let admitted = hot.end().await;
        let limit = policy.limit();
        // Units taken in one life and not used are given back in the next. They belong to no node
        // then, so no node is over.
        assert!(
            admitted <= limit * lives,
            "{policy:?}: {admitted} admitted in {lives} lives"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_makes_no_limit_over() {
    for policy in policies() {
        let server = Server::start(&[]);
        let hot = Hot::start(&server.address(), policy, Duration::from_millis(50));
        for round in 1..=3 {
            hot.until_leased(20 * round).await;
            server.freeze();
            hot.until_failed(|_| true).await;
            server.thaw();
            for node in &hot.nodes {
                eventually("the store is back", || node.store().health() == Health::Up);
            }
        }
        let admitted = hot.end().await;
        let limit = policy.limit();
        // Units that were charged without a reply are lost; none are given back twice.
        assert!(
            admitted + left(&server.address(), policy).await <= limit,
            "{policy:?}: {admitted} admitted"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_and_broken_network_makes_no_limit_over() {
    for policy in policies() {
        let server = Server::start(&[]);
        let proxy = Proxy::before(server.port());
        let hot = Hot::start(&proxy.address(), policy, Duration::from_millis(50));
        for round in 1..=5 {
            hot.until_leased(20 * round).await;
            proxy.cut();
        }
        // Longer than any caller waits: replies arrive after their callers have timed out.
        proxy.delay(Duration::from_millis(80));
        hot.until_failed(|error| *error == StoreError::TimedOut)
            .await;
        proxy.cut();
        proxy.delay(Duration::ZERO);
        for node in &hot.nodes {
            eventually("the store is back", || node.store().health() == Health::Up);
        }
        hot.until_leased(140).await;
        let admitted = hot.end().await;
        let limit = policy.limit();
        // Units that were charged without a reply are lost; none are given back twice.
        assert!(
            admitted + left(&server.address(), policy).await <= limit,
            "{policy:?}: {admitted} admitted"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_makes_no_limit_over() {
    for policy in policies() {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]);
        let hot = Hot::start(&server.address(), policy, PATIENCE);
        for round in 1..=3 {
            hot.until_leased(20 * round).await;
            server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
            for node in &hot.nodes {
                // Heartbeats are writes, so they find it out without any request.
                eventually("the server is full", || {
                    node.store().health() == Health::Down
                });
            }
            server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
            for node in &hot.nodes {
                eventually("the store is back", || node.store().health() == Health::Up);
            }
        }
        let full = hot
            .nodes
            .iter()
            .all(|node| node.store().stats().errors_of("out-of-memory") > 0);
        assert!(full, "{:?}", hot.nodes[0].store());
        let admitted = hot.end().await;
        let limit = policy.limit();
        assert!(
            admitted + left(&server.address(), policy).await <= limit,
            "{policy:?}: {admitted} admitted"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_knows_the_allotments() {
    let policy = Policy::sliding_window(quota("3000/360d"));
    let mut master = Server::start(&[]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let sentinel = Sentinel::watch(&master, 1);
    let address = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port());
    let hot = Hot::start(&address, policy, Duration::from_millis(50));
    hot.until_leased(200).await;
    // Nothing is taken while the last writes are replicated; otherwise they could be lost, as
    // documented.
    let admitted = hot.end().await;
    master.until_replicated_to(&replica);
    master.kill();
    eventually("the sentinel has made the replica master", || {
        sentinel.master() == Some(replica.port())
    });
    let hot = Hot::start(&address, policy, PATIENCE);
    hot.until_leased(1_000).await;
    let more = hot.end().await;
    let limit = policy.limit();
    let left = left(&address, policy).await;
    assert!(
        more > 0 && admitted + more + left <= limit,
        "{admitted} and {more} admitted, {left} left"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_the_limit_on_error_decides_too_when_the_store_is_gone() {
    for on_error in [OnError::Open, OnError::Local] {
        let mut server = Server::start(&[]);
        let proxy = Proxy::before(server.port());
        let store = Store::open(&proxy.address()).expect("the address is well formed");
        let limit = store
            .limit("x", Policy::sliding_window(quota("50/1s")))
            .mode(Mode::Leased)
            .on_error(on_error)
            .local_keys(16);
        let limit = limit
            .deadline(PATIENCE)
            .build()
            .expect("the policy can be shared");
        // A long round trip makes a denial visible that lasts only until the next reply.
        proxy.delay(Duration::from_millis(20));
        for _ in 0..200 {
            let _ = limit.acquire("k", 1).await;
        }
        server.kill();
        let failed = |source: &Source| matches!(source, Source::Failed(_) | Source::Local(_));
        for at in 0..PATIENCE.as_millis() / 10 {
            if failed(&limit.acquire("k", 1).await.source) {
                break;
            }
            assert!(
                at + 1 < PATIENCE.as_millis() / 10,
                "the store's denial never ends"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The store's own denials are over: from now on only `on_error` denies.
        let asked: Vec<_> = (0..8)
            .map(|_| {
                let limit = limit.clone();
                tokio::spawn(async move {
                    let mut answers = Vec::new();
                    for _ in 0..50 {
                        answers.push(limit.acquire("k", 1).await);
                    }
                    answers
                })
            })
            .collect();
        for answers in asked {
            for answer in answers.await.expect("nobody panics") {
                assert!(failed(&answer.source), "{answer:?}");
                assert!(
                    on_error == OnError::Local || answer.is_allowed(),
                    "{answer:?}"
                );
            }
        }
    }
}
