//! Nodes with different rules for one limit: what they admit together, and what they know of each
//! other.
#![cfg(feature = "servers")]

use std::{sync::Arc, time::Duration};

use tidegate_core::{Penalty, Policy, algorithm::Concurrency};
use tidegate_redis::{
    Corrected, Correction, Mode, OnError, Part, Reserved, SharedDecision, SharedLimit, Source,
    Store, Tried,
};
use tidegate_redis_servers::{Cluster, PATIENCE, Server, eventually};

/// A rule: the mode and the policy.
type Rule = (Mode, &'static str);

fn node(address: &str, name: &str, (mode, policy): Rule, announced: bool) -> SharedLimit {
    of(
        address,
        name,
        (mode, policy.parse().expect("the policy is well formed")),
        announced,
    )
}

fn of(address: &str, name: &str, (mode, policy): (Mode, Policy), announced: bool) -> SharedLimit {
    let address = address.parse().expect("the address is well formed");
    let store = Store::named(address, "tidegate", name).expect("the prefix is a word");
    let limit = store
        .limit("x", policy)
        .mode(mode)
        .on_error(OnError::Closed)
        .deadline(PATIENCE);
    limit
        .announced(announced)
        .build()
        .expect("the policy can be shared")
}

/// With a hash tag and without.
const KEYS: [&str; 4] = ["{hot}", "hot", "cold", "lukewarm"];

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
        assert!(
            told.iter()
                .all(|told| !matches!(told.source, Source::Failed(_))),
            "{told:?}"
        );
        admitted += told.iter().filter(|told| told.is_allowed()).count();
    }
    admitted
}

/// How much three nodes admit together while the rule changes: one with the former rule, two with
/// the new one.
async fn in_all(former: Rule, new: Rule, announced: bool) -> usize {
    let server = Server::start(&[]);
    in_all_at(&server.address(), former, new, announced).await
}

async fn in_all_at(address: &str, former: Rule, new: Rule, announced: bool) -> usize {
    let one = node(address, "one", former, announced);
    let mut all = admitted(&one, 60, false).await;
    let two = node(address, "two", new, announced);
    all += admitted(&two, 20, true).await;
    let three = node(address, "three", new, announced);
    all += admitted(&three, 200, true).await;
    all += admitted(&two, 200, false).await;
    all += admitted(&one, 200, true).await;
    one.store().close().await;
    all
}

/// Windows that do not end within a test, and the least that the nodes admit together. A bucket
/// with another rate is the same key, with the same number of units.
const CHANGES: [(Rule, Rule, usize); 8] = [
    ((Mode::Exact, "100/1h"), (Mode::Exact, "100/2h"), 100),
    (
        (Mode::Exact, "100/1h"),
        (Mode::Exact, "sliding-log 100/1h"),
        100,
    ),
    (
        (Mode::Exact, "sliding-log 100/1h"),
        (Mode::Leased, "fixed-window:first-hit=true 100/366d"),
        100,
    ),
    (
        (Mode::Leased, "100/1h"),
        (Mode::Exact, "token-bucket 100/366d"),
        95,
    ),
    (
        (Mode::Exact, "token-bucket 100/1h"),
        (Mode::Exact, "token-bucket 100/50d"),
        100,
    ),
    (
        (Mode::Exact, "token-bucket 100/50d"),
        (Mode::Leased, "token-bucket 100/366d"),
        100,
    ),
    (
        (Mode::Exact, "token-bucket 100/366d"),
        (Mode::Exact, "100/1h"),
        100,
    ),
    ((Mode::Exact, "100/1h"), (Mode::Leased, "100/1h"), 95),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_out_of_another_window_algorithm_or_mode_is_never_over() {
    for (former, new, least) in CHANGES {
        let all = in_all(former, new, true).await;
        // One unit of an hour's 100 refills in 36 seconds.
        assert!((least..=101).contains(&all), "{former:?} to {new:?}: {all}");
    }
}

/// An override of one key in a rules file is such a limit: there may be a million of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_are_not_announced_admit_the_larger_of_one_form_and_the_sum_of_two() {
    let exact = |policy| (Mode::Exact, policy);
    let all = in_all(exact("100/1h"), exact("150/1h"), false).await;
    assert_eq!(
        all, 150,
        "the window and the algorithm stay, so the key does"
    );
    let all = in_all(exact("100/1h"), exact("100/2h"), false).await;
    assert_eq!(all, 200, "each rule admits its own limit, and no more");
}

/// Permits are not announced either: nobody knows who holds those of another form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_admit_the_larger_limit_and_what_another_algorithm_admits_on_top() {
    let permits = |limit, hours| -> Policy {
        let policy = Concurrency::new(limit)
            .hold(Duration::from_hours(hours))
            .expect("the hold is short");
        policy.into()
    };
    for (new, sum) in [
        (permits(150, 2), 150),
        ("100/1h".parse().expect("it is well formed"), 200),
    ] {
        let server = Server::start(&[]);
        let one = of(
            &server.address(),
            "one",
            (Mode::Exact, permits(100, 1)),
            true,
        );
        let two = of(&server.address(), "two", (Mode::Exact, new), true);
        let mut all = admitted(&one, 60, false).await + admitted(&two, 200, false).await;
        all += admitted(&one, 200, true).await + admitted(&two, 200, true).await;
        assert_eq!(all, sum, "{new:?}");
    }
}

/// A cluster decides on the keys of two rules in one step only if they have a hash tag.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_out_in_a_cluster_is_never_over_with_a_hash_tag_and_without() {
    let cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let (former, new, _) = CHANGES[0];
    for key in KEYS {
        let one = node(&address, "one", former, true);
        let two = node(&address, "two", new, true);
        let three = node(&address, "three", new, true);
        let mut all = 7;
        assert!(two.charge(key, 7).await.is_allowed());
        for limit in [&one, &two, &three, &two, &one] {
            for _ in 0..50 {
                all += usize::from(limit.acquire(key, 1).await.is_allowed());
            }
        }
        assert!((95..=100).contains(&all), "{key}: {all}");
        assert!(three.peek(key, 1).await.is_denied());
        // What the new rule denied came back to the former one's key.
        assert_eq!(
            one.peek(key, 0).await.decision.remaining(),
            100 - all as u64,
            "{key}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_follow_both_rules() {
    let server = Server::start(&[]);
    let one = node(&server.address(), "one", CHANGES[0].0, true);
    assert_eq!(admitted(&one, 60, false).await, 60);
    let two = node(&server.address(), "two", CHANGES[0].1, true);
    let reserve = async |random, cost| {
        let part = (
            Part {
                limit: &two,
                key: b"hot",
                cost,
            },
            false,
        );
        let told = two
            .store()
            .reserve(random, &[part], b"text", Duration::from_hours(1), 10)
            .await;
        let Ok(Reserved::Decided(id, decisions)) = told else {
            panic!("{told:?}")
        };
        (id, decisions[0])
    };
    assert!(
        reserve(1, 41).await.1.is_denied(),
        "the former rule has 40 left"
    );
    let (id, decision) = reserve(2, 40).await;
    assert!(decision.is_allowed());
    assert!(one.acquire("hot", 1).await.is_denied());
    let correction = Correction {
        at: 0,
        limit: &two,
        key: b"hot",
        actual: 10,
        is_unused: false,
    };
    assert_eq!(
        two.store().settle(id, &[correction]).await,
        Ok(Corrected::Now(vec![40]))
    );
    assert!(
        one.acquire("hot", 1).await.is_denied(),
        "the former rule keeps the estimate"
    );
    two.reset("hot").await.expect("the store replies");
    let (id, decision) = reserve(3, 10).await;
    assert!(decision.is_allowed());
    let correction = Correction {
        actual: 30,
        ..correction
    };
    let settled = two.store().settle(id, &[correction]).await;
    assert_eq!(settled, Ok(Corrected::Now(vec![10])));
    let seen = [left(&one, "hot").await, left(&two, "hot").await];
    assert_eq!(seen, [70, 70], "both rules count what was used beyond it");
}

/// Each node knows the keys of the other's rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_forgets_and_a_refund_returns_by_both_rules() {
    let server = Server::start(&[]);
    let rules = ["100/1h", "sliding-log 100/1h"].map(|text| {
        let penalty = Penalty::new(&[Duration::from_hours(1)]).expect("the span is short");
        policy(text).block_for(penalty)
    });
    let nodes = amid(&server.address(), rules[0], rules[1]).await;
    let [one, two] = &nodes;
    eventually("the former node knows the new rule", || {
        one.store().stats().differing_rules == 1
    });
    let seen = async || [left(one, "k").await, left(two, "k").await];
    for limit in &nodes {
        assert!(two.acquire("k", 30).await.is_allowed());
        assert_eq!(seen().await, [70, 70]);
        limit.reset("k").await.expect("the store replies");
        assert_eq!(seen().await, [100, 100]);
    }
    assert!(two.acquire("k", 30).await.is_allowed());
    let _left = two.refund("k", 10).await.expect("the store replies");
    assert_eq!(seen().await, [80, 80]);
    // What the former node took counts by its rule alone.
    assert!(one.acquire("k", 30).await.is_allowed());
    let _left = one.refund("k", 10).await.expect("the store replies");
    assert_eq!(seen().await, [60, 80]);
    for limit in &nodes {
        for denies in &nodes {
            assert!(denies.acquire("k", 90).await.is_denied());
            assert!(denies.acquire("k", 1).await.is_denied(), "it is blocked");
        }
        assert_eq!(limit.unblock("k").await, Ok(true));
        assert_eq!(limit.unblock("k").await, Ok(false));
        // The other node remembers its denial for a second.
        for limit in &nodes {
            eventually("it asks again", || now(limit.acquire("k", 1)).is_allowed());
        }
    }
}

/// Waits for a future in the midst of a task.
fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

fn policy(text: &str) -> Policy {
    text.parse().expect("the policy is well formed")
}

/// Two nodes in the midst of a roll-out: one has the former rule, the other one the new one and a
/// line.
async fn amid(address: &str, former: Policy, new: Policy) -> [SharedLimit; 2] {
    let one = of(address, "one", (Mode::Exact, former), true);
    assert_eq!(one.acquire("other", 1).await.source, Source::Store);
    let address = address.parse().expect("the address is well formed");
    let store = Store::named(address, "tidegate", "two").expect("the prefix is a word");
    let limit = store.limit("x", new).announced(true).line(true);
    let limit = limit.on_error(OnError::Closed).deadline(PATIENCE);
    let two = limit.build().expect("it can be shared");
    eventually("the new node knows the former rule", || {
        two.store().stats().differing_rules == 1
    });
    [one, two]
}

/// What a limit alone has left for a key.
async fn left(limit: &SharedLimit, key: &str) -> u64 {
    limit.peek(key, 0).await.decision.remaining()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_return_while_they_replace_a_rate() {
    let server = Server::start(&[]);
    let permits = Concurrency::new(1).hold(Duration::from_hours(1));
    let permits: Policy = permits.expect("the hold is short").into();
    let [one, two] = amid(&server.address(), policy("100/1h"), permits).await;
    let is_back = |what: &str| eventually(what, || now(left(&two, "k")) == 1);
    drop(two.permit("k", 1).await.expect("it is free"));
    is_back("the permit");
    let (answer, taken) = two.acquire_estimate("k", 1).await;
    assert!(answer.is_allowed(), "{answer:?}");
    two.settle("k", taken, 1).await.expect("the store replies");
    is_back("the estimate");
    let part = Part {
        limit: &two,
        key: b"k",
        cost: 1,
    };
    let other = two.store().limit("y", permits).deadline(PATIENCE);
    let other = other.build().expect("it can be shared");
    let parts = [
        part,
        Part {
            limit: &other,
            ..part
        },
    ];
    let asked = two.store().acquire_all_estimates(&parts).await;
    let (answers, taken) = asked.expect("the keys have no slots");
    assert!(
        answers.iter().all(SharedDecision::is_allowed),
        "{answers:?}"
    );
    for (limit, taken) in [&two, &other].into_iter().zip(taken) {
        limit
            .settle("k", taken, 1)
            .await
            .expect("the store replies");
    }
    is_back("the estimate of two limits");
    assert_eq!(left(&other, "k").await, 1);
    let held = two.permit("k", 1).await.expect("it is free");
    let Ok(Tried::Waits(queued)) = two.store().try_wait_all(&[part], PATIENCE).await else {
        panic!("it is held")
    };
    let limits = vec![two.clone()];
    let waits = queued.answer(Arc::new(move || (limits.clone(), true)));
    let freed = async {
        eventually("it waits", || now(two.waiting("k")) == Ok(1));
        drop(held);
    };
    let (grant, ()) = tokio::join!(waits, freed);
    assert!(grant.answers()[0].is_allowed(), "{grant:?}");
    drop(grant);
    is_back("what was granted after a wait");
    // Each of them counts by the former rule.
    assert_eq!(left(&one, "k").await, 95);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_estimate_returns_to_the_new_rule_and_stays_by_the_former_one() {
    let server = Server::start(&[]);
    let new = policy("sliding-log 100/1h");
    let [one, two] = amid(&server.address(), policy("100/1h"), new).await;
    for (used, left_by) in [(4, [90, 96]), (10, [80, 86]), (13, [67, 73])] {
        let (answer, taken) = two.acquire_estimate("k", 10).await;
        assert!(answer.is_allowed() && taken.cost() == 10, "{answer:?}");
        two.settle("k", taken, used)
            .await
            .expect("the store replies");
        let seen = [left(&one, "k").await, left(&two, "k").await];
        assert_eq!(seen, left_by, "{used}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_looks_and_joint_decisions_follow_both_rules() {
    let server = Server::start(&[]);
    let one = node(&server.address(), "one", (Mode::Exact, "100/1h"), true);
    assert_eq!(admitted(&one, 50, false).await, 50);
    let two = node(
        &server.address(),
        "two",
        (Mode::Exact, "sliding-log 100/1h"),
        true,
    );
    assert!(two.charge("hot", 40).await.is_allowed());
    assert_eq!(
        one.peek("hot", 0).await.decision.remaining(),
        10,
        "the former rule counts the charge"
    );
    assert!(two.peek("hot", 11).await.is_denied() && two.peek("hot", 10).await.is_allowed());
    let other = two
        .store()
        .limit("y", "100/1h".parse::<Policy>().expect("it is well formed"));
    let other = other
        .on_error(OnError::Closed)
        .deadline(PATIENCE)
        .build()
        .expect("it can be shared");
    let ask = async |cost| {
        let parts = [(&two, cost), (&other, 1)].map(|(limit, cost)| Part {
            limit,
            key: b"hot",
            cost,
        });
        two.store()
            .acquire_all(&parts)
            .await
            .expect("the keys have no slots")
    };
    let told = ask(11).await;
    assert!(told[0].is_denied() && told[1].is_allowed(), "{told:?}");
    let told = ask(10).await;
    assert!(told[0].is_allowed() && told[1].is_allowed(), "{told:?}");
    assert_eq!(
        other.peek("hot", 0).await.decision.remaining(),
        99,
        "the denial took nothing"
    );
    assert!(one.acquire("hot", 1).await.is_denied());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_know_each_others_rules_and_the_former_one_ends() {
    let server = Server::start(&[]);
    let one = node(
        &server.address(),
        "one",
        (Mode::Exact, "sliding-log 5/1h"),
        true,
    );
    assert_eq!(admitted(&one, 10, false).await, 5);
    let two = node(&server.address(), "two", (Mode::Exact, "5/1s"), true);
    assert!(two.acquire("hot", 1).await.is_denied());
    let differing = |limit: &SharedLimit| limit.store().differing_rules();
    eventually("both know", || {
        differing(&one).len() + differing(&two).len() == 2
    });
    let [found] = &differing(&one)[..] else {
        panic!("there is one")
    };
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_does_not_report_its_own_former_rule() {
    let server = Server::start(&[]);
    let one = node(
        &server.address(),
        "one",
        (Mode::Exact, "fixed-window 5/1h"),
        true,
    );
    assert_eq!(admitted(&one, 10, false).await, 5);
    let store = one.store().clone();
    drop(one);
    let policy = "fixed-window 9/1h"
        .parse::<Policy>()
        .expect("it is well formed");
    let limit = store
        .limit("x", policy)
        .on_error(OnError::Closed)
        .deadline(PATIENCE)
        .announced(true);
    let limit = limit.build().expect("it can be shared");
    // It decides only when it knows the rules.
    assert!(limit.acquire("hot", 1).await.is_allowed());
    assert_eq!(store.differing_rules(), []);
}
