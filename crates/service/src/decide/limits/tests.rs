//! Operators' blocks and saved states, while the rules change.

use std::{sync::Arc, time::Duration};

use tidegate_core::{DenialReason, Nanos};
use tidegate_limiter::{HashKeys, SnapshotEntry};

use super::{Act, Limit, Limits, Operation};
use crate::rules;

const START: Nanos = Nanos::from_secs(1_800_000_000);
const PLAIN: &str = "limit: 10/1m";
const DENIED: &str = "limit: 10/1m, deny: [a]";

fn parsed(limit: &str) -> rules::Rules {
    rules::parse(&format!("limits: [{{name: l, {limit}}}]")).unwrap()
}

fn limits(limit: &str) -> Limits {
    let hash = |_: &str| Some(HashKeys::from_seeds(1, 2));
    Limits::new(parsed(limit), 16, hash, START).unwrap()
}

fn only(limits: &Limits) -> Arc<Limit> {
    Arc::clone(limits.limit(b"l").unwrap())
}

fn at(seconds: u64) -> Nanos {
    START.saturating_add(Nanos::from_secs(seconds))
}

fn block(limit: &Limit, seconds: Option<u64>, now: Nanos) {
    let span = seconds.map(Duration::from_secs);
    let done = limit.operate_in_memory(b"a", &Operation::Block(span), now);
    assert_eq!(done, Ok(true));
}

fn reason(limit: &Limit, now: Nanos) -> Option<DenialReason> {
    limit
        .decide_in_memory(Act::Take, b"a", 1, now)
        .unwrap()
        .reason()
}

fn entries(limit: &Limit, now: Nanos) -> Vec<SnapshotEntry> {
    let mut entries = Vec::new();
    limit.while_unchanged(|rules| limit.snapshot(rules, now, |entry| entries.push(entry)));
    entries
}

#[test]
fn an_operators_block_outlives_a_deny_list_that_has_the_key() {
    let before = limits(PLAIN);
    block(&only(&before), Some(60), START);
    let denied = before.follow(parsed(DENIED), at(10)).unwrap();
    assert_eq!(
        reason(&only(&denied), at(10)),
        Some(DenialReason::DenyListed)
    );
    let after = denied.follow(parsed(PLAIN), at(20)).unwrap();
    assert_eq!(reason(&only(&after), at(20)), Some(DenialReason::Blocked));
    assert_eq!(reason(&only(&after), at(60)), None);
    // A block that ended while the key was on the list.
    block(&only(&after), Some(10), at(60));
    let denied = after.follow(parsed(DENIED), at(60)).unwrap();
    let after = denied.follow(parsed(PLAIN), at(70)).unwrap();
    assert_eq!(reason(&only(&after), at(70)), None);
}

#[test]
fn a_block_of_a_key_on_the_deny_list_holds_when_it_is_taken_off() {
    let denied = limits(DENIED);
    block(&only(&denied), Some(60), START);
    assert_eq!(
        reason(&only(&denied), at(61)),
        Some(DenialReason::DenyListed)
    );
    let off = denied.follow(parsed(PLAIN), at(30)).unwrap();
    assert_eq!(reason(&only(&off), at(59)), Some(DenialReason::Blocked));
    assert_eq!(reason(&only(&off), at(60)), None);
}

#[test]
fn a_block_under_a_deny_list_is_saved_and_restored() {
    let denied = limits(DENIED);
    assert_eq!(entries(&only(&denied), START), []);
    block(&only(&denied), Some(60), START);
    let saved = entries(&only(&denied), at(1));
    let policy = only(&denied).limiter().policy();
    for (rules, reason_now) in [
        (PLAIN, DenialReason::Blocked),
        (DENIED, DenialReason::DenyListed),
    ] {
        let restarted = limits(rules);
        for entry in &saved {
            assert!(only(&restarted).restore(&policy, entry, at(2)));
        }
        assert_eq!(reason(&only(&restarted), at(59)), Some(reason_now));
        let off = restarted.follow(parsed("limit: 11/1m"), at(59)).unwrap();
        assert_eq!(reason(&only(&off), at(59)), Some(DenialReason::Blocked));
        assert_eq!(reason(&only(&off), at(60)), None);
    }
}

#[test]
fn states_are_saved_with_the_rules_that_they_are_under() {
    for (old, new) in [
        (
            "limit: 10/1m, algorithm: sliding-log",
            "limit: 20/1m, algorithm: sliding-log",
        ),
        (
            "limit: 10/1m, algorithm: sliding-log",
            "limit: 10, algorithm: concurrency",
        ),
        (
            "limit: 9/1m, overrides: {a: 10/1m}",
            "limit: 9/1m, algorithm: sliding-log, overrides: {a: 10/1h}",
        ),
    ] {
        let before = limits(old);
        let limit = only(&before);
        assert!(limit.take_in_memory(b"a", 4, START).is_allowed());
        // The states have changed, and the new limits are not in force.
        let after = before.follow(parsed(new), START).unwrap();
        limit.while_unchanged(|rules| {
            assert_eq!(rules.policy, &only(&after).spec().policy);
            let own: Vec<_> = rules.own.values().collect();
            assert!(
                own.into_iter()
                    .eq(&only(&after).spec().overrides.values().collect::<Vec<_>>())
            );
        });
        // The rules of later deny a key, and no operator blocked it.
        let denied = after
            .follow(parsed(&format!("{new}, deny: [b]")), START)
            .unwrap();
        let blocked = |entry: &SnapshotEntry| matches!(entry, SnapshotEntry::Blocked { .. });
        assert!(!entries(&only(&after), START).iter().any(blocked));
        drop(denied);
    }
}
