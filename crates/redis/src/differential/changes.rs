//! A limit whose numbers change while its keys stay. Usage carries over, as in a limiter in memory whose policy changes.

use tidegate_core::lease::Terms;

use super::{allotments::Known, *};

/// Runs random steps of all writers. About every hundred steps, the next limit comes into force, first upward and then
/// downward. `seen` adjusts the in-memory state to the precision that Redis keeps.
fn hold_to_changes(of: impl Fn(u32) -> Policy, limits: &[u32], seen: impl Fn(u32, &mut [u64]), seed: u64) {
    let mut bench = Bench::new(seed);
    let terms: Vec<Terms> =
        limits.iter().map(|&limit| Terms::leased(of(limit), Nanos::from_millis(1))).collect();
    let plans: Vec<Plan> =
        terms.iter().map(|terms| Plan::new(*terms.policy()).expect("the policy can be shared")).collect();
    assert!(plans.iter().all(|plan| plan.shape() == plans[0].shape()), "their keys are the same");
    // A lower limit makes a limiter in memory forget units that Redis still has when the limit rises again. So each direction
    // is tested separately.
    let up: Vec<usize> = (0..limits.len()).collect();
    let down: Vec<usize> = up.iter().rev().copied().collect();
    for round in 0..STEPS / 1_000 {
        let way = if round % 2 == 0 { &up } else { &down };
        bench.now = START;
        let mut known = Known::default();
        let mut from = terms[way[0]].policy();
        known.state.resize(from.words(), 0);
        for &at in way {
            let to = terms[at].policy();
            let mut state = vec![0; to.words()];
            to.transfer(&mut state, from, &known.state, Nanos::from_micros(bench.now));
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
                bench.write(&terms[at], &plans[at], format!("{seed}:{round}").as_bytes(), &mut known);
            }
        }
    }
}

#[test]
fn a_window_s_limit_may_change() {
    hold_to_changes(|limit| FixedWindow::new(limited(limit)).into(), &[0, 5, 300, 70_000], |_, _| {}, 41);
}

#[test]
fn a_sliding_counter_s_limit_may_change() {
    // Below this limit, counts have two bytes, and a full one stands for any number.
    const FULL: u64 = 65_535;
    let seen = |limit: u32, state: &mut [u64]| {
        let kept = |count: u64| if count >= FULL { u64::from(u32::MAX) } else { count };
        if u64::from(limit) < FULL {
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

fn limited(limit: u32) -> Quota {
    quota(&format!("{limit}/1m"))
}

/// In memory, a changed bucket keeps the number of units in use. Here it keeps the time until they are free, because a value
/// does not contain the rate that wrote it.
#[test]
fn a_bucket_s_rate_may_change_and_its_value_has_other_parts_of_a_microsecond() {
    let every = |nanos, burst| TokenBucket::from_interval(Nanos::new(nanos), burst).expect("the burst fits");
    let thirds = TokenBucket::new(quota("3000003/1s")).expect("a quota's own limit fits").burst(50);
    // Its fractions need six bytes.
    let many = TokenBucket::new(quota("4294967291/1h")).expect("a quota's own limit fits").burst(50);
    let policies: [Policy; 5] = [
        every(1_000, 50).into(),
        every(1_500, 40).into(),
        thirds.expect("it fits").into(),
        every(7_000, 9).into(),
        many.expect("it fits").into(),
    ];
    let plans = policies.map(|policy| Plan::new(policy).expect("the policy can be shared"));
    let mut bench = Bench::new(45);
    let mut free_at = 0;
    for turn in 0..STEPS / 10 {
        bench.now += bench.random.below(40);
        let plan = &plans[bench.random.below(5) as usize];
        let cost = bench.random.below(12) as u32;
        let batch = Batch { keys: vec![b"key".to_vec()], costs: vec![cost], counts: vec![1] };
        let script = std::sync::Arc::clone(bench.scripts.batch(plan.kind()));
        let (now, found) = bench.call(&script, &batch.keys, &batch.arguments(plan));
        let [Before::Value(value)] = &found[..] else { panic!("{found:?}") };
        plan.decisions(value.as_deref(), now, &[0, cost], |at, decision, _| match at {
            0 => {
                let seen = now.get() + decision.reset_after_nanos();
                let expected = free_at.max(now.get());
                assert!(seen.abs_diff(expected) <= 1_000, "turn {turn}: {seen} for {expected} by {plan:?}");
                free_at = seen;
            }
            _ if decision.is_allowed() => free_at = now.get() + decision.reset_after_nanos(),
            _ => {}
        })
        .expect("the value is a state");
    }
}
