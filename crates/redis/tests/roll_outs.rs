//! Nodes with different rules for one limit: what they admit together, and what they know of each other.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::Policy;
use tidegate_redis::{Mode, OnError, Part, SharedLimit, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server, eventually};

/// A rule: the mode and the policy.
type Rule = (Mode, &'static str);

fn node(server: &Server, name: &str, (mode, policy): Rule, announced: bool) -> SharedLimit {
    let address = server.address().parse().expect("the address is well formed");
    let store = Store::named(address, "tidegate", name).expect("the prefix is a word");
    let policy: Policy = policy.parse().expect("the policy is well formed");
    let limit = store.limit("x", policy).mode(mode).on_error(OnError::Closed).deadline(PATIENCE);
    limit.announced(announced).build().expect("the policy can be shared")
}

/// How many of `most` requests are admitted, each alone or in batches.
async fn admitted(limit: &SharedLimit, most: usize, in_batches: bool) -> usize {
    let mut admitted = 0;
    for _ in 0..most / 10 {
        let told = if in_batches {
            limit.acquire_many(&[("hot", 1); 10]).await
        } else {
            let mut told = Vec::new();
            for _ in 0..10 {
                told.push(limit.acquire("hot", 1).await);
            }
            told
        };
        assert!(told.iter().all(|told| !matches!(told.source, Source::Failed(_))), "{told:?}");
        admitted += told.iter().filter(|told| told.is_allowed()).count();
    }
    admitted
}

/// How much three nodes admit together while the rule changes: one with the former rule, two with the new one.
async fn in_all(former: Rule, new: Rule, announced: bool) -> usize {
    let server = Server::start(&[]);
    let one = node(&server, "one", former, announced);
    let mut all = admitted(&one, 60, false).await;
    let two = node(&server, "two", new, announced);
    all += admitted(&two, 20, true).await;
    let three = node(&server, "three", new, announced);
    all += admitted(&three, 200, true).await;
    all += admitted(&two, 200, false).await;
    all += admitted(&one, 200, true).await;
    one.store().close().await;
    all
}

/// Windows that do not end within a test, and the least that the nodes admit together. A bucket with another rate is the same key: a
/// unit of the slower rule takes all of the faster one's.
const CHANGES: [(Rule, Rule, usize); 8] = [
    ((Mode::Exact, "100/1h"), (Mode::Exact, "100/2h"), 100),
    ((Mode::Exact, "100/1h"), (Mode::Exact, "sliding-log 100/1h"), 100),
    ((Mode::Exact, "sliding-log 100/1h"), (Mode::Leased, "fixed-window:first-hit=true 100/366d"), 100),
    ((Mode::Leased, "100/1h"), (Mode::Exact, "token-bucket 100/366d"), 95),
    ((Mode::Exact, "token-bucket 100/1h"), (Mode::Exact, "token-bucket 100/50d"), 61),
    ((Mode::Exact, "token-bucket 100/50d"), (Mode::Leased, "token-bucket 100/366d"), 61),
    ((Mode::Exact, "token-bucket 100/366d"), (Mode::Exact, "100/1h"), 100),
    ((Mode::Exact, "100/1h"), (Mode::Leased, "100/1h"), 95),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_out_of_another_window_algorithm_or_mode_is_never_over() {
    for (former, new, least) in CHANGES {
        let all = in_all(former, new, true).await;
        // One unit of an hour's 100 refills in 36 seconds.
        assert!((least..=101).contains(&all), "{former:?} to {new:?}: {all}");
    }
    let (former, new, _) = CHANGES[0];
    assert!(
        in_all(former, new, false).await > 150,
        "without the announcement each rule admits its own limit"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_looks_and_joint_decisions_follow_both_rules() {
    let server = Server::start(&[]);
    let one = node(&server, "one", (Mode::Exact, "100/1h"), true);
    assert_eq!(admitted(&one, 50, false).await, 50);
    let two = node(&server, "two", (Mode::Exact, "sliding-log 100/1h"), true);
    assert!(two.charge("hot", 40).await.is_allowed());
    assert_eq!(one.peek("hot", 0).await.decision.remaining(), 10, "the former rule counts the charge");
    assert!(two.peek("hot", 11).await.is_denied() && two.peek("hot", 10).await.is_allowed());
    let other = two.store().limit("y", "100/1h".parse::<Policy>().expect("it is well formed"));
    let other = other.on_error(OnError::Closed).deadline(PATIENCE).build().expect("it can be shared");
    let ask = async |cost| {
        let parts = [(&two, cost), (&other, 1)].map(|(limit, cost)| Part { limit, key: b"hot", cost });
        two.store().acquire_all(&parts).await.expect("the keys have no slots")
    };
    let told = ask(11).await;
    assert!(told[0].is_denied() && told[1].is_allowed(), "{told:?}");
    let told = ask(10).await;
    assert!(told[0].is_allowed() && told[1].is_allowed(), "{told:?}");
    assert_eq!(other.peek("hot", 0).await.decision.remaining(), 99, "the denial took nothing");
    assert!(one.acquire("hot", 1).await.is_denied());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_know_each_others_rules_and_the_former_one_ends() {
    let server = Server::start(&[]);
    let one = node(&server, "one", (Mode::Exact, "sliding-log 5/1h"), true);
    assert_eq!(admitted(&one, 10, false).await, 5);
    let two = node(&server, "two", (Mode::Exact, "5/1s"), true);
    assert!(two.acquire("hot", 1).await.is_denied());
    let differing = |limit: &SharedLimit| limit.store().differing_rules();
    eventually("both know", || differing(&one).len() + differing(&two).len() == 2);
    let [found] = &differing(&one)[..] else { panic!("there is one") };
    assert_eq!((&*found.limit, &*found.node), ("x", "two"));
    assert!(
        found.here.starts_with("sliding-log 5/1h;exact;") && found.there.contains("5/1s;exact;"),
        "{found:?}"
    );
    assert_eq!(one.store().stats().differing_rules, 1);
    drop(one);
    for _ in 0..PATIENCE.as_millis() / 100 {
        if two.acquire("hot", 1).await.is_allowed() {
            assert!(differing(&two).is_empty());
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the former rule still binds: {:?}", differing(&two));
}
