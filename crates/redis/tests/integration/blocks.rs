//! Shared limits whose rules block keys for denials.
#![cfg(feature = "servers")]

use std::time::Duration;

use tidegate_core::{DenialReason, Penalty, Policy, Quota, algorithm::FixedWindow};
use tidegate_redis::{Health, Mode, OnError, Part, Reserved, SharedLimit, Source, Store};
use tidegate_redis_servers::{Cluster, PATIENCE, Proxy, Server, eventually};

const HALF_AN_HOUR: Duration = Duration::from_mins(30);

fn two_an_hour() -> Quota {
    "2/1h".parse().expect("the quota is well formed")
}

fn policies() -> [Policy; 6] {
    [
        FixedWindow::new(two_an_hour()).first_hit().into(),
        Policy::sliding_window(two_an_hour()),
        Policy::sliding_counter(two_an_hour()),
        Policy::token_bucket(two_an_hour()),
        Policy::leaky_bucket("2/1h".parse().expect("the quota is well formed")),
        Policy::sliding_log(two_an_hour()).expect("the log is short"),
    ]
}

fn blocking(policy: Policy, after: u32) -> Policy {
    let penalty = Penalty::new(&[HALF_AN_HOUR, 4 * HALF_AN_HOUR]).expect("the spans are short");
    let penalty = penalty.after(after, Duration::from_hours(1));
    policy.block_for(penalty.expect("the span is short"))
}

fn open(address: &str) -> Store {
    let store = Store::open(address).expect("the address is well formed");
    eventually("the store is reached", || store.health() == Health::Up);
    store
}

fn limit(store: &Store, name: &str, policy: Policy, mode: Mode) -> SharedLimit {
    store
        .limit(name, policy)
        .mode(mode)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared")
}

/// Uses the limit up, and returns the reason of the denial after that.
async fn use_up(limit: &SharedLimit, key: &str) -> Option<DenialReason> {
    for _ in 0..9 {
        let answer = limit.acquire(key, 1).await;
        assert_eq!(answer.source, Source::Store);
        if answer.is_denied() {
            return answer.decision.reason();
        }
    }
    panic!("{limit:?} is never denied");
}

/// Asks until nothing blocks the key: another node remembers a block for a second.
async fn until_unblocked(limit: &SharedLimit, key: &str) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        let answer = limit.acquire(key, 1).await;
        if answer.decision.reason() != Some(DenialReason::Blocked) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{limit:?} is still blocked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_at_one_node_blocks_the_key_at_all_until_any_node_ends_the_block() {
    let server = Server::start(&[]);
    let (one, two) = (open(&server.address()), open(&server.address()));
    let blocked = Some(DenialReason::Blocked);
    for (at, policy) in policies().into_iter().enumerate() {
        for mode in [Mode::Exact, Mode::Leased, Mode::Reported] {
            let name = format!("{at}-{mode:?}");
            let build = |store| limit(store, &name, blocking(policy, 1), mode);
            let (here, there) = (build(&one), build(&two));
            assert_eq!(here.mode(), Mode::Exact, "each denial counts in the store");
            assert_eq!(use_up(&here, "eve").await, blocked, "{policy}");
            let denied = there.acquire("eve", 1).await;
            assert_eq!(denied.decision.reason(), blocked, "{policy}");
            // The units are free again, and the block goes on, for every cost.
            let refunded = here.refund("eve", 2).await.expect("the store replies");
            assert_eq!(refunded.decision.reason(), blocked);
            for cost in [0, 1] {
                assert_eq!(there.peek("eve", cost).await.decision.reason(), blocked);
                let denied = there.acquire("eve", cost).await.decision;
                assert_eq!(denied.reason(), blocked, "{policy}, {cost}");
                assert!(
                    denied.retry_after() >= Some(HALF_AN_HOUR.saturating_sub(2 * PATIENCE)),
                    "{denied:?}"
                );
            }
            let (denied, estimate) = there.acquire_estimate("eve", 1).await;
            assert_eq!((denied.decision.reason(), estimate.cost()), (blocked, 0));
            let charged = there.charge("eve", 1).await;
            assert_eq!(charged.decision.reason(), blocked, "{policy}");
            let _refunded = here.refund("eve", 1).await.expect("the store replies");
            assert!(here.acquire("bob", 1).await.is_allowed());
            assert_eq!(there.unblock("eve").await, Ok(true));
            assert_eq!(there.unblock("eve").await, Ok(false));
            assert!(there.acquire("eve", 1).await.is_allowed(), "{policy}");
            until_unblocked(&here, "eve").await;
            // A reset ends a block, too.
            assert_eq!(use_up(&here, "mallory").await, blocked, "{policy}");
            here.reset("mallory").await.expect("the store replies");
            assert!(there.acquire("mallory", 1).await.is_allowed(), "{policy}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_denial_counts_although_denials_are_remembered() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    let (quota, blocked) = (Some(DenialReason::Quota), Some(DenialReason::Blocked));
    let limit = limit(&store, "x", blocking(policies()[0], 3), Mode::Exact);
    let reasons = |answers: Vec<tidegate_redis::SharedDecision>| {
        let reasons = answers.iter().map(|answer| answer.decision.reason());
        reasons.collect::<Vec<_>>()
    };
    let answers = limit.acquire_many(&[("eve", 1); 6]).await;
    assert_eq!(
        reasons(answers),
        [None, None, quota, quota, blocked, blocked]
    );
    assert_eq!(use_up(&limit, "bob").await, quota);
    assert_eq!(limit.acquire("bob", 1).await.decision.reason(), quota);
    // The block is one key, which ends when its step does: an hour after its beginning.
    assert_eq!(limit.acquire("bob", 1).await.decision.reason(), blocked);
    let left = server.ask(&["PTTL", "tidegate:x:b:bob"]);
    let left: i64 = left.text().parse().expect("PTTL is a number");
    let hour = Duration::from_hours(1).as_millis() as i64;
    let least = hour - (2 * PATIENCE).as_millis() as i64;
    assert!((least..=hour + 1).contains(&left), "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_counts_in_every_decision_over_several_limits() {
    let server = Server::start(&[]);
    let store = open(&server.address());
    let blocked = Some(DenialReason::Blocked);
    let other = limit(
        &store,
        "other",
        Policy::fixed_window(two_an_hour()),
        Mode::Exact,
    );
    for (at, policy) in policies().into_iter().enumerate() {
        let limit = limit(&store, &format!("x{at}"), blocking(policy, 1), Mode::Exact);
        let key = format!("eve{at}");
        let part = |limit, cost| Part {
            limit,
            key: key.as_bytes(),
            cost,
        };
        // A denial by another limit does not count here.
        let both = [part(&other, 3), part(&limit, 1)];
        for _ in 0..2 {
            let decided = store.acquire_all(&both).await.expect("one step");
            assert!(decided[0].is_denied() && decided[1].is_allowed());
        }
        let both = [part(&other, 1), part(&limit, 5)];
        match at % 3 {
            0 => {
                let decided = store.acquire_all(&both).await.expect("one step");
                assert!(decided[0].is_allowed() && decided[1].is_denied());
            }
            1 => {
                let both = both.map(|part| (part, false));
                let once = store.acquire_all_once(b"id", &both).await;
                let again = store.acquire_all_once(b"id", &both).await;
                let (once, again) = (once.expect("one step"), again.expect("one step"));
                assert!(again.is_repeat && !once.is_repeat);
                assert_eq!(once.decisions, again.decisions);
            }
            _ => {
                let both = both.map(|part| (part, false));
                let reserved = store
                    .reserve(at as u128 + 1, &both, b"text", HALF_AN_HOUR, 10)
                    .await;
                let Ok(Reserved::Decided(_, decided)) = reserved else {
                    panic!("{reserved:?}");
                };
                assert!(decided[0].is_allowed() && decided[1].is_denied());
            }
        }
        let denied = limit.peek(&key[..], 1).await.decision;
        assert_eq!(denied.reason(), blocked, "{policy}");
        let decided = store.acquire_all(&[part(&other, 1), part(&limit, 1)]).await;
        let decided = decided.expect("one step");
        assert!(decided[0].is_allowed(), "the denied decisions took nothing");
        assert_eq!(decided[1].decision.reason(), blocked);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_survives_a_change_of_the_rule_and_an_outage_of_the_store() {
    let server = Server::start(&[]);
    let proxy = Proxy::before(server.port());
    let blocked = Some(DenialReason::Blocked);
    let store = open(&proxy.address());
    let closed = |policy| {
        let limit = store.limit("x", policy).on_error(OnError::Closed);
        let limit = limit.deadline(PATIENCE).remember_denials(false);
        limit.build().expect("the policy can be shared")
    };
    let [window, log] = [policies()[0], policies()[5]];
    let before = closed(blocking(window, 1));
    assert_eq!(use_up(&before, "eve").await, blocked);
    let after = closed(blocking(log, 5));
    assert_eq!(after.acquire("eve", 1).await.decision.reason(), blocked);
    assert!(
        closed(log).acquire("eve", 1).await.is_allowed(),
        "no rule that blocks"
    );
    // While the store is down, each node blocks by itself.
    let local = store.limit("x", blocking(window, 1)).deadline(PATIENCE);
    let local = local.build().expect("the policy can be shared");
    proxy.refuse(true);
    proxy.cut();
    let mut reason = None;
    for _ in 0..PATIENCE.as_millis() / 10 {
        let answer = local.acquire("bob", 1).await;
        if matches!(answer.source, Source::Local(_)) && answer.is_denied() {
            reason = answer.decision.reason();
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(reason, blocked);
    assert!(before.acquire("eve", 1).await.is_denied());
    proxy.refuse(false);
    eventually("the store is back", || store.health() == Health::Up);
    assert_eq!(before.acquire("eve", 1).await.decision.reason(), blocked);
    // It is over in the store and in this node's memory.
    assert_eq!(before.unblock("eve").await, Ok(true));
    assert_ne!(before.acquire("eve", 0).await.decision.reason(), blocked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_cluster_are_blocked_whatever_their_text() {
    let cluster = Cluster::start(3);
    let store = open(&format!(
        "redis+cluster://{}",
        cluster.addresses().join(",")
    ));
    let limit = limit(&store, "x", blocking(policies()[0], 1), Mode::Exact);
    let keys: [&[u8]; 5] = [b"eve", b"{tag}eve", b"}{", b"", b"\xff\x00:{"];
    for key in keys {
        let mut denied = 0;
        for _ in 0..PATIENCE.as_millis() / 10 {
            let answer = limit.acquire(key, 1).await;
            if answer.source == Source::Store && answer.is_denied() {
                assert_eq!(answer.decision.reason(), Some(DenialReason::Blocked));
                denied += 1;
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(denied, 1, "{key:?}");
        assert_eq!(limit.unblock(key).await, Ok(true), "{key:?}");
    }
}
