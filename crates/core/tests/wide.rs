//! Limits and costs beyond 32 bits, and at the numbers where a state gets wider.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tidegate_core::{
    Algorithm, MAX_LIMIT, Nanos, ParsePolicyError, Policy, PolicyError, Quota, QuotaError, Share,
    StoredState,
};

const NOW: Nanos = Nanos::from_secs(1_000_000);
const EDGE: u64 = u32::MAX as u64;

fn quota(limit: u64) -> Quota {
    Quota::new(limit, Duration::from_secs(10)).unwrap()
}

fn policies(limit: u64) -> [Policy; 8] {
    let quota = quota(limit);
    [
        FixedWindow::new(quota).into(),
        FixedWindow::new(quota).first_hit().into(),
        SlidingWindow::new(quota).into(),
        SlidingWindow::new(quota)
            .slots(3)
            .unwrap()
            .balanced()
            .into(),
        Policy::sliding_counter(quota),
        TokenBucket::new(quota).into(),
        TokenBucket::new(Quota::per_second(1))
            .burst(limit % 1_000_000_000)
            .unwrap()
            .into(),
        LeakyBucket::new(quota)
            .max_wait(Duration::ZERO)
            .unwrap()
            .into(),
    ]
}

#[test]
fn a_limit_is_written_with_underscores_and_a_larger_one_is_refused() {
    let limit = |text: &str| text.parse::<Quota>().map(Quota::limit);
    assert_eq!(limit("10_000_000_000/30d"), Ok(10_000_000_000));
    assert_eq!(limit("9007199254740991/1s"), Ok(MAX_LIMIT));
    for wrong in [
        "9007199254740992",
        "18446744073709551616",
        "_1",
        "1_",
        "1__0",
        "-1",
        "",
        "1 0",
        "1e9",
    ] {
        let told = limit(&format!("{wrong}/1s")).unwrap_err().to_string();
        assert_eq!(
            told, "the limit must be a whole number from 0 to 9007199254740991, as in 100/1m",
            "{wrong}"
        );
    }
    let policy = |text: &str| text.parse::<Policy>();
    assert_eq!(
        policy("token-bucket:burst=5_000_000_000 1/1ns")
            .unwrap()
            .limit(),
        5_000_000_000
    );
    assert_eq!(
        policy("fixed-window 10_000_000_000/30d")
            .unwrap()
            .to_string(),
        "fixed-window 10000000000/30d"
    );
    assert!(matches!(
        policy("token-bucket:burst=9007199254740992 1/1ns"),
        Err(ParsePolicyError::Value { .. })
    ));
    let of = |error| Err(ParsePolicyError::Policy(error));
    assert_eq!(
        policy("sliding-log 5_000_000_000/1h"),
        of(PolicyError::LogTooLong)
    );
    assert!(
        PolicyError::LogTooLong
            .to_string()
            .contains("choose sliding-window")
    );
    assert_eq!(
        policy("concurrency 4_294_967_296"),
        of(PolicyError::TooManyPermits)
    );
    assert_eq!(policy("concurrency 4_294_967_295").unwrap().limit(), EDGE);
    assert_eq!(
        Quota::new(MAX_LIMIT + 1, Duration::from_secs(1)),
        Err(QuotaError::LimitTooHigh)
    );
    assert_eq!(
        TokenBucket::new(quota(1_000_000_000_000)).burst(MAX_LIMIT + 1),
        Err(PolicyError::Quota(QuotaError::LimitTooHigh))
    );
}

#[test]
fn states_of_limits_of_32_bits_keep_their_size() {
    let words = |limit| policies(limit).map(|policy| policy.words());
    let [fixed, first_hit, window, three, counter, ..] = words(EDGE);
    assert_eq!([fixed, first_hit, window, three, counter], [2, 2, 7, 3, 2]);
    assert_eq!(words(EDGE), words(1_000_003), "whatever the limit is");
    let [fixed, first_hit, window, three, counter, ..] = words(EDGE + 1);
    assert_eq!([fixed, first_hit, window, three, counter], [2, 2, 13, 5, 3]);
}

#[test]
fn what_is_used_moves_over_the_edge_and_back() {
    let limits = [
        1_000,
        EDGE - 1,
        EDGE,
        EDGE + 1,
        EDGE + 2,
        10_000_000_000,
        MAX_LIMIT,
    ];
    for (from, to) in limits.iter().flat_map(|from| limits.map(|to| (*from, to))) {
        for (old, new) in policies(from)
            .into_iter()
            .zip(policies(to))
            .filter(|(old, new)| old.limit() == from && new.limit() == to)
        {
            let used = from.min(to).min(EDGE - 1);
            let (mut before, mut after) = (vec![0; old.words()], vec![0; new.words()]);
            old.record(&mut before, NOW, used);
            new.transfer(&mut after, &old, &before, NOW);
            assert!(new.accepts(&after), "{old} to {new}: {after:?}");
            let left = new.peek(&after, NOW, 0).remaining();
            let expected = if new.name() == "leaky-bucket" {
                0
            } else {
                to - used
            };
            // A bucket that changes its rate rounds what it owes up to a nanosecond.
            let near = if new.name().ends_with("bucket") {
                to / 1_000_000_000 + 1
            } else {
                0
            };
            assert!(
                left.abs_diff(expected) <= near,
                "{old} to {new}: {left}, not {expected}"
            );
            // A sliding window or counter cannot exceed a limit of 32 ones, and a bucket owes for
            // 109 years.
            if from == EDGE && new.name().starts_with("sliding") || new.name().ends_with("bucket") {
                continue;
            }
            // More than the new state can count stays more than its limit.
            old.charge(&mut before, NOW, MAX_LIMIT);
            let mut owing = vec![0; new.words()];
            new.transfer(&mut owing, &old, &before, NOW);
            assert!(
                new.accepts(&owing) && new.peek(&owing, NOW, 1).is_denied(),
                "{old} to {new}: {owing:?}"
            );
        }
    }
}

#[test]
fn the_highest_limit_is_used_up_by_its_own_cost() {
    for policy in policies(MAX_LIMIT)
        .into_iter()
        .filter(|policy| policy.limit() == MAX_LIMIT)
    {
        let mut state = vec![0; policy.words()];
        assert!(
            policy
                .decide(&mut state, NOW, MAX_LIMIT + 1)
                .exceeds_limit(),
            "{policy}"
        );
        assert!(
            policy.decide(&mut state, NOW, u64::MAX).exceeds_limit(),
            "{policy}"
        );
        assert!(
            policy.decide(&mut state, NOW, MAX_LIMIT).is_allowed(),
            "{policy}"
        );
        assert!(policy.decide(&mut state, NOW, 1).is_denied(), "{policy}");
        policy.charge(&mut state, NOW, u64::MAX);
        assert!(
            policy.accepts(&state) && policy.peek(&state, NOW, 0).is_denied(),
            "{policy}: {state:?}"
        );
    }
}

#[test]
fn a_share_of_a_large_limit_is_rounded_up_by_less_than_a_126th() {
    for limit in [EDGE, EDGE + 1, 10_000_000_000, MAX_LIMIT] {
        for used in [1, limit / 1_000_000, limit / 3, limit - 1, limit] {
            let units = Share::of(used, limit).unwrap().units(limit);
            assert!(
                units >= used && units - used <= limit / 126,
                "{used} of {limit}: {units}"
            );
        }
    }
    assert_eq!(
        Share::of(u64::MAX, u64::MAX),
        Share::of(u64::MAX, MAX_LIMIT)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A record of a few bytes is at least as strict as the state, as far as its share says, and
    /// ends when the state recovers.
    #[test]
    fn a_debt_of_a_large_limit_is_rebuilt_as_strict(
        limit in prop_oneof![EDGE - 2..EDGE, EDGE + 1..EDGE + 3, 10_000_000_000..=MAX_LIMIT],
        costs in prop::collection::vec((0_u64..4_000_000_000, any::<u64>(), 1..5_u32, any::<bool>()), 1..20),
        later in 0_u64..30_000_000_000, cost in any::<u64>(),
    ) {
        for policy in policies(limit) {
            let (mut state, mut now) = (vec![0; policy.words()], NOW.get());
            for &(after, cost, part, charged) in &costs {
                now += after;
                let (at, cost) = (Nanos::new(now), cost % (limit >> part).max(1));
                if charged { policy.charge(&mut state, at, cost) } else { let _ = policy.decide(&mut state, at, cost); }
                prop_assert!(policy.accepts(&state), "{policy}: {state:?}");
            }
            let at = Nanos::new(now);
            let Some(debt) = policy.debt(&state, at) else { continue };
            let mut rebuilt = vec![0; policy.words()];
            policy.owe(&mut rebuilt, debt);
            prop_assert!(policy.accepts(&rebuilt), "{policy}: {rebuilt:?} from {debt:?}");
            let at = Nanos::new(now + later);
            for cost in [0, 1, cost % limit + 1, limit] {
                if policy.peek(&rebuilt, at, cost).is_allowed() {
                    prop_assert!(policy.peek(&state, at, cost).is_allowed(), "{policy}, {cost}: {state:?}, {rebuilt:?}");
                }
            }
        }
    }
}
