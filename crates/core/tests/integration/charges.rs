//! Charges of any size next to decisions, compared with a plain list of what was taken.

use proptest::prelude::*;
use tidegate_core::algorithm::{LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};
use tidegate_core::{Algorithm, Nanos, Parameters, Policy, Quota, StoredState};

const SECOND: u64 = 1_000_000_000;

/// Everything that was taken, with its time.
#[derive(Default)]
struct Taken(Vec<(u64, u64)>);

impl Taken {
    fn between(&self, from: u64, to: u64) -> u64 {
        self.0
            .iter()
            .filter(|(at, _)| (from..to).contains(at))
            .map(|(_, units)| units)
            .sum()
    }

    /// The debt of a bucket in units of `1 / parts` nanoseconds.
    fn owed(&self, step: u64, parts: u64, now: u64) -> u128 {
        let (mut owed, mut last) = (0_u128, 0);
        for &(at, units) in self.0.iter().chain([&(now, 0)]) {
            owed = owed.saturating_sub(u128::from(at - last) * u128::from(parts));
            owed += u128::from(units) * u128::from(step);
            last = at;
        }
        owed
    }

    /// Whether the algorithm admits `cost` by its definition.
    fn admits(&self, policy: &Policy, now: u64, cost: u64) -> bool {
        match policy.parameters() {
            Parameters::FixedWindow {
                limit,
                window,
                first_hit: false,
            } => {
                let start = now - now % window;
                self.between(start, start + window) + cost <= limit
            }
            Parameters::SlidingLog { limit, lifetime } => {
                self.between((now + 1).saturating_sub(lifetime), now + 1) + cost <= limit
            }
            Parameters::SlidingWindow {
                limit, slot, span, ..
            } => {
                let from = (now / slot + 1).saturating_sub(span.into()) * slot;
                self.between(from, now + 1) + cost <= limit
            }
            Parameters::SlidingCounter { limit, window } => {
                let start = now - now % window;
                let previous = u128::from(self.between(start.saturating_sub(window), start));
                let current = u128::from(self.between(start, now + 1) + cost);
                let (window, passed) = (u128::from(window), u128::from(now - start));
                previous * (window - passed) + current * window <= u128::from(limit) * window
            }
            Parameters::TokenBucket {
                burst, step, parts, ..
            } => {
                let owed = self.owed(step, parts, now) + u128::from(cost) * u128::from(step);
                owed <= u128::from(burst) * u128::from(step)
            }
            Parameters::LeakyBucket {
                limit,
                step,
                parts,
                max_wait,
            } => {
                let waits = u128::from(max_wait) * u128::from(parts);
                cost <= limit && self.owed(step, parts, now) <= waits
            }
            other => panic!("no model of {other:?}"),
        }
    }
}

fn policies(limit: u64) -> Vec<Policy> {
    let quota = Quota::new(limit, std::time::Duration::from_secs(10)).unwrap();
    let mut policies: Vec<Policy> = vec![
        Policy::fixed_window(quota),
        SlidingWindow::new(quota).into(),
        SlidingWindow::new(quota).slots(3).unwrap().into(),
        Policy::sliding_counter(quota),
        TokenBucket::new(quota).into(),
        TokenBucket::new(quota).burst(limit * 2).unwrap().into(),
        LeakyBucket::new(quota).into(),
    ];
    policies.extend(SlidingLog::new(quota).map(Policy::from));
    policies
}

#[derive(Clone, Debug)]
struct Step {
    after: u64,
    charge: bool,
    cost: u64,
}

fn steps(limit: u64) -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![
        Just(0),
        1..SECOND,
        SECOND..4 * SECOND,
        5 * SECOND..60 * SECOND
    ];
    let cost = prop_oneof![Just(0), 1..=limit.max(1), limit..=limit * 6 + 300];
    let step = (after, any::<bool>(), cost).prop_map(|(after, charge, cost)| Step {
        after,
        charge,
        cost,
    });
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A charge counts whatever remains, a cost of 0 is denied while more is in use than the limit,
    /// and `retry_after` is exact.
    #[test]
    fn charges_count_in_full_and_time_repays_them_by_the_rule_of_the_algorithm(
        (limit, steps) in prop_oneof![
            1..20_u64, 250..258_u64, 60_000..70_000_u64, 4_294_967_296..4_294_967_299_u64, 10_000_000_000..1_u64 << 45,
        ]
            .prop_flat_map(|limit| (Just(limit), steps(limit))),
    ) {
        for policy in policies(limit) {
            let is_log = policy.name() == "sliding-log";
            let (mut state, mut taken, mut now) = (vec![0; policy.words()], Taken::default(), 100 * SECOND);
            for Step { after, charge, cost } in &steps {
                now += after;
                let time = Nanos::new(now);
                if *charge {
                    policy.charge(&mut state, time, *cost);
                    let standing = policy.peek(&state, time, 0);
                    taken.0.push((now, *cost));
                    let expected = taken.admits(&policy, now, 0);
                    let late = is_log && standing.is_denied();
                    prop_assert!(standing.is_allowed() == expected || late, "{} at {now}", policy.name());
                    prop_assert!(policy.accepts(&state), "{}: {:?}", policy.name(), state);
                    continue;
                }
                let expected = taken.admits(&policy, now, *cost);
                let look = policy.peek(&state, time, 0);
                let decision = policy.decide(&mut state, time, *cost);
                // A log's cost of 0 may wait longer: the ring has no room for the times of the
                // units beyond the limit.
                let late = is_log && *cost == 0 && decision.is_denied();
                prop_assert!(decision.is_allowed() == expected || late, "{} at {now}: {decision:?}", policy.name());
                if decision.is_allowed() && *cost > 0 {
                    taken.0.push((now, *cost));
                }
                prop_assert!(look.is_denied() || decision.remaining() <= look.remaining());
                if let Some(wait) = decision.retry_after() {
                    let later = now + wait.as_nanos() as u64;
                    prop_assert!(taken.admits(&policy, later, *cost), "{} at {later}", policy.name());
                    // A mark in the lowest byte of a bucket's debt makes it longer by a nanosecond
                    // now and then.
                    let marks = if policy.name() == "token-bucket" { 40 } else { 0 };
                    prop_assert!(
                        late || !taken.admits(&policy, later - 1 - marks, *cost),
                        "{} waits longer than it must", policy.name()
                    );
                }
            }
        }
    }
}

#[test]
fn a_bucket_keeps_a_charge_of_a_year_through_changes_of_its_policy() {
    let per_second =
        |limit| Policy::token_bucket(Quota::new(limit, std::time::Duration::from_secs(1)).unwrap());
    let (old, new) = (per_second(10), per_second(20));
    let (mut state, mut changed, mut back) = ([0], [0], [0]);
    let now = Nanos::from_secs(1_000);
    // 366 days of ten units a second.
    old.charge(&mut state, now, 366 * 86_400 * 10);
    let wait = |policy: &Policy, state: &[u64]| {
        policy.peek(state, now, 1).retry_after().unwrap().as_secs()
    };
    assert_eq!(wait(&old, &state), 366 * 86_400 - 1);
    new.transfer(&mut changed, &old, &state, now);
    assert_eq!(
        wait(&new, &changed),
        183 * 86_400 - 1,
        "as many units, repaid twice as fast"
    );
    old.transfer(&mut back, &new, &changed, now);
    assert_eq!(wait(&old, &back), 366 * 86_400 - 1);
}

#[test]
fn what_a_charge_took_can_be_given_back() {
    let now = Nanos::from_secs(1_000);
    for policy in policies(10)
        .into_iter()
        .filter(|policy| policy.name() != "leaky-bucket")
    {
        let mut state = vec![0; policy.words()];
        policy.charge(&mut state, now, 35);
        assert!(policy.peek(&state, now, 0).is_denied(), "{}", policy.name());
        policy.refund(&mut state, now, 30);
        let limit = policy.limit();
        assert_eq!(
            policy.peek(&state, now, 0).remaining(),
            limit - 5,
            "{}",
            policy.name()
        );
    }
}
