//! Runs the refund scripts and `Algorithm::refund`, mixed with decisions, through the same random
//! steps and compares the states.

use super::*;

fn hold_to(policies: Vec<Policy>, seed: u64) {
    let mut bench = Bench::new(seed);
    let rounds = least_steps().div_ceil(policies.len());
    for (at, policy) in policies.into_iter().enumerate() {
        let plan = Plan::new(policy).expect("the policy can be shared");
        let (batch, refund) = (
            bench.scripts.batch(plan.kind()).clone(),
            bench.scripts.refund(plan.kind()).clone(),
        );
        let window = window_of(&policy);
        let mut states: HashMap<Vec<u8>, (Vec<u64>, Nanos)> = HashMap::new();
        let (mut returned, mut denied, mut era) = (0, 0, 0);
        for step in 0..rounds {
            let before = bench.now;
            bench.move_time(window);
            if plan.is_log() {
                // Once a log's entry has expired and the newest entry is removed, the script no
                // longer knows the expired one, but the algorithm does. The results would differ if
                // the clock went back.
                bench.set(bench.now.max(before));
            }
            if !(START / 2..2 * START).contains(&bench.now) {
                bench.set(START);
                era += 1;
                states.clear();
            }
            let keys = [format!("{at}:{era}:{}", bench.random.below(3)).into_bytes()];
            let cost = bench.cost(policy.limit());
            let (state, last) = states
                .entry(keys[0].clone())
                .or_insert_with(|| (vec![0; policy.words()], Nanos::ZERO));
            let takes = bench.random.below(5) < 3;
            // Once the clock has gone back a token bucket owes more than it holds. The algorithm then
            // keeps the lowest byte of its state free for a mark. `changes` compares such states.
            let owes = policy.used(state, Nanos::from_micros(bench.now)) > policy.limit();
            if policy.name() == "token-bucket" && owes {
                era += 1;
                states.clear();
                continue;
            }
            let (expected, (now, found)) = if takes {
                let asked = Batch {
                    keys: keys.to_vec(),
                    costs: vec![cost],
                    counts: vec![1],
                };
                let told = bench.call(&batch, &keys, &asked.arguments(&plan));
                (super::step(&policy, state, last, told.0, cost), told)
            } else {
                let used = policy.used(state, Nanos::from_micros(bench.now));
                let told = bench.call(&refund, &keys, &call::refund_arguments(&plan, cost));
                // If nothing is in use, the script leaves nothing behind, not even the time.
                if used > 0 && cost > 0 {
                    policy.refund(state, told.0, cost);
                }
                let standing = policy.peek(state, told.0, 0);
                returned += u32::from(policy.used(state, told.0) < used);
                (standing, told)
            };
            let Ok(value) = &found[0] else {
                panic!("{policy:?}: {found:?}")
            };
            let mut told = None;
            let costs = [if takes { cost } else { 0 }];
            plan.decisions(value.as_deref(), now, &costs, |_, decision, _| {
                told = Some(decision);
            })
            .unwrap_or_else(|| panic!("{policy:?}: {value:?} is not a state"));
            assert_eq!(
                told,
                Some(expected),
                "{policy:?}, seed {seed}, step {step}, {now:?}, {takes}, {cost}"
            );
            denied += u32::from(expected.is_denied());
        }
        let some = rounds as u32 / 50;
        assert!(
            returned > some && denied > some || policy.limit() < 2,
            "{policy:?}: {returned}, {denied}"
        );
    }
}

#[test]
fn the_fixed_window_script_gives_back_as_the_algorithm_does() {
    let of = |text| FixedWindow::new(quota(text));
    hold_to(
        vec![
            of("5/1s").into(),
            of("100/1m").first_hit().into(),
            of("4294967295/366d").into(),
            of("10_000_000_000/30d").first_hit().into(),
            of("9007199254740991/366d").into(),
            of("3/333333us").first_hit().into(),
        ],
        21,
    );
}

#[test]
fn the_scripts_of_windows_that_save_and_of_costs_that_wait_give_back_as_the_algorithms_do() {
    hold_to(saving_windows(), 26);
    hold_to(oversize_waits(), 27);
}

#[test]
fn the_script_of_a_calendar_gives_back_as_the_algorithm_does() {
    hold_to(calendars(), 25);
}

#[test]
fn the_sliding_window_script_gives_back_as_the_algorithm_does() {
    hold_to(sliding_windows(), 22);
}

#[test]
fn the_sliding_counter_script_gives_back_as_the_algorithm_does() {
    let of = |text| Policy::sliding_counter(quota(text));
    hold_to(
        ["5/1s", "100/2s", "1000000/1d", "4294967295/366d", "30/7us"]
            .map(of)
            .into(),
        23,
    );
}

#[test]
fn the_bucket_scripts_give_back_as_the_algorithms_do() {
    let of = |text| TokenBucket::new(quota(text));
    let every = |nanos, burst| {
        TokenBucket::from_interval(Nanos::new(nanos), burst).expect("the burst fits")
    };
    hold_to(
        vec![
            of("5/1s").into(),
            of("7/1s").into(),
            of("100/1m").burst(300).expect("the burst fits").into(),
            of("4294967291/366d").into(),
            of("3/1d").burst(70_000).expect("the burst fits").into(),
            every(1_500, 40).into(),
            Policy::leaky_bucket(quota("5/1s")),
            Policy::leaky_bucket(quota("7/1s")),
            Policy::leaky_bucket(quota("4294967291/366d")),
        ],
        24,
    );
}

#[test]
fn the_log_script_gives_back_as_the_algorithm_does() {
    let of = |text| SlidingLog::new(quota(text)).expect("the log is not too long");
    hold_to(
        vec![
            of("5/1s").into(),
            of("20/1s").closed().into(),
            of("128/1m").into(),
            of("129/1m").into(),
            of("1000/10s").closed().into(),
        ],
        25,
    );
}

#[test]
fn the_permit_script_gives_back_as_the_algorithm_does() {
    let of = |limit, hold| {
        Concurrency::new(limit)
            .hold(Duration::from_millis(hold))
            .expect("the hold is short")
            .into()
    };
    hold_to(vec![of(1, 10), of(5, 1_000), of(300, 60_000)], 26);
}

#[test]
fn a_refund_that_arrives_twice_is_made_once() {
    let policies: [Policy; 2] = [
        Policy::fixed_window(quota("9/1h")),
        Policy::sliding_log(quota("9/1h")).expect("the log is short"),
    ];
    for (at, policy) in policies.into_iter().enumerate() {
        let mut bench = Bench::new(27);
        let plan = Plan::new(policy).expect("the policy can be shared");
        let batch = Batch {
            keys: vec![b"k".to_vec()],
            costs: vec![6],
            counts: vec![1],
        };
        bench.call(
            &bench.scripts.batch(plan.kind()).clone(),
            &batch.keys,
            &batch.arguments(&plan),
        );
        let refund = bench.scripts.refund(plan.kind()).clone();
        let mut left = |id: &str| {
            let keys = [b"k".to_vec(), id.as_bytes().to_vec()];
            let reply = bench.reply(&refund, &keys, &call::refund_arguments(&plan, 2));
            let (now, found) = call::parse(reply, 1).expect("the script's reply is well formed");
            let Ok(value) = &found[0] else {
                panic!("{found:?}")
            };
            let mut left = None;
            plan.decisions(value.as_deref(), now, &[0], |_, decision, _| {
                left = Some(decision.remaining());
            });
            left
        };
        assert_eq!(
            ["one", "one", "two", "one"].map(&mut left),
            [5, 5, 7, 7].map(Some),
            "policy {at}"
        );
    }
}
