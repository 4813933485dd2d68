//! Runs each script and its algorithm through the same random steps on a real server and compares
//! the decisions.
#![cfg(feature = "servers")]

mod allotments;
mod blocks;
mod changes;
mod charges;
mod clock_steps;
mod holders;
mod lines;
mod lives;
mod quick;
mod refunds;
mod reservations;
mod shares;
mod up_to;
mod versions;
mod writers;

use std::{collections::HashMap, time::Duration};

use redis::Connection;
use tidegate_core::{
    Algorithm, Decision, Nanos, Policy, Quota,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};
use tidegate_redis::{
    Plan, StoreError,
    internals::{
        Script, Scripts,
        call::{self, Batch, Before},
    },
};
use tidegate_redis_servers::Server;

/// The minimum number of steps per algorithm: `TIDEGATE_STEPS`, or 20,000.
fn least_steps() -> usize {
    std::env::var("TIDEGATE_STEPS").map_or(20_000, |steps| {
        steps.parse().expect("TIDEGATE_STEPS is a number")
    })
}

/// The start of the test's time, in microseconds: close to today and not a round number.
const START: u64 = 1_763_000_000_123_457;

/// A random generator with only a seed (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

struct Bench {
    _server: Server,
    connection: Connection,
    scripts: Scripts,
    random: Random,
    /// The test's time, in microseconds.
    now: u64,
    /// Whether the scripts use the test's time instead of the server's.
    manual: bool,
}

impl Bench {
    fn new(seed: u64) -> Self {
        Self::on(Scripts::on_manual_clock(), true, seed)
    }

    fn on(scripts: Scripts, manual: bool, seed: u64) -> Self {
        let server = Server::start(&[]);
        let client = redis::Client::open(server.address()).expect("the address is well formed");
        let connection = client.get_connection().expect("the server answers");
        Self {
            _server: server,
            connection,
            scripts,
            random: Random(seed),
            now: START,
            manual,
        }
    }

    fn call(
        &mut self,
        script: &Script,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> (Nanos, Vec<Before>) {
        call::parse(self.reply(script, keys, arguments), keys.len())
            .expect("the script's reply is well formed")
    }

    fn reply(&mut self, script: &Script, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> redis::Value {
        let mut arguments = arguments.to_vec();
        if self.manual {
            arguments.push(format!("{:016}", self.now).into_bytes());
        }
        match call::command(script, false, keys, &arguments).query(&mut self.connection) {
            Ok(reply) => reply,
            Err(_) => call::command(script, true, keys, &arguments)
                .query(&mut self.connection)
                .expect("the script runs"),
        }
    }

    /// Leaves the time as it is, moves it a little, jumps, or goes back; `window` in microseconds.
    fn move_time(&mut self, window: u64) {
        let far = match self.random.below(20) {
            0..=5 => 0,
            6..=9 => self.random.below(window / 50 + 3),
            10..=16 => self.random.below(window / 4 + 3),
            17 => self.random.below(window * 3),
            // To the exact edge of a window.
            18 => window - self.now % window,
            _ => {
                self.now = self.now.saturating_sub(self.random.below(window * 2));
                0
            }
        };
        self.set(self.now + far);
    }

    fn set(&mut self, now: u64) {
        self.now = now;
        tidegate_redis::internals::TEST_TIME.set(Some(now));
    }

    fn cost(&mut self, limit: u64) -> u64 {
        match self.random.below(12) {
            0 => 0,
            1 => limit,
            2 => limit + 1 + self.random.below(5),
            3..=5 => self.random.below(limit / 2 + 2),
            6 => self.random.below(limit * 2),
            _ => 1 + self.random.below(limit / 8 + 1),
        }
    }
}

/// Keys of other programs, and what the scripts say of them.
const OTHERS: [(&str, StoreError); 2] = [
    ("a list", StoreError::WrongType),
    ("a text", StoreError::NotOurs),
];

/// Runs the same steps through a script and the algorithm. Some keys of a batch have no value yet,
/// and some are of other programs.
fn hold_to(policies: Vec<Policy>, seed: u64) {
    let mut bench = Bench::new(seed);
    redis::cmd("RPUSH")
        .arg(OTHERS[0].0)
        .arg("an element")
        .exec(&mut bench.connection)
        .expect("a list is made");
    redis::cmd("SET")
        .arg(OTHERS[1].0)
        .arg("text")
        .exec(&mut bench.connection)
        .expect("a text is written");
    let rounds = least_steps().div_ceil(policies.len());
    for (at, policy) in policies.into_iter().enumerate() {
        let plan = Plan::new(policy).expect("the policy can be shared");
        let script = std::sync::Arc::clone(bench.scripts.batch(plan.kind()));
        let window = window_of(&policy);
        let mut states: HashMap<Vec<u8>, (Vec<u64>, Nanos)> = HashMap::new();
        let (mut steps, mut era) = (0, 0);
        while steps < rounds {
            bench.move_time(window);
            if !(START / 2..2 * START).contains(&bench.now) {
                // With long windows the time has come close to the maximum of `Nanos`. Start again
                // with other keys.
                bench.set(START);
                era += 1;
                states.clear();
            }
            let mut batch = Batch::default();
            let first = bench.random.below(3);
            let same = bench.random.below(2) == 0;
            let usual = bench.cost(policy.limit());
            for key in first..first + 1 + bench.random.below(3) {
                let name = match bench.random.below(8) {
                    0 => format!("{at}:{era}:{key}, new at {steps}"),
                    1 if !plan.is_log() => OTHERS[bench.random.below(2) as usize].0.into(),
                    _ => format!("{at}:{era}:{key}"),
                };
                if batch.keys.contains(&name.clone().into_bytes()) {
                    continue;
                }
                batch.keys.push(name.into_bytes());
                let count = if same { 1 } else { bench.random.below(4) };
                for _ in 0..count {
                    let cost = if same {
                        usual
                    } else {
                        bench.cost(policy.limit())
                    };
                    batch.costs.push(cost);
                }
                batch.counts.push(count as u32);
            }
            if batch.costs.is_empty() {
                continue;
            }
            let (now, found) = bench.call(&script, &batch.keys, &batch.arguments(&plan));
            assert_eq!(now, Nanos::from_micros(bench.now));
            let mut costs = batch.costs.iter();
            for ((key, before), &count) in batch.keys.iter().zip(found).zip(&batch.counts) {
                let costs: Vec<u64> = costs.by_ref().take(count as usize).copied().collect();
                let other = OTHERS.iter().find(|(name, _)| name.as_bytes() == key);
                let before = match (before, other) {
                    (Ok(before), None) => before,
                    (Err(error), Some((_, said))) if error == *said => continue,
                    // Only a write shows that it is a list.
                    (Ok(None), Some((_, StoreError::WrongType))) => {
                        let unused = vec![0; policy.words()];
                        let admits =
                            |&cost: &u64| cost > 0 && policy.peek(&unused, now, cost).is_allowed();
                        assert!(!costs.iter().any(admits), "{policy:?}: {costs:?}");
                        continue;
                    }
                    (before, _) => panic!("{policy:?}: {key:?} is wrong: {before:?}"),
                };
                let mut decisions = Vec::new();
                plan.decisions(before.as_deref(), now, &costs, |_, decision, _| {
                    decisions.push(decision);
                })
                .unwrap_or_else(|| {
                    panic!("{policy:?}: {before:?} is no state, at {now:?} for {costs:?}")
                });
                let (state, last) = states
                    .entry(key.clone())
                    .or_insert_with(|| (vec![0; policy.words()], Nanos::ZERO));
                let expected: Vec<Decision> = costs
                    .iter()
                    .map(|&cost| step(&policy, state, last, now, cost))
                    .collect();
                let is_same =
                    decisions.len() == expected.len()
                        && decisions.iter().zip(&expected).zip(&costs).all(
                            |((store, core), &cost)| {
                                if policy.waits_for_oversize() {
                                    self::same(&policy, cost, store, core)
                                } else {
                                    store == core
                                }
                            },
                        );
                assert!(
                    is_same,
                    "{decisions:?} for {expected:?}, {policy:?}, seed {seed}, step {steps}, {now:?}, {costs:?}"
                );
                steps += costs.len();
            }
        }
    }
}

/// The algorithm's decision, with the state unchanged by denials. `last` is the newest moment of an
/// admission for the key.
fn step(policy: &Policy, state: &mut [u64], last: &mut Nanos, now: Nanos, cost: u64) -> Decision {
    let decision = policy.peek(state, now, cost);
    if cost > 0 && decision.is_allowed() {
        policy.record(state, moment(policy, last, now), cost);
    }
    decision
}

/// Whether two decisions are the same. A bucket in `tidegate-core` that owes more than it holds may
/// count a nanosecond more for each charge, and a log may wait longer for a cost of 0.
fn same(policy: &Policy, cost: u64, store: &Decision, core: &Decision) -> bool {
    let near = |a: Duration, b: Duration| a.abs_diff(b) < Duration::from_micros(1);
    match policy.name() {
        "sliding-log" if cost == 0 && core.is_denied() => true,
        "token-bucket" => {
            let waits = [store, core].map(|decision| decision.retry_after().unwrap_or_default());
            store.is_allowed() == core.is_allowed()
                && store.remaining().abs_diff(core.remaining()) < 4
                && near(store.reset_after(), core.reset_after())
                && near(waits[0], waits[1])
        }
        _ => store == core,
    }
}

/// The moment of an admission: each holder of permits gets a unique one.
fn moment(policy: &Policy, last: &mut Nanos, now: Nanos) -> Nanos {
    if policy.name() != "concurrency" {
        return now;
    }
    *last = now.max(last.saturating_add(Nanos::from_micros(1)));
    *last
}

fn window_of(policy: &Policy) -> u64 {
    use tidegate_core::Parameters as P;
    let nanos = match policy.parameters() {
        P::FixedWindow { window, .. }
        | P::SavingWindow { window, .. }
        | P::SlidingWindow { window, .. }
        | P::SlidingCounter { window, .. } => window,
        P::SlidingLog { lifetime, .. } => lifetime,
        P::TokenBucket {
            burst, step, parts, ..
        } => (u128::from(burst) * u128::from(step) / u128::from(parts)) as u64,
        P::LeakyBucket { max_wait, .. } => max_wait,
        P::CalendarWindow { calendar, .. } => calendar.longest(),
        P::Concurrency { hold, .. } => hold.unwrap_or_default(),
        _ => 1_000_000,
    };
    (nanos / 1_000).max(10)
}

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

#[test]
fn the_fixed_window_script_decides_as_the_algorithm_does() {
    let of = |text| FixedWindow::new(quota(text));
    hold_to(
        vec![
            of("5/1s").into(),
            of("100/1m").first_hit().into(),
            of("1/7us").into(),
            of("4294967295/366d").into(),
            of("4294967296/1h").into(),
            of("10_000_000_000/30d").first_hit().into(),
            of("9007199254740991/366d").into(),
            of("0/1s").into(),
            of("3/333333us").first_hit().into(),
        ],
        1,
    );
}

/// Windows that save what is left, and of some also costs above the limit that wait.
fn saving_windows() -> Vec<Policy> {
    [
        "fixed-window:burst=12 5/1s",
        "fixed-window:burst=5 5/1s",
        "fixed-window:burst=3 5/1s",
        "fixed-window:burst=250:first-hit 100/1m",
        "fixed-window:burst=4:first-hit 3/333333us",
        "fixed-window:burst=40 1/7us",
        "fixed-window:burst=8000000000 4294967296/1h",
        "fixed-window:burst=20 0/1s",
    ]
    .map(calendar)
    .into()
}

fn oversize_waits() -> Vec<Policy> {
    [
        "fixed-window:burst=12:oversize-wait=2s 5/1s",
        "fixed-window:burst=5:oversize-wait=10s:first-hit 5/1s",
        "token-bucket:oversize-wait=3s 5/1s",
        "token-bucket:oversize-wait=2s 7/1s",
        "token-bucket:burst=300:oversize-wait=1h 100/1m",
        "token-bucket:burst=40:oversize-wait=1m 999983/1h",
    ]
    .map(calendar)
    .into()
}

#[test]
fn the_script_of_windows_that_save_decides_as_the_algorithm_does() {
    hold_to(saving_windows(), 81);
}

#[test]
fn the_scripts_let_costs_above_the_limit_wait_as_the_algorithms_do() {
    hold_to(oversize_waits(), 82);
}

fn calendar(text: &str) -> Policy {
    text.parse().expect("the policy is well formed")
}

/// Periods of each kind, with two changes of the clocks a year and months of all lengths.
fn calendars() -> Vec<Policy> {
    [
        "fixed-window:time-zone=Europe/Berlin 5/day",
        "fixed-window:calendar 70/week",
        "fixed-window:starts=31:time-zone=America/Sao_Paulo 100/month",
        "fixed-window 4294967295/year",
        "fixed-window 10_000_000_000/month",
    ]
    .map(calendar)
    .into()
}

#[test]
fn the_script_follows_a_calendar_as_the_algorithm_does() {
    hold_to(calendars(), 9);
}

/// Counts of one, two and four bytes, with few and many slots.
fn sliding_windows() -> Vec<Policy> {
    let of = |text| SlidingWindow::new(quota(text));
    let slots =
        |window: SlidingWindow, slots| window.slots(slots).expect("the slots make sense").into();
    vec![
        of("5/1s").into(),
        of("100/1m").balanced().into(),
        slots(of("255/1m"), 60),
        slots(of("256/10s"), 1),
        slots(of("70000/1h"), 3_600),
        of("4294967295/360d").into(),
    ]
}

#[test]
fn the_sliding_window_script_decides_as_the_algorithm_does() {
    let short = SlidingWindow::new(quota("7/70us"))
        .slots(7)
        .expect("the slots make sense")
        .into();
    hold_to(
        [
            sliding_windows(),
            vec![short, Policy::sliding_window(quota("0/1s"))],
        ]
        .concat(),
        2,
    );
}

#[test]
fn the_sliding_counter_script_decides_as_the_algorithm_does() {
    let of = |text| Policy::sliding_counter(quota(text));
    let policies = [
        "5/1s",
        "100/2s",
        "1000000/1d",
        "4294967295/366d",
        "999983/365d",
        "3/7us",
        "0/1s",
    ];
    hold_to(policies.map(of).into(), 3);
}

#[test]
fn the_token_bucket_script_decides_as_the_algorithm_does() {
    let of = |text| TokenBucket::new(quota(text));
    let burst = |bucket: TokenBucket, burst| bucket.burst(burst).expect("the burst fits").into();
    let every = |nanos, burst| {
        TokenBucket::from_interval(Nanos::new(nanos), burst)
            .expect("the burst fits")
            .into()
    };
    hold_to(
        vec![
            of("5/1s").into(),
            of("7/1s").into(),
            burst(of("100/1m"), 300),
            burst(of("999983/1h"), 17),
            of("4294967291/366d").into(),
            of("1000000007/1s").into(),
            burst(of("3/1d"), 70_000),
            every(1_500, 40),
            every(1, 1_000_000),
            burst(of("5/1s"), 0),
        ],
        4,
    );
}

#[test]
fn the_leaky_bucket_script_decides_as_the_algorithm_does() {
    let of = |text| LeakyBucket::new(quota(text));
    let wait = |bucket: LeakyBucket, nanos| {
        bucket
            .max_wait(Duration::from_nanos(nanos))
            .expect("the wait is short")
            .into()
    };
    hold_to(
        vec![
            of("5/1s").into(),
            of("7/1s").into(),
            wait(of("9/1s"), 0),
            wait(of("100/1m"), 1_234_567_891),
            of("4294967291/366d").into(),
            wait(of("3000/1s"), 999),
            of("0/1s").into(),
        ],
        5,
    );
}

#[test]
fn the_sliding_log_scripts_decide_as_the_algorithm_does() {
    let of = |text| SlidingLog::new(quota(text)).expect("the log is not too long");
    hold_to(
        vec![
            of("2/1s").into(),
            of("2/1s").closed().into(),
            of("128/1m").into(),
            of("129/1m").into(),
            of("129/1m").closed().into(),
            of("1000/10s").into(),
            of("5000/1h").into(),
            of("5/1234567891ns").into(),
            of("0/1s").into(),
        ],
        6,
    );
}

#[test]
fn the_permit_script_decides_as_the_algorithm_does() {
    let of = |limit, hold| {
        Concurrency::new(limit)
            .hold(Duration::from_millis(hold))
            .expect("the hold is short")
            .into()
    };
    hold_to(
        vec![of(1, 10), of(5, 1_000), of(300, 60_000), of(0, 1_000)],
        7,
    );
}

#[test]
fn the_joint_script_takes_all_or_nothing_as_the_algorithms_would() {
    let policies: Vec<Policy> = vec![
        Policy::fixed_window(quota("20/1s")),
        calendar("fixed-window 20/month"),
        Policy::sliding_window(quota("20/1s")),
        Policy::sliding_counter(quota("20/1s")),
        Policy::token_bucket(quota("7/300ms")),
        Policy::leaky_bucket(quota("20/1s")),
        Policy::sliding_log(quota("20/1s")).expect("the log is short"),
        Policy::sliding_log(quota("200/10s")).expect("the log is short"),
        Concurrency::new(9)
            .hold(Duration::from_millis(300))
            .expect("the hold is short")
            .into(),
    ];
    let plans: Vec<Plan> = policies
        .iter()
        .map(|policy| Plan::new(*policy).expect("it can be shared"))
        .collect();
    let mut bench = Bench::new(8);
    let script = std::sync::Arc::clone(&bench.scripts.joint);
    let mut states: HashMap<(usize, u64), (Vec<u64>, Nanos)> = HashMap::new();
    let (mut admitted, mut denied) = (0, 0);
    for turn in 0..least_steps() / 4 {
        bench.move_time(300_000);
        let first = bench.random.below(9) as usize;
        let count = 1 + bench.random.below(5) as usize;
        let wanted: Vec<(usize, u64, u64)> = (first..first + count)
            .map(|at| (at % plans.len(), bench.random.below(2), bench.cost(8)))
            .collect();
        let keys: Vec<Vec<u8>> = wanted
            .iter()
            .map(|(at, key, _)| format!("{at}:{key}").into_bytes())
            .collect();
        let takes = bench.random.below(4) > 0;
        let parts = wanted.iter().map(|&(at, _, cost)| (&plans[at], cost));
        let (now, found) = bench.call(&script, &keys, &call::joint_arguments(parts, takes));
        let mut expected = Vec::new();
        for &(at, key, cost) in &wanted {
            let (state, _) = states
                .entry((at, key))
                .or_insert_with(|| (vec![0; policies[at].words()], Nanos::ZERO));
            expected.push(policies[at].peek(state, now, cost));
        }
        let all = expected.iter().all(Decision::is_allowed);
        for (&(at, key, cost), (before, expected)) in wanted.iter().zip(found.iter().zip(&expected))
        {
            let Ok(before) = before else {
                panic!("key {key} of {at} is wrong: {before:?}")
            };
            plans[at]
                .decisions(before.as_deref(), now, &[cost], |_, decision, _| {
                    assert_eq!(
                        decision, *expected,
                        "turn {turn}, {:?}, {cost}",
                        policies[at]
                    );
                })
                .expect("the value is a state");
            if all && takes && cost > 0 {
                let (state, last) = states.entry((at, key)).or_default();
                policies[at].record(state, moment(&policies[at], last, now), cost);
            }
        }
        *if all { &mut admitted } else { &mut denied } += 1;
    }
    assert!(
        admitted > least_steps() / 20 && denied > least_steps() / 20,
        "{admitted} admitted, {denied} denied"
    );
}

#[test]
fn a_packed_reply_is_parsed_and_an_invalid_one_refused() {
    let mut packed = 5_000_000_u64.to_le_bytes().to_vec();
    packed.extend([2, 0, 0, 0]);
    packed.extend(*b"aabb\0\0\0\0");
    packed.extend([2, 0, 0, 0, 1, 3, 0, 0, 0, 0]);
    let read = |packed: &[u8], keys| call::parse(redis::Value::BulkString(packed.to_vec()), keys);
    let (now, found) = read(&packed, 4).expect("it is well formed");
    assert_eq!(now, Nanos::from_micros(5_000_000));
    assert!(
        matches!(&found[0], Ok(Some(value)) if value == b"aa"),
        "{found:?}"
    );
    assert!(
        matches!(found[2..], [Err(StoreError::WrongType), Ok(None)]),
        "{found:?}"
    );
    for keys in [0, 3, 5, usize::MAX] {
        assert!(read(&packed, keys).is_err(), "{keys} keys");
    }
    for length in 0..20 {
        assert!(read(&packed[..length], 4).is_err(), "{length} bytes");
    }
    packed[20] = 4;
    assert!(read(&packed, 4).is_err(), "a key that was not in the call");
}
