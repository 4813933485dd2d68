//! One key with all of its writers: exact decisions, joint decisions, and nodes that take
//! allotments. No writer may undo what another one relies on, in particular the TTL, which most
//! writes leave unchanged.

use tidegate_core::Parameters;
use tidegate_core::lease::Terms;

use super::{allotments::Known, *};

/// How long a key outlives its meaning, in milliseconds: minimum and maximum.
const KEPT: (u64, u64) = (2_000, 6_000);

impl Bench {
    /// Makes one call for this key by a random kind of writer, and compares the decisions and
    /// grants with the algorithm's.
    pub(super) fn write(&mut self, terms: &Terms, plan: &Plan, key: &[u8], known: &mut Known) {
        let policy = terms.policy();
        known.state.resize(policy.words(), 0);
        let keys = [key.to_vec()];
        let lease = self.scripts.lease(plan.kind()).cloned();
        match (self.random.below(3), lease) {
            (0, Some(script)) => {
                let count = 1 + self.random.below(3);
                let requests: Vec<_> = (0..count)
                    .map(|_| self.request(terms, &mut known.out))
                    .collect();
                let counts = [requests.len() as u32].into_iter();
                let arguments = call::lease_arguments(plan, terms.mode(), requests.iter(), counts);
                let (now, found) = self.call(&script, &keys, &arguments);
                let grants = plan
                    .grants(terms, value(&found), now, requests.iter())
                    .expect("a state");
                for (request, grant) in requests.iter().zip(grants) {
                    assert_eq!(
                        grant,
                        known.grant(terms, now, request),
                        "{policy:?}, {now:?}, {request:?}"
                    );
                }
            }
            (1, _) => {
                let cost = self.cost(policy.limit());
                let arguments = call::joint_arguments([(plan, cost)].into_iter(), true);
                let script = std::sync::Arc::clone(&self.scripts.joint);
                let (now, found) = self.call(&script, &keys, &arguments);
                decided(plan, value(&found), now, &[cost], &mut known.state);
            }
            _ => {
                let costs: Vec<u64> = (0..=self.random.below(3))
                    .map(|_| self.cost(policy.limit()))
                    .collect();
                let counts = vec![costs.len() as u32];
                let batch = Batch {
                    keys: keys.to_vec(),
                    costs,
                    counts,
                };
                let script = std::sync::Arc::clone(self.scripts.batch(plan.kind()));
                let (now, found) = self.call(&script, &keys, &batch.arguments(plan));
                decided(plan, value(&found), now, &batch.costs, &mut known.state);
            }
        }
    }

    /// The server's time in microseconds.
    fn server_time(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME")
            .query(&mut self.connection)
            .expect("the server answers");
        seconds * 1_000_000 + micros
    }

    /// A key's value, and the range of its expiry time in milliseconds since the epoch.
    fn end_of(&mut self, key: &[u8]) -> Option<(Vec<u8>, std::ops::RangeInclusive<u64>)> {
        let script = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}";
        let from = self.server_time();
        let (value, left): (Option<Vec<u8>>, i64) = redis::cmd("EVAL")
            .arg(script)
            .arg(1)
            .arg(key)
            .query(&mut self.connection)
            .expect("the server answers");
        let to = self.server_time();
        let value = value?;
        let left = u64::try_from(left).expect("every key has an end");
        Some((value, from / 1_000 + left..=to.div_ceil(1_000) + left))
    }
}

fn value(found: &[Before]) -> Option<&[u8]> {
    match found {
        [Ok(value)] => value.as_deref(),
        _ => panic!("{found:?} is not the value of one key"),
    }
}

fn decided(plan: &Plan, before: Option<&[u8]>, now: Nanos, costs: &[u64], state: &mut [u64]) {
    plan.decisions(before, now, costs, |at, decision, _| {
        let expected = step(plan.policy(), state, &mut Nanos::default(), now, costs[at]);
        assert_eq!(
            decision,
            expected,
            "{:?}, {now:?}, {costs:?}, {before:?}",
            plan.policy()
        );
    })
    .expect("the value is a state");
}

fn policies() -> Vec<Policy> {
    let bucket = |text| TokenBucket::new(quota(text));
    vec![
        FixedWindow::new(quota("500/3s")).into(),
        FixedWindow::new(quota("50/1h")).first_hit().into(),
        SlidingWindow::new(quota("300/1h")).into(),
        SlidingWindow::new(quota("50/1s")).into(),
        SlidingWindow::new(quota("200/500us")).balanced().into(),
        Policy::sliding_counter(quota("500/1m")),
        Policy::sliding_counter(quota("50/50ms")),
        bucket("500/100s").into(),
        bucket("99991/1h")
            .burst(300)
            .expect("the burst fits")
            .into(),
        LeakyBucket::new(quota("7/10s")).into(),
        calendar("fixed-window:burst=900 500/3s"),
        calendar("fixed-window:burst=70:first-hit 50/1h"),
    ]
}

#[test]
fn every_writer_of_a_key_finds_what_the_others_wrote() {
    let mut bench = Bench::new(31);
    for policy in policies() {
        let terms = Terms::leased(policy, Nanos::from_millis(1)).without_large_costs();
        let plan = Plan::new(*terms.policy()).expect("the policy can be shared");
        let window = window_of(&policy);
        let mut all = [Known::default(), Known::default(), Known::default()];
        for turn in 0..least_steps() / 10 {
            let before = bench.now;
            bench.move_time(window);
            if bench.now < before {
                for known in &mut all {
                    known.out.clear();
                }
            }
            let at = turn % all.len();
            bench.write(
                &terms,
                &plan,
                format!("{policy:?}:{at}").as_bytes(),
                &mut all[at],
            );
        }
    }
}

#[test]
fn a_key_expires_two_to_six_seconds_after_its_value_means_nothing() {
    let mut bench = Bench::on(Scripts::new(), false, 32);
    for policy in policies() {
        let terms = Terms::leased(policy, Nanos::from_millis(1)).without_large_costs();
        let plan = Plan::new(*terms.policy()).expect("the policy can be shared");
        let lasts = match policy.parameters() {
            Parameters::FixedWindow { window, .. } => window,
            Parameters::SlidingWindow { slot, span, .. } => slot * u64::from(span),
            Parameters::SlidingCounter { window, .. } => 2 * window,
            _ => 0,
        };
        let mut all = [Known::default(), Known::default(), Known::default()];
        let mut checked = 0;
        for turn in 0..300 {
            let at = turn % all.len();
            let key = format!("{policy:?}:{at}").into_bytes();
            bench.write(&terms, &plan, &key, &mut all[at]);
            let now = Nanos::from_micros(bench.server_time());
            let Some((value, end)) = bench.end_of(&key) else {
                continue;
            };
            checked += 1;
            let mut head = [0; 8];
            head[..7].copy_from_slice(&value[..7]);
            let means_nothing = u64::from_le_bytes(head) / 1_000 + lasts / 1_000_000;
            assert!(
                *end.end() >= means_nothing + KEPT.0,
                "{policy:?}: {end:?}, {means_nothing}"
            );
            assert!(
                *end.start() <= means_nothing + KEPT.1 + 1,
                "{policy:?}: {end:?}, {means_nothing}"
            );
            // The algorithm agrees that the value means nothing by then.
            plan.decisions(Some(&value), now, &[0], |_, decision, _| {
                let fresh = now.get() / 1_000_000 + decision.reset_after_nanos() / 1_000_000;
                assert!(*end.end() >= fresh, "{policy:?}: {end:?}, {fresh}");
            })
            .expect("the value is a state");
        }
        assert!(checked > 0, "{policy:?}: nothing was written");
    }
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut bench.connection)
        .expect("it answers");
    assert!(
        stats.contains("cmdstat_setrange:"),
        "values are written in place: {stats}"
    );
    assert!(
        stats.contains("cmdstat_pexpireat:"),
        "also where only the end changes: {stats}"
    );
}

#[test]
fn a_key_does_not_expire_within_a_call() {
    // Otherwise a write in place would create a new key without a TTL.
    let mut bench = Bench::new(33);
    let script = "redis.call('SET', KEYS[1], 'a', 'PX', 1)
        local function time() local now = redis.call('TIME') return now[1] * 1000000 + now[2] end
        local start = time()
        repeat until time() > start + 10000
        local still = redis.call('MGET', KEYS[1])[1]
        redis.call('SETRANGE', KEYS[1], '0', 'b')
        return {still, redis.call('PTTL', KEYS[1])}";
    let (still, left): (String, i64) = redis::cmd("EVAL")
        .arg(script)
        .arg(1)
        .arg("brief")
        .query(&mut bench.connection)
        .expect("the server answers");
    assert!(still == "a" && left >= 0, "{still}, {left}");
    tidegate_redis_servers::eventually("the key has ended", || {
        let exists: bool = redis::cmd("EXISTS")
            .arg("brief")
            .query(&mut bench.connection)
            .expect("the server answers");
        !exists
    });
}
