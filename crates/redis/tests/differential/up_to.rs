//! Decisions that take what fits, against a search for the largest cost that the algorithm admits.

use tidegate_core::Penalty;

use super::*;

fn policies() -> Vec<Policy> {
    let blocks = Penalty::new(&[Duration::from_millis(300)]).expect("whole milliseconds");
    let blocks = blocks
        .after(2, Duration::from_secs(1))
        .expect("whole milliseconds");
    let hold = Duration::from_millis(300);
    let rates: Vec<Policy> = vec![
        Policy::fixed_window(quota("20/1s")),
        FixedWindow::new(quota("20/1s")).first_hit().into(),
        calendar("fixed-window 20/month"),
        Policy::sliding_window(quota("20/1s")),
        Policy::sliding_counter(quota("20/1s")),
        Policy::token_bucket(quota("7/300ms")),
        Policy::leaky_bucket(quota("20/1s")),
        Policy::sliding_log(quota("20/1s")).expect("the log is short"),
        Policy::sliding_log(quota("200/10s")).expect("the log is short"),
    ];
    let permits = Concurrency::new(9).hold(hold).expect("the hold is short");
    let blocking: Vec<_> = rates
        .iter()
        .map(|policy| policy.block_for(blocks))
        .collect();
    [rates, vec![permits.into()], blocking].concat()
}

/// The largest cost up to `cost` that the policy admits.
fn fits(policy: &Policy, state: &[u64], now: Nanos, cost: u64) -> u64 {
    let most = cost.min(policy.limit() + 1);
    let admitted = |cost: &u64| policy.peek(state, now, *cost).is_allowed();
    (1..=most).rev().find(admitted).unwrap_or(0)
}

#[test]
fn the_script_takes_what_fits_and_never_more() {
    let policies = policies();
    let plan = |policy: &Policy| Plan::new(*policy).expect("it can be shared");
    let plans: Vec<Plan> = policies.iter().map(plan).collect();
    let mut bench = Bench::new(61);
    let scripts = [&bench.scripts.up_to, &bench.scripts.joint].map(std::sync::Arc::clone);
    let [up_to, joint] = scripts;
    let mut states: HashMap<(usize, u64), (Vec<u64>, Nanos)> = HashMap::new();
    let (mut whole, mut partly, mut nothing) = (0, 0, 0);
    for turn in 0..STEPS / 4 {
        bench.move_time(300_000);
        let first = bench.random.below(plans.len() as u64) as usize;
        let several = 1 + bench.random.below(4) as usize / 3;
        let ats: Vec<usize> = (first..first + several)
            .map(|at| at % plans.len())
            .collect();
        let (key, cost) = (bench.random.below(2), bench.cost(20));
        let is_up_to = bench.random.below(4) > 0;
        let names = ats.iter().map(|at| format!("{at}:{key}"));
        let blocking = ats.iter().filter(|at| policies[**at].penalty().is_some());
        let blocks = blocking.map(|at| format!("block:{at}:{key}"));
        let keys: Vec<Vec<u8>> = names.chain(blocks).map(String::into_bytes).collect();
        let parts = ats.iter().map(|&at| (&plans[at], cost));
        let arguments = call::joint_arguments(parts, true);
        let script = if is_up_to { &up_to } else { &joint };
        let reply = bench.reply(script, &keys, &arguments);
        let (granted, now, found) = if is_up_to {
            call::parse_up_to(reply, keys.len()).expect("the reply is well formed")
        } else {
            let (now, found) = call::parse(reply, keys.len()).expect("the reply is well formed");
            (cost, now, found)
        };
        let found = call::found(ats.iter().map(|&at| &plans[at]), found).expect("they are ours");
        for &at in &ats {
            let fresh = || (vec![0; policies[at].words()], Nanos::ZERO);
            states.entry((at, key)).or_insert_with(fresh);
        }
        let most = ats
            .iter()
            .map(|&at| fits(&policies[at], &states[&(at, key)].0, now, cost));
        let most = most.min().unwrap_or(0);
        let what = format!("turn {turn}: {cost} of {ats:?} at {now:?}");
        if is_up_to {
            assert_eq!(granted, most, "{what}");
            let count = match granted {
                0 => &mut nothing,
                _ if granted == cost => &mut whole,
                _ => &mut partly,
            };
            *count += u32::from(cost > 0);
        }
        let taken = if is_up_to {
            most.max(cost.min(1))
        } else {
            cost
        };
        let admitted = ats.iter().all(|&at| {
            let (state, _) = &states[&(at, key)];
            policies[at].peek(state, now, taken).is_allowed()
        });
        for (&at, found) in ats.iter().zip(&found) {
            let policy = &policies[at];
            let (state, last) = states.entry((at, key)).or_default();
            let (decision, _) = plans[at]
                .decision_on(found, now, (taken, true))
                .expect("the value is a state");
            let expected = policy.peek(state, now, taken);
            assert_eq!(
                decision.is_allowed(),
                expected.is_allowed(),
                "{what}, {policy}: {decision:?}, not {expected:?}"
            );
            if decision.is_allowed() {
                assert_eq!(decision, expected, "{what}, {policy}");
            }
            if expected.is_denied() {
                // The denial counts for a rule that blocks keys.
                let _ = policy.decide(state, now, taken);
            } else if admitted && taken > 0 {
                policy.record(state, moment(policy, last, now), taken);
            }
        }
    }
    assert!(
        whole > 400 && partly > 400 && nothing > 400,
        "{whole} whole, {partly} in part, {nothing} nothing"
    );
}
