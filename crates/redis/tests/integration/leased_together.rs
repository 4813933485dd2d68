//! Joint decisions over leased limits: in memory if all allotments suffice, and all or nothing in
//! either case.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Mode, OnError, Part, SharedDecision, SharedLimit, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server};

fn window(limit: u64) -> Policy {
    Policy::sliding_window(
        Quota::new(limit, Duration::from_hours(24)).expect("the quota makes sense"),
    )
}

/// A node with a limit for each user and one for all users.
fn node(server: &Server, mode: Mode, each: u64, all: u64) -> [SharedLimit; 2] {
    let store = Store::open(&server.address()).expect("the address is well formed");
    [("each", each), ("all", all)].map(|(name, limit)| {
        let limit = store.limit(name, window(limit)).mode(mode).unreported(100);
        // A long slack, so that allotments last on a busy machine.
        let limit = limit
            .slack(Duration::from_hours(1))
            .deadline(PATIENCE)
            .on_error(OnError::Closed);
        limit.build().expect("the policy can be shared")
    })
}

async fn ask([each, all]: &[SharedLimit; 2], user: &str) -> Vec<SharedDecision> {
    let parts = [
        Part {
            limit: each,
            key: user.as_bytes(),
            cost: 1,
        },
        Part {
            limit: all,
            key: b"*",
            cost: 1,
        },
    ];
    each.store()
        .acquire_all(&parts)
        .await
        .expect("there is no cluster")
}

/// How much of a limit is left in the store.
async fn left(server: &Server, name: &str, limit: u64, key: &str) -> u64 {
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = store
        .limit(name, window(limit))
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared");
    limit.acquire(key, 0).await.decision.remaining()
}

/// Asks each limit separately until this node decides from its allotment. Returns how often it
/// asked.
async fn until_leased(limit: &SharedLimit, key: &str) -> u64 {
    for admitted in 1..100_000 {
        if limit.acquire(key, 1).await.source == Source::Lease {
            return admitted;
        }
    }
    panic!("the node takes no allotment: {:?}", limit.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sufficient_allotments_decide_together_in_memory_and_are_given_back() {
    let server = Server::start(&[]);
    let limits = node(&server, Mode::Leased, 10_000, 100_000);
    let of_user = until_leased(&limits[0], "alice").await;
    let of_all = until_leased(&limits[1], "*").await;
    let calls = limits[0].store().stats().calls;
    let (mut leased, mut asked) = (0_u64, 0_u64);
    for _ in 0..2_000 {
        let answers = ask(&limits, "alice").await;
        assert!(
            answers.iter().all(SharedDecision::is_allowed),
            "{answers:?}"
        );
        let here = answers
            .iter()
            .filter(|answer| answer.source == Source::Lease)
            .count();
        assert!(here == 0 || here == 2, "one step: {answers:?}");
        leased += u64::from(here == 2);
        asked += u64::from(here == 0);
    }
    assert!(
        leased > 1_000,
        "{leased} in memory, {asked} by the store, {calls} calls before"
    );
    // For a user without an allotment the store is asked, and the other limit's units are put back.
    for user in 0..100 {
        let answers = ask(&limits, &format!("rare{user}")).await;
        assert!(
            answers
                .iter()
                .all(|answer| answer.is_allowed() && answer.source == Source::Store)
        );
    }
    let stats = limits[0].store().stats();
    limits[0].store().close().await;
    let of_user = 10_000 - of_user - 2_000;
    assert_eq!(
        left(&server, "each", 10_000, "alice").await,
        of_user,
        "{stats:?}"
    );
    // Units put back just when the next allotment starts stay charged.
    let (left, most) = (
        left(&server, "all", 100_000, "*").await,
        100_000 - of_all - 2_100,
    );
    assert!(
        (most - 100..=most).contains(&left),
        "{left}, not {most}: {stats:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joint_decisions_of_several_nodes_exceed_no_limit() {
    for (mode, slack) in [(Mode::Leased, 0), (Mode::Reported, 100)] {
        let server = Server::start(&[]);
        let nodes: Vec<_> = (0..3).map(|_| node(&server, mode, 2_000, 6_000)).collect();
        // Two callers on each node ask for the users in turn, so that sometimes one limit binds and
        // sometimes the other.
        let tasks: Vec<_> = (0..6)
            .map(|at| {
                let limits = nodes[at % 3].clone();
                tokio::spawn(async move {
                    let mut admitted = [0_u64; 4];
                    for turn in 0..2_000 {
                        let user = turn % 4;
                        let answers = ask(&limits, &format!("user{user}")).await;
                        assert!(
                            !answers
                                .iter()
                                .any(|answer| matches!(answer.source, Source::Failed(_)))
                        );
                        admitted[user] += u64::from(answers.iter().all(SharedDecision::is_allowed));
                    }
                    admitted
                })
            })
            .collect();
        let mut admitted = [0; 4];
        for task in tasks {
            let counts = task.await.expect("no task panics");
            admitted
                .iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        let out = 3 * slack;
        assert!(
            admitted.iter().all(|&user| user <= 2_000 + out),
            "{mode:?}: {admitted:?}"
        );
        let sum: u64 = admitted.iter().sum();
        assert!((1..=6_000 + out).contains(&sum), "{mode:?}: {admitted:?}");
    }
}
