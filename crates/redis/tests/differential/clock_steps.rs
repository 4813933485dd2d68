//! Values from the clock's future. A script for a clock that went back decides as if their units
//! had just been used: as the algorithm does that many microseconds later, because the algorithms
//! do not depend on where time begins.

use super::*;

/// By how much the algorithm's time is ahead of the script's, in microseconds, so that a state
/// whose time is `head` is at most `ahead` ahead of `now`. Windows and slots begin at multiples of
/// `aligned`.
fn shift(head: u64, now: u64, aligned: Option<u64>, ahead: u64) -> u64 {
    let latest = aligned.map_or(now + ahead, |aligned| now - now % aligned);
    head.saturating_sub(latest)
}

fn hold_to(policies: Vec<Policy>, seed: u64) {
    let mut bench = Bench::new(seed);
    let rounds = least_steps().div_ceil(policies.len()) / 2;
    for (at, policy) in policies.into_iter().enumerate() {
        let plan = Plan::new(policy).expect("the policy can be shared");
        let scripts = [
            bench.scripts.batch(plan.kind()),
            bench.scripts.refund(plan.kind()),
            &bench.scripts.joint,
        ];
        let [batch, refund, joint] = scripts.map(|script| script.after_step().clone());
        let charge = bench
            .scripts
            .charge(plan.kind())
            .expect("it is no limit of permits")
            .after_step()
            .clone();
        let window = window_of(&policy);
        let (aligned, ahead) = match policy.parameters() {
            tidegate_core::Parameters::FixedWindow {
                window,
                first_hit: false,
                ..
            }
            | tidegate_core::Parameters::SavingWindow {
                window,
                first_hit: false,
                ..
            }
            | tidegate_core::Parameters::SlidingCounter { window, .. } => (Some(window / 1_000), 0),
            tidegate_core::Parameters::SlidingWindow { slot, .. } => (Some(slot / 1_000), 0),
            tidegate_core::Parameters::FixedWindow { .. }
            | tidegate_core::Parameters::SavingWindow { .. } => (None, 0),
            tidegate_core::Parameters::TokenBucket {
                burst, step, parts, ..
            } => (None, (burst * step).div_ceil(parts * 1_000)),
            tidegate_core::Parameters::LeakyBucket {
                limit,
                step,
                parts,
                max_wait,
            } => {
                let wait = max_wait.div_ceil(1_000);
                (None, wait + limit * step / (parts * 1_000) + 1)
            }
            other => panic!("{other:?} is no value"),
        };
        let (mut state, mut offset, mut back, mut era) = (vec![0; policy.words()], 0_u64, 0, 0);
        bench.now = START;
        for step in 0..rounds {
            if bench.random.below(30) == 0 {
                // Far into the future, or back from there.
                let far = window * (2 + bench.random.below(1_000));
                bench.now = if bench.now > START + window {
                    START + bench.random.below(window)
                } else {
                    bench.now + far
                };
            } else {
                bench.move_time(window);
            }
            if !(START / 2..2 * START).contains(&bench.now) || offset > START {
                (bench.now, era, offset) = (START, era + 1, 0);
                state.fill(0);
            }
            let keys = [format!("{at}:{era}").into_bytes()];
            let stored: Option<Vec<u8>> = redis::cmd("GET")
                .arg(&keys[0])
                .query(&mut bench.connection)
                .expect("the server answers");
            if let Some(stored) = &stored {
                let mut head = [0; 8];
                head[..7].copy_from_slice(&stored[..7]);
                let mut begun = u64::from_le_bytes(head);
                if let tidegate_core::Parameters::SavingWindow { limit, window, .. } =
                    policy.parameters()
                {
                    head[..7].copy_from_slice(&stored[7..14]);
                    begun -= u64::from_le_bytes(head).div_ceil(limit) * (window / 1_000);
                }
                let more = shift(begun, bench.now, aligned, ahead);
                back += usize::from(more > 0);
                offset += more;
                if more > 0 && ahead > 0 {
                    // A bucket is full then, to the microsecond.
                    state.fill(0);
                    state[0] = (bench.now + offset + ahead) * 1_000;
                }
            }
            let core_now = Nanos::from_micros(bench.now + offset);
            let cost = bench.cost(policy.limit());
            let (asked, expected, (now, found)) = match bench.random.below(6) {
                0 => {
                    let told = bench.call(&refund, &keys, &call::refund_arguments(&plan, cost));
                    if policy.used(&state, core_now) > 0 && cost > 0 {
                        policy.refund(&mut state, core_now, cost);
                    }
                    (0, policy.peek(&state, core_now, 0), told)
                }
                1 if ahead == 0 => {
                    let told = bench.call(&charge, &keys, &call::charge_arguments(&plan, cost));
                    policy.charge(&mut state, core_now, cost);
                    (0, policy.peek(&state, core_now, 0), told)
                }
                2 => {
                    let arguments = call::joint_arguments(std::iter::once((&plan, cost)), true);
                    let told = bench.call(&joint, &keys, &arguments);
                    (
                        cost,
                        super::step(&policy, &mut state, &mut Nanos::default(), core_now, cost),
                        told,
                    )
                }
                _ => {
                    let asked = Batch {
                        keys: keys.to_vec(),
                        costs: vec![cost],
                        counts: vec![1],
                    };
                    let told = bench.call(&batch, &keys, &asked.arguments(&plan));
                    (
                        cost,
                        super::step(&policy, &mut state, &mut Nanos::default(), core_now, cost),
                        told,
                    )
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
                told == expected || same(&policy, asked, &told, &expected),
                "{policy:?}, seed {seed}, step {step}, {now:?} and {offset}, {asked}: {told:?}, not {expected:?}"
            );
        }
        assert!(
            back > rounds / 200,
            "{policy:?}: only {back} values came from the future"
        );
    }
}

#[test]
fn windows_from_the_future_count_from_now_on() {
    let fixed = |text| FixedWindow::new(quota(text));
    hold_to(
        vec![
            fixed("5/1s").into(),
            fixed("100/1m").first_hit().into(),
            fixed("1/7us").into(),
            calendar("fixed-window:burst=5 5/1s"),
            calendar("fixed-window:burst=12 5/1s"),
            calendar("fixed-window:burst=150:first-hit 100/1m"),
        ],
        61,
    );
    hold_to(
        ["5/1s", "100/2s", "1000000/1d"]
            .map(|text| Policy::sliding_counter(quota(text)))
            .into(),
        62,
    );
    let slots = SlidingWindow::new(quota("255/1m"))
        .slots(60)
        .expect("the slots make sense")
        .into();
    hold_to(vec![SlidingWindow::new(quota("5/1s")).into(), slots], 63);
}

#[test]
fn buckets_from_the_future_are_full() {
    let of = |text| TokenBucket::new(quota(text));
    let wait = LeakyBucket::new(quota("100/1m"))
        .max_wait(Duration::from_secs(2))
        .expect("the wait is short");
    hold_to(
        vec![
            of("5/1s").into(),
            of("7/1s").into(),
            of("100/1m").burst(300).expect("it fits").into(),
        ],
        64,
    );
    hold_to(
        vec![LeakyBucket::new(quota("5/1s")).into(), wait.into()],
        65,
    );
}

/// Entries that a log admitted, each with its time.
#[test]
fn log_entries_from_the_future_count_from_now_on() {
    for (at, (limit, seed)) in [(5, 66), (128, 67), (200, 68)].into_iter().enumerate() {
        let mut bench = Bench::new(seed);
        let policy = Policy::sliding_log(limited(limit)).expect("the log is short");
        let plan = Plan::new(policy).expect("the policy can be shared");
        let script = bench.scripts.batch(plan.kind()).after_step().clone();
        let key = vec![format!("{at}").into_bytes()];
        let (mut entries, mut back) = (Vec::<(u64, u64)>::new(), 0);
        for step in 0..least_steps() / 20 {
            if bench.random.below(20) == 0 {
                let ahead = bench.now > START + 60_000_000;
                bench.now = if ahead {
                    START + bench.random.below(60_000_000)
                } else {
                    bench.now + 3_600_000_000
                };
            } else {
                bench.now += bench.random.below(10_000_000);
            }
            back += usize::from(entries.last().is_some_and(|&(time, _)| time > bench.now));
            for (time, _) in &mut entries {
                *time = bench.now.min(*time);
            }
            let at = bench.now;
            let counts = |&(time, _): &(u64, u64)| at - time < 60_000_000;
            let cost = 1 + bench.random.below(limit / 2);
            let batch = Batch {
                keys: key.clone(),
                costs: vec![cost],
                counts: vec![1],
            };
            let (now, found) = bench.call(&script, &batch.keys, &batch.arguments(&plan));
            let mut state = vec![0; policy.words()];
            for &(time, units) in entries.iter().filter(|entry| counts(entry)) {
                policy.record(&mut state, Nanos::from_micros(time), units);
            }
            let expected = policy.peek(&state, now, cost);
            let [Ok(value)] = &found[..] else {
                panic!("{found:?}")
            };
            plan.decisions(value.as_deref(), now, &[cost], |_, decision, _| {
                assert_eq!(decision, expected, "{limit}, step {step}: {entries:?}");
            })
            .expect("the value is a state");
            if expected.is_allowed() {
                // Only a write forgets those that no longer count.
                entries.retain(counts);
                entries.push((bench.now, cost));
            }
        }
        assert!(back > least_steps() / 2_000, "only {back} steps back");
    }
}

fn limited(limit: u64) -> Quota {
    quota(&format!("{limit}/1m"))
}

#[test]
fn holders_from_the_future_keep_their_names_and_their_hold_counts_from_now_on() {
    let mut bench = Bench::new(69);
    let hold = Nanos::from_secs(60);
    let policy: Policy = Concurrency::new(9)
        .hold(hold.into())
        .expect("the hold is short")
        .into();
    let plan = Plan::new(policy).expect("the policy can be shared");
    let batch = bench.scripts.batch(plan.kind()).after_step().clone();
    let settle = bench.scripts.settle.after_step().clone();
    let key = b"permits".to_vec();
    let take = |bench: &mut Bench, cost| {
        let asked = Batch {
            keys: vec![key.clone()],
            costs: vec![cost],
            counts: vec![1],
        };
        let (now, found) = bench.call(&batch, &asked.keys, &asked.arguments(&plan));
        let [Ok(value)] = &found[..] else {
            panic!("{found:?}")
        };
        let mut told = None;
        plan.decisions(value.as_deref(), now, &[cost], |_, decision, name| {
            told = Some((decision, name));
        });
        told.expect("one cost has one decision")
    };
    let give = |bench: &mut Bench, renew, name| {
        let (_, found) = bench.call(
            &settle,
            std::slice::from_ref(&key),
            &call::settle_arguments(hold, renew, name),
        );
        matches!(&found[..], [Ok(Some(answer))] if answer == b"yes")
    };
    bench.now = START;
    let (_, early) = take(&mut bench, 1);
    bench.now = START + 30_000_000;
    let (_, before) = take(&mut bench, 2);
    bench.now = START + 3_600_000_000;
    // The earlier ones have expired, but are still in the value only if nothing is written.
    let (decision, one) = take(&mut bench, 3);
    assert_eq!(decision.remaining(), 6);
    let (_, two) = take(&mut bench, 4);
    bench.now = START + 31_000_000;
    assert_eq!(take(&mut bench, 0).0.remaining(), 2);
    assert!(!give(&mut bench, false, early) && !give(&mut bench, false, before));
    assert!(give(&mut bench, false, one) && !give(&mut bench, false, one));
    assert_eq!(take(&mut bench, 0).0.remaining(), 5);
    let (decision, three) = take(&mut bench, 5);
    assert!(decision.is_allowed() && three != two && take(&mut bench, 1).0.is_denied());
    bench.now += 50_000_000;
    assert!(give(&mut bench, true, two), "it renews its hold");
    bench.now += 10_000_001;
    assert_eq!(
        take(&mut bench, 0).0.remaining(),
        5,
        "the hold of the third is over"
    );
    bench.now += 50_000_000;
    assert_eq!(take(&mut bench, 0).0.remaining(), 9);
}

#[test]
fn a_calendar_from_the_future_counts_in_the_window_of_now() {
    let day = 86_400_000_000;
    let mut bench = Bench::new(70);
    let plan = Plan::new(calendar("fixed-window 5/month")).expect("the policy can be shared");
    let scripts = [
        bench.scripts.batch(plan.kind()),
        bench.scripts.batch(plan.kind()).after_step(),
    ];
    let [usual, after_step] = scripts.map(std::sync::Arc::clone);
    let mut asked = |at: u64, cost, script: &Script| {
        bench.set(at);
        let batch = Batch {
            keys: vec![b"k".to_vec()],
            costs: vec![cost],
            counts: vec![1],
        };
        let (now, found) = bench.call(script, &batch.keys, &batch.arguments(&plan));
        let [Ok(before)] = &found[..] else {
            panic!("{found:?}")
        };
        let mut decisions = Vec::new();
        plan.decisions(before.as_deref(), now, &[cost], |_, decision, _| {
            decisions.push(decision);
        })
        .expect("the value is a state");
        decisions[0]
    };
    // START is the 13th of November 2025.
    assert!(asked(START + 40 * day, 5, &usual).is_allowed());
    let denied = asked(START, 1, &after_step);
    let until_december = Duration::from_micros(1_764_547_200_000_000 - START);
    assert_eq!(denied.retry_after(), Some(until_december), "{denied:?}");
    assert!(asked(START + 20 * day, 5, &after_step).is_allowed());
    assert!(!asked(START + 20 * day, 1, &usual).is_allowed());
}

#[test]
fn a_calendar_holds_if_the_clocks_are_further_apart_than_a_period() {
    let day = 86_400_000_000;
    for (script_at, node_at) in [(START, START + 100 * day), (START + 100 * day, START)] {
        let mut bench = Bench::new(71);
        let plan = Plan::new(calendar("fixed-window:time-zone=Europe/Berlin 5/day"))
            .expect("it can be shared");
        let script = std::sync::Arc::clone(bench.scripts.batch(plan.kind()));
        let values: Vec<_> = (0..4)
            .map(|_| {
                bench.set(script_at);
                tidegate_redis::internals::TEST_TIME.set(Some(node_at));
                let batch = Batch {
                    keys: vec![b"k".to_vec()],
                    costs: vec![2],
                    counts: vec![1],
                };
                let (now, found) = bench.call(&script, &batch.keys, &batch.arguments(&plan));
                let [Ok(before)] = &found[..] else {
                    panic!("{found:?}")
                };
                let mut allowed = false;
                plan.decisions(before.as_deref(), now, &[2], |_, decision, _| {
                    allowed = decision.is_allowed();
                })
                .expect("the value is a state");
                allowed
            })
            .collect();
        let late = node_at < script_at;
        assert_eq!(values[..3], [true, true, late], "{values:?}");
    }
}
