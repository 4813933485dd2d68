//! Runs the scripts for reservations, `Policy::settle` and `Estimates` through the same random
//! steps, mixed with decisions, and compares the states.

use tidegate_core::Estimate;
use tidegate_limiter::Estimates;

use super::*;

/// A reservation in the model: the policy, the key and the estimates of each limit.
struct Known {
    parts: Vec<(usize, u64, Estimates)>,
    ttl: u64,
    due: u64,
    has_expired: bool,
    is_done: bool,
}

struct Model {
    bench: Bench,
    policies: Vec<Policy>,
    plans: Vec<Plan>,
    states: HashMap<(usize, u64), (Vec<u64>, Nanos)>,
    known: Vec<Known>,
}

fn key(at: usize, key: u64) -> Vec<u8> {
    format!("{at}:{key}").into_bytes()
}

impl Model {
    fn new(policies: Vec<Policy>, seed: u64) -> Self {
        let plans = policies
            .iter()
            .map(|policy| Plan::new(*policy).expect("it can be shared"))
            .collect();
        Self {
            bench: Bench::new(seed),
            policies,
            plans,
            states: HashMap::new(),
            known: Vec::new(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos::from_micros(self.bench.now)
    }

    fn state(&mut self, at: usize, key: u64) -> &mut (Vec<u64>, Nanos) {
        let words = self.policies[at].words();
        self.states
            .entry((at, key))
            .or_insert_with(|| (vec![0; words], Nanos::ZERO))
    }

    /// The keys and arguments of `reserve.lua`, or of an extension without a text.
    fn reserve(
        &mut self,
        id: usize,
        text: &[u8],
        ttl: u64,
        asked: &[(usize, u64, u64, bool)],
    ) -> redis::Value {
        let mut keys: Vec<_> = asked.iter().map(|&(at, of, ..)| key(at, of)).collect();
        keys.extend([
            format!("r:{id}").into_bytes(),
            b"open".to_vec(),
            b"open".to_vec(),
        ]);
        let parts = asked
            .iter()
            .map(|&(at, _, cost, is_shadow)| (&self.plans[at], cost, is_shadow));
        let arguments = call::reserve_arguments(
            parts,
            (text, Nanos::from_micros(ttl), 1_000_000),
            &format!("{id:032x}"),
        );
        let script = self.bench.scripts.reserve.clone();
        self.bench.reply(&script, &keys, &arguments)
    }

    /// Whether the units were taken, by the model. The reply must have the same decisions.
    fn hold_to_decisions(
        &mut self,
        reply: redis::Value,
        asked: &[(usize, u64, u64, bool)],
    ) -> Option<Vec<Estimate>> {
        let (now, found) = call::parse(reply, asked.len()).expect("the reply is well formed");
        let mut fits = Vec::new();
        for (&(at, of, cost, _), before) in asked.iter().zip(found) {
            let (policy, state) = (self.policies[at], self.state(at, of).0.clone());
            let expected = policy.peek(&state, now, cost);
            let Ok(before) = before else {
                panic!("{policy:?}: {before:?}")
            };
            let told =
                self.plans[at].decisions(before.as_deref(), now, &[cost], |_, decision, _| {
                    assert!(
                        same(&policy, cost, &decision, &expected),
                        "{policy:?}: {decision:?}, not {expected:?}"
                    );
                });
            told.expect("the value is a state");
            fits.push(expected.is_allowed());
        }
        let admitted = asked.iter().zip(&fits).all(|(part, fits)| *fits || part.3);
        admitted.then(|| {
            let taken = |(&(at, of, cost, _), fits): (&(usize, u64, u64, bool), bool)| {
                let cost = if fits { cost } else { 0 };
                let policy = self.policies[at];
                if cost > 0 {
                    policy.record(&mut self.state(at, of).0, now, cost);
                }
                Estimate {
                    cost,
                    taken: now,
                    place: 1,
                }
            };
            asked.iter().zip(fits).map(taken).collect()
        })
    }

    fn settle(&mut self, id: usize, actual: &[u64], expires: bool) -> redis::Value {
        let known = &self.known[id];
        let mut keys: Vec<_> = known
            .parts
            .iter()
            .map(|(at, of, _)| key(*at, *of))
            .collect();
        keys.extend((0..known.parts.len()).map(|at| format!("reset:{at}").into_bytes()));
        keys.extend([format!("r:{id}").into_bytes(), b"open".to_vec()]);
        let parts = known
            .parts
            .iter()
            .enumerate()
            .map(|(n, (at, ..))| (n, &self.plans[*at], actual[n], false));
        let arguments = call::correct_arguments(parts, expires, &format!("{id:032x}"));
        let script = self.bench.scripts.correct.clone();
        self.bench.reply(&script, &keys, &arguments)
    }

    /// Corrects the model's states.
    fn correct(&mut self, id: usize, actual: &[u64]) {
        let now = self.now();
        let parts: Vec<_> = self.known[id]
            .parts
            .iter_mut()
            .map(|(at, of, taken)| (*at, *of, std::mem::take(taken)))
            .collect();
        for ((at, of, taken), &actual) in parts.into_iter().zip(actual) {
            let policy = self.policies[at];
            let state = &mut self.state(at, of).0;
            // The script's log returns nothing while more counts than the limit.
            let is_over = policy.name() == "sliding-log" && policy.peek(state, now, 0).is_denied();
            let total = taken.cost();
            let actual = if is_over { actual.max(total) } else { actual };
            if taken == Estimates::default() || total == 0 {
                policy.charge(state, now, actual);
            } else {
                taken.settle(actual, |estimate, actual| {
                    policy.settle(state, now, estimate, actual);
                });
            }
        }
    }

    /// Compares all keys of a policy by a question of cost 0 and one of cost 1.
    fn hold_to_states(&mut self, step: usize) {
        let keys: Vec<_> = self.states.keys().copied().collect();
        for (at, of) in keys {
            let (policy, now) = (self.policies[at], self.now());
            let script = self.bench.scripts.batch(self.plans[at].kind()).clone();
            let asked = Batch {
                keys: vec![key(at, of)],
                costs: vec![0],
                counts: vec![1],
            };
            let (_, found) =
                self.bench
                    .call(&script, &asked.keys, &asked.arguments(&self.plans[at]));
            let Ok(before) = &found[0] else {
                panic!("{policy:?}: {found:?}")
            };
            let expected = policy.peek(&self.state(at, of).0.clone(), now, 0);
            self.plans[at]
                .decisions(before.as_deref(), now, &[0], |_, decision, _| {
                    assert!(
                        same(&policy, 0, &decision, &expected),
                        "step {step}, {policy:?}: {decision:?}, not {expected:?}"
                    );
                })
                .expect("the value is a state");
        }
    }

    fn run(&mut self, steps: usize) {
        let (mut returned, mut charged, mut denied, mut expired, mut extended) = (0, 0, 0, 0, 0);
        for step in 0..steps {
            let before = self.bench.now;
            self.bench.move_time(1_000_000);
            self.bench.set(self.bench.now.max(before));
            let recent = self
                .known
                .len()
                .saturating_sub(1 + self.bench.random.below(8) as usize);
            match self.bench.random.below(8) {
                0..=3 => {
                    let first = self.bench.random.below(self.policies.len() as u64) as usize;
                    let count = 1 + self.bench.random.below(3) as usize;
                    let asked: Vec<_> = (first..first + count)
                        .map(|at| at % self.policies.len())
                        .map(|at| {
                            (
                                at,
                                self.bench.random.below(2),
                                self.bench.cost(20),
                                self.bench.random.below(6) == 0,
                            )
                        })
                        .collect();
                    let ttl = 1 + self.bench.random.below(600_000);
                    let reply = self.reserve(self.known.len(), b"[]", ttl, &asked);
                    if let Some(taken) = self.hold_to_decisions(reply, &asked) {
                        let parts = asked
                            .iter()
                            .zip(taken)
                            .map(|(part, taken)| (part.0, part.1, taken.into()));
                        let due = self.bench.now + ttl;
                        self.known.push(Known {
                            parts: parts.collect(),
                            ttl,
                            due,
                            has_expired: false,
                            is_done: false,
                        });
                    } else {
                        denied += 1;
                    }
                }
                4 if !self.known.is_empty() => {
                    let (id, now) = (recent, self.bench.now);
                    let asked: Vec<_> = self.known[id]
                        .parts
                        .iter()
                        .map(|(at, of, _)| (*at, *of))
                        .collect();
                    let asked: Vec<_> = asked
                        .into_iter()
                        .map(|(at, of)| (at, of, self.bench.cost(9), false))
                        .collect();
                    let reply = self.reserve(id, b"", 0, &asked);
                    let known = &self.known[id];
                    if known.is_done || known.has_expired || now >= known.due {
                        assert_eq!(call::word(&reply), Some("ended"), "step {step}");
                    } else if let Some(taken) = self.hold_to_decisions(reply, &asked) {
                        let known = &mut self.known[id];
                        known.due = now + known.ttl;
                        known
                            .parts
                            .iter_mut()
                            .zip(taken)
                            .for_each(|(part, taken)| part.2.add(taken));
                        extended += 1;
                    }
                }
                5 | 6 if !self.known.is_empty() => {
                    let costs: Vec<u64> = self.known[recent]
                        .parts
                        .iter()
                        .map(|part| part.2.cost())
                        .collect();
                    let actual: Vec<u64> = costs
                        .iter()
                        .map(|&cost| match self.bench.random.below(4) {
                            0 => 0,
                            1 => self.bench.random.below(cost + 1),
                            2 => cost,
                            _ => cost + self.bench.random.below(30),
                        })
                        .collect();
                    let reply = self.settle(recent, &actual, false);
                    if self.known[recent].is_done {
                        assert_eq!(call::word(&reply), Some("done"), "step {step}");
                    } else {
                        assert!(call::list(reply).is_ok(), "step {step}");
                        returned += u32::from(
                            costs
                                .iter()
                                .zip(&actual)
                                .any(|(cost, actual)| actual < cost),
                        );
                        charged += u32::from(
                            costs
                                .iter()
                                .zip(&actual)
                                .any(|(cost, actual)| actual > cost),
                        );
                        self.correct(recent, &actual);
                        self.known[recent].is_done = true;
                    }
                }
                _ if !self.known.is_empty() => {
                    let none = vec![0; self.known[recent].parts.len()];
                    let reply = self.settle(recent, &none, true);
                    let known = &self.known[recent];
                    if known.is_done || known.has_expired || self.bench.now < known.due {
                        assert_eq!(call::word(&reply), Some("done"), "step {step}");
                    } else {
                        assert!(call::list(reply).is_ok(), "step {step}");
                        self.correct(recent, &none);
                        self.known[recent].has_expired = true;
                        expired += 1;
                    }
                }
                _ => {}
            }
            self.hold_to_states(step);
        }
        let least = steps / 100;
        let counts = [returned, charged, denied, expired, extended];
        assert!(
            counts.iter().all(|count| *count as usize > least),
            "{counts:?}"
        );
    }
}

#[test]
fn reservations_are_settled_as_the_algorithms_do() {
    let log = |text| Policy::sliding_log(quota(text)).expect("the log is short");
    let policies = vec![
        Policy::fixed_window(quota("40/1s")),
        calendar("fixed-window:time-zone=Europe/Berlin 40/day"),
        FixedWindow::new(quota("40/1s")).first_hit().into(),
        Policy::sliding_window(quota("40/1s")),
        SlidingWindow::new(quota("300/2s")).into(),
        Policy::sliding_counter(quota("40/1s")),
        Policy::token_bucket(quota("40/1s")),
        Policy::token_bucket(quota("7/300ms")),
        Policy::leaky_bucket(quota("40/1s")),
        log("40/1s"),
        log("200/1s"),
        calendar("fixed-window:burst=90 40/1s"),
        calendar("fixed-window:burst=90:first-hit 40/1s"),
        calendar("token-bucket:oversize-wait=1s 40/1s"),
        calendar("fixed-window:burst=40:oversize-wait=2s 40/1s"),
    ];
    Model::new(policies, 71).run(least_steps() / 5);
}

/// A stream that runs on for long: only 16 of its estimates keep their times.
#[test]
fn many_extensions_count_as_fewer_estimates() {
    let mut model = Model::new(
        vec![
            Policy::sliding_window(quota("1000/1s")),
            Policy::token_bucket(quota("1000/1h")),
        ],
        72,
    );
    let asked = [(0, 0, 10, false), (1, 0, 10, false)];
    let reply = model.reserve(0, b"[]", 60_000_000, &asked);
    let taken = model
        .hold_to_decisions(reply, &asked)
        .expect("there is room");
    let parts = asked
        .iter()
        .zip(taken)
        .map(|(part, taken)| (part.0, part.1, taken.into()))
        .collect();
    model.known.push(Known {
        parts,
        ttl: 60_000_000,
        due: u64::MAX,
        has_expired: false,
        is_done: false,
    });
    for _ in 0..40 {
        model.bench.now += 7_000;
        let reply = model.reserve(0, b"", 0, &asked);
        let taken = model
            .hold_to_decisions(reply, &asked)
            .expect("there is room");
        model.known[0]
            .parts
            .iter_mut()
            .zip(taken)
            .for_each(|(part, taken)| part.2.add(taken));
        model.hold_to_states(0);
    }
    let reply = model.settle(0, &[150, 15], false);
    assert_eq!(call::list(reply), Ok(vec![redis::Value::Int(410); 2]));
    model.correct(0, &[150, 15]);
    model.hold_to_states(1);
}
