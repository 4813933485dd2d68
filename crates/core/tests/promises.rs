//! What every algorithm promises, on random traffic, against an oracle that keeps all timestamps.
//!
//! Invariants:
//! 1. decisions equal those of the naive rule over the complete history;
//! 2. no true window holds more admissions than the documented bound;
//! 3. `retry_after` is honest to the nanosecond, `remaining` to the unit, `reset_after` to the
//!    nanosecond;
//! 4. time that runs backwards never admits more;
//! 5. a refund gives back what was taken, and no more; a join is at least as strict as both sides.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, MAX_LIMIT, Nanos, Policy, Quota, StoredState,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

/// Which naive rule a policy is held to.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Fixed,
    FirstHit,
    Log { closed: bool },
    Slots { slots: u64, strict: bool },
    Counter,
    Bucket { burst: u64 },
    Leaky { max_wait: u64 },
}

/// Every admission: when, and how much.
struct History {
    rule: Rule,
    limit: u64,
    window: u64,
    admitted: Vec<(u64, u64)>,
}

impl History {
    fn count(&self, range: impl Fn(u64) -> bool) -> u64 {
        self.admitted
            .iter()
            .filter(|(t, _)| range(*t))
            .map(|(_, cost)| cost)
            .sum()
    }

    /// Level of a bucket after all admissions, as nanoseconds × limit: each unit adds a window.
    fn debt(&self, now: u64) -> u128 {
        let (mut debt, mut last) = (0_u128, 0);
        let drain =
            |debt: u128, span: u64| debt.saturating_sub(u128::from(span) * u128::from(self.limit));
        for &(t, cost) in &self.admitted {
            debt = drain(debt, t - last) + u128::from(cost) * u128::from(self.window);
            last = t;
        }
        drain(debt, now - last)
    }

    fn admits(&self, now: u64, cost: u64) -> bool {
        let (limit, w) = (self.limit, self.window);
        match self.rule {
            Rule::Fixed => cost <= limit && self.count(|t| t / w == now / w) + cost <= limit,
            Rule::FirstHit => {
                // Walk the windows from the first admission on.
                let (mut start, mut used) = (None, 0);
                for &(t, c) in &self.admitted {
                    if start.is_none_or(|s| t >= s + w) {
                        (start, used) = (Some(t), 0);
                    }
                    used += c;
                }
                if start.is_none_or(|s| now >= s + w) {
                    cost <= limit
                } else {
                    used + cost <= limit
                }
            }
            Rule::Log { closed } => {
                let counts = |t: u64| if closed { now - t <= w } else { now - t < w };
                self.count(counts) + cost <= limit
            }
            Rule::Slots { slots, strict } => {
                let slot = w.div_ceil(slots);
                let behind = slots - u64::from(!strict);
                self.count(|t| now / slot - t / slot <= behind) + cost <= limit
            }
            Rule::Counter => {
                let current = self.count(|t| t / w == now / w);
                let previous = self.count(|t| t / w + 1 == now / w);
                let weighted = u128::from(previous) * u128::from(w - now % w);
                weighted + u128::from(current + cost) * u128::from(w)
                    <= u128::from(limit) * u128::from(w)
            }
            Rule::Bucket { burst } => {
                self.debt(now) + u128::from(cost) * u128::from(w)
                    <= u128::from(burst) * u128::from(w)
            }
            Rule::Leaky { max_wait } => {
                cost <= limit && self.debt(now) <= u128::from(max_wait) * u128::from(limit)
            }
        }
    }

    /// The most units that any half-open window of the quota's length holds.
    fn worst_window(&self) -> u64 {
        let ends = self.admitted.iter().map(|&(t, _)| t);
        ends.map(|end| self.count(|t| t <= end && end - t < self.window))
            .max()
            .unwrap_or(0)
    }

    fn bound(&self) -> u64 {
        match self.rule {
            Rule::Fixed | Rule::FirstHit | Rule::Counter | Rule::Slots { strict: false, .. } => {
                2 * self.limit
            }
            Rule::Log { .. } | Rule::Slots { strict: true, .. } => self.limit,
            Rule::Bucket { burst } => burst + self.limit,
            // Bounded in starts, which the test of the leaky bucket looks at, not in arrivals.
            Rule::Leaky { .. } => u64::MAX,
        }
    }
}

/// A policy and the rule it is held to, for every algorithm and option; windows with and without
/// whole intervals.
fn any_policy() -> impl Strategy<Value = (Policy, Rule, Quota)> {
    let windows = prop_oneof![
        Just(1_000_u64),
        Just(700),
        Just(997),
        Just(1_000_000_007),
        Just(10)
    ];
    (1_u64..12, windows, 0_usize..9, 1_u32..8, 1_u64..20).prop_map(
        |(limit, window, which, slots, burst)| {
            let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
            let sliding = SlidingWindow::new(quota).slots(slots).unwrap();
            let wait = burst * window / 7;
            let (policy, rule): (Policy, Rule) = match which {
                0 => (FixedWindow::new(quota).into(), Rule::Fixed),
                1 => (FixedWindow::new(quota).first_hit().into(), Rule::FirstHit),
                2 => (
                    SlidingLog::new(quota).unwrap().into(),
                    Rule::Log { closed: false },
                ),
                3 => (
                    SlidingLog::new(quota).unwrap().closed().into(),
                    Rule::Log { closed: true },
                ),
                4 => (
                    sliding.into(),
                    Rule::Slots {
                        slots: slots.into(),
                        strict: true,
                    },
                ),
                5 => (
                    sliding.balanced().into(),
                    Rule::Slots {
                        slots: slots.into(),
                        strict: false,
                    },
                ),
                6 => (Policy::sliding_counter(quota), Rule::Counter),
                7 => (
                    TokenBucket::new(quota).burst(burst).unwrap().into(),
                    Rule::Bucket { burst },
                ),
                _ => {
                    let bucket = LeakyBucket::new(quota)
                        .max_wait(Duration::from_nanos(wait))
                        .unwrap();
                    (bucket.into(), Rule::Leaky { max_wait: wait })
                }
            };
            (policy, rule, quota)
        },
    )
}

/// Gaps as a share of the window, and costs.
fn traffic() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![3 => Just(0), 4 => 0_u64..200, 2 => 0_u64..1_500, 1 => 0_u64..5_000];
    prop::collection::vec(
        (gap, prop_oneof![6 => Just(1), 3 => 1_u64..5, 1 => Just(0)]),
        1..120,
    )
}

struct Run {
    policy: Policy,
    state: Vec<u64>,
    history: History,
    now: u64,
}

impl Run {
    fn new((policy, rule, quota): (Policy, Rule, Quota), start: u64) -> Self {
        let (limit, window) = (quota.limit(), quota.window_nanos());
        let history = History {
            rule,
            limit,
            window,
            admitted: Vec::new(),
        };
        Self {
            policy,
            state: vec![0; policy.words()],
            history,
            now: start,
        }
    }

    fn pass(&mut self, gap: u64) {
        self.now += gap * self.history.window / 1_000;
    }

    fn allowed(&self, at: u64, cost: u64) -> bool {
        self.policy
            .peek(&self.state, Nanos::new(at), cost)
            .is_allowed()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn decisions_are_those_of_the_naive_rule(which in any_policy(), start in 0_u64..5_000, traffic in traffic()) {
        let mut run = Run::new(which, start);
        for (gap, cost) in traffic {
            run.pass(gap);
            let expected = run.history.admits(run.now, cost);
            // Nothing here exceeds a limit but a leaky bucket's queue, which is as long as its
            // maximum wait.
            let fits = expected || (cost == 0 && run.policy.name() != "leaky-bucket");
            let decision = run.policy.decide(&mut run.state, Nanos::new(run.now), cost);
            prop_assert_eq!(decision.is_allowed(), fits, "at {} cost {}", run.now, cost);
            if expected && cost > 0 {
                run.history.admitted.push((run.now, cost));
            }
        }
        prop_assert!(run.history.worst_window() <= run.history.bound());
    }

    #[test]
    fn the_figures_of_a_decision_are_honest(which in any_policy(), start in 0_u64..5_000, traffic in traffic()) {
        let mut run = Run::new(which, start);
        let bucket_burst = match run.history.rule { Rule::Bucket { burst } => burst, _ => run.history.limit };
        for (gap, cost) in traffic {
            run.pass(gap);
            let now = run.now;
            let decision = run.policy.decide(&mut run.state, Nanos::new(now), cost);
            if let Some(wait) = decision.retry_after() {
                let wait = wait.as_nanos() as u64;
                prop_assert!(wait > 0 && run.allowed(now + wait, cost), "admitted after exactly retry_after");
                prop_assert!(!run.allowed(now + wait - 1, cost), "and not one tick earlier");
            } else if decision.is_denied() {
                prop_assert!(cost > bucket_burst, "only what can never fit has no retry_after");
            }
            let left = decision.remaining();
            prop_assert!(left == 0 || run.allowed(now, left), "remaining {} fits", left);
            prop_assert!(!run.allowed(now, left + 1), "remaining {} + 1 does not", left);
            let peek = run.policy.peek(&run.state, Nanos::new(now), 0);
            prop_assert_eq!(peek.remaining(), decision.remaining());
            prop_assert_eq!(peek.reset_after(), decision.reset_after());
            let reset = decision.reset_after_nanos();
            prop_assert!(run.policy.is_recovered(&run.state, Nanos::new(now + reset)));
            prop_assert!(reset == 0 || !run.policy.is_recovered(&run.state, Nanos::new(now + reset - 1)));
        }
    }

    /// By the clock of whoever asks, also where that is behind the state's newest time.
    #[test]
    fn retry_after_is_honest_for_times_older_than_the_state(
        which in any_policy(), traffic in traffic(), back in prop::collection::vec(1_u64..3_000, 120)
    ) {
        let mut run = Run::new(which, 10_000_000_000);
        for ((gap, cost), back) in traffic.into_iter().zip(back) {
            run.pass(gap);
            let _ = run.policy.decide(&mut run.state, Nanos::new(run.now), cost);
            let stale = run.now - back * run.history.window / 1_000;
            for cost in [1, cost] {
                let decision = run.policy.peek(&run.state, Nanos::new(stale), cost);
                if let Some(wait) = decision.retry_after() {
                    let wait = wait.as_nanos() as u64;
                    prop_assert!(run.allowed(stale + wait, cost), "admitted after exactly retry_after");
                    prop_assert!(!run.allowed(stale + wait - 1, cost), "and not one tick earlier");
                }
                let reset = run.policy.peek(&run.state, Nanos::new(stale), 0).reset_after_nanos();
                prop_assert!(run.policy.is_recovered(&run.state, Nanos::new(stale + reset)));
                prop_assert!(reset == 0 || !run.policy.is_recovered(&run.state, Nanos::new(stale + reset - 1)));
            }
        }
    }

    #[test]
    fn time_that_runs_backwards_never_admits_more(
        which in any_policy(), traffic in traffic(), back in prop::collection::vec(0_u64..3_000, 120)
    ) {
        let mut run = Run::new(which, 10_000_000_000);
        for ((gap, cost), back) in traffic.into_iter().zip(back) {
            run.pass(gap);
            let earlier = run.now - back * run.history.window / 1_000;
            if run.policy.peek(&run.state, Nanos::new(earlier), cost).is_allowed() {
                prop_assert!(run.allowed(run.now, cost));
            }
            // Half of the requests carry the stale time.
            let stamp = if back % 2 == 0 { earlier } else { run.now };
            let _ = run.policy.decide(&mut run.state, Nanos::new(stamp), cost);
        }
    }

    #[test]
    fn a_refund_undoes_an_admission(which in any_policy(), traffic in traffic()) {
        let mut run = Run::new(which, 7_777);
        for (gap, cost) in traffic {
            run.pass(gap);
            let now = Nanos::new(run.now);
            let before = run.policy.peek(&run.state, now, 0).remaining();
            if run.policy.decide(&mut run.state, now, cost).is_allowed() && run.now.is_multiple_of(3) {
                run.policy.refund(&mut run.state, now, cost);
                prop_assert_eq!(run.policy.peek(&run.state, now, 0).remaining(), before);
            }
        }
        run.policy.refund(&mut run.state, Nanos::new(run.now), u64::MAX);
        let fresh = vec![0; run.policy.words()];
        let now = Nanos::new(run.now);
        prop_assert_eq!(
            run.policy.peek(&run.state, now, 0).remaining(),
            run.policy.peek(&fresh, now, 0).remaining(),
            "a refund of everything leaves a fresh limit, never more"
        );
    }

    #[test]
    fn a_join_is_at_least_as_strict_as_both(
        which in any_policy(), a in traffic(), b in traffic(), probes in prop::collection::vec((0_u64..2_500, 1_u64..5), 40)
    ) {
        let (mut one, mut two) = (Run::new(which, 3_333), Run::new(which, 4_444));
        for (run, traffic) in [(&mut one, a), (&mut two, b)] {
            for (gap, cost) in traffic {
                run.pass(gap);
                let _ = run.policy.decide(&mut run.state, Nanos::new(run.now), cost);
            }
        }
        let now = one.now.max(two.now);
        let mut joined = one.state.clone();
        which.0.join(&mut joined, &two.state, Nanos::new(now));
        for (offset, cost) in probes {
            let at = Nanos::new(now + offset * which.2.window_nanos() / 1_000);
            if which.0.peek(&joined, at, cost).is_allowed() {
                prop_assert!(which.0.peek(&one.state, at, cost).is_allowed());
                prop_assert!(which.0.peek(&two.state, at, cost).is_allowed());
            }
        }
    }

    #[test]
    fn a_sliding_window_decides_as_it_checks_and_records(
        // Around the limits at which a count gets more bits.
        limits in prop::array::uniform2(
            prop_oneof![1_u64..12, 250_u64..260, 65_530_u64..65_540, u64::from(u32::MAX) - 3..=u64::from(u32::MAX) + 3, MAX_LIMIT - 3..=MAX_LIMIT],
        ),
        slots in 1_u32..12, used in 0_u64..=8,
        steps in prop::collection::vec((0_u64..300, 0_u64..50, 0_u64..=8, 0_u64..3), 1..60),
    ) {
        let policy = |limit| -> Policy {
            let quota = Quota::new(limit, Duration::from_micros(1)).unwrap();
            SlidingWindow::new(quota).slots(slots).unwrap().into()
        };
        let part = |limit: u64, eighths: u64| limit * eighths / 8;
        let (before, policy) = (policy(limits[0]), policy(limits[1]));
        // A change of the limit may leave more in the counts than the new one admits.
        let mut old = vec![0; before.words()];
        before.record(&mut old, Nanos::new(5_000), part(limits[0], used));
        let mut decided = vec![0; policy.words()];
        policy.transfer(&mut decided, &before, &old, Nanos::new(5_000));
        let mut recorded = decided.clone();
        let mut now = 5_000;
        for (gap, back, eighths, more) in steps {
            now += gap;
            let (at, cost) = (Nanos::new(now - back), part(limits[1], eighths).saturating_add(more));
            let expected = policy.peek(&recorded, at, cost);
            if cost > 0 && expected.is_allowed() {
                policy.record(&mut recorded, at, cost);
            }
            prop_assert_eq!(policy.decide(&mut decided, at, cost), expected);
            prop_assert_eq!(policy.used(&decided, at), policy.used(&recorded, at));
            prop_assert!(policy.accepts(&decided));
        }
    }

    #[test]
    fn a_leaky_bucket_starts_work_no_closer_than_its_interval(traffic in traffic(), limit in 1_u64..12) {
        let quota = Quota::new(limit, Duration::from_micros(1)).unwrap();
        let policy = Policy::leaky_bucket(quota);
        let (mut state, mut now, mut last) = (vec![0; policy.words()], 0, None);
        for (gap, _) in traffic {
            now += gap;
            let decision = policy.decide(&mut state, Nanos::new(now), 1);
            if decision.is_allowed() {
                let start = now + decision.delay().as_nanos() as u64;
                // A delay is rounded up to a whole nanosecond, so two starts may come one closer
                // than the interval.
                if let Some(last) = last {
                    prop_assert!((start + 1 - last) * limit >= 1_000);
                }
                last = Some(start);
            }
        }
    }

    #[test]
    fn no_input_overflows(
        limit in 0..=MAX_LIMIT, window in 1_u64..31_622_400_000_000_000, slots in 1_u32..3_600, burst in any::<u64>(),
        steps in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 1..20)
    ) {
        let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
        let bucket = TokenBucket::new(quota);
        let mut policies = vec![
            Policy::fixed_window(quota), FixedWindow::new(quota).first_hit().into(), Policy::sliding_counter(quota),
            Policy::token_bucket(quota), Policy::leaky_bucket(quota), bucket.burst(burst).unwrap_or(bucket).into(),
        ];
        policies.extend(SlidingWindow::new(quota).slots(slots).map(Policy::from));
        policies.extend(Policy::sliding_log(Quota::new(limit % 2_000, quota.window()).unwrap()));
        for policy in policies.iter().flat_map(|p| [*p, p.count_denied()]) {
            let mut state = vec![0; policy.words()];
            for &(now, cost, refund) in &steps {
                let now = Nanos::new(now);
                if refund { policy.refund(&mut state, now, cost) } else { let _ = policy.decide(&mut state, now, cost); }
                let _ = (policy.used(&state, now), policy.peek(&state, now, cost).remaining());
                prop_assert!(policy.words() > 1 || state[0] >> 63 == 0, "the top bit belongs to the cell");
                prop_assert!(policy.accepts(&state), "a state is always one that the algorithm accepts");
            }
            // Words from outside: what is accepted never panics either.
            let mut foreign: Vec<u64> = (0..policy.words() as u64).map(|i| window.rotate_left((limit.wrapping_mul(i) % 64) as u32)).collect();
            if policy.accepts(&foreign) {
                for &(now, cost, _) in &steps {
                    let _ = policy.decide(&mut foreign, Nanos::new(now), cost);
                }
            }
        }
    }
}
