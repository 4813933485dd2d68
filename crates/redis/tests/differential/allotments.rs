//! Runs the scripts for allotments and `Terms::serve` through the same random steps and compares
//! the grants.

use tidegate_core::lease::{GiveBack, Grant, Mode, Request, Terms};

use super::*;

const SLACK: Nanos = Nanos::from_millis(100);

fn leased(policy: impl Into<Policy>) -> Terms {
    let terms = Terms::leased(policy.into(), SLACK).without_large_costs();
    assert_eq!(terms.mode(), Mode::Leased, "{terms:?}");
    terms
}

fn reported(policy: impl Into<Policy>) -> Terms {
    let terms = Terms::reported(policy.into(), 10, SLACK);
    assert_eq!(terms.mode(), Mode::Reported, "{terms:?}");
    terms
}

/// The authority's step, with the state unchanged by denials.
fn step(terms: &Terms, state: &mut Vec<u64>, now: Nanos, request: &Request) -> Grant {
    let before = state.clone();
    let grant = terms.serve(state, now, request);
    if grant.decision.is_denied() && request.back.is_none() && request.spent == 0 {
        *state = before;
    }
    grant
}

/// The test's model of a key: the state, and the outstanding allotments with the times at which
/// they were taken.
#[derive(Default)]
pub(super) struct Known {
    pub state: Vec<u64>,
    pub out: Vec<GiveBack>,
}

impl Known {
    /// The grant by the terms. An allotment is recorded as outstanding.
    pub fn grant(&mut self, terms: &Terms, now: Nanos, request: &Request) -> Grant {
        let grant = step(terms, &mut self.state, now, request);
        if terms.mode() == Mode::Leased && grant.units > 0 {
            self.out.push(GiveBack {
                units: grant.units,
                taken: now,
            });
        }
        grant
    }
}

impl Bench {
    pub(super) fn request(&mut self, terms: &Terms, out: &mut Vec<GiveBack>) -> Request {
        let limit = terms.limit();
        let cost = self.cost(limit);
        let ahead = match self.random.below(4) {
            0 => 0,
            1 => u32::MAX,
            _ => u32::try_from(self.random.below(limit / 2 + 2)).unwrap_or(u32::MAX),
        };
        let mut request = Request {
            cost,
            ahead,
            back: None,
            spent: 0,
            sent: Nanos::ZERO,
        };
        if terms.mode() == Mode::Reported {
            if self.random.below(3) == 0 {
                request.spent = u32::try_from(self.cost(limit)).unwrap_or(u32::MAX);
            }
        } else if !out.is_empty() && self.random.below(3) > 0 {
            let at = self.random.below(out.len() as u64) as usize;
            let units = match self.random.below(3) {
                0 => self.random.below(u64::from(out[at].units)) as u32 + 1,
                _ => out[at].units,
            };
            request.back = Some(GiveBack { units, ..out[at] });
            out[at].units -= units;
            if out[at].units == 0 {
                out.swap_remove(at);
            }
        }
        request
    }
}

fn hold_to(all: Vec<Terms>, seed: u64) {
    let mut bench = Bench::new(seed);
    let rounds = least_steps().div_ceil(all.len());
    let (mut granted, mut returned, mut denied) = (0, 0, 0);
    for (at, terms) in all.into_iter().enumerate() {
        let plan = Plan::new(*terms.policy()).expect("the policy can be shared");
        let script = bench
            .scripts
            .lease(plan.kind())
            .expect("it can be leased")
            .clone();
        let window = window_of(terms.policy());
        let mut known: HashMap<Vec<u8>, Known> = HashMap::new();
        let (mut steps, mut era) = (0, 0);
        while steps < rounds {
            let before = bench.now;
            bench.move_time(window);
            if !(START / 2..2 * START).contains(&bench.now) {
                bench.set(START);
                era += 1;
                known.clear();
            }
            if bench.now < before {
                // Once a log's entry has expired and the newest entry is removed, the script no
                // longer knows the expired one, but the algorithm does. The results therefore
                // differ if a node gives back after the clock went back.
                for known in known.values_mut() {
                    known.out.clear();
                }
            }
            let (mut keys, mut requests) = (Vec::new(), Vec::new());
            let first = bench.random.below(4);
            for key in first..first + 1 + bench.random.below(6) {
                let key = format!("{at}:{era}:{key}").into_bytes();
                let out = &mut known.entry(key.clone()).or_default().out;
                let count = 1 + bench.random.below(4);
                requests.push(
                    (0..count)
                        .map(|_| bench.request(&terms, out))
                        .collect::<Vec<_>>(),
                );
                keys.push(key);
            }
            let counts = requests.iter().map(|requests| requests.len() as u32);
            let arguments =
                call::lease_arguments(&plan, terms.mode(), requests.iter().flatten(), counts);
            let (now, found) = bench.call(&script, &keys, &arguments);
            for ((key, before), requests) in keys.iter().zip(found).zip(&requests) {
                let Ok(before) = before else {
                    panic!("{terms:?}: {key:?} is wrong: {before:?}")
                };
                let grants = plan
                    .grants(&terms, before.as_deref(), now, requests.iter())
                    .unwrap_or_else(|| panic!("{terms:?}: {before:?} is not a state"));
                let known = known.get_mut(key).expect("every key is known");
                known.state.resize(terms.policy().words(), 0);
                for (request, grant) in requests.iter().zip(grants) {
                    let expected = known.grant(&terms, now, request);
                    let decision = same(
                        terms.policy(),
                        request.cost,
                        &grant.decision,
                        &expected.decision,
                    );
                    let rest = |of: &Grant| (of.usable_for, of.now);
                    assert!(
                        decision
                            && grant.units.abs_diff(expected.units) < 4
                            && rest(&grant) == rest(&expected),
                        "{grant:?}, not {expected:?}: {terms:?}, seed {seed}, step {steps}, {now:?}, {request:?} of {requests:?}, {before:?}"
                    );
                    granted += u64::from(grant.units);
                    denied += u32::from(grant.decision.is_denied());
                    returned += u32::from(request.back.is_some());
                    steps += 1;
                }
            }
        }
        let some = rounds as u32 / 50;
        let both = terms.mode() == Mode::Reported || returned > some;
        assert!(
            granted > 100 && denied > some && both,
            "{terms:?}: {granted}, {denied}, {returned}"
        );
    }
}

#[test]
fn the_fixed_window_script_serves_nodes_as_the_terms_do() {
    let of = |text| FixedWindow::new(quota(text));
    hold_to(
        vec![
            leased(of("50/1s")),
            leased(of("1000/1m").first_hit()),
            leased(of("900/7us")),
            leased(of("4294967295/366d")),
            leased(of("10_000_000_000/30d")),
            leased(of("9007199254740991/366d").first_hit()),
            leased(calendar("fixed-window:time-zone=Europe/Berlin 90/day")),
            leased(calendar("fixed-window:starts=31 70000/month")),
        ],
        11,
    );
    hold_to(vec![reported(calendar("fixed-window 50/year"))], 13);
    hold_to(
        vec![
            reported(of("50/1s")),
            reported(of("100/1m").first_hit()),
            reported(of("10_000_000_000/30d")),
        ],
        12,
    );
}

#[test]
fn the_script_of_windows_that_save_serves_nodes_as_the_terms_do() {
    let texts = [
        "fixed-window:burst=120 50/1s",
        "fixed-window:burst=2000:first-hit 1000/1m",
        "fixed-window:burst=900 900/7us",
        "fixed-window:burst=8000000000 4294967296/1h",
    ];
    hold_to(texts.map(|text| leased(calendar(text))).into(), 19);
    hold_to(texts.map(|text| reported(calendar(text))).into(), 20);
}

#[test]
fn the_sliding_window_script_serves_nodes_as_the_terms_do() {
    let of = |text| SlidingWindow::new(quota(text));
    let slots = |window: SlidingWindow, slots| window.slots(slots).expect("the slots make sense");
    let windows = || {
        [
            of("50/1s"),
            of("100/1m").balanced(),
            slots(of("255/1m"), 60),
            slots(of("256/10s"), 1),
            slots(of("70000/1h"), 360),
            of("4294967295/360d"),
            slots(of("70/70us"), 7),
        ]
    };
    hold_to(windows().map(leased).into(), 13);
    hold_to(windows().map(reported).into(), 14);
}

#[test]
fn the_sliding_counter_script_serves_nodes_as_the_terms_do() {
    let of = |text| Policy::sliding_counter(quota(text));
    let texts = [
        "50/1s",
        "100/2s",
        "1000000/1d",
        "4294967295/366d",
        "999983/365d",
        "300/7us",
    ];
    hold_to(texts.map(|text| leased(of(text))).into(), 15);
    hold_to(texts.map(|text| reported(of(text))).into(), 16);
}

#[test]
fn the_token_bucket_script_serves_nodes_as_the_terms_do() {
    let of = |text| TokenBucket::new(quota(text));
    let burst = |bucket: TokenBucket, burst| bucket.burst(burst).expect("the burst fits");
    let every = |nanos, burst| {
        TokenBucket::from_interval(Nanos::new(nanos), burst).expect("the burst fits")
    };
    let buckets = || {
        [
            of("500/1s"),
            of("700/1s"),
            burst(of("99991/1m"), 300),
            of("1000000007/1s"),
            burst(of("17/1s"), 70_000),
            every(1_500, 40),
            every(1, 1_000_000),
        ]
    };
    hold_to(buckets().map(leased).into(), 17);
    let slow = [
        of("5/1s"),
        burst(of("999983/1h"), 17),
        of("4294967291/366d"),
    ];
    hold_to(
        buckets().into_iter().chain(slow).map(reported).collect(),
        18,
    );
}

#[test]
fn the_sliding_log_script_serves_nodes_as_the_terms_do() {
    let of = |text| SlidingLog::new(quota(text)).expect("the log is not too long");
    let logs = || {
        [
            of("50/1s"),
            of("40/2s").closed(),
            of("128/1m"),
            of("129/1m"),
            of("500/10s").closed(),
            of("5000/1h"),
            of("50/1234567891ns"),
        ]
    };
    hold_to(logs().map(leased).into(), 19);
    hold_to(logs().map(reported).into(), 20);
}

#[test]
fn a_call_that_gives_back_and_arrives_twice_gives_back_once() {
    let window = leased(Policy::sliding_window(quota("100/1h")));
    let log = leased(Policy::sliding_log(quota("100/1h")).expect("the log is short"));
    for terms in [window, log] {
        let mut bench = Bench::new(21);
        let plan = Plan::new(*terms.policy()).expect("the policy can be shared");
        let script = bench
            .scripts
            .lease(plan.kind())
            .expect("it can be leased")
            .clone();
        let arguments = |request: &Request| {
            call::lease_arguments(
                &plan,
                terms.mode(),
                std::iter::once(request),
                std::iter::once(1),
            )
        };
        let ask = |cost, back| Request {
            cost,
            ahead: 0,
            back,
            spent: 0,
            sent: Nanos::ZERO,
        };
        let (key, once) = (b"k".to_vec(), b"once".to_vec());
        let taken = Nanos::from_micros(bench.now);
        for cost in [60, 40] {
            bench.call(
                &script,
                std::slice::from_ref(&key),
                &arguments(&ask(cost, None)),
            );
        }
        let back = ask(0, Some(GiveBack { units: 10, taken }));
        let both = [key.clone(), once];
        let given = bench.reply(&script, &both, &arguments(&back));
        call::parse(given, 1).expect("the first is as any");
        let command = [
            &arguments(&back)[..],
            &[format!("{:016}", bench.now).into_bytes()],
        ]
        .concat();
        let repeated: Result<redis::Value, _> =
            call::command(&script, false, &both, &command).query(&mut bench.connection);
        assert_eq!(
            repeated.expect_err("it is refused").code(),
            Some("REPEATED")
        );
        let (now, found) = bench.call(&script, &[key], &arguments(&ask(0, None)));
        let [Ok(value)] = &found[..] else {
            panic!("{found:?}")
        };
        let grants = plan
            .grants(&terms, value.as_deref(), now, [ask(0, None)].iter())
            .expect("it is a state");
        assert_eq!(grants[0].decision.remaining(), 10, "{terms:?}");
    }
}
