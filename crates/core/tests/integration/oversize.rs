//! Costs above the limit that wait for their rest, against a naive bucket: a level of tokens that
//! rises with time, below zero while an admitted cost waits for its rest. With them: several limits
//! at once, changes of the policy, records of evicted keys, charges, refunds and corrections.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Estimate, Nanos, Policy, PolicyError, Quota, StoredState,
    algorithm::{FixedWindow, TokenBucket},
};

/// Longer than all marks of a case.
const EDGE: Duration = Duration::from_micros(20);

/// One token in this many milliseconds.
#[derive(Clone, Copy, Debug)]
struct Rule {
    step: i64,
    burst: i64,
    /// In milliseconds.
    wait: i64,
}

impl Rule {
    fn policy(self) -> Policy {
        let wait = Duration::from_millis(self.wait.cast_unsigned());
        let interval = Nanos::from_millis(self.step.cast_unsigned());
        let bucket = TokenBucket::from_interval(interval, self.burst.cast_unsigned()).unwrap();
        bucket.oversize_wait(wait).unwrap().into()
    }
}

/// What is owed, in milliseconds of refill.
#[derive(Clone, Debug)]
struct Naive {
    rule: Rule,
    owed: i64,
}

impl Naive {
    fn advance(&mut self, ms: i64) {
        for _ in 0..ms {
            self.owed = (self.owed - 1).max(0);
        }
    }

    /// When an admitted cost starts.
    fn admits(&self, cost: i64) -> Option<i64> {
        let Rule { step, burst, wait } = self.rule;
        if cost <= burst {
            return (self.owed + cost * step <= burst * step).then_some(0);
        }
        let rest = (cost - burst) * step;
        (burst > 0 && self.owed == 0 && rest <= wait).then_some(rest)
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Advance(i64),
    /// From the first limit, the second, or both at once.
    Take(i64, u8),
    UpTo(i64),
    Charge(i64),
    Refund(i64),
    /// Corrects the last admission of the first limit.
    Settle(i64),
    /// The first limit's rule changes.
    Change(Rule),
    /// The first limit's state leaves a table with no room, and comes back.
    Evict,
    Join,
}

fn rule() -> impl Strategy<Value = Rule> {
    (1..4_i64, 0..8_i64, 3..60_i64).prop_map(|(step, burst, wait)| Rule { step, burst, wait })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..40_i64).prop_map(Step::Advance),
        9 => (0..30_i64, 0..3_u8).prop_map(|(cost, at)| Step::Take(cost, at)),
        1 => (0..30_i64).prop_map(Step::UpTo),
        1 => (0..30_i64).prop_map(Step::Charge),
        1 => (0..30_i64).prop_map(Step::Refund),
        2 => (0..30_i64).prop_map(Step::Settle),
        1 => rule().prop_map(Step::Change),
        1 => Just(Step::Evict),
        1 => Just(Step::Join),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_cost_above_the_burst_starts_when_its_rest_has_come(
        rules in [rule(), rule()], steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut policies = rules.map(Rule::policy);
        let mut states = [[0_u64; 1]; 2];
        let mut naive = rules.map(|rule| Naive { rule, owed: 0 });
        // Each mark of what is owed moves its end by up to 256 ns, so at the edge a bucket may deny
        // for that long.
        let mut now = Nanos::from_secs(1_000);
        let mut last = None;
        for step in steps {
            match step {
                Step::Advance(ms) => {
                    now = now.saturating_add(Nanos::from_millis(ms.cast_unsigned()));
                    for naive in &mut naive {
                        naive.advance(ms);
                    }
                }
                Step::Take(cost, at) => {
                    let asked = match at { 0 => 0..1, 1 => 1..2, _ => 0..2 };
                    let units = cost.cast_unsigned();
                    let mut all = true;
                    for at in asked.clone() {
                        let decision = policies[at].peek(&states[at], now, units);
                        let expected = naive[at].admits(cost);
                        if expected.is_some() && decision.retry_after().is_some_and(|wait| wait < EDGE) {
                            all = false;
                            continue;
                        }
                        prop_assert_eq!(decision.is_allowed(), expected.is_some(), "{} of {:?}", cost, naive[at]);
                        if let Some(wait) = expected {
                            let wait = Duration::from_millis(wait.cast_unsigned());
                            prop_assert!(decision.delay().abs_diff(wait) < EDGE);
                        } else if let Some(wait) = decision.retry_after() {
                            // It is admitted then, and not a millisecond earlier.
                            let wait = (wait.saturating_sub(EDGE)).as_micros().div_ceil(1_000) as i64;
                            let mut later = naive[at].clone();
                            later.advance(wait - 1);
                            prop_assert!(later.admits(cost).is_none());
                            later.advance(1);
                            prop_assert!(later.admits(cost).is_some());
                        } else {
                            prop_assert!(units > policies[at].highest_cost());
                        }
                        all &= expected.is_some();
                    }
                    if all && cost > 0 {
                        for at in asked {
                            policies[at].record(&mut states[at], now, units);
                            naive[at].owed += cost * naive[at].rule.step;
                            if at == 0 {
                                last = Some(Estimate { cost: units, taken: now, place: 0 });
                            }
                        }
                    }
                }
                Step::UpTo(cost) => {
                    let free = (naive[0].rule.burst * naive[0].rule.step - naive[0].owed).max(0);
                    let (granted, decision) =
                        policies[0].decide_up_to(&mut states[0], now, cost.cast_unsigned());
                    // What is taken is there at once.
                    let most = cost.min(free / naive[0].rule.step);
                    let granted_units = granted.cast_signed();
                    prop_assert!(granted_units == most || granted_units + 1 == most);
                    prop_assert!(decision.delay().is_zero());
                    naive[0].owed += granted.cast_signed() * naive[0].rule.step;
                }
                Step::Charge(cost) => {
                    policies[0].charge(&mut states[0], now, cost.cast_unsigned());
                    naive[0].owed += cost * naive[0].rule.step;
                }
                Step::Refund(cost) => {
                    policies[0].refund(&mut states[0], now, cost.cast_unsigned());
                    naive[0].owed = (naive[0].owed - cost * naive[0].rule.step).max(0);
                }
                Step::Settle(actual) => {
                    let Some(estimate) = last.take() else { continue };
                    policies[0].settle(&mut states[0], now, estimate, actual.cast_unsigned());
                    let cost = estimate.cost.cast_signed();
                    let passed = now.saturating_since(estimate.taken).get().cast_signed() / 1_000_000;
                    let back = ((cost - actual).max(0) * naive[0].rule.step - passed).max(0);
                    let more = (actual - cost).max(0) * naive[0].rule.step;
                    naive[0].owed = (naive[0].owed - back).max(0) + more;
                }
                Step::Change(rule) => {
                    last = None;
                    let from = &naive[0];
                    // A bucket that was lowered below what it owes may be shut instead: see
                    // `TokenBucket`. Here the rules change only while charges are no concern.
                    if from.owed > from.rule.burst * from.rule.step || rule.burst == 0 {
                        continue;
                    }
                    let step = from.rule.step;
                    let owed = from.owed / step * rule.step + (from.owed % step * rule.step + step - 1) / step;
                    if owed > 2 * rule.burst * rule.step || from.owed % step > 0 {
                        continue;
                    }
                    let mut new = [0; 1];
                    let policy = rule.policy();
                    policy.transfer(&mut new, &policies[0], &states[0], now);
                    (policies[0], states[0], naive[0]) = (policy, new, Naive { rule, owed });
                }
                Step::Evict => {
                    let debt = policies[0].debt(&states[0], now);
                    let mut back = [0; 1];
                    if let Some(debt) = debt {
                        policies[0].owe(&mut back, debt);
                    }
                    // At least as strict at every time, and over at the same time.
                    for ms in 0..200 {
                        let at = now.saturating_add(Nanos::from_millis(ms));
                        for cost in [1, naive[0].rule.burst.cast_unsigned() + 1] {
                            let (was, is) = (policies[0].peek(&states[0], at, cost), policies[0].peek(&back, at, cost));
                            prop_assert!(was.is_allowed() || is.is_denied(), "{} after {} ms", cost, ms);
                        }
                    }
                    states[0] = back;
                }
                Step::Join => {
                    let other = states[0];
                    policies[0].join(&mut states[0], &other, now);
                }
            }
            prop_assert!(policies[0].accepts(&states[0]));
        }
    }

    /// However large the costs are, the work that has started in any span is no more than what the
    /// bucket holds and what came in the span, but for the part of one cost.
    #[test]
    fn what_starts_in_a_span_is_what_came_in_it_and_one_cost(
        rule in rule(), costs in proptest::collection::vec((0..60_u64, 1..30_u64), 1..60),
    ) {
        let (policy, mut state) = (rule.policy(), [0; 1]);
        let (mut now, mut starts) = (Nanos::from_secs(1), Vec::new());
        for (ms, cost) in costs {
            now = now.saturating_add(Nanos::from_millis(ms));
            let decision = policy.decide(&mut state, now, cost);
            if decision.is_allowed() {
                starts.push((now.saturating_add(decision.delay().into()).get() / 1_000_000, cost));
            }
        }
        let (step, burst) = (rule.step.cast_unsigned(), rule.burst.cast_unsigned());
        for (at, &(from, _)) in starts.iter().enumerate() {
            let (mut sum, mut largest) = (0, 0);
            for &(to, cost) in &starts[at..] {
                sum += cost;
                largest = largest.max(cost.saturating_sub(burst));
                prop_assert!(sum * step <= (burst + largest) * step + (to - from) + 1);
            }
        }
    }
}

/// Rates that are no whole number of nanoseconds a unit, and limits of every size.
#[test]
fn the_highest_cost_is_admitted_and_one_more_never_fits() {
    for text in [
        "token-bucket:oversize-wait=2s 7/1s",
        "token-bucket:burst=3:oversize-wait=1h 999983/1d",
        "token-bucket:burst=9007199254740991:oversize-wait=1s 9007199254740991/1s",
        "fixed-window:burst=12:oversize-wait=29s 5/10s",
        "fixed-window:burst=5:oversize-wait=30s:first-hit 5/10s",
    ] {
        let policy: Policy = text.parse().unwrap();
        assert_eq!(policy.to_string().parse(), Ok(policy), "{text}");
        let (most, now) = (policy.highest_cost(), Nanos::from_secs(1_000));
        assert!(most >= policy.limit());
        let mut state = vec![0; policy.words()];
        assert!(
            policy
                .peek(&state, now, most.saturating_add(1))
                .exceeds_limit()
        );
        let decision = policy.decide(&mut state, now, most);
        assert!(decision.is_allowed() && !decision.exceeds_limit(), "{text}");
        // Everything else waits until it has started.
        if decision.delay() > Duration::ZERO {
            let look = policy.peek(&state, now, 0);
            assert!(look.is_denied() && look.retry_after() >= Some(decision.delay()));
        }
        // Nothing else is admitted ahead of it.
        assert_eq!(policy.ahead(Nanos::from_millis(1)), None, "{text}");
    }
}

#[test]
fn costs_wait_only_where_what_is_owed_is_carried_over() {
    for (text, expected) in [
        ("fixed-window:oversize-wait=10s 5/1s", "needs `burst`"),
        (
            "fixed-window:burst=5:oversize-wait=1s 5/10s",
            "shorter than the window",
        ),
        (
            "token-bucket:oversize-wait=1ms 5/1s",
            "shorter than the time in which one unit",
        ),
        ("token-bucket:oversize-wait=20000d 5/1s", "36 years"),
        (
            "sliding-window:oversize-wait=10s 5/1s",
            "It is an option of fixed-window, token-bucket",
        ),
        ("sliding-log:oversize-wait=10s 5/1s", "has no option"),
        ("leaky-bucket:oversize-wait=10s 5/1s", "has no option"),
        ("concurrency:oversize-wait=10s 5", "has no option"),
    ] {
        let error = text.parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let windows = FixedWindow::new(Quota::per_second(5));
    let refused = windows.oversize_wait(Duration::from_secs(9));
    assert!(matches!(refused, Err(PolicyError::Oversize(_))));
}
