//! Decisions that take what fits, against a search for the largest cost that the algorithm admits; and
//! decisions by the first of several limits that admits.

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
        calendar("fixed-window:burst=30 20/1s"),
        calendar("token-bucket:oversize-wait=1s 7/300ms"),
    ];
    let permits = Concurrency::new(9).hold(hold).expect("the hold is short");
    let blocking: Vec<_> = rates
        .iter()
        .map(|policy| policy.block_for(blocks))
        .collect();
    [rates, vec![permits.into()], blocking].concat()
}

/// The largest cost up to `cost` that the policy admits at once.
fn fits(policy: &Policy, state: &[u64], now: Nanos, cost: u64) -> u64 {
    let most = cost.min(policy.limit());
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
    for turn in 0..least_steps() / 4 {
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
        let mut reply = bench.reply(script, &keys, &arguments);
        let granted = if is_up_to {
            call::pop_number(&mut reply).expect("the reply is well formed")
        } else {
            cost
        };
        let (now, found) = call::parse(reply, keys.len()).expect("the reply is well formed");
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
            *count += usize::from(cost > 0);
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
    let least = least_steps() / 50;
    assert!(
        whole > least && partly > least && nothing > least,
        "{whole} whole, {partly} in part, {nothing} nothing"
    );
}

#[test]
fn the_script_takes_from_the_first_limit_that_admits_and_from_no_other() {
    let policies = policies();
    let plan = |policy: &Policy| Plan::new(*policy).expect("it can be shared");
    let plans: Vec<Plan> = policies.iter().map(plan).collect();
    let mut bench = Bench::new(62);
    let any = std::sync::Arc::clone(&bench.scripts.any);
    let mut states: HashMap<(usize, u64), (Vec<u64>, Nanos)> = HashMap::new();
    let (mut first_admits, mut later, mut none) = (0, 0, 0);
    for turn in 0..least_steps() / 4 {
        bench.move_time(100_000);
        let first = bench.random.below(plans.len() as u64) as usize;
        let several = 1 + bench.random.below(4) as usize;
        let asked: Vec<(usize, u64)> = (first..first + several)
            .map(|at| (at % plans.len(), bench.cost(20)))
            .collect();
        let key = bench.random.below(2);
        let names = asked.iter().map(|(at, _)| format!("{at}:{key}"));
        let blocking = asked
            .iter()
            .filter(|(at, _)| policies[*at].penalty().is_some());
        let blocks = blocking.map(|(at, _)| format!("block:{at}:{key}"));
        let keys: Vec<Vec<u8>> = names.chain(blocks).map(String::into_bytes).collect();
        let parts = asked.iter().map(|&(at, cost)| (&plans[at], cost));
        let mut reply = bench.reply(&any, &keys, &call::joint_arguments(parts, true));
        let chosen = call::pop_number(&mut reply).expect("the reply is well formed") as usize;
        let now = Nanos::from_micros(bench.now);
        for &(at, _) in &asked {
            let fresh = || (vec![0; policies[at].words()], Nanos::ZERO);
            states.entry((at, key)).or_insert_with(fresh);
        }
        let admits = |&(at, cost): &(usize, u64)| {
            let (state, _) = &states[&(at, key)];
            policies[at].peek(state, now, cost).is_allowed()
        };
        let expected = asked.iter().position(admits);
        let what = format!("turn {turn}: {asked:?} at {now:?}");
        assert_eq!(chosen.checked_sub(1), expected, "{what}");
        let decided = match expected {
            Some(at) => &asked[at..=at],
            None => &asked[..],
        };
        let keys = match expected {
            Some(at) => 1 + usize::from(policies[asked[at].0].penalty().is_some()),
            None => keys.len(),
        };
        let (_, found) = call::parse(reply, keys).expect("the reply is well formed");
        let of = decided.iter().map(|&(at, _)| &plans[at]);
        let found = call::found(of, found).expect("they are ours");
        for (&(at, cost), found) in decided.iter().zip(&found) {
            let policy = &policies[at];
            let (state, last) = states.entry((at, key)).or_default();
            let decision = plans[at].decision_on(found, now, (cost, true));
            let (decision, _) = decision.expect("the value is a state");
            let peek = policy.peek(state, now, cost);
            assert_eq!(decision.is_allowed(), peek.is_allowed(), "{what}, {policy}");
            if expected.is_some() {
                assert_eq!(decision, peek, "{what}, {policy}");
                if cost > 0 {
                    policy.record(state, moment(policy, last, now), cost);
                }
            } else {
                // The denial counts for a rule that blocks keys.
                let _ = policy.decide(state, now, cost);
            }
        }
        *match expected {
            Some(0) => &mut first_admits,
            Some(_) => &mut later,
            None => &mut none,
        } += 1;
    }
    let least = least_steps() / 200;
    assert!(
        first_admits > 4 * least && later > 4 * least && none > least,
        "{first_admits} by the first, {later} by a later one, {none} by none"
    );
}
