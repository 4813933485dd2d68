//! Leased limits on a real server: what nodes that start, stop and die admit together.
#![cfg(feature = "servers")]

use std::{sync::Arc, time::Duration};

use tidegate_core::{Algorithm, Policy, Quota, algorithm::Concurrency, algorithm::TokenBucket};
use tidegate_redis::{Mode, OnError, SharedLimit, Source, Store};
use tidegate_redis_servers::{PATIENCE, Proxy, Reply, Server};

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn window(text: &str) -> Policy {
    Policy::sliding_window(quota(text))
}

fn log(text: &str) -> Policy {
    Policy::sliding_log(quota(text)).expect("the log is not too long")
}

fn store(server: &Server) -> Store {
    Store::open(&server.address()).expect("the address is well formed")
}

fn leased(store: &Store, policy: Policy) -> SharedLimit {
    let limit = store
        .limit("x", policy)
        .mode(Mode::Leased)
        .deadline(PATIENCE)
        .on_error(OnError::Closed);
    limit.build().expect("the policy can be shared")
}

fn exact(store: &Store, policy: Policy) -> SharedLimit {
    store
        .limit("x", policy)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

/// Asks until the limit is used up, which shows as a long wait. Returns how much was admitted.
async fn use_up(limit: &SharedLimit, key: &str) -> u64 {
    let (mut admitted, mut asked) = (0, 0);
    loop {
        asked += 1;
        // In turns: a caller who cannot wait, and one who can.
        let here = if asked % 2 == 0 {
            limit.acquire_here(key, 1)
        } else {
            None
        };
        let answer = match here {
            Some(answer) => answer,
            None => limit.acquire(key, 1).await,
        };
        assert!(!matches!(answer.source, Source::Failed(_)), "{answer:?}");
        if answer.is_allowed() {
            admitted += 1;
        } else if answer
            .decision
            .retry_after()
            .is_none_or(|wait| wait > Duration::from_mins(5))
        {
            return admitted;
        } else {
            // Another caller of this node has a request in flight.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Asks until this node decides from its allotment. Returns how much was admitted.
async fn until_leased(limit: &SharedLimit, key: &str) -> u64 {
    for admitted in 1..1_000 {
        let answer = limit.acquire(key, 1).await;
        assert!(answer.is_allowed(), "{answer:?}");
        if answer.source == Source::Lease {
            return admitted;
        }
    }
    panic!("the node takes no allotment: {:?}", limit.store());
}

/// Waits until the store has this much left for a key.
async fn until_left(server: &Server, policy: Policy, key: &str, left: u64) {
    let limit = exact(&store(server), policy);
    for _ in 0..PATIENCE.as_millis() / 10 {
        if limit.acquire(key, 0).await.decision.remaining() == left {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!(
        "{left} are never left, but {:?}",
        limit.acquire(key, 0).await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_hammer_one_key_use_exactly_the_limit() {
    for policy in [window("10000/1h"), log("10000/1h"), log("100/1h")] {
        let server = Server::start(&[]);
        let nodes: Vec<_> = (0..4).map(|_| leased(&store(&server), policy)).collect();
        let tasks: Vec<_> = (0..12)
            .map(|at| {
                let limit = nodes[at % nodes.len()].clone();
                tokio::spawn(async move { use_up(&limit, "hot").await })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("no task panics");
        }
        let limit = policy.limit();
        assert!(admitted <= limit, "{admitted} of {limit}");
        let stats: Vec<_> = nodes.iter().map(|node| node.store().stats()).collect();
        let in_memory: u64 = stats.iter().map(|stats| stats.leased).sum();
        assert!(in_memory > 0 && in_memory <= admitted, "{stats:?}");
        for node in &nodes {
            node.store().close().await;
        }
        // A new node gets what was given back after the others had been denied for long.
        let rest = use_up(&leased(&store(&server), policy), "hot").await;
        assert_eq!(admitted + rest, limit, "nothing is lost");
        println!("{}: {admitted} of {limit}", policy.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_waiting_a_node_decides_what_it_holds_and_what_it_remembers() {
    let server = Server::start(&[]);
    let store = store(&server);
    let node = leased(&store, window("1000000/1h"));
    assert!(node.acquire_here("new", 1).is_none() && node.acquire_here("new", 0).is_none());
    let mut here = None;
    for _ in 0..1_000 {
        until_leased(&node, "new").await;
        // On a busy machine the allotment has ended by now, or that was its last unit.
        here = node.acquire_here("new", 1);
        if here.is_some() {
            break;
        }
    }
    assert!(
        here.as_ref()
            .is_some_and(|here| here.is_allowed() && here.source == Source::Lease),
        "{here:?}"
    );
    let one_place = exact(&store, window("2/1h"));
    assert!(one_place.acquire_here("alice", 1).is_none());
    while one_place.acquire("alice", 1).await.is_allowed() {}
    let here = one_place
        .acquire_here("alice", 1)
        .expect("the denial is remembered");
    assert!(
        here.is_denied() && here.source == Source::Remembered,
        "{here:?}"
    );
    assert!(
        one_place.acquire_here("alice", 2).is_none(),
        "another cost was not denied"
    );
    assert!(one_place.acquire_here("bob", 1).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_refills_admits_what_it_holds_and_what_flows_in() {
    let server = Server::start(&[]);
    let seconds = || {
        let Reply::Array(time) = server.ask(&["TIME"]) else {
            panic!("TIME has two parts")
        };
        let part = |at: usize| time[at].text().parse::<f64>().expect("it is a number");
        part(0) + part(1) / 1e6
    };
    let bucket = TokenBucket::new(quota("1000/1s")).burst(5_000);
    let policy = Policy::from(bucket.expect("the burst fits"));
    let begun = seconds();
    let nodes: Vec<_> = (0..3).map(|_| leased(&store(&server), policy)).collect();
    assert_eq!(nodes[0].mode(), Mode::Leased);
    let tasks: Vec<_> = (0..6)
        .map(|at| {
            let limit = nodes[at % nodes.len()].clone();
            tokio::spawn(async move {
                let mut admitted = 0_u32;
                for _ in 0..4_000 {
                    admitted += u32::from(limit.acquire("hot", 1).await.is_allowed());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("no task panics");
    }
    let most = 5_000.0 + 1_000.0 * (seconds() - begun);
    assert!(f64::from(admitted) <= most, "{admitted} of {most}");
    assert!(admitted > 2_500, "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_are_never_over_even_if_few_leases_fit() {
    let server = Server::start(&[]);
    let policy = window("40/1h");
    let small = |store: Store| {
        let limit = store
            .limit("x", policy)
            .mode(Mode::Leased)
            .deadline(PATIENCE)
            .leases(8);
        limit.build().expect("the policy can be shared")
    };
    let nodes = [
        small(store(&server)),
        leased(&store(&server), policy),
        small(store(&server)),
    ];
    let tasks: Vec<_> = (0..6)
        .map(|at| {
            let limit = nodes[at % nodes.len()].clone();
            tokio::spawn(async move {
                let mut admitted = vec![0_u64; 50];
                for turn in 0..4_000 {
                    // Each caller goes through the keys in a different order, with several requests
                    // of one key in a row.
                    let key = (turn / 4 * (2 * at + 1)) % admitted.len();
                    admitted[key] +=
                        u64::from(limit.acquire(format!("k{key}"), 1).await.is_allowed());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = vec![0; 50];
    for task in tasks {
        for (sum, count) in admitted.iter_mut().zip(task.await.expect("no task panics")) {
            *sum += count;
        }
    }
    assert!(admitted.iter().all(|&count| count <= 40), "{admitted:?}");
    let stats: Vec<_> = nodes.iter().map(|node| node.store().stats()).collect();
    for node in &nodes {
        node.store().close().await;
    }
    for (key, admitted) in admitted.into_iter().enumerate() {
        let rest = use_up(&leased(&store(&server), policy), &format!("k{key}")).await;
        assert_eq!(admitted + rest, 40, "of k{key} nothing is lost: {stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_node_and_a_leaving_node_give_their_units_back() {
    for policy in [window("10000/1h"), log("5000/1h")] {
        let server = Server::start(&[]);
        let total = policy.limit();
        let store = store(&server);
        let limit = leased(&store, policy);
        let mut used = until_leased(&limit, "k").await;
        // A leased log looks back a little longer, which makes no difference here.
        until_left(&server, policy, "k", total - used).await;
        used += until_leased(&limit, "k").await;
        drop(limit);
        until_left(&server, policy, "k", total - used).await;
        let limit = leased(&store, policy);
        used += until_leased(&limit, "k").await;
        store.close().await;
        let left = exact(&store, policy)
            .acquire("k", 0)
            .await
            .decision
            .remaining();
        assert_eq!(left, total - used, "closing waits until it is done");
        assert_eq!(
            limit.acquire("k", 1).await.source,
            Source::Store,
            "and then the store decides"
        );
    }
}

#[test]
fn a_node_that_dies_loses_only_its_allotments() {
    let server = Server::start(&[]);
    let runtime = || tokio::runtime::Runtime::new().expect("the system has threads");
    let (node, others) = (runtime(), runtime());
    let policy = window("10000/1h");
    let (limit, used) = node.block_on(async {
        let limit = leased(&store(&server), policy);
        let used = until_leased(&limit, "k").await;
        (limit, used)
    });
    // Nothing is sent any more, as if the process had been killed.
    node.shutdown_background();
    drop(limit);
    let rest = others.block_on(async { use_up(&leased(&store(&server), policy), "k").await });
    // Each of at most two allotments is at most a quarter of what was left.
    assert!(
        (5_000..=10_000).contains(&(used + rest)),
        "{used} and {rest}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reported_limit_is_over_by_at_most_the_unreported_use() {
    let (nodes, unreported) = (4, 50);
    for policy in [window("2000/1h"), log("200/1h"), log("2000/1h")] {
        let server = Server::start(&[]);
        let node = || {
            let limit = store(&server)
                .limit("x", policy)
                .mode(Mode::Reported)
                .unreported(unreported);
            limit
                .deadline(PATIENCE)
                .on_error(OnError::Closed)
                .build()
                .expect("the policy can be shared")
        };
        let nodes: Vec<_> = (0..nodes).map(|_| node()).collect();
        assert_eq!(nodes[0].mode(), Mode::Reported);
        let tasks: Vec<_> = (0..8)
            .map(|at| {
                let limit = nodes[at % nodes.len()].clone();
                tokio::spawn(async move { use_up(&limit, "hot").await })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("no task panics");
        }
        let limit = policy.limit();
        let most = limit + nodes.len() as u64 * u64::from(unreported);
        assert!(
            (limit..=most).contains(&admitted),
            "{admitted} of {limit}, and at most {most}"
        );
        // An idle node's use reaches the store after a while.
        until_left(&server, policy, "hot", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn use_is_reported_when_a_node_becomes_idle_or_leaves() {
    let server = Server::start(&[]);
    let policy = window("1000/1h");
    let reported = |store: &Store| {
        let limit = store
            .limit("x", policy)
            .mode(Mode::Reported)
            .deadline(PATIENCE);
        limit.build().expect("the policy can be shared")
    };
    let store = store(&server);
    let limit = reported(&store);
    for _ in 0..10 {
        assert!(limit.acquire("k", 1).await.is_allowed());
    }
    until_left(&server, policy, "k", 990).await;
    let patient = store
        .limit("x", policy)
        .mode(Mode::Reported)
        .slack(Duration::from_hours(1));
    let patient = patient
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared");
    for _ in 0..10 {
        assert!(patient.acquire("k", 1).await.is_allowed());
    }
    store.close().await;
    assert_eq!(
        exact(&store, policy)
            .acquire("k", 0)
            .await
            .decision
            .remaining(),
        980
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_life_of_a_server_admits_at_most_the_limit() {
    let mut server = Server::start(&[]);
    let policy = window("3000/1h");
    let nodes: Vec<_> = (0..3)
        .map(|_| {
            let limit = store(&server)
                .limit("x", policy)
                .mode(Mode::Leased)
                .on_error(OnError::Closed);
            limit.build().expect("the policy can be shared")
        })
        .collect();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tasks: Vec<_> = (0..6)
        .map(|at| {
            let (limit, stop) = (nodes[at % nodes.len()].clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut admitted = 0_u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let answer = limit.acquire("hot", 1).await;
                    admitted += u64::from(answer.is_allowed());
                    if answer.is_denied() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                admitted
            })
        })
        .collect();
    let lives = 3;
    for life in 0..lives {
        // Other keys show that the store decides; the hot one may be denied for an hour.
        for at in 0..PATIENCE.as_millis() / 10 {
            if nodes[0].acquire(format!("{life}:{at}"), 1).await.source == Source::Store {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if life + 1 < lives {
            server.kill();
            server.start_again();
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("no task panics");
    }
    assert!(
        admitted <= 3_000 * lives,
        "{admitted} admitted in {lives} lives"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_an_allotment_is_used_up_and_then_on_error_decides() {
    let mut server = Server::start(&[]);
    let limit = |on_error, slack| {
        let limit = store(&server)
            .limit("x", window("100000/1h"))
            .mode(Mode::Leased);
        limit
            .on_error(on_error)
            .slack(slack)
            .deadline(PATIENCE)
            .build()
            .expect("the policy can be shared")
    };
    let closed = limit(OnError::Closed, Duration::from_mins(5));
    let local = limit(OnError::Local, Duration::from_millis(100));
    for at in 0_u32.. {
        if closed.acquire("k", 1).await.source == Source::Lease {
            break;
        }
        assert!(
            at < 100_000,
            "the node takes no allotment: {:?}",
            closed.store()
        );
    }
    assert!(local.acquire("k", 1).await.is_allowed());
    server.kill();
    let mut held = 0_u32;
    loop {
        let answer = closed.acquire("k", 1).await;
        if matches!(answer.source, Source::Failed(_)) {
            assert!(answer.is_denied());
            break;
        }
        held += u32::from(answer.source == Source::Lease);
        assert!(held <= 50_000, "an allotment has an end");
    }
    eventually_local(&local).await;
    server.start_again();
    for at in 0..PATIENCE.as_millis() / 10 {
        if closed.acquire("k", 1).await.source == Source::Store {
            break;
        }
        assert!(
            at + 1 < PATIENCE.as_millis() / 10,
            "the store does not decide again"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn eventually_local(limit: &SharedLimit) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if matches!(limit.acquire("k", 1).await.source, Source::Local(_)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never decides alone: {:?}", limit.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_give_up_leave_no_request_behind() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let store = Store::open(&proxy.address()).expect("the address is well formed");
    let policy = window("100000/1h");
    let slow = store
        .limit("x", policy)
        .mode(Mode::Leased)
        .slack(Duration::from_mins(5))
        .deadline(PATIENCE);
    let slow = slow.build().expect("the policy can be shared");
    assert!(slow.acquire("k", 1).await.is_allowed());
    proxy.delay(Duration::from_millis(20));
    for _ in 0..50 {
        // Dropped while its request is in flight.
        let asked = std::pin::pin!(slow.acquire("k", 1));
        let _ = tokio::time::timeout(Duration::from_millis(1), asked).await;
    }
    proxy.delay(Duration::ZERO);
    until_leased(&slow, "k").await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_program_is_reported_and_affects_no_other() {
    let server = Server::start(&[]);
    let limit = leased(&store(&server), window("1000/1h"));
    let whole = String::from_utf8(limit.redis_key("k")).expect("the key is text");
    server.ask(&["SADD", &whole, "x"]);
    for _ in 0..3 {
        let (wrong, right) = tokio::join!(limit.acquire("k", 1), limit.acquire("other", 1));
        assert!(
            matches!(
                wrong.source,
                Source::Failed(tidegate_redis::StoreError::WrongType)
            ),
            "{wrong:?}"
        );
        assert!(right.is_allowed(), "{right:?}");
    }
    server.ask(&["DEL", &whole]);
    server.ask(&["SET", &whole, "another value"]);
    let wrong = limit.acquire("k", 1).await;
    assert!(
        matches!(
            wrong.source,
            Source::Failed(tidegate_redis::StoreError::NotOurs)
        ),
        "{wrong:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_cannot_be_leased_are_exact() {
    let server = Server::start(&[]);
    let store = store(&server);
    let permits = Concurrency::new(9)
        .hold(Duration::from_mins(1))
        .expect("the hold is short");
    for policy in [
        Policy::leaky_bucket(quota("50/1s")),
        permits.into(),
        Policy::token_bucket(quota("15/1s")),
    ] {
        let limit = leased(&store, policy);
        assert_eq!(limit.mode(), Mode::Exact, "{policy:?}");
        assert_eq!(limit.acquire("k", 1).await.source, Source::Store);
    }
    let all = store
        .limit("y", window("50/1s"))
        .mode(Mode::Reported)
        .unreported(0);
    assert_eq!(
        all.build().expect("the policy can be shared").mode(),
        Mode::Exact
    );
}

/// A part of a leased bucket is kept back, but a single cost may need all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cost_that_only_the_full_bucket_can_hold_is_decided_in_the_store() {
    let server = Server::start(&[]);
    let (one, two) = (store(&server), store(&server));
    let policy = Policy::token_bucket(quota("1000/1s"));
    let (here, there) = (leased(&one, policy), leased(&two, policy));
    assert_eq!(here.mode(), Mode::Leased);
    assert_eq!(here.plan().policy().limit(), 938, "the rest is kept back");
    for (key, cost) in [("a", 939), ("b", 1_000)] {
        let admitted = here.acquire(key, cost).await;
        assert!(admitted.is_allowed(), "{cost}: {admitted:?}");
        assert_eq!(admitted.source, Source::Store);
        // Neither a cost of the other server nor another large one fits now.
        for denied in [there.acquire(key, cost).await, here.peek(key, cost).await] {
            let wait = denied.decision.retry_after();
            assert!(denied.is_denied() && wait.is_some(), "{denied:?}");
            assert!(wait < Some(Duration::from_millis(1_100)), "{denied:?}");
        }
    }
    let too_large = here.acquire("c", 1_001).await;
    assert_eq!(too_large.decision.retry_after(), None, "{too_large:?}");
    // In a batch, too, and in a decision over several limits.
    let many = here.acquire_many(&[("d", 1), ("e", 1_000), ("d", 1)]).await;
    assert!(
        many.iter().all(tidegate_redis::SharedDecision::is_allowed),
        "{many:?}"
    );
    let part = |limit, cost| tidegate_redis::Part {
        limit,
        key: b"f",
        cost,
    };
    let other = two.limit("y", policy).deadline(PATIENCE).build();
    let other = other.expect("the policy can be shared");
    let both = [part(&here, 1_000), part(&other, 1)];
    let both = one.acquire_all(&both).await.expect("one server has both");
    assert!(
        both.iter().all(tidegate_redis::SharedDecision::is_allowed),
        "{both:?}"
    );
    // Units that were taken ahead may be used a slack later, so the full bucket is not free until
    // then.
    assert!(here.acquire("g", 1).await.is_allowed());
    assert!(here.acquire("g", 1_000).await.is_denied());
    for _ in 0..PATIENCE.as_millis() / 20 {
        if here.acquire("g", 1_000).await.is_allowed() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("a large cost is locked out");
}
