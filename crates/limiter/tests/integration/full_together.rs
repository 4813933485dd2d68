//! A full table that refuses new keys decides alike on one key and on several together.

use std::time::Duration;

use tidegate_limiter::{
    Decision, DenialReason, KeyedLimiter, Limiter, Nanos, Policy, Quota, Request, SystemClock,
    WhenFull, acquire_all_at, algorithm::Concurrency,
};

const START: Nanos = Nanos::from_secs(1_000);
const LIMIT: u64 = 5;

fn policies() -> Vec<Policy> {
    let quota = Quota::new(LIMIT, Duration::from_mins(1)).unwrap();
    vec![
        Policy::fixed_window(quota),
        Policy::sliding_log(quota).unwrap(),
        Policy::sliding_window(quota),
        Policy::sliding_counter(quota),
        Policy::token_bucket(quota),
        Concurrency::new(LIMIT as u32).into(),
        Concurrency::new(LIMIT as u32)
            .hold(Duration::from_mins(1))
            .unwrap()
            .into(),
    ]
}

/// A limiter without room for new keys: all that it knows have used everything. Returns how many
/// those are.
fn full(policy: Policy) -> (KeyedLimiter, u64) {
    let limiter = KeyedLimiter::builder(policy)
        .max_keys(4)
        .when_full(WhenFull::Deny)
        .build()
        .unwrap();
    let taken = (0..10_000_u64).take_while(|key| {
        limiter
            .at(START)
            .acquire(&key.to_be_bytes()[..], LIMIT)
            .is_allowed()
    });
    let known = taken.count() as u64;
    assert!(known > 8, "some are in records only");
    (limiter, known)
}

/// The decision on a key together with another limit, which has room.
fn together(limiter: &KeyedLimiter, key: u64, cost: u64) -> Decision {
    let other = Limiter::<SystemClock>::with_clock(
        Policy::token_bucket(Quota::per_second(1_000_000)),
        SystemClock::new(),
    );
    let key = key.to_be_bytes();
    let requests = [
        Request::keyed(limiter, &key, cost),
        Request::unkeyed(&other, 1),
    ];
    acquire_all_at(&requests, START).unwrap().decisions()[0]
}

#[test]
fn keys_that_left_a_record_get_the_same_answer_alone_and_together() {
    for policy in policies() {
        let (limiter, known) = full(policy);
        for key in 0..known {
            for cost in [1, 0] {
                let alone = limiter.at(START).acquire(&key.to_be_bytes()[..], cost);
                let decision = together(&limiter, key, cost);
                let name = policy.name();
                assert_eq!(decision.reason(), alone.reason(), "{name}: {key}, {cost}");
            }
        }
        let (limiter, known) = full(policy);
        let refused = together(&limiter, known, 1);
        assert_eq!(refused.reason(), Some(DenialReason::TableFull));
    }
}

#[test]
fn units_of_a_record_are_taken_together_as_alone() {
    for policy in policies() {
        let (limiter, known) = full(policy);
        for key in 0..known {
            let bytes = &key.to_be_bytes()[..];
            // Nothing else is free, so the key stays where it is. A record rounds up.
            limiter.at(START).refund(bytes, 3);
            let ask = |cost| together(&limiter, key, cost).is_allowed();
            assert!(ask(1) && !ask(3), "{}: {key}", policy.name());
            limiter.at(START).refund(bytes, 1);
            assert!(ask(2) && !ask(2), "{}: {key}", policy.name());
        }
    }
}

#[test]
fn a_key_that_is_asked_for_twice_pays_for_both_in_its_record() {
    for policy in policies() {
        let (limiter, known) = full(policy);
        for key in 0..known {
            let bytes = &key.to_be_bytes()[..];
            limiter.at(START).refund(bytes, 4);
            let ask = |costs: [u64; 2]| {
                let requests = costs.map(|cost| Request::keyed(&limiter, bytes, cost));
                acquire_all_at(&requests, START).unwrap().is_allowed()
            };
            assert!(
                !ask([3, 2]) && ask([1, 2]) && !ask([2, 0]),
                "{}",
                policy.name()
            );
        }
    }
}

#[test]
fn a_look_at_a_new_key_needs_no_place() {
    for policy in policies() {
        let (limiter, known) = full(policy);
        let alone = limiter.at(START).acquire(&known.to_be_bytes()[..], 0);
        let decision = together(&limiter, known, 0);
        assert_eq!(decision, alone, "{}", policy.name());
        assert!(decision.is_allowed());
    }
}
