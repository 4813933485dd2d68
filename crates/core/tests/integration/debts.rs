//! What is kept of a state that has to go: never a fresh allowance, and nothing beyond its end.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Debt, Lasts, MAX_LIMIT, Nanos, Policy, Quota, Share, StoredState,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

fn any_policy() -> impl Strategy<Value = (Policy, u64)> {
    let windows = prop_oneof![Just(1_000_u64), Just(997), Just(1_000_000_007), Just(40)];
    let limits = prop_oneof![1 => Just(0), 4 => 1_u64..12, 1 => 120_u64..1_000];
    (limits, windows, 0_usize..11, 1_u32..8).prop_map(|(limit, window, which, parts)| {
        let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
        let wait = Duration::from_nanos(u64::from(parts) * window / 7);
        let policy = match which {
            0 => FixedWindow::new(quota).into(),
            1 => FixedWindow::new(quota).first_hit().into(),
            2 => SlidingLog::new(quota).unwrap().closed().into(),
            3 => SlidingWindow::new(quota).slots(parts).unwrap().into(),
            4 => SlidingWindow::new(quota)
                .slots(parts)
                .unwrap()
                .balanced()
                .into(),
            5 => Policy::sliding_counter(quota),
            6 => TokenBucket::new(quota)
                .burst(limit + u64::from(parts))
                .unwrap()
                .into(),
            8 => FixedWindow::new(quota)
                .burst((limit * u64::from(parts) / 2).max(1))
                .unwrap()
                .into(),
            9 => FixedWindow::new(quota)
                .first_hit()
                .burst((limit * u64::from(parts) / 2).max(1))
                .unwrap()
                .into(),
            7 => LeakyBucket::new(quota).max_wait(wait).unwrap().into(),
            _ => Concurrency::new(limit as u32)
                .hold(quota.window())
                .unwrap()
                .into(),
        };
        (policy, window)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn a_state_rebuilt_from_its_debt_is_as_strict_and_ends_with_it(
        which in any_policy(), start in 3_000_u64..9_000,
        traffic in prop::collection::vec((0_u64..700, 1_u64..5, 0_u64..8), 1..60),
        late in 0_u64..40, probes in prop::collection::vec((0_u64..3_000, 1_u64..5), 30)
    ) {
        let (policy, window) = which;
        let mut state = vec![0; policy.words()];
        let mut now = start * window;
        for (gap, cost, kind) in traffic {
            now += gap * window / 1_000;
            // Used units that may exceed the limit, too.
            if kind == 0 {
                policy.charge(&mut state, Nanos::new(now), cost);
            } else {
                let _ = policy.decide(&mut state, Nanos::new(now), cost);
            }
        }
        let Some(mut debt) = policy.debt(&state, Nanos::new(now)) else {
            prop_assert!(policy.is_recovered(&state, Nanos::new(now)));
            return Ok(());
        };
        let one_more = policy.peek(&state, Nanos::new(now), 1);
        if one_more.is_denied() && policy.limit() > 0 { prop_assert!(debt.share.is_exhausted()) }
        // A store may round the end up by a little.
        let Lasts::Until(end) = debt.lasts else { panic!("every limit here ends by itself") };
        let end = Nanos::new(end.get() + late * window / 1_000_000);
        debt.lasts = Lasts::Until(end);
        let mut rebuilt = vec![0; policy.words()];
        policy.owe(&mut rebuilt, debt);
        prop_assert!(policy.accepts(&rebuilt));
        // A bucket that owes more than it holds keeps the time of its end in steps of 256 ns.
        let step = if policy.name() == "token-bucket" { 256 } else { 0 };
        let end = end.saturating_add(Nanos::new(step));
        let ends = policy.limit() == 0 || policy.is_recovered(&rebuilt, end);
        prop_assert!(ends, "never stricter than its end allows");
        for (offset, cost) in probes {
            let at = Nanos::new(now + offset * window / 1_000);
            if policy.peek(&rebuilt, at, cost).is_allowed() {
                prop_assert!(policy.peek(&state, at, cost).is_allowed(), "{} later, cost {}", offset, cost);
            }
        }
    }

    #[test]
    fn a_key_with_one_unit_left_is_not_exhausted(
        which in any_policy(), traffic in prop::collection::vec((0_u64..700, 1_u64..5), 1..60)
    ) {
        let (policy, window) = which;
        // A sliding counter owes its whole previous count, and a leaky bucket rounds its wait to
        // whole units.
        prop_assume!(!matches!(policy.name(), "sliding-counter" | "leaky-bucket"));
        // A limit of 0 denies although nothing is owed.
        if policy.limit() == 0 { return Ok(()) }
        let mut state = vec![0; policy.words()];
        let mut now = 5_000 * window;
        for (gap, cost) in traffic {
            now += gap * window / 1_000;
            let _ = policy.decide(&mut state, Nanos::new(now), cost);
            let at = Nanos::new(now);
            let exhausted = policy.debt(&state, at).is_some_and(|debt| debt.share.is_exhausted());
            prop_assert_eq!(exhausted, policy.peek(&state, at, 1).is_denied());
        }
    }
}

#[test]
fn permits_without_a_hold_are_kept_one_by_one() {
    let policy = Policy::concurrency(1_000);
    let (mut state, mut rebuilt, now) = ([0], [0], Nanos::from_secs(1));
    assert_eq!(policy.debt(&state, now), None);
    for out in 1..=1_000 {
        assert!(policy.decide(&mut state, now, 1).is_allowed());
        policy.owe(&mut rebuilt, policy.debt(&state, now).unwrap());
        assert_eq!((policy.used(&rebuilt, now), rebuilt), (out, state));
    }
}

#[test]
fn a_share_is_never_less_than_what_is_used_and_exact_for_small_limits() {
    for limit in [1, 2, 3, 10, 126, 127, 128, 200, 1_000, 65_537, MAX_LIMIT] {
        assert_eq!(Share::of(0, limit), None);
        let step = (limit / 1_000).max(1);
        for used in (1..limit).step_by(step as usize) {
            let share = Share::of(used, limit).unwrap();
            let units = share.units(limit);
            assert!(
                !share.is_exhausted() && units >= used && units < limit,
                "{used} of {limit}"
            );
            assert!(limit > 127 || units == used, "{used} of {limit}: {units}");
            assert!(units - used <= limit / 126, "{used} of {limit}: {units}");
        }
        assert_eq!(Share::of(limit, limit), Some(Share::EXHAUSTED));
        assert_eq!(Share::EXHAUSTED.units(limit), limit);
    }
    assert_eq!(Share::of(1, 0), Share::new(134), "without a bound");
}

#[test]
fn use_above_the_limit_is_kept_up_to_twice_as_much() {
    for limit in [1_u64, 3, 10, 127, 128, 60_000, 1 << 30] {
        for used in (0..53)
            .map(|bits| 1_u64 << bits)
            .chain([MAX_LIMIT])
            .filter(|used| *used > limit)
        {
            let share = Share::of(used, limit).unwrap();
            assert!(
                share.is_exhausted() && share > Share::EXHAUSTED,
                "{used} of {limit}"
            );
            let units = share.units(limit);
            assert!(
                units >= used && (units / 2 < used || used / 64 >= limit),
                "{used} of {limit}: {units}"
            );
            assert_eq!(Share::new(share.get()), Some(share));
        }
    }
}

#[test]
fn a_debt_is_read_from_its_words_and_from_no_others() {
    for lasts in [
        Lasts::Until(Nanos::from_secs(9)),
        Lasts::UntilReturned(u32::MAX),
    ] {
        let debt = Debt {
            share: Share::of(3, 10).unwrap(),
            lasts,
        };
        assert_eq!(Debt::from_words(debt.to_words()), Some(debt));
    }
    for words in [
        [0, 1],
        [135, 1],
        [1 << 9, 1],
        [1 << 8, 1],
        [1 << 8 | 1, 1 << 32],
    ] {
        assert_eq!(Debt::from_words(words), None);
    }
}
