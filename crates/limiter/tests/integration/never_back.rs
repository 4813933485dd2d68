//! Nothing gives used units back: not a limit that is lowered and raised again, not an eviction in
//! between, not a restore.
//!
//! The promise: in one window, what was used and what is admitted after all changes is at most the
//! highest limit that was in force.

use std::time::Duration;

use tidegate_core::{Nanos, Policy, Quota};
use tidegate_limiter::{KeyedLimiter, Limiter, SnapshotEntry, Until, WhenFull};

const NOW: Nanos = Nanos::from_secs(7_200 + 60);

type Make = fn(u64) -> Policy;

fn quota(limit: u64) -> Quota {
    Quota::new(limit, Duration::from_hours(1)).unwrap()
}

/// The algorithms that do not refill within the test.
const MAKES: [Make; 4] = [
    |limit| Policy::fixed_window(quota(limit)),
    |limit| Policy::sliding_log(quota(limit)).unwrap(),
    |limit| Policy::sliding_window(quota(limit)),
    |limit| Policy::sliding_counter(quota(limit)),
];

fn admitted(limiter: &KeyedLimiter<()>, key: &str, most: u64) -> u64 {
    (0..most)
        .filter(|_| limiter.at(NOW).acquire(key, 1).is_allowed())
        .count() as u64
}

fn change(limiter: &KeyedLimiter<()>, policy: Policy, finish: bool) {
    let change = limiter.at(NOW).set_policy(policy).unwrap();
    if finish {
        change.finish_at(NOW);
    }
}

#[test]
fn a_limit_that_is_lowered_and_raised_again_admits_nothing_more() {
    for make in MAKES {
        for when_full in [WhenFull::Deny, WhenFull::Forget] {
            for (touched, finish) in [(true, false), (false, true), (true, true), (false, false)] {
                let limiter = KeyedLimiter::builder(make(100))
                    .max_keys(64)
                    .when_full(when_full)
                    .clock(())
                    .build()
                    .unwrap();
                assert_eq!(admitted(&limiter, "a", 200), 100);
                change(&limiter, make(10), finish);
                if touched {
                    assert_eq!(admitted(&limiter, "a", 1), 0);
                }
                change(&limiter, make(100), finish);
                let what = format!(
                    "{:?}, {when_full:?}, touched {touched}, finished {finish}",
                    make(100)
                );
                assert_eq!(admitted(&limiter, "a", 200), 0, "{what}");
            }
        }
    }
}

#[test]
fn a_key_that_used_a_part_gets_at_most_the_rest() {
    for make in MAKES {
        for when_full in [WhenFull::Deny, WhenFull::Forget] {
            let limiter = KeyedLimiter::builder(make(100))
                .max_keys(64)
                .when_full(when_full)
                .clock(())
                .build()
                .unwrap();
            assert_eq!(admitted(&limiter, "a", 60), 60);
            for limit in [10, 30, 2, 100] {
                change(&limiter, make(limit), true);
                let _ = limiter.at(NOW).peek("a", 1);
            }
            let more = admitted(&limiter, "a", 200);
            assert!(
                60 + more <= 100,
                "{:?}, {when_full:?}: 60 and {more}",
                make(100)
            );
        }
    }
}

#[test]
fn evictions_between_the_changes_give_nothing_back() {
    for make in MAKES {
        let limiter = KeyedLimiter::builder(make(100))
            .max_keys(64)
            .clock(())
            .build()
            .unwrap();
        let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
        for key in &keys {
            assert_eq!(admitted(&limiter, key, 200), 100);
        }
        change(&limiter, make(10), true);
        // Newcomers take the cells of keys, which leave records.
        for newcomer in 0..100 {
            let _ = limiter.at(NOW).acquire(format!("n{newcomer}").as_str(), 1);
        }
        change(&limiter, make(100), true);
        assert_eq!(
            limiter.stats().forgotten.exhausted,
            0,
            "no record was forgotten"
        );
        for key in &keys {
            assert_eq!(admitted(&limiter, key, 200), 0, "{:?}: {key}", make(100));
        }
    }
}

#[test]
fn a_full_count_stays_full_through_raises_in_steps() {
    let make: Make = |limit| Policy::sliding_window(quota(limit));
    for steps in [
        vec![200, 300, 60_000],
        vec![254, 255, 60_000],
        vec![200, 65_534, 65_535, 60_000],
    ] {
        let limiter = KeyedLimiter::builder(make(60_000))
            .max_keys(64)
            .clock(())
            .build()
            .unwrap();
        let single = Limiter::with_clock(make(60_000), ());
        assert!(limiter.at(NOW).acquire("a", 60_000).is_allowed());
        assert!(single.at(NOW).acquire(60_000).is_allowed());
        for limit in steps.clone() {
            change(&limiter, make(limit), true);
            single.at(NOW).set_policy(make(limit));
        }
        assert!(limiter.at(NOW).acquire("a", 1).is_denied(), "{steps:?}");
        assert!(single.at(NOW).acquire(1).is_denied(), "{steps:?}");
        // Time empties it: ten slots and the current one.
        let later = NOW.saturating_add(Nanos::from_secs(3_600 + 360));
        assert!(
            limiter.at(later).acquire("a", 60_000).is_allowed(),
            "{steps:?}"
        );
        assert!(single.at(later).acquire(60_000).is_allowed(), "{steps:?}");
    }
    let million = |limit| make(limit);
    let single = Limiter::with_clock(million(1_000_000), ());
    assert!(single.at(NOW).acquire(1_000_000).is_allowed());
    for limit in [200, 300, 1_000_000] {
        single.at(NOW).set_policy(million(limit));
    }
    assert!(single.at(NOW).acquire(1).is_denied());
}

#[test]
fn a_restored_snapshot_takes_back_neither_use_nor_a_block() {
    for make in MAKES {
        let used = Limiter::with_clock(make(10), ());
        let fresh = used.snapshot();
        assert!(used.at(NOW).acquire(10).is_allowed());
        let full = used.snapshot();
        assert!(used.at(NOW).restore(&make(10), &fresh));
        assert!(used.at(NOW).acquire(1).is_denied(), "{:?}", make(10));
        let other = Limiter::with_clock(make(10), ());
        assert!(other.at(NOW).restore(&make(10), &full));
        assert!(other.at(NOW).acquire(1).is_denied(), "{:?}", make(10));
    }
    let limiter = KeyedLimiter::builder(MAKES[0](10))
        .clock(())
        .build()
        .unwrap();
    limiter.at(NOW).block("a", Until::UNBLOCKED).unwrap();
    let mut blocks = Vec::new();
    limiter.at(NOW).snapshot(|entry| blocks.push(entry));
    let [SnapshotEntry::Blocked { tag, .. }] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let short = SnapshotEntry::Blocked {
        tag,
        until: NOW.saturating_add(Nanos::from_secs(1)).get(),
    };
    assert!(limiter.at(NOW).restore(&MAKES[0](10), &short));
    let later = NOW.saturating_add(Nanos::from_secs(2));
    assert!(
        limiter.at(later).blocked("a").is_some(),
        "the permanent block stays"
    );
}
