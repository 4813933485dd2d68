//! Units taken ahead of their use, on random traffic.
//!
//! Invariants:
//! 1. whatever is used within the slack, the algorithm asked at the moments of use admits, every
//!    unit of it;
//! 2. after units are given back, however late, the state is at least as strict as one from which
//!    they were never taken; where nothing can have overflowed it decides exactly as that one does;
//! 3. what is charged beyond the bound is owed.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Nanos, Policy, Quota, StoredState,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

fn policies() -> impl Strategy<Value = Policy> {
    let windows = prop_oneof![Just(1_000_u64), Just(700), Just(997), Just(10_007)];
    (1_u64..60, windows, 0_usize..8, 1_u32..8, 1_u64..80).prop_map(
        |(limit, window, which, slots, burst)| {
            let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
            let sliding = SlidingWindow::new(quota).slots(slots).unwrap();
            match which {
                0 => FixedWindow::new(quota).into(),
                1 => FixedWindow::new(quota).first_hit().into(),
                2 => SlidingLog::new(quota).unwrap().into(),
                3 => SlidingLog::new(quota).unwrap().closed().into(),
                4 => sliding.into(),
                5 => sliding.balanced().into(),
                6 => Policy::sliding_counter(quota),
                _ => TokenBucket::new(quota).burst(burst).unwrap().into(),
            }
        },
    )
}

/// A gap before each taking (in thousandths of a window), how much, and for each unit when in its
/// time it is used.
fn takings() -> impl Strategy<Value = Vec<(u64, u64, Vec<u64>)>> {
    let gap = prop_oneof![3 => Just(0), 4 => 0_u64..60, 2 => 0_u64..400, 1 => 0_u64..2_500];
    let uses = prop::collection::vec(0_u64..=1_000, 0..12);
    prop::collection::vec((gap, 1_u64..9, uses), 1..80)
}

fn window(policy: &Policy) -> u64 {
    let mut state = vec![0; policy.words()];
    policy.record(&mut state, Nanos::ZERO, policy.limit());
    policy.peek(&state, Nanos::ZERO, 0).reset_after_nanos()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn units_used_within_the_slack_are_admitted_at_the_time_of_use(
        policy in policies(), slack in 1_u64..2_000, takings in takings(), start in 0_u64..5_000
    ) {
        let Some((shared, slack)) = policy.ahead(Nanos::new(slack)) else { return Ok(()) };
        let (mut state, mut now, scale) = (vec![0; shared.words()], start, window(&policy));
        let mut uses = Vec::new();
        for (gap, cost, moments) in takings {
            now += gap * scale / 1_000;
            let taken = Nanos::new(now);
            let alike = shared.counted_alike_for(&state, taken).get();
            if !shared.decide(&mut state, taken, cost).is_allowed() {
                continue;
            }
            if alike == 0 {
                // Nothing of it may be kept.
                uses.extend((0..cost).map(|_| now));
                continue;
            }
            for moment in moments.iter().take(cost as usize) {
                // Up to the slack, and before the window ends; often the very last moment.
                let last = slack.get().min(alike - 1);
                uses.push(now + last.min(moment * (last + 1) / 900));
            }
        }
        uses.sort_unstable();
        let mut judge = vec![0; policy.words()];
        for (at, &used) in uses.iter().enumerate() {
            let verdict = policy.decide(&mut judge, Nanos::new(used), 1);
            prop_assert!(verdict.is_allowed(), "use {} of {} at {}", at, uses.len(), used);
        }
    }

    #[test]
    fn an_allotment_used_immediately_or_at_the_last_moment_never_exceeds_the_limit(
        policy in policies(), slack in 1_u64..2_000, takings in prop::collection::vec((0_u64..200, any::<bool>()), 1..60)
    ) {
        let Some((shared, slack)) = policy.ahead(Nanos::new(slack)) else { return Ok(()) };
        let (mut state, mut now, scale) = (vec![0; shared.words()], 777, window(&policy));
        let mut uses = Vec::new();
        for (gap, late) in takings {
            // Often the next comes when the last one's units are used.
            now += if gap < 100 { slack.get() } else { gap * scale / 1_000 };
            let alike = shared.counted_alike_for(&state, Nanos::new(now)).get();
            // A first-hit window begins with what is used at once.
            let most = if alike == 0 { 1 } else { u64::MAX };
            let last = if late && alike > 0 { slack.get().min(alike - 1) } else { 0 };
            let (taken, _) = shared.decide_up_to(&mut state, Nanos::new(now), most);
            uses.extend((0..taken).map(|_| now + last));
        }
        uses.sort_unstable();
        let mut judge = vec![0; policy.words()];
        for used in uses {
            prop_assert!(policy.decide(&mut judge, Nanos::new(used), 1).is_allowed(), "at {}", used);
        }
    }

    #[test]
    fn returned_units_count_as_never_taken(
        policy in policies(), traffic in takings(), probes in prop::collection::vec((0_u64..2_500, 1_u64..9), 20)
    ) {
        let exact = policy.name() != "token-bucket";
        let (mut with, mut without) = (vec![0; policy.words()], vec![0; policy.words()]);
        let (mut now, scale) = (40_000, window(&policy));
        let mut held: Vec<(u64, u64)> = Vec::new();
        for (gap, cost, moments) in traffic {
            now += gap * scale / 1_000;
            let time = Nanos::new(now);
            let may_keep = policy.counted_alike_for(&with, time) > Nanos::ZERO;
            let allowed = policy.decide(&mut with, time, cost).is_allowed();
            match moments.len() % 3 {
                0 if allowed && may_keep => held.push((now, cost)),
                _ if allowed => policy.record(&mut without, time, cost),
                1 => {
                    for (taken, cost) in held.drain(..) {
                        policy.give_back(&mut with, time, Nanos::new(taken), cost);
                    }
                }
                _ => {}
            }
        }
        for (taken, cost) in held {
            policy.give_back(&mut with, Nanos::new(now), Nanos::new(taken), cost);
        }
        for (offset, cost) in probes {
            let at = Nanos::new(now + offset * scale / 1_000);
            let (mine, other) = (policy.peek(&with, at, cost), policy.peek(&without, at, cost));
            prop_assert!(!mine.is_allowed() || other.is_allowed(), "never more at {:?}", at);
            prop_assert!(!exact || mine.is_allowed() == other.is_allowed(), "and no less at {:?}", at);
        }
        prop_assert!(policy.accepts(&with));
    }

    #[test]
    fn charges_beyond_a_bucket_become_debt(burst in 1_u64..50, limit in 1_u64..50, charges in prop::collection::vec(1_u64..200, 1..9)) {
        let quota = Quota::new(limit, Duration::from_secs(1)).unwrap();
        let policy: Policy = TokenBucket::new(quota).burst(burst).unwrap().into();
        let mut state = vec![0; policy.words()];
        let all: u64 = charges.iter().sum();
        for units in charges {
            policy.charge(&mut state, Nanos::ZERO, units);
        }
        let owed = Duration::from_secs(all) / limit as u32;
        let reset = policy.peek(&state, Nanos::ZERO, 0).reset_after();
        prop_assert!(reset.abs_diff(owed) <= Duration::from_nanos(1), "{:?} {:?}", reset, owed);
    }
}

#[test]
fn logs_permits_and_counted_denials_are_not_allotted_ahead() {
    let quota = Quota::per_second(100);
    let none = |policy: Policy| policy.ahead(Nanos::from_millis(10)).is_none();
    assert!(none(LeakyBucket::new(quota).into()) && none(Policy::concurrency(9)));
    assert!(none(Policy::sliding_window(quota).count_denied()));
    assert!(
        none(Policy::token_bucket(Quota::per_second(15))),
        "a bucket with nothing to keep back"
    );
    assert!(none(Policy::sliding_window(Quota::per_second(0))));
}

#[test]
fn the_slack_is_a_sixteenth_at_most() {
    let quota = Quota::per_second(1_600);
    let slack = |policy: Policy| policy.ahead(Nanos::from_secs(9)).unwrap().1;
    assert_eq!(
        slack(Policy::sliding_log(quota).unwrap()),
        Nanos::new(62_500_000)
    );
    let (less, slack) = Policy::token_bucket(quota)
        .ahead(Nanos::from_secs(9))
        .unwrap();
    assert_eq!((less.limit(), slack), (1_500, Nanos::new(62_500_000)));
}
