//! Blocks for denials, against a naive oracle: the algorithm without blocks, a list of the denials
//! of each key and its last block.

use tidegate_core::{DenialReason, Penalty};

use super::*;

/// The spans of a rule's blocks and the time in which denials count, in microseconds.
#[derive(Clone, Copy)]
struct Rule {
    spans: [u64; 3],
    after: usize,
    within: u64,
}

const RULES: [Rule; 3] = [
    Rule {
        spans: [300_000, 1_100_000, 4_000_000],
        after: 1,
        within: 1_000,
    },
    Rule {
        spans: [200_000, 900_000, 2_000_000],
        after: 2,
        within: 700_000,
    },
    Rule {
        spans: [500_000, 500_000, 1_000_000],
        after: 3,
        within: 2_000_000,
    },
];

impl Rule {
    fn penalty(&self) -> Penalty {
        let spans = self.spans.map(Duration::from_micros);
        let penalty = Penalty::new(&spans).expect("the spans are whole milliseconds");
        penalty
            .after(self.after as u32, Duration::from_micros(self.within))
            .expect("the span is whole milliseconds")
    }
}

/// The denials of one key that count, and its last block's end and step, from 1.
#[derive(Clone, Debug, Default)]
struct Naive {
    denials: Vec<u64>,
    block: Option<(u64, usize)>,
}

impl Naive {
    fn blocked_for(&self, now: u64) -> Option<u64> {
        let (end, _) = self.block?;
        (end > now).then(|| end - now)
    }

    fn denied(&mut self, rule: &Rule, now: u64) {
        if self
            .denials
            .first()
            .is_some_and(|first| now >= first + rule.within)
        {
            self.denials.clear();
        }
        self.denials.push(now);
        if self.denials.len() < rule.after {
            return;
        }
        let step = match self.block {
            Some((end, step)) if now < end + rule.spans[step - 1] => (step + 1).min(3),
            _ => 1,
        };
        self.block = Some((now + rule.spans[step - 1], step));
        self.denials.clear();
    }
}

struct Model {
    policies: Vec<Policy>,
    /// The rule of each policy; `None` if it does not block.
    rules: Vec<Option<Rule>>,
    plans: Vec<Plan>,
    states: HashMap<(usize, u64), (Vec<u64>, Naive)>,
}

type Asked = (usize, u64, u64, bool);

impl Model {
    fn new() -> Self {
        let policies: Vec<Policy> = vec![
            Policy::fixed_window(quota("6/1s")),
            FixedWindow::new(quota("6/1s")).first_hit().into(),
            Policy::sliding_window(quota("6/1s")),
            Policy::sliding_counter(quota("6/1s")),
            Policy::token_bucket(quota("7/1s")),
            Policy::leaky_bucket(quota("6/1s")),
            Policy::sliding_log(quota("6/1s")).expect("the log is short"),
            Policy::sliding_log(quota("200/1s")).expect("the log is short"),
            Policy::fixed_window(quota("9/1s")),
            calendar("fixed-window:burst=9 6/1s"),
            calendar("token-bucket:oversize-wait=1s 7/1s"),
        ];
        let mut model = Self {
            rules: policies.iter().map(|_| None).collect(),
            plans: Vec::new(),
            policies,
            states: HashMap::new(),
        };
        for (at, policy) in model.policies.clone().into_iter().enumerate() {
            // The last one has no blocks.
            let rule = RULES.get(if at == 8 { 3 } else { at % 3 });
            model.rules[at] = rule.copied();
            model.plans.push(plan(policy, rule));
        }
        model
    }

    /// Another rule for the blocks of a limit. Its blocks go on.
    fn change(&mut self, at: usize, rule: Rule) {
        if self.rules[at].is_some() {
            self.rules[at] = Some(rule);
            self.plans[at] = plan(self.policies[at], Some(&rule));
        }
    }

    fn state(&mut self, at: usize, key: u64) -> &mut (Vec<u64>, Naive) {
        let words = self.policies[at].words();
        let state = || (vec![0; words], Naive::default());
        self.states.entry((at, key)).or_insert_with(state)
    }

    /// The keys of these limits and behind them those of their blocks.
    fn keys(&self, asked: &[Asked]) -> Vec<Vec<u8>> {
        let blocks = asked.iter().filter(|part| self.rules[part.0].is_some());
        let names = asked.iter().map(|&(at, key, ..)| format!("{at}:{key}"));
        names
            .chain(blocks.map(|&(at, key, ..)| format!("block:{at}:{key}")))
            .map(String::into_bytes)
            .collect()
    }

    /// Holds the decisions of a reply to the oracle's, and makes them there. Returns whether the
    /// request was admitted.
    fn hold(&mut self, asked: &[Asked], found: &[call::Found], now: Nanos, takes: bool) -> bool {
        let micros = now.get() / 1_000;
        let (mut admitted, mut fits) = (true, Vec::new());
        for (&(at, key, cost, is_shadow), found) in asked.iter().zip(found) {
            let (policy, rule) = (self.policies[at], self.rules[at]);
            let (state, naive) = self.state(at, key);
            let own = policy.peek(state, now, cost);
            let blocked = naive.blocked_for(micros);
            let fit = own.is_allowed() && blocked.is_none();
            if let Some(rule) = rule
                && takes
                && blocked.is_none()
                && own.is_denied()
                && cost > 0
            {
                naive.denied(&rule, micros);
            }
            let left = naive
                .blocked_for(micros)
                .map(|left| Nanos::from_micros(left).get());
            let (told, _) = self.plans[at]
                .decision_on(found, now, (cost, takes))
                .expect("the value is a state");
            let what =
                format!("{policy} {key}, {cost} at {micros}: {told:?}, not {own:?} {left:?}");
            assert_eq!(told.is_allowed(), fit, "{what}");
            match left {
                None => assert_eq!(told, own, "{what}"),
                Some(_) if own.exceeds_limit() => assert!(told.exceeds_limit(), "{what}"),
                Some(left) => {
                    assert_eq!(told.reason(), Some(DenialReason::Blocked), "{what}");
                    let left = Duration::from_nanos(left);
                    assert_eq!(
                        told.retry_after(),
                        own.retry_after().max(Some(left)),
                        "{what}"
                    );
                    assert_eq!(told.remaining(), 0, "{what}");
                }
            }
            admitted &= fit || is_shadow;
            fits.push(fit);
        }
        if admitted && takes {
            for (&(at, key, cost, _), fit) in asked.iter().zip(fits) {
                let policy = self.policies[at];
                if fit && cost > 0 {
                    policy.record(&mut self.state(at, key).0, now, cost);
                }
            }
        }
        admitted
    }
}

fn plan(policy: Policy, rule: Option<&Rule>) -> Plan {
    let policy = rule.map_or(policy, |rule| policy.block_for(rule.penalty()));
    Plan::new(policy).expect("it can be shared")
}

#[test]
fn denials_block_keys_in_the_store_as_long_as_the_rule_says() {
    let mut bench = Bench::new(51);
    let scripts = &bench.scripts;
    let [joint, once, reserve, unblock, reset] = [
        &scripts.joint,
        &scripts.once,
        &scripts.reserve,
        &scripts.unblock,
        &scripts.reset,
    ]
    .map(std::sync::Arc::clone);
    let mut model = Model::new();
    let (mut admitted, mut blocked, mut unblocked) = (0, 0, 0);
    for turn in 0..least_steps() / 4 {
        bench.move_time(1_000_000);
        let first = bench.random.below(9) as usize;
        let count = 1 + bench.random.below(3) as usize;
        let mut asked: Vec<Asked> = (first..first + count)
            .map(|at| (at % 9, bench.random.below(2), bench.cost(6), false))
            .collect();
        let now = Nanos::from_micros(bench.now);
        let found = |plans: &[Plan], asked: &[Asked], reply, keys| {
            let (now, parts) = call::parse(reply, keys).expect("the reply is well formed");
            let plans: Vec<&Plan> = asked.iter().map(|part| &plans[part.0]).collect();
            let found =
                call::found(plans.into_iter(), parts).expect("the values are of these limits");
            (now, found)
        };
        let is_admitted = match bench.random.below(12) {
            0 => {
                let (at, key, ..) = asked[0];
                let keys = model.keys(&asked[..1]);
                if let Some(block) = keys.get(1) {
                    let reply = bench.reply(&unblock, std::slice::from_ref(block), &[]);
                    let naive = &mut model.state(at, key).1;
                    let was_blocked = naive.blocked_for(bench.now).is_some();
                    assert_eq!(reply, redis::Value::Int(was_blocked.into()), "turn {turn}");
                    *naive = Naive::default();
                    unblocked += usize::from(was_blocked);
                }
                continue;
            }
            1 => {
                let (at, key, ..) = asked[0];
                let mut keys = model.keys(&asked[..1]);
                keys.insert(1, b"reset".to_vec());
                bench.reply(&reset, &keys, &[]);
                model.states.remove(&(at, key));
                continue;
            }
            2 => {
                let rule = RULES[bench.random.below(3) as usize];
                model.change(first, rule);
                continue;
            }
            3 | 4 => {
                for part in &mut asked {
                    part.3 = bench.random.below(2) == 0;
                }
                let mut keys = model.keys(&asked);
                let of_limits = keys.len();
                keys.push(format!("once:{turn}").into_bytes());
                let plans = &model.plans;
                let parts = asked.iter().map(|part| (&plans[part.0], part.2, part.3));
                let arguments = call::once_arguments(parts, call::Keep::All);
                let reply = bench.reply(&once, &keys, &arguments);
                let (now, values) = found(&model.plans, &asked, reply, of_limits);
                let admitted = model.hold(&asked, &values, now, true);
                // The answer is kept, and the call repeated takes nothing and counts no denial.
                let again = bench.reply(&once, &keys, &arguments);
                let kept = call::word_bytes(&again).and_then(call::kept);
                let kept = kept.expect("the answer was kept");
                assert_eq!(kept.parts.len(), of_limits);
                admitted
            }
            5 | 6 => {
                let mut keys = model.keys(&asked);
                let of_limits = keys.len();
                keys.push(format!("record:{turn}").into_bytes());
                keys.extend([b"open".to_vec(), b"open".to_vec()]);
                let plans = &model.plans;
                let parts = asked.iter().map(|part| (&plans[part.0], part.2, part.3));
                let how = (&b"text"[..], Nanos::from_secs(60), 1_000_000);
                let arguments = call::reserve_arguments(parts, how, &format!("{turn:032x}"));
                let reply = bench.reply(&reserve, &keys, &arguments);
                let (now, values) = found(&model.plans, &asked, reply, of_limits);
                let admitted = model.hold(&asked, &values, now, true);
                let fields: usize = redis::cmd("HLEN")
                    .arg(&keys[of_limits])
                    .query(&mut bench.connection)
                    .expect("the server answers");
                // Three of the reservation, and the estimate of each limit.
                assert_eq!(fields, if admitted { 3 + asked.len() } else { 0 });
                admitted
            }
            step => {
                let takes = step < 11;
                let keys = model.keys(&asked);
                let plans = &model.plans;
                let parts = asked.iter().map(|part| (&plans[part.0], part.2));
                let arguments = call::joint_arguments(parts, takes);
                let reply = bench.reply(&joint, &keys, &arguments);
                let (now, values) = found(&model.plans, &asked, reply, keys.len());
                model.hold(&asked, &values, now, takes)
            }
        };
        admitted += usize::from(is_admitted);
        let is_blocked = |part: &Asked| {
            let naive = &model.states[&(part.0, part.1)].1;
            naive.blocked_for(now.get() / 1_000).is_some()
        };
        blocked += usize::from(asked.iter().any(is_blocked));
    }
    let least = least_steps() / 2_000;
    assert!(
        admitted > 40 * least && blocked > 40 * least && unblocked > least,
        "{admitted} admitted, {blocked} blocked, {unblocked} unblocked"
    );
}

#[test]
fn a_block_from_the_future_of_the_stores_clock_lasts_its_span_from_now() {
    let mut bench = Bench::new(52);
    let joint = bench.scripts.joint.after_step().clone();
    let policy = Policy::fixed_window(quota("1/1s")).block_for(RULES[0].penalty());
    let plan = Plan::new(policy).expect("it can be shared");
    let keys = [b"limit".to_vec(), b"block".to_vec()];
    let ask = |bench: &mut Bench| {
        let arguments = call::joint_arguments(std::iter::once((&plan, 2)), true);
        let (now, parts) = bench.call(&joint, &keys, &arguments);
        let found = call::found(std::iter::once(&plan), parts).expect("the values are its own");
        let (decision, _) = plan
            .decision_on(&found[0], now, (1, false))
            .expect("it is a state");
        decision
            .retry_after()
            .filter(|_| decision.reason() == Some(DenialReason::Blocked))
    };
    bench.set(START + 3_600_000_000);
    assert_eq!(ask(&mut bench), None);
    bench.set(START);
    let left = Some(Duration::from_micros(RULES[0].spans[0]));
    assert_eq!(ask(&mut bench), left);
}

#[test]
fn a_block_of_another_form_is_an_error_and_nothing_is_taken() {
    let mut bench = Bench::new(53);
    let joint = bench.scripts.joint.clone();
    let policy = Policy::fixed_window(quota("1/1s")).block_for(RULES[0].penalty());
    let plan = Plan::new(policy).expect("it can be shared");
    let keys = [b"limit".to_vec(), b"block".to_vec()];
    let ask = |bench: &mut Bench, cost| {
        let arguments = call::joint_arguments(std::iter::once((&plan, cost)), true);
        let (_, parts) = bench.call(&joint, &keys, &arguments);
        call::found(std::iter::once(&plan), parts)
    };
    let run = |bench: &mut Bench, command: &mut redis::Cmd| {
        let reply: redis::Value = command.query(&mut bench.connection).expect("it runs");
        reply
    };
    run(&mut bench, redis::cmd("SET").arg("block").arg("no block"));
    for cost in [1, 2] {
        assert_eq!(ask(&mut bench, cost), Err(StoreError::NotOurs));
    }
    run(&mut bench, redis::cmd("DEL").arg("block"));
    run(&mut bench, redis::cmd("LPUSH").arg("block").arg("x"));
    for cost in [1, 2] {
        assert_eq!(ask(&mut bench, cost), Err(StoreError::WrongType));
    }
    let exists = run(&mut bench, redis::cmd("EXISTS").arg("limit"));
    assert_eq!(exists, redis::Value::Int(0));
}
