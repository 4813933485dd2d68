//! Runs the charge scripts and `Algorithm::charge`, mixed with decisions and refunds, through the
//! same random steps and compares the decisions.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Take,
    Refund,
    Charge,
}

fn hold_to(policies: Vec<Policy>, seed: u64) {
    hold_to_with(policies, &[], seed);
}

/// Some of the charges and refunds have one of the `large` costs.
fn hold_to_with(policies: Vec<Policy>, large: &[u64], seed: u64) {
    let mut bench = Bench::new(seed);
    let rounds = least_steps().div_ceil(policies.len());
    for (at, policy) in policies.into_iter().enumerate() {
        let plan = Plan::new(policy).expect("the policy can be shared");
        let kind = plan.kind();
        let batch = bench.scripts.batch(kind).clone();
        let refund = bench.scripts.refund(kind).clone();
        let charge = bench
            .scripts
            .charge(kind)
            .expect("it is no limit of permits")
            .clone();
        let joint = bench.scripts.joint.clone();
        let window = window_of(&policy);
        let mut states: HashMap<Vec<u8>, (Vec<u64>, Nanos)> = HashMap::new();
        let (mut over, mut era) = (0, 0);
        for step in 0..rounds {
            let before = bench.now;
            bench.move_time(window);
            if plan.is_log() {
                // The script forgets expired entries at other times than the algorithm: see the
                // refunds.
                bench.set(bench.now.max(before));
            }
            if !(START / 2..2 * START).contains(&bench.now) {
                bench.set(START);
                era += 1;
                states.clear();
            }
            let keys = [format!("{at}:{era}:{}", bench.random.below(3)).into_bytes()];
            let (state, last) = states
                .entry(keys[0].clone())
                .or_insert_with(|| (vec![0; policy.words()], Nanos::ZERO));
            let act = match bench.random.below(8) {
                0..=4 => Step::Take,
                // The two keep different entries beyond the limit, and a refund shows which.
                5 if plan.is_log() => Step::Take,
                5 => Step::Refund,
                _ => Step::Charge,
            };
            let mut cost = bench.cost(policy.limit());
            if act == Step::Charge {
                cost = match bench.random.below(3) {
                    0 => cost,
                    1 => cost.saturating_mul(3),
                    _ => cost.saturating_mul(50),
                };
            }
            if act != Step::Take && !large.is_empty() && bench.random.below(4) == 0 {
                cost =
                    large[bench.random.below(large.len() as u64) as usize] - bench.random.below(3);
            }
            let (asked, expected, (now, found)) = match act {
                Step::Take => {
                    let asked = Batch {
                        keys: keys.to_vec(),
                        costs: vec![cost],
                        counts: vec![1],
                    };
                    let told = bench.call(&batch, &keys, &asked.arguments(&plan));
                    (cost, super::step(&policy, state, last, told.0, cost), told)
                }
                Step::Refund => {
                    let used = policy.used(state, Nanos::from_micros(bench.now));
                    let told = bench.call(&refund, &keys, &call::refund_arguments(&plan, cost));
                    if used > 0 && cost > 0 {
                        policy.refund(state, told.0, cost);
                    }
                    (0, policy.peek(state, told.0, 0), told)
                }
                Step::Charge => {
                    let told = bench.call(&charge, &keys, &call::charge_arguments(&plan, cost));
                    policy.charge(state, told.0, cost);
                    (0, policy.peek(state, told.0, 0), told)
                }
            };
            let Ok(value) = &found[0] else {
                panic!("{policy:?}: {found:?}")
            };
            let mut told = None;
            plan.decisions(value.as_deref(), now, &[asked], |_, decision, _| {
                told = Some(decision);
            })
            .unwrap_or_else(|| panic!("{policy:?}: {value:?} is not a state"));
            let told = told.expect("one cost has one decision");
            assert!(
                same(&policy, asked, &told, &expected),
                "{policy:?}, seed {seed}, step {step}, {now:?}, {act:?} of {cost}: {told:?}, not {expected:?}"
            );
            over += u32::from(asked == 0 && told.is_denied());
            // A joint decision that includes a cost of 0 is denied exactly if that limit is over:
            // then the other is not charged.
            if bench.random.below(4) == 0 {
                let other = format!("{at}:{step}:other").into_bytes();
                let both = [(&plan, 0), (&plan, policy.limit().min(1))];
                let keys = [keys[0].clone(), other.clone()];
                let arguments = call::joint_arguments(both.into_iter(), true);
                bench.call(&joint, &keys, &arguments);
                let asked = Batch {
                    keys: vec![other.clone()],
                    costs: vec![0],
                    counts: vec![1],
                };
                let (now, found) = bench.call(&batch, &[other], &asked.arguments(&plan));
                let Ok(value) = &found[0] else {
                    panic!("{policy:?}: {found:?}")
                };
                let mut unused = None;
                plan.decisions(value.as_deref(), now, &[0], |_, decision, _| {
                    unused = Some(decision.reset_after() == Duration::ZERO);
                });
                let denied = policy.peek(state, now, 0).is_denied();
                let differs = plan.is_log() && denied;
                assert!(
                    differs || unused == Some(denied || policy.limit() == 0),
                    "{policy:?}, step {step}"
                );
            }
        }
        assert!(
            over > rounds as u32 / 50 || policy.limit() >= u32::MAX.into(),
            "{policy:?}: over {over} times"
        );
    }
}

#[test]
fn the_fixed_window_script_charges_as_the_algorithm_does() {
    let of = |text| FixedWindow::new(quota(text));
    hold_to(
        vec![
            of("5/1s").into(),
            of("100/1m").first_hit().into(),
            of("4294967296/1h").into(),
            of("10_000_000_000/30d").first_hit().into(),
            of("9007199254740991/366d").into(),
            of("0/1s").into(),
        ],
        31,
    );
}

#[test]
fn the_scripts_of_windows_that_save_and_of_costs_that_wait_charge_as_the_algorithms_do() {
    hold_to(saving_windows(), 36);
    hold_to(oversize_waits(), 37);
}

#[test]
fn the_script_of_a_calendar_charges_as_the_algorithm_does() {
    // A count of four bytes that is full stands for any number, so the store denies longer after a
    // refund.
    let counts_further = |policy: &Policy| policy.limit() != u32::MAX.into();
    hold_to(calendars().into_iter().filter(counts_further).collect(), 35);
}

#[test]
fn the_sliding_window_script_charges_as_the_algorithm_does() {
    hold_to(sliding_windows(), 32);
}

#[test]
fn the_sliding_counter_script_charges_as_the_algorithm_does() {
    let of = |text| Policy::sliding_counter(quota(text));
    hold_to(
        ["5/1s", "100/2s", "1000000/1d", "30/7us"].map(of).into(),
        33,
    );
}

#[test]
fn the_bucket_scripts_charge_as_the_algorithms_do() {
    let of = |text| TokenBucket::new(quota(text));
    hold_to(
        vec![
            of("5/1s").into(),
            of("7/1s").into(),
            of("100/1m").burst(300).expect("the burst fits").into(),
            of("3/1d").into(),
            Policy::leaky_bucket(quota("5/1s")),
            Policy::leaky_bucket(quota("7/1s")),
        ],
        34,
    );
}

/// The scripts compute spans ten bits at a time, with more steps from 2^40 units on.
#[test]
fn the_bucket_scripts_charge_large_costs_as_the_algorithms_do() {
    let of = |text| TokenBucket::new(quota(text));
    let large = [
        1 << 40,
        (1 << 40) + 2,
        1 << 47,
        (1 << 50) + 1,
        (1 << 53) - 1,
    ];
    hold_to_with(
        vec![
            of("7/1s").into(),
            of("4294967291/366d").into(),
            of("1000000007/1s").into(),
            of("4294967291/1s").into(),
            of("4294967295/1us").into(),
            Policy::leaky_bucket(quota("7/1s")),
            Policy::leaky_bucket(quota("999999937/1s")),
        ],
        &large,
        36,
    );
}

#[test]
fn the_log_script_charges_as_the_algorithm_does() {
    let of = |text| SlidingLog::new(quota(text)).expect("the log is not too long");
    hold_to(
        vec![
            of("5/1s").into(),
            of("20/1s").closed().into(),
            of("129/1m").into(),
            of("1000/10s").into(),
        ],
        35,
    );
}
