//! The operations beside acquire, on every algorithm.

#[path = "integration/policies/mod.rs"]
mod policies;

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use policies::denying as policies;
use proptest::prelude::*;
use tidegate_limiter::{
    Algorithm, BuildError, Clock, CoarseClock, Decision, HashKeys, KeyedLimiter, Limiter,
    ManualClock, ManualTimer, Nanos, Policy, Quota, Request, SnapshotEntry, SystemClock, Until,
    acquire_all_at,
};

const NOW: Nanos = Nanos::from_secs(7_200);

fn keyed(policy: Policy) -> KeyedLimiter<ManualClock> {
    KeyedLimiter::builder(policy)
        .max_keys(100)
        .hash_keys(HashKeys::from_seeds(1, 2))
        .clock(ManualClock::new(NOW))
        .build()
        .unwrap()
}

#[test]
fn every_operation_works_on_every_algorithm() {
    for policy in policies(Quota::per_hour(10)) {
        let limiter = keyed(policy);
        assert_eq!(
            limiter.peek("a", 10).remaining(),
            0,
            "a peek tells what would remain"
        );
        assert_eq!(limiter.stats().keys, 0, "and adds nobody");
        assert_eq!(limiter.acquire("a", 4).remaining(), 6);
        let (granted, decision) = limiter.acquire_up_to("a", 100);
        assert_eq!((granted, decision.is_allowed()), (6, true));
        assert_eq!(limiter.acquire_up_to("a", 1).0, 0);
        limiter.refund("a", 3);
        assert_eq!(limiter.acquire("a", 0).remaining(), 3);
        limiter.refund("a", 100);
        assert_eq!(
            limiter.peek("a", 0).remaining(),
            10,
            "{}: never more than was taken",
            policy.name()
        );
    }
}

#[test]
fn a_blocked_key_is_denied_until_its_time() {
    let limiter = keyed(Policy::token_bucket(Quota::per_hour(10)));
    let until = Nanos::from_secs(7_260);
    assert_eq!(limiter.at(NOW).blocked("mallory"), None);
    limiter.at(NOW).block("mallory", Until(until)).unwrap();
    assert_eq!(
        limiter.acquire("mallory", 1).retry_after(),
        Some(Duration::from_mins(1))
    );
    assert_eq!(
        limiter
            .at(NOW)
            .blocked("mallory")
            .and_then(|denied| denied.retry_after()),
        Some(Duration::from_mins(1))
    );
    assert_eq!(limiter.at(NOW).blocked("alice"), None);
    assert_eq!(limiter.acquire_up_to("mallory", 1).0, 0);
    assert!(limiter.acquire("alice", 1).is_allowed());
    limiter.clock().set(until);
    assert_eq!(limiter.at(until).blocked("mallory"), None);
    assert!(limiter.acquire("mallory", 1).is_allowed());
    assert!(
        !limiter.at(until).unblock("mallory"),
        "the block had passed by itself"
    );
    limiter
        .at(until)
        .block("mallory", Until::UNBLOCKED)
        .unwrap();
    let denied = limiter.acquire("mallory", 1);
    assert!(
        denied.is_denied() && denied.retry_after().is_none(),
        "blocked for good"
    );
    assert!(limiter.at(until).unblock("mallory"));
    assert!(limiter.acquire("mallory", 1).is_allowed());
}

#[test]
fn a_key_can_have_its_own_quota() {
    for (general, own) in policies(Quota::per_hour(5))
        .into_iter()
        .zip(policies(Quota::per_hour(50)))
    {
        let limiter = keyed(general);
        assert!(limiter.acquire("admin", 5).is_allowed());
        assert_eq!(limiter.override_of("admin"), None);
        limiter.at(NOW).set_override("admin", own).unwrap();
        assert_eq!(
            [limiter.override_of("admin"), limiter.override_of("alice")],
            [Some(own), None]
        );
        assert_eq!(
            limiter.peek("admin", 0).remaining(),
            45,
            "{}: what was used counts on",
            general.name()
        );
        assert!(limiter.acquire("alice", 6).is_denied());
        assert!(limiter.acquire("admin", 20).is_allowed());
        assert!(limiter.at(NOW).remove_override("admin"));
        assert!(!limiter.at(NOW).remove_override("admin"));
        assert_eq!(limiter.override_of("admin"), None);
        assert!(
            limiter.acquire("admin", 1).is_denied(),
            "{}: and on",
            general.name()
        );
    }
}

#[test]
fn a_changed_policy_keeps_what_was_used_of_every_key() {
    for (old, new) in policies(Quota::per_hour(10))
        .into_iter()
        .zip(policies(Quota::per_hour(20)).into_iter().rev())
    {
        let limiter = keyed(old);
        for key in 0..50_u8 {
            assert!(limiter.acquire([key], u64::from(key % 10)).is_allowed());
        }
        limiter.at(NOW).set_policy(new).unwrap();
        for key in 0..50_u8 {
            assert_eq!(
                limiter.peek([key], 0).remaining(),
                20 - u64::from(key % 10),
                "{}",
                new.name()
            );
        }
    }
}

#[test]
fn each_change_of_policy_has_a_version_of_its_own() {
    let [first, second] = [0, 1].map(|at| policies(Quota::per_hour(10))[at]);
    let (keyed, one) = (keyed(first), Limiter::new(first));
    let versions = || (keyed.policy_version(), one.policy_version());
    let mut seen = std::collections::HashSet::from([versions()]);
    // What has a policy that returns is used again, but its version is new.
    for policy in [second, first, second, first, second] {
        keyed.at(NOW).set_policy(policy).unwrap();
        one.at(NOW).set_policy(policy);
        assert!(seen.insert(versions()), "{:?}", versions());
        keyed.at(NOW).set_policy(policy).unwrap();
        one.at(NOW).set_policy(policy);
        assert!(
            seen.contains(&versions()),
            "the same policy again is no change"
        );
    }
}

#[test]
fn a_snapshot_restores_every_key() {
    for policy in policies(Quota::per_hour(10)) {
        let limiter = keyed(policy);
        for key in 0..50_u8 {
            assert!(limiter.acquire([key], u64::from(key % 10)).is_allowed());
        }
        limiter.at(NOW).block("mallory", Until::UNBLOCKED).unwrap();
        limiter.at(NOW).set_override([7], policy).unwrap();
        let mut entries = Vec::new();
        limiter.at(NOW).snapshot(|entry| entries.push(entry));

        let restored = KeyedLimiter::builder(policy)
            .max_keys(100)
            .hash_keys(limiter.hash_keys())
            .clock(())
            .build()
            .unwrap();
        for entry in &entries {
            assert!(restored.at(NOW).restore(&policy, entry));
        }
        for key in 0..50_u8 {
            assert_eq!(
                restored.at(NOW).peek([key], 0),
                limiter.peek([key], 0),
                "{}",
                policy.name()
            );
        }
        assert!(restored.at(NOW).acquire("mallory", 1).is_denied());
        let damaged = SnapshotEntry::clone(&entries[0]);
        let wider = Policy::sliding_log(Quota::per_hour(77)).unwrap();
        assert!(
            !restored.at(NOW).restore(&wider, &damaged),
            "a state of another shape is refused"
        );
    }
}

#[test]
fn a_reset_affects_only_its_key() {
    for policy in policies(Quota::per_hour(10)) {
        // Two places, so that most of these keys are records.
        let limiter = KeyedLimiter::builder(policy)
            .max_keys(2)
            .clock(ManualClock::new(NOW))
            .build()
            .unwrap();
        for key in 0..8_u8 {
            assert!(limiter.acquire([key], 10).is_allowed());
        }
        limiter.at(NOW).block([9], Until::UNBLOCKED).unwrap();
        limiter.at(NOW).set_override([8], policy).unwrap();
        assert!(limiter.acquire([8], 10).is_allowed());
        for key in [0_u8, 7, 8] {
            assert!(limiter.reset([key]), "{}", policy.name());
            assert!(!limiter.reset([key]), "there was nothing left");
            assert!(limiter.acquire([key], 10).is_allowed());
        }
        assert!(
            (0..9_u8).all(|key| limiter.peek([key], 1).is_denied()),
            "{}",
            policy.name()
        );
        limiter.reset_all();
        assert_eq!((limiter.stats().keys, limiter.stats().records), (0, 0));
        assert!(
            (0..9_u8).all(|key| limiter.peek([key], 10).is_allowed()),
            "{}",
            policy.name()
        );
        assert!(limiter.peek([9], 1).is_denied(), "a block is no use");
    }
}

#[test]
fn a_snapshot_carries_records_to_a_limiter_of_any_bound() {
    for policy in policies(Quota::per_hour(10)) {
        let limiter = KeyedLimiter::builder(policy)
            .max_keys(50)
            .clock(())
            .build()
            .unwrap();
        for key in 0..150_u8 {
            assert!(limiter.at(NOW).acquire([key], 4).is_allowed());
        }
        assert!(limiter.stats().records >= 100);
        let mut entries = Vec::new();
        limiter.at(NOW).snapshot(|entry| entries.push(entry));
        for max_keys in [40, 50, 120, 1_000] {
            let restored = KeyedLimiter::builder(policy)
                .max_keys(max_keys)
                .hash_keys(limiter.hash_keys())
                .clock(())
                .build()
                .unwrap();
            assert!(
                entries
                    .iter()
                    .all(|entry| restored.at(NOW).restore(&policy, entry))
            );
            assert_eq!(restored.stats().forgotten.total(), 0);
            for key in 0..150_u8 {
                // A bucket's end is rounded up by less than a 250,000th of the hour.
                let later = NOW.saturating_add(Nanos::from_millis(4));
                let remaining = restored.at(later).acquire([key], 1).remaining();
                assert_eq!(remaining, 5, "{} at a bound of {max_keys}", policy.name());
            }
        }
    }
}

#[test]
fn debts_survive_a_snapshot_and_a_change_of_policy() {
    let policy = Policy::fixed_window(Quota::per_hour(5));
    let tiny = || {
        KeyedLimiter::builder(policy)
            .max_keys(1)
            .clock(ManualClock::new(NOW))
            .build()
            .unwrap()
    };
    let limiter = tiny();
    assert!(limiter.acquire("a", 5).is_allowed());
    // Pushes a out.
    let _ = limiter.acquire("b", 1);
    limiter
        .at(NOW)
        .set_policy(Policy::sliding_counter(Quota::per_hour(5)))
        .unwrap();
    assert!(limiter.acquire("a", 1).is_denied());
    let mut entries = Vec::new();
    limiter.at(NOW).snapshot(|entry| entries.push(entry));
    let restored = KeyedLimiter::builder(policy)
        .max_keys(1)
        .hash_keys(limiter.hash_keys())
        .clock(())
        .build()
        .unwrap();
    assert!(
        entries
            .iter()
            .all(|entry| restored.at(NOW).restore(&limiter.policy(), entry))
    );
    assert!(restored.at(NOW).acquire("a", 1).is_denied());
}

#[test]
fn a_changed_bound_keeps_what_every_key_has_used() {
    for policy in policies(Quota::per_hour(10)) {
        let limiter = keyed(policy);
        for key in 0..100_u8 {
            assert!(limiter.acquire([key], 4).is_allowed());
        }
        limiter.at(NOW).block("mallory", Until::UNBLOCKED).unwrap();
        // The last bound is too small for all of them: most keys are in records then.
        for max_keys in [1_000, 2_000, 100, 30] {
            limiter.set_max_keys(max_keys).unwrap().finish();
            assert_eq!(limiter.stats().max_keys, max_keys as u64);
            assert!(limiter.stats().keys <= max_keys as u64);
            for key in 0..100_u8 {
                // A record's end is rounded up by less than a 250,000th of the hour.
                let left = limiter
                    .at(NOW.saturating_add(Nanos::from_millis(4)))
                    .peek([key], 0)
                    .remaining();
                assert_eq!(left, 6, "{} at a bound of {max_keys}", policy.name());
            }
            assert!(limiter.acquire("mallory", 1).is_denied());
        }
        assert_eq!(limiter.stats().forgotten.total(), 0);
        assert!(limiter.set_max_keys(0).is_err());
        assert_eq!(
            limiter.stats().max_keys,
            30,
            "a bound of 0 is refused, and changes nothing"
        );
    }
}

#[test]
fn changes_between_a_few_bounds_reuse_memory() {
    let limiter = keyed(Policy::fixed_window(Quota::per_hour(10)));
    assert!(limiter.acquire("a", 4).is_allowed());
    let mut before = None;
    for round in 0..1_000 {
        limiter
            .set_max_keys([1 << 14, 1 << 16][round % 2])
            .unwrap()
            .finish();
        let maps =
            std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count());
        let before = *before.get_or_insert(maps);
        assert!(maps < before + 200, "{maps} mappings, {before} at first");
    }
    assert_eq!(limiter.peek("a", 0).remaining(), 6);
}

#[test]
fn blocking_and_unblocking_a_key_takes_no_room_in_the_table() {
    let limiter = keyed(Policy::fixed_window(Quota::per_hour(10)));
    limiter.at(NOW).block("mallory", Until::UNBLOCKED).unwrap();
    assert!(limiter.acquire("mallory", 1).is_denied());
    assert!(limiter.at(NOW).unblock("mallory"));
    assert_eq!(limiter.stats().keys, 0);
}

#[test]
fn an_unkeyed_limiter_has_the_same_operations() {
    for policy in policies(Quota::per_hour(10)) {
        let limiter = Limiter::with_clock(policy, ManualClock::new(NOW));
        assert_eq!(limiter.acquire(4).remaining(), 6);
        assert_eq!(limiter.acquire_up_to(100).0, 6);
        limiter.refund(1);
        assert_eq!(limiter.peek(0).remaining(), 1);
        limiter.set_policy(policies(Quota::per_hour(20))[3]);
        assert_eq!(limiter.peek(0).remaining(), 11, "{}", policy.name());
        let state = limiter.snapshot();
        let restored = Limiter::with_clock(policy, ManualClock::new(NOW));
        assert!(restored.at(NOW).restore(&limiter.policy(), &state));
        assert_eq!(restored.acquire(1).remaining(), 0);
        limiter.block(Until(Nanos::from_secs(7_201)));
        assert_eq!(
            limiter.acquire(1).retry_after(),
            Some(Duration::from_secs(1))
        );
        assert!(limiter.unblock() && limiter.acquire(1).is_allowed());
    }
}

#[test]
fn a_joint_decision_says_which_limit_bound() {
    let burst = keyed(Policy::fixed_window("2/1s".parse().unwrap()));
    let daily = keyed(Policy::sliding_log("3/1d".parse().unwrap()).unwrap());
    let total = Limiter::with_clock(
        Policy::token_bucket(Quota::per_hour(100)),
        ManualClock::new(NOW),
    );
    let ask = |now| {
        let requests = [
            Request::keyed(&burst, b"a", 1),
            Request::keyed(&daily, b"a", 1),
            Request::unkeyed(&total, 1),
        ];
        acquire_all_at(&requests, now).unwrap()
    };
    assert_eq!(
        ask(NOW).bound(),
        Some(0),
        "one of two is left, of all of them the least"
    );
    assert!(ask(NOW).is_allowed());
    let denied = ask(NOW);
    assert_eq!((denied.is_allowed(), denied.bound()), (false, Some(0)));
    let later = Nanos::from_secs(7_201);
    assert!(ask(later).is_allowed());
    assert_eq!(
        ask(later).bound(),
        Some(1),
        "the day's denial outlasts the second's"
    );
    assert_eq!(
        total.peek(0).remaining(),
        97,
        "denied requests charged nobody"
    );
}

#[test]
fn a_key_named_twice_in_one_decision_is_charged_twice() {
    let limiter = keyed(Policy::fixed_window(Quota::per_hour(5)));
    let twice = |cost| {
        [
            Request::keyed(&limiter, b"a", cost),
            Request::keyed(&limiter, b"a", cost),
        ]
    };
    assert!(!acquire_all_at(&twice(3), NOW).unwrap().is_allowed());
    assert!(acquire_all_at(&twice(2), NOW).unwrap().is_allowed());
    assert_eq!(limiter.peek("a", 0).remaining(), 1);
}

#[test]
fn a_prefetch_changes_nothing() {
    for policy in policies(Quota::per_hour(10)) {
        let limiter = keyed(policy);
        assert!(limiter.acquire("a", 4).is_allowed());
        for key in ["a", "nobody"] {
            let before = limiter.peek(key, 0);
            limiter.prefetch(key);
            assert_eq!(limiter.peek(key, 0), before);
        }
        assert_eq!(limiter.stats().keys, 1);
    }
}

#[test]
fn more_exceptions_than_keys_are_refused() {
    let limiter = KeyedLimiter::builder(Policy::concurrency(1))
        .max_keys(2)
        .clock(())
        .build()
        .unwrap();
    limiter.at(NOW).block("a", Until::UNBLOCKED).unwrap();
    limiter
        .at(NOW)
        .block("b", Until(Nanos::from_secs(7_300)))
        .unwrap();
    assert!(limiter.at(NOW).block("c", Until::UNBLOCKED).is_err());
    assert!(
        limiter
            .at(NOW)
            .set_override("c", Policy::concurrency(9))
            .is_err()
    );
    assert!(
        limiter
            .at(Nanos::from_secs(7_301))
            .block("c", Until::UNBLOCKED)
            .is_ok(),
        "the second block had passed"
    );
}

#[test]
fn blocks_that_have_passed_make_room_and_others_stay() {
    let limiter = KeyedLimiter::builder(Policy::fixed_window(Quota::per_hour(1)))
        .max_keys(100)
        .clock(())
        .build()
        .unwrap();
    let at = Nanos::from_secs;
    let block = |key: u64, until, now| limiter.at(now).block(key, Until(until)).is_ok();
    for key in 1..=100 {
        assert!(block(
            key,
            if key <= 50 { at(key) } else { Nanos::MAX },
            at(0)
        ));
    }
    assert!(!block(101, at(99), at(0)), "all are in force");
    assert!(block(101, at(99), at(1)), "one has passed");
    assert!(!block(102, at(99), at(1)));
    assert!(limiter.at(at(1 << 30)).blocked(100_u64).is_some());
    for key in 102..151 {
        assert!(block(key, at(99), at(60)), "{key}");
    }
    let mut blocked = 0;
    limiter.at(at(60)).snapshot(|entry| {
        blocked += u32::from(matches!(entry, SnapshotEntry::Blocked { .. }));
    });
    assert_eq!(blocked, 100);
    assert!((1..=50_u64).all(|key| limiter.at(at(60)).acquire(key, 1).is_allowed()));
}

#[test]
fn a_block_in_a_full_table_looks_at_few_others() {
    const MANY: u64 = 200_000;
    let policy = Policy::fixed_window(Quota::per_hour(1));
    let limiter = KeyedLimiter::builder(policy)
        .max_keys(MANY as usize)
        .clock(())
        .build()
        .unwrap();
    let block = |key: u64, until, now| limiter.at(now).block(key, Until(until)).is_ok();
    for key in 1..=MANY {
        assert!(block(key, Nanos::from_secs(key), Nanos::ZERO));
    }
    // A walk over all for each of these would look at 40 billion.
    for key in 1..=MANY {
        assert!(!block(MANY + key, Nanos::MAX, Nanos::ZERO));
    }
    for key in 1..=MANY {
        assert!(block(MANY + key, Nanos::MAX, Nanos::from_secs(key)));
    }
}

#[test]
fn tags_are_stable() {
    // A snapshot written by one version is read by the next: these may not change.
    let tags = ["", "alice", "0123456789abcdef0123456789abcdef"];
    let tags = tags.map(|key| HashKeys::from_seeds(1, 2).tag(key.as_bytes()));
    assert_eq!(
        tags,
        [
            7_422_642_187_284_333_781,
            4_415_870_903_258_091_414,
            1_407_093_679_687_423_991
        ]
    );
    let others = [(2, 1), (1, 3)].map(|(a, b)| HashKeys::from_seeds(a, b).tag(b"alice"));
    assert!(!others.contains(&tags[1]), "other seeds give other tags");
}

#[test]
fn states_take_whole_cache_lines_and_none_reaches_into_another() {
    let of = |policy, max_keys| {
        KeyedLimiter::builder(policy)
            .max_keys(max_keys)
            .clock(())
            .build()
    };
    let bytes = |policy| of(policy, 1 << 20).unwrap().stats().bytes;
    let quota = Quota::per_hour(10);
    // Four one-word states in a line of 64 bytes, half of them in use; two wider ones, four fifths
    // of them in use.
    let (one, two) = (
        bytes(Policy::token_bucket(quota)),
        bytes(Policy::fixed_window(quota)),
    );
    assert_eq!(two - one, 64 * (655_368 - 524_292));
    for limit in (1..900).step_by(7) {
        let limiter = of(Policy::sliding_log(Quota::per_hour(limit)).unwrap(), 6).unwrap();
        let left = |key| u64::from(key) % limit;
        for key in 0..6_u8 {
            assert!(
                limiter
                    .at(NOW)
                    .acquire([key], limit - left(key))
                    .is_allowed()
            );
        }
        for key in 0..6_u8 {
            assert_eq!(
                limiter.at(NOW).peek([key], 0).remaining(),
                left(key),
                "{limit}"
            );
        }
    }
    let log = Policy::sliding_log(Quota::per_hour(4_000)).unwrap();
    for (policy, max_keys, error) in [
        (log, 0, BuildError::NoKeys),
        (log, usize::MAX, BuildError::TooLarge),
        (log, 1 << 30, BuildError::TooLarge),
    ] {
        assert_eq!(of(policy, max_keys).unwrap_err(), error);
    }
}

#[test]
fn a_joint_decision_keeps_its_own_keys_in_place() {
    let build = |max_keys, seed| {
        let builder =
            KeyedLimiter::builder(Policy::fixed_window(Quota::per_hour(1))).max_keys(max_keys);
        builder
            .hash_keys(HashKeys::from_seeds(seed, 5))
            .clock(())
            .build()
            .unwrap()
    };
    let ask = |limiter: &KeyedLimiter<()>, keys: &[&str]| {
        let requests: Vec<_> = keys
            .iter()
            .map(|key| Request::keyed(limiter, key.as_bytes(), 1))
            .collect();
        acquire_all_at(&requests, NOW).map(|decision| decision.is_allowed())
    };
    let limiter = build(2, 3);
    assert_eq!(ask(&limiter, &["a", "b"]), Ok(true));
    assert!(
        ["a", "b"]
            .iter()
            .all(|key| limiter.at(NOW).acquire(key, 1).is_denied())
    );
    assert!(
        ask(&limiter, &["c", "d", "e", "f", "g"]).is_err(),
        "five keys have no room in two places"
    );
    // A key has two buckets of two places each wherever there are two: three keys find a place,
    // whatever their hashes.
    for (max_keys, seed) in (3..40).flat_map(|max_keys| (0..50).map(move |seed| (max_keys, seed))) {
        assert_eq!(
            ask(&build(max_keys, seed), &["a", "b", "c"]),
            Ok(true),
            "{max_keys} keys, seed {seed}"
        );
    }
}

#[test]
fn a_change_of_policy_does_not_wait_for_the_change_before_it() {
    let quota = Quota::per_hour(3);
    let limiter = KeyedLimiter::builder(Policy::fixed_window(quota))
        .clock(())
        .build()
        .unwrap();
    let keys = || (0..10_000_u64).map(u64::to_le_bytes);
    for key in keys() {
        assert!(limiter.at(NOW).acquire(key, 1).is_allowed());
    }
    let policies = [
        Policy::sliding_counter(quota),
        Policy::fixed_window(quota),
        Policy::sliding_log(quota).unwrap(),
        Policy::fixed_window(quota),
    ];
    for (round, policy) in policies.into_iter().enumerate() {
        limiter.at(NOW).set_policy(policy).unwrap();
        // Some keys move each time, so that there are some in every table.
        for key in keys().skip(round * 100).take(100) {
            assert_eq!(limiter.at(NOW).peek(key, 0).remaining(), 2);
            assert!(limiter.at(NOW).acquire(key, 1).is_allowed());
        }
        assert_eq!(limiter.stats().keys, 100, "nothing was swept");
    }
    for key in keys().step_by(7) {
        let used = limiter.at(NOW).peek(key, 0).remaining();
        assert_eq!(
            used,
            u64::from(u64::from_le_bytes(key) >= 400) + 1,
            "seen wherever it is"
        );
    }
    // Before the fifth the oldest table is emptied.
    limiter
        .at(NOW)
        .set_policy(Policy::sliding_counter(quota))
        .unwrap()
        .finish_at(NOW);
    assert_eq!(limiter.stats().keys, 10_000);
    for (at, key) in keys().enumerate() {
        let left = if at < 400 { 1 } else { 2 };
        assert_eq!(limiter.at(NOW).peek(key, 0).remaining(), left);
        assert!(limiter.at(NOW).acquire(key, left).is_allowed());
        assert!(limiter.at(NOW).acquire(key, 1).is_denied());
    }
}

#[test]
fn clocks_move_forward() {
    let clock = SystemClock::new();
    let first = clock.now();
    assert!(
        clock.now() >= first && first > Nanos::from_secs(1_700_000_000),
        "since the epoch"
    );
    assert!(
        SystemClock::not_before(Nanos::from_secs(9_000_000_000)).now()
            >= Nanos::from_secs(9_000_000_000)
    );

    let manual = std::sync::Arc::new(ManualClock::new(NOW));
    let coarse = CoarseClock::over(manual.clone(), Duration::from_micros(50)).unwrap();
    assert_eq!(coarse.now(), NOW);
    manual.advance(Nanos::from_secs(1));
    // Its thread reads the time before long; bounded by the test's own time-out, not by a sleep.
    while coarse.now() != manual.now() {
        std::thread::yield_now();
    }
}

proptest! {
    /// A keyed limiter decides for each key as a limiter of its own would, as long as no key has to
    /// go. Known hash keys, because with random ones a key in a small table meets four others in
    /// its two buckets once in a great while.
    #[test]
    fn keys_do_not_influence_each_other(requests in prop::collection::vec((0_u8..20, 0_u64..3_000, 0_u64..4), 1..300)) {
        for policy in policies("5/1us".parse().unwrap()) {
            let together =
                KeyedLimiter::builder(policy).max_keys(100).hash_keys(HashKeys::from_seeds(1, 2)).clock(()).build().unwrap();
            let alone: Vec<_> = (0..20).map(|_| Limiter::with_clock(policy, ())).collect();
            let mut now = NOW.get();
            for &(key, gap, cost) in &requests {
                now += gap / 10;
                let at = Nanos::new(now);
                prop_assert_eq!(together.at(at).acquire([key], cost), alone[usize::from(key)].at(at).acquire(cost));
            }
        }
    }
}

#[test]
fn a_batch_decides_like_single_calls() {
    for policy in policies(Quota::per_hour(3)) {
        let build = || {
            KeyedLimiter::builder(policy)
                .max_keys(1_000)
                .clock(())
                .build()
                .unwrap()
        };
        let (many, single) = (build(), build());
        for limiter in [&many, &single] {
            limiter.at(NOW).block([7], Until::UNBLOCKED).unwrap();
            limiter
                .at(NOW)
                .set_override([8], policies(Quota::per_hour(1))[0])
                .unwrap();
        }
        // More than are fetched at once; keys come several times, and some only look.
        let requests: Vec<([u8; 1], u64)> =
            (0..150_u8).map(|n| ([n % 40], u64::from(n) % 3)).collect();
        let together = many.at(NOW).acquire_many(&requests);
        let apart: Vec<_> = requests
            .iter()
            .map(|(key, cost)| single.at(NOW).acquire(key, *cost))
            .collect();
        assert_eq!(together, apart, "{}", policy.name());
        assert!(many.at(NOW).acquire_many::<[u8; 1]>(&[]).is_empty());
    }
}

#[test]
fn numbers_and_addresses_are_keys_as_they_are() {
    let limiter = keyed(Policy::fixed_window(Quota::per_hour(1)));
    let address: std::net::IpAddr = "2001:db8::1".parse().unwrap();
    assert!(limiter.check(7_u64).is_allowed() && limiter.check(address).is_allowed());
    assert!(limiter.check(7_u64.to_le_bytes()).is_denied() && limiter.check(address).is_denied());
    assert!(limiter.check(8_u64).is_allowed() && limiter.check(String::from("7")).is_allowed());
    assert!(
        limiter
            .acquire_many(&[(7_u64, 1), (9, 1)])
            .iter()
            .map(Decision::is_denied)
            .eq([true, false])
    );
    limiter.block_for(10_u64, Duration::from_secs(1)).unwrap();
    assert!(limiter.peek(10_u64, 0).is_denied() && limiter.unblock(10_u64));
}

#[test]
fn a_change_of_policy_moves_each_key_when_it_is_next_used() {
    let limiter = KeyedLimiter::builder(Policy::fixed_window(Quota::per_hour(3)))
        .clock(())
        .build()
        .unwrap();
    let keys = || (0..10_000_u64).map(u64::to_le_bytes);
    for key in keys() {
        assert!(limiter.at(NOW).acquire(key, 2).is_allowed());
    }
    let change = limiter
        .at(NOW)
        .set_policy(Policy::sliding_counter(Quota::per_hour(3)))
        .unwrap();
    assert_eq!(limiter.stats().keys, 0, "nothing has moved yet");
    for key in keys().take(100) {
        assert_eq!(
            limiter.at(NOW).peek(key, 0).remaining(),
            1,
            "what was used is seen where it is"
        );
        assert!(
            limiter.at(NOW).acquire(key, 2).is_denied()
                && limiter.at(NOW).acquire(key, 1).is_allowed()
        );
    }
    assert_eq!(limiter.stats().keys, 100);
    assert!(change.step_at(NOW), "there is more");
    change.finish_at(NOW);
    assert_eq!(limiter.stats().keys, 10_000);
    for (at, key) in keys().enumerate() {
        assert_eq!(
            limiter.at(NOW).peek(key, 0).remaining(),
            u64::from(at >= 100)
        );
    }
}

#[test]
fn evicted_keys_keep_their_debts_through_unfinished_changes() {
    let quota = Quota::per_hour(3);
    let limiter = KeyedLimiter::builder(Policy::fixed_window(quota))
        .max_keys(100)
        .clock(())
        .build()
        .unwrap();
    for key in 0..300_u64 {
        assert!(limiter.at(NOW).acquire(key.to_le_bytes(), 3).is_allowed());
    }
    for policy in [
        Policy::sliding_counter(quota),
        Policy::fixed_window(quota),
        Policy::sliding_counter(quota),
    ] {
        limiter.at(NOW).set_policy(policy).unwrap();
        for key in (0..300_u64).step_by(3) {
            assert!(limiter.at(NOW).acquire(key.to_le_bytes(), 1).is_denied());
        }
    }
    assert!((0..300_u64).all(|key| limiter.at(NOW).acquire(key.to_le_bytes(), 1).is_denied()));
    assert_eq!(limiter.stats().forgotten.total(), 0);
}

const HOUR: i64 = 3_600_000_000_000;

/// The machine's clock was three hours behind at its start, and is set; later it is set back.
#[test]
#[cfg(feature = "calendar")]
fn days_follow_the_systems_time_and_rates_do_not() {
    let (noon, limit) = (
        Nanos::from_secs(1_800_014_400),
        "fixed-window:calendar 3/day",
    );
    let policy: Policy = limit.parse().unwrap();
    let clock = ManualClock::new(noon);
    let builder = KeyedLimiter::builder(policy).max_keys(4);
    let limiter = builder.hash_keys(HashKeys::from_seeds(1, 2)).clock(clock);
    let limiter = limiter.build().unwrap();
    let own: Policy = "fixed-window:calendar 5/day".parse().unwrap();
    limiter.set_override("vip", own).unwrap();
    let left = |key: &str| limiter.peek(key, 0).remaining();
    let wait = |key: &str| limiter.peek(key, 9).reset_after().as_secs() / 3_600;
    // Seven keys in a table of four: some are only records.
    let keys = ["vip", "a", "b", "c", "d", "e", "f"];
    assert!(keys.iter().all(|key| limiter.acquire(key, 3).is_allowed()));
    assert_eq!((wait("vip"), limiter.follow_wall()), (12, Ok(false)));
    let set = |hours: i64| {
        limiter.clock().set_wall_ahead(hours * HOUR);
        limiter.follow_wall()
    };
    let all_left = || keys.map(left);
    assert_eq!(set(3), Ok(true), "it is 15 o'clock");
    assert_eq!(
        (all_left(), wait("vip"), wait("a")),
        ([2, 0, 0, 0, 0, 0, 0], 9, 9)
    );
    assert_eq!(set(3), Ok(false));
    limiter.clock().set_wall_ahead(3 * HOUR + 900_000_000);
    assert_eq!(limiter.follow_wall(), Ok(false), "less than a second");
    limiter.clock().advance(Duration::from_secs(9 * 3_600 - 1));
    assert_eq!(all_left(), [2, 0, 0, 0, 0, 0, 0], "just before midnight");
    limiter.clock().advance(Duration::from_secs(1));
    assert_eq!(
        all_left(),
        [5, 3, 3, 3, 3, 3, 3],
        "midnight by the system's time"
    );
    assert!(limiter.acquire("a", 2).is_allowed());
    // Back to the former day: the day that was reached stays, and its units are not given twice.
    assert_eq!(set(-2), Ok(true));
    assert_eq!((left("a"), wait("a")), (1, 29));
    // A rule that follows the same clock, and one that follows none.
    let later: Policy = "fixed-window:calendar 4/day".parse().unwrap();
    limiter.set_policy(later).unwrap().finish();
    assert_eq!((left("a"), wait("a")), (2, 29));
    limiter.clock().advance(Duration::from_hours(29));
    assert_eq!((left("a"), set(-2)), (4, Ok(false)));
    let rate = keyed(Policy::fixed_window(Quota::per_hour(1)));
    rate.clock().set_wall_ahead(5 * HOUR);
    assert_eq!(rate.follow_wall(), Ok(false));
}

/// The general policy has no calendar.
#[test]
#[cfg(feature = "calendar")]
fn the_days_of_a_single_key_follow_the_systems_time() {
    let limiter = keyed(Policy::token_bucket(Quota::per_second(10)));
    let own: Policy = "fixed-window:calendar 5/day".parse().unwrap();
    limiter.set_override("vip", own).unwrap();
    assert!(limiter.acquire("vip", 5).is_allowed());
    let wait = || limiter.peek("vip", 1).reset_after().as_secs() / 3_600;
    assert_eq!((wait(), limiter.follow_wall()), (22, Ok(false)));
    limiter.clock().set_wall_ahead(11 * HOUR);
    assert_eq!(limiter.follow_wall(), Ok(true));
    assert_eq!((wait(), limiter.follow_wall()), (11, Ok(false)));
    limiter.clock().advance(Duration::from_hours(11));
    assert!(limiter.acquire("vip", 5).is_allowed());
}

#[test]
#[cfg(feature = "calendar")]
fn a_limiter_without_keys_follows_the_systems_time() {
    let policy: Policy = "fixed-window:calendar 3/day".parse().unwrap();
    let clock = ManualClock::new(Nanos::from_secs(1_800_014_400));
    let limiter = Limiter::with_clock(policy, clock);
    assert!(limiter.acquire(3).is_allowed());
    limiter.clock().set_wall_ahead(11 * HOUR);
    assert!(limiter.follow_wall() && !limiter.follow_wall());
    let denied = limiter.acquire(1);
    assert_eq!(denied.retry_after(), Some(Duration::from_hours(1)));
    limiter.clock().advance(Duration::from_hours(1));
    assert!(limiter.acquire(3).is_allowed());
    limiter.set_policy(policy);
    limiter.clock().set_wall_ahead(0);
    assert!(limiter.follow_wall(), "the distance is that of before");
    assert!(limiter.acquire(1).is_denied(), "the day that was reached");
}

/// Two keys with their own days, and a caller that waits for each: the first to be woken removes
/// the other's override, amid the change.
#[test]
#[cfg(feature = "calendar")]
fn an_override_that_ends_while_the_days_follow_the_systems_time_stays_removed() {
    struct Remove {
        limiter: Arc<KeyedLimiter<ManualTimer>>,
        other: &'static str,
        removed: Arc<Mutex<Option<&'static str>>>,
    }
    impl Wake for Remove {
        fn wake(self: Arc<Self>) {
            {
                let mut removed = self.removed.lock().unwrap();
                if removed.is_some() {
                    return;
                }
                *removed = Some(self.other);
            }
            assert!(self.limiter.remove_override(self.other));
        }
    }
    let timer = ManualTimer::new(Nanos::from_secs(1_800_014_400));
    let general = Policy::token_bucket(Quota::per_second(10));
    let limiter = KeyedLimiter::builder(general).clock(timer).build().unwrap();
    let limiter = Arc::new(limiter);
    let own: Policy = "fixed-window:calendar 5/day".parse().unwrap();
    let removed = Arc::new(Mutex::new(None));
    let mut waiting: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|key| {
            limiter.set_override(key, own).unwrap();
            assert!(limiter.acquire(key, 5).is_allowed());
            Box::pin(limiter.wait(key, 1, None))
        })
        .collect();
    for (wait, other) in waiting.iter_mut().zip(["b", "a"]) {
        let waker = Waker::from(Arc::new(Remove {
            limiter: Arc::clone(&limiter),
            other,
            removed: Arc::clone(&removed),
        }));
        let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    // It is the next day.
    assert_eq!(
        limiter.at(limiter.clock().now()).follow_wall(24 * HOUR),
        Ok(true)
    );
    let removed = removed.lock().unwrap().expect("a caller was woken");
    assert_eq!(limiter.override_of(removed), None);
    let kept = if removed == "a" { "b" } else { "a" };
    assert_eq!(limiter.override_of(kept).map(|own| own.limit()), Some(5));
}

/// A policy that changes while the days follow the system's time stays changed.
#[test]
#[cfg(feature = "calendar")]
fn a_change_of_policy_is_not_undone_by_the_systems_time() {
    let policy = |limit: u64| -> Policy {
        format!("fixed-window:calendar {limit}/day")
            .parse()
            .unwrap()
    };
    let start = Nanos::from_secs(1_800_014_400);
    let one = Limiter::with_clock(policy(1), ManualClock::new(start));
    let keys = keyed(policy(1));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut hours = 0;
            while !is_over.load(Ordering::Relaxed) {
                hours = 3 - hours;
                one.at(start).follow_wall(hours * HOUR);
                keys.at(start).follow_wall(hours * HOUR).unwrap();
            }
        });
        let mut kept = true;
        for limit in 1..=2_000 {
            one.at(start).set_policy(policy(limit));
            keys.at(start)
                .set_policy(policy(limit))
                .unwrap()
                .finish_at(start);
            std::thread::yield_now();
            kept &= one.policy().limit() == limit && keys.policy().limit() == limit;
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(kept);
    });
}

#[test]
fn the_use_of_an_overridden_key_is_restored_where_it_has_no_override() {
    let of = |limit| Policy::sliding_window(Quota::per_minute(limit));
    let seeds = HashKeys::from_seeds(1, 2);
    let with_own = KeyedLimiter::builder(of(10))
        .hash_keys(seeds)
        .build()
        .unwrap();
    let without = KeyedLimiter::builder(of(10))
        .hash_keys(seeds)
        .build()
        .unwrap();
    let at = Nanos::from_secs(1_000);
    with_own.at(at).set_override("vip", of(20)).unwrap();
    assert!(with_own.at(at).acquire("vip", 4).is_allowed());
    let mut restored = 0;
    with_own.at(at).snapshot(|entry| {
        restored += u32::from(without.at(at).restore(&of(20), &entry));
    });
    assert_eq!(
        (restored, without.at(at).peek("vip", 0).remaining()),
        (1, 6)
    );
}
