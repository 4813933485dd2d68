//! What is kept of a state that has to go: never a fresh allowance, and nothing beyond its end.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Lasts, Nanos, Policy, Quota,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

fn any_policy() -> impl Strategy<Value = (Policy, u64)> {
    let windows = prop_oneof![Just(1_000_u64), Just(997), Just(1_000_000_007), Just(40)];
    let limits = prop_oneof![4 => 1_u64..12, 1 => 120_u64..1_000];
    (limits, windows, 0_usize..9, 1_u32..8).prop_map(|(limit, window, which, parts)| {
        let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
        let wait = Duration::from_nanos(u64::from(parts) * window / 7);
        let policy = match which {
            0 => FixedWindow::new(quota).into(),
            1 => FixedWindow::new(quota).first_hit().into(),
            2 => SlidingLog::new(quota).unwrap().closed().into(),
            3 => SlidingWindow::new(quota).slots(parts).unwrap().into(),
            4 => SlidingWindow::new(quota).slots(parts).unwrap().balanced().into(),
            5 => Policy::sliding_counter(quota),
            6 => TokenBucket::new(quota).burst(limit + u64::from(parts)).unwrap().into(),
            7 => LeakyBucket::new(quota).max_wait(wait).unwrap().into(),
            _ => Concurrency::new(limit as u32).hold(quota.window()).unwrap().into(),
        };
        (policy, window)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn a_state_rebuilt_from_its_debt_is_as_strict_and_ends_with_it(
        which in any_policy(), start in 3_000_u64..9_000,
        traffic in prop::collection::vec((0_u64..700, 1_u64..5), 1..60),
        late in 0_u64..40, probes in prop::collection::vec((0_u64..3_000, 1_u64..5), 30)
    ) {
        let (policy, window) = which;
        let mut state = vec![0; policy.words()];
        let mut now = start * window;
        for (gap, cost) in traffic {
            now += gap * window / 1_000;
            let _ = policy.decide(&mut state, Nanos::new(now), cost);
        }
        let Some(mut debt) = policy.debt(&state, Nanos::new(now)) else {
            prop_assert!(policy.is_recovered(&state, Nanos::new(now)));
            return Ok(());
        };
        let one_more = policy.check(&state, Nanos::new(now), 1);
        if one_more.is_denied() { prop_assert!(debt.share.is_exhausted()) }
        // A store may round the end up by a little.
        let Lasts::Until(end) = debt.lasts else { panic!("every limit here ends by itself") };
        let end = Nanos::new(end.get() + late * window / 1_000_000);
        debt.lasts = Lasts::Until(end);
        let mut rebuilt = vec![0; policy.words()];
        policy.owe(&mut rebuilt, debt);
        prop_assert!(policy.accepts(&rebuilt));
        prop_assert!(policy.is_recovered(&rebuilt, end), "never stricter than its end allows");
        for (offset, cost) in probes {
            let at = Nanos::new(now + offset * window / 1_000);
            if policy.check(&rebuilt, at, cost).is_allowed() {
                prop_assert!(policy.check(&state, at, cost).is_allowed(), "{} later, cost {}", offset, cost);
            }
        }
    }

    #[test]
    fn a_key_with_one_unit_left_is_not_exhausted(
        which in any_policy(), traffic in prop::collection::vec((0_u64..700, 1_u64..5), 1..60)
    ) {
        let (policy, window) = which;
        // A sliding counter owes its whole previous count, and a leaky bucket rounds its wait to whole units.
        prop_assume!(!matches!(policy.name(), "sliding-counter" | "leaky-bucket"));
        let mut state = vec![0; policy.words()];
        let mut now = 5_000 * window;
        for (gap, cost) in traffic {
            now += gap * window / 1_000;
            let _ = policy.decide(&mut state, Nanos::new(now), cost);
            let at = Nanos::new(now);
            let exhausted = policy.debt(&state, at).is_some_and(|debt| debt.share.is_exhausted());
            prop_assert_eq!(exhausted, policy.check(&state, at, 1).is_denied());
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
