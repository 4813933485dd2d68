//! A limit whose numbers change while its keys stay. Usage carries over, as in a limiter in memory
//! whose policy changes.

use tidegate_core::lease::Terms;

use super::{allotments::Known, *};

/// Runs random steps of all writers. About every hundred steps, the next limit comes into force,
/// first upward and then downward. `seen` adjusts the in-memory state to the precision that Redis
/// keeps.
fn hold_to_changes(
    of: impl Fn(u64) -> Policy,
    limits: &[u64],
    seen: impl Fn(u64, &mut [u64]),
    seed: u64,
) {
    let mut bench = Bench::new(seed);
    let terms: Vec<Terms> = limits
        .iter()
        .map(|&limit| Terms::leased(of(limit), Nanos::from_millis(1)).without_large_costs())
        .collect();
    let plans: Vec<Plan> = terms
        .iter()
        .map(|terms| Plan::new(*terms.policy()).expect("the policy can be shared"))
        .collect();
    assert!(
        plans.iter().all(|plan| plan.shape() == plans[0].shape()),
        "their keys are the same"
    );
    // A lower limit makes a limiter in memory forget units that Redis still has when the limit
    // rises again. So each direction is tested separately.
    let up: Vec<usize> = (0..limits.len()).collect();
    let down: Vec<usize> = up.iter().rev().copied().collect();
    for round in 0..least_steps() / 1_000 {
        let way = if round % 2 == 0 { &up } else { &down };
        bench.now = START;
        let mut known = Known::default();
        let mut from = terms[way[0]].policy();
        known.state.resize(from.words(), 0);
        for &at in way {
            let to = terms[at].policy();
            let mut state = vec![0; to.words()];
            to.transfer(
                &mut state,
                from,
                &known.state,
                Nanos::from_micros(bench.now),
            );
            if to.limit() < from.limit() {
                // Units given back free nothing here while more than the lower limit is in use.
                known.out.clear();
            }
            seen(to.limit(), &mut state);
            (known.state, from) = (state, to);
            for _ in 0..bench.random.below(100) {
                let before = bench.now;
                bench.move_time(window_of(to) / 4);
                if bench.now < before {
                    known.out.clear();
                }
                bench.write(
                    &terms[at],
                    &plans[at],
                    format!("{seed}:{round}").as_bytes(),
                    &mut known,
                );
            }
        }
    }
}

#[test]
fn a_window_s_limit_may_change() {
    hold_to_changes(
        |limit| FixedWindow::new(limited(limit)).into(),
        &[0, 5, 300, 70_000, 4_294_967_294, 4_294_967_296, 1 << 50],
        |_, _| {},
        41,
    );
}

/// What is in use counts as taken when the store first sees the rule that gives back something else.
#[test]
fn what_a_window_saves_may_change() {
    let texts = [
        "fixed-window:burst=12 5/1m",
        "fixed-window:burst=50:oversize-wait=3m 5/1m",
        "fixed-window:burst=400 300/1m",
        "fixed-window:burst=20 0/1m",
        "fixed-window:burst=7:oversize-wait=9m 7/1m",
    ];
    let policies = texts.map(calendar);
    let plans = policies.map(|policy| Plan::new(policy).expect("the policy can be shared"));
    assert!(plans.iter().all(|plan| plan.shape() == plans[0].shape()));
    let mut bench = Bench::new(45);
    let (mut changes, mut waited) = (0, 0);
    for round in 0..least_steps() / 50 {
        bench.set(START);
        let key = format!("45:{round}").into_bytes();
        let mut at = bench.random.below(5) as usize;
        let (mut state, mut from) = (vec![0; 2], policies[at]);
        for step in 0..50 {
            if bench.random.below(8) == 0 {
                at = bench.random.below(5) as usize;
            }
            let later = [0, 1, 1_000_000, 20_000_000, 70_000_000][bench.random.below(5) as usize];
            bench.set(bench.now + later);
            let (policy, now) = (policies[at], Nanos::from_micros(bench.now));
            let mut seen = vec![0; 2];
            policy.transfer(&mut seen, &from, &state, now);
            let cost = bench.cost(policy.limit());
            let (told, _) = bench.decide(&plans[at], &key, cost);
            let expected = policy.peek(&seen, now, cost);
            assert_eq!(
                told, expected,
                "round {round}, step {step}: {cost} of {policy}"
            );
            waited += usize::from(!told.delay().is_zero());
            // A look changes nothing in the store.
            if cost > 0 {
                changes += usize::from(policy != from);
                let _ = super::step(&policy, &mut seen, &mut Nanos::default(), now, cost);
                (state, from) = (seen, policy);
            }
        }
    }
    let least = least_steps() / 400;
    assert!(
        changes > 10 * least && waited > least,
        "{changes}, {waited}"
    );
}

#[test]
fn a_sliding_counter_s_limit_may_change() {
    // Below this limit, counts have two bytes, and a full one stands for any number.
    const FULL: u64 = 65_535;
    let seen = |limit: u64, state: &mut [u64]| {
        let kept = |count: u64| {
            if count >= FULL {
                u64::from(u32::MAX)
            } else {
                count
            }
        };
        if limit < FULL {
            state[1] = kept(state[1] >> 32) << 32 | kept(state[1] & 0xFFFF_FFFF);
        }
    };
    let of = |limit| Policy::sliding_counter(limited(limit));
    hold_to_changes(of, &[0, 5, 300, 65_535, 65_536, 200_000], seen, 42);
}

#[test]
fn a_sliding_window_s_limit_may_change_and_its_counts_need_other_bytes() {
    let of = |limit| SlidingWindow::new(limited(limit)).into();
    hold_to_changes(of, &[0, 5, 255, 256, 300, 65_535, 70_000], |_, _| {}, 43);
}

#[test]
fn a_log_s_limit_may_change_and_it_becomes_a_ring_or_a_list() {
    let of = |limit| Policy::sliding_log(limited(limit)).expect("the log is not too long");
    hold_to_changes(of, &[5, 100, 128, 129, 200, 1_000], |_, _| {}, 44);
}

fn limited(limit: u64) -> Quota {
    quota(&format!("{limit}/1m"))
}

/// A key whose rule changes, in the store and in memory.
struct Changed {
    key: Vec<u8>,
    policy: Policy,
    state: Vec<u64>,
    /// By how much the store may owe more, and less, in nanoseconds. The store counts whole
    /// microseconds of a rate, and the algorithm adds up to 256 ns to a bucket that owes more than
    /// it holds.
    off: [f64; 2],
}

/// The emission interval in nanoseconds.
fn interval(policy: &Policy) -> f64 {
    use tidegate_core::Parameters as P;
    match policy.parameters() {
        P::TokenBucket { step, parts, .. } | P::LeakyBucket { step, parts, .. } => {
            step as f64 / parts as f64
        }
        _ => unreachable!("a bucket"),
    }
}

impl Changed {
    fn transfer(&self, to: &Policy, now: Nanos) -> Vec<u64> {
        let mut state = vec![0; to.words()];
        to.transfer(&mut state, &self.policy, &self.state, now);
        state
    }

    /// Both owe the same.
    fn compare(&self, what: &str, store: &Decision, core: &Decision) {
        let (store, core) = (store.reset_after_nanos(), core.reset_after_nanos());
        assert!(
            store as f64 <= core as f64 + self.off[0] + 1_000.0
                && core as f64 <= store as f64 + self.off[1] + 1_000.0,
            "{what}: {store} ns for {core} ns, off by {:?} at most, {:?}",
            self.off,
            self.policy
        );
    }
}

/// Changes the rule of a bucket between decisions, charges and refunds, in any order of rules.
fn hold_to_changing_buckets(texts: &[&str], seed: u64) {
    let policies: Vec<Policy> = texts
        .iter()
        .map(|text| text.parse().expect("the policy is well formed"))
        .collect();
    let plans: Vec<Plan> = policies
        .iter()
        .map(|policy| Plan::new(*policy).expect("the policy can be shared"))
        .collect();
    let mut bench = Bench::new(seed);
    let (mut changes, mut compared) = (0, 0);
    for round in 0..least_steps() / 40 {
        bench.set(START);
        let mut at = bench.random.below(plans.len() as u64) as usize;
        let policy = policies[at];
        let mut key = Changed {
            key: format!("{seed}:{round}").into_bytes(),
            policy,
            state: vec![0; policy.words()],
            off: [0.0; 2],
        };
        for step in 0..40 {
            if bench.random.below(6) == 0 {
                at = bench.random.below(plans.len() as u64) as usize;
            }
            let (to, plan) = (policies[at], &plans[at]);
            let far = [0, 0, 1, 1_000, window_of(&to) / 9, window_of(&to) * 3 / 2];
            let far = far[bench.random.below(6) as usize];
            let later = bench.now + bench.random.below(far + 1);
            bench.set(later);
            let now = Nanos::from_micros(bench.now);
            let cost = bench.cost(to.limit());
            let what = format!("round {round}, step {step}, {cost} of {to:?}");
            // A look changes nothing, so the former rule still applies to the state.
            let mut seen = Changed {
                key: key.key.clone(),
                state: key.transfer(&to, now),
                policy: to,
                off: key.off,
            };
            if to != key.policy {
                let ratio = interval(&to) / interval(&key.policy);
                let off = |off: f64, more| (off + more) * ratio.max(1.0) + 2.0 * more;
                seen.off = [off(key.off[0], 1_000.0), off(key.off[1], 256.0)];
                changes += 1;
            }
            let keys = [seen.key.clone()];
            let (store, core) = match bench.random.below(8) {
                0 => {
                    let script = std::sync::Arc::clone(
                        bench
                            .scripts
                            .charge(plan.kind())
                            .expect("it can be charged"),
                    );
                    let told = bench.call(&script, &keys, &call::charge_arguments(plan, cost));
                    to.charge(&mut seen.state, now, cost);
                    (
                        super::versions::only(plan, told, 0).0,
                        to.peek(&seen.state, now, 0),
                    )
                }
                1 => {
                    let script = std::sync::Arc::clone(bench.scripts.refund(plan.kind()));
                    let told = bench.call(&script, &keys, &call::refund_arguments(plan, cost));
                    to.refund(&mut seen.state, now, cost);
                    // The mark of a lowered limit is set again.
                    seen.off[1] += 256.0;
                    (
                        super::versions::only(plan, told, 0).0,
                        to.peek(&seen.state, now, 0),
                    )
                }
                _ => {
                    let (store, _) = bench.decide(plan, &keys[0], cost);
                    let core = to.peek(&seen.state, now, cost);
                    if store.is_allowed() != core.is_allowed() {
                        // At the edge the rounding decides.
                        let denial = if store.is_denied() { store } else { core };
                        let wait = denial.retry_after().expect("it fits later");
                        let wait = wait.as_nanos() as f64;
                        let off = seen.off[0].max(seen.off[1]) + 1_000.0;
                        assert!(wait <= off, "{what}: {wait} ns, {off}");
                        break;
                    }
                    if cost > 0 && core.is_allowed() {
                        to.record(&mut seen.state, now, cost);
                    }
                    (store, core)
                }
            };
            seen.compare(&what, &store, &core);
            compared += 1;
            if cost > 0 {
                key = seen;
            }
        }
    }
    assert!(
        changes > least_steps() / 20 && compared > least_steps() / 4,
        "{changes} changes, {compared} compared"
    );
}

#[test]
fn a_token_bucket_s_units_stay_the_same_at_any_other_rate_and_burst() {
    hold_to_changing_buckets(
        &[
            "token-bucket 20/1h",
            "token-bucket 2000/1h",
            "token-bucket:burst=20 2000/1h",
            "token-bucket 60/1h",
            "token-bucket:oversize-wait=3h 20/1h",
            "token-bucket:burst=40:oversize-wait=1h 60/1h",
            "token-bucket:burst=5 60/1h",
            "token-bucket 7/1s",
            "token-bucket:burst=100 30/1s",
            "token-bucket:burst=17 999983/1h",
            "token-bucket:burst=50 4294967291/1h",
            "token-bucket:burst=3 1/366d",
        ],
        45,
    );
}

#[test]
fn a_leaky_bucket_s_start_times_stay_at_any_other_rate() {
    hold_to_changing_buckets(
        &[
            "leaky-bucket 20/1h",
            "leaky-bucket 2000/1h",
            "leaky-bucket:max_wait=10s 2000/1h",
            "leaky-bucket 7/1h",
            "leaky-bucket 999983/1h",
        ],
        46,
    );
}

/// A window admits at most the highest limit in force in it, for any order of limits.
fn hold_to_the_law(
    of: impl Fn(u64) -> Policy,
    limits: &[u64],
    window: impl Fn(u64) -> u64,
    seed: u64,
) {
    let plans: Vec<Plan> = limits
        .iter()
        .map(|&limit| Plan::new(of(limit)).expect("the policy can be shared"))
        .collect();
    let mut bench = Bench::new(seed);
    let mut raised = 0;
    for round in 0..least_steps() / 100 {
        let key = vec![format!("{seed}:{round}").into_bytes()];
        bench.now = START + round as u64 * 3_600_000_000;
        // When each limit came into force, and what was admitted when.
        let (mut in_force, mut admitted) = (Vec::<(u64, u64)>::new(), Vec::<(u64, u64)>::new());
        let mut at = 0;
        for step in 0..100 {
            if step == 0 || bench.random.below(6) == 0 {
                at = bench.random.below(plans.len() as u64) as usize;
                in_force.push((bench.now, limits[at]));
            }
            bench.now += [0, 1, 1_000_000, 6_000_000, 20_000_000][bench.random.below(5) as usize];
            let plan = &plans[at];
            let cost = match bench.random.below(3) {
                0 => 1,
                1 => limits[at],
                _ => 1 + bench.random.below(limits[at]),
            };
            let batch = Batch {
                keys: key.clone(),
                costs: vec![cost],
                counts: vec![1],
            };
            let script = std::sync::Arc::clone(bench.scripts.batch(plan.kind()));
            let (now, found) = bench.call(&script, &batch.keys, &batch.arguments(plan));
            let [Ok(value)] = &found[..] else {
                panic!("{found:?}")
            };
            let mut is_allowed = false;
            plan.decisions(value.as_deref(), now, &[cost], |_, decision, _| {
                is_allowed = decision.is_allowed();
            })
            .expect("the value is a state");
            if !is_allowed {
                continue;
            }
            admitted.push((bench.now, cost));
            let from = window(bench.now);
            let used: u64 = admitted
                .iter()
                .filter(|(when, _)| *when >= from)
                .map(|(_, units)| units)
                .sum();
            let first = in_force
                .iter()
                .rposition(|(since, _)| *since < from)
                .unwrap_or(0);
            let highest = in_force[first..]
                .iter()
                .map(|(_, limit)| *limit)
                .max()
                .unwrap_or(0);
            assert!(
                used <= highest,
                "{used} of {highest} by {plan:?}: {in_force:?} {admitted:?}"
            );
            raised += u32::from(used > in_force[first].1);
        }
    }
    assert!(
        raised > 100,
        "only {raised} admissions above the first limit"
    );
}

const MINUTE: u64 = 60_000_000;

#[test]
fn no_order_of_limits_admits_more_than_the_highest_in_a_window() {
    let limits = [
        1, 5, 100, 254, 255, 256, 300, 65_534, 65_535, 65_536, 70_000,
    ];
    let this_minute = |now| now - now % MINUTE;
    let last_minute = |now| now - MINUTE + 1;
    hold_to_the_law(
        |limit| FixedWindow::new(limited(limit)).into(),
        &limits,
        this_minute,
        51,
    );
    hold_to_the_law(
        |limit| Policy::sliding_counter(limited(limit)),
        &limits,
        this_minute,
        52,
    );
    hold_to_the_law(
        |limit| SlidingWindow::new(limited(limit)).into(),
        &limits,
        last_minute,
        53,
    );
    let log = |limit| Policy::sliding_log(limited(limit)).expect("the log is not too long");
    hold_to_the_law(log, &[1, 5, 100, 128, 129, 200, 1_000], last_minute, 54);
}
