//! Every short life of a reservation in the store, with the real scripts: servers settle, extend,
//! cancel and expire it in every order, ask too early, too late and again, as after a lost answer,
//! while other callers take units. A plain list says what must count. The scripts without one of
//! their guards are caught.

use std::sync::Arc;

use super::*;

const TTL: u64 = 60_000_000;
/// The estimate of each limit of units, and what other callers take first.
const HELD: u64 = 30;
const MORE: u64 = 5;
const OTHERS: u64 = 20;
const LIMIT: u64 = 100;

/// What a server does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Settle(u64),
    Extend,
    /// A server ends the reservation, because it was due.
    Expire,
    /// The time to live passes.
    Pass,
    /// A caller takes 30 units without a reservation.
    Take,
    /// The answer to the reservation was lost, so a cluster's client sends it again.
    Reserve,
}

use Step::{Expire, Extend, Pass, Reserve, Settle, Take};

const STEPS: [Step; 8] = [
    Settle(0),
    Settle(10),
    Settle(45),
    Extend,
    Expire,
    Pass,
    Take,
    Reserve,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Open,
    Expired,
    Done,
}

/// What must count: units of a limit that keeps, of one that releases, and permits.
struct Expected {
    status: Status,
    due: u64,
    held: u64,
    counts: [u64; 3],
}

struct Lives {
    bench: Bench,
    plans: [Plan; 3],
    reserve: Arc<Script>,
    correct: Arc<Script>,
    life: u64,
}

impl Lives {
    /// With these texts of the scripts replaced.
    fn new(without: Option<(&str, &str)>) -> Self {
        let bench = Bench::new(81);
        let units = Policy::fixed_window(quota(&format!("{LIMIT}/366d")));
        let permits = Concurrency::new(5)
            .hold(Duration::from_hours(1))
            .expect("the hold is short")
            .into();
        let plans =
            [units, units, permits].map(|policy| Plan::new(policy).expect("it can be shared"));
        let mut scripts = [
            Arc::clone(&bench.scripts.reserve),
            Arc::clone(&bench.scripts.correct),
        ];
        if let Some((guard, instead)) = without {
            let script = scripts
                .iter_mut()
                .find(|script| script.text.contains(guard));
            let script = script.expect("a script has the guard");
            *script = Arc::new(Script::new(script.text.replacen(guard, instead, 1)));
        }
        let [reserve, correct] = scripts;
        Self {
            bench,
            plans,
            reserve,
            correct,
            life: 0,
        }
    }

    fn key(&self, at: usize) -> Vec<u8> {
        format!("{}:{at}", self.life).into_bytes()
    }

    fn id(&self) -> String {
        format!("{:032x}", self.life)
    }

    /// Takes a permit and this many units of each limit by `reserve.lua`. Returns the word in the
    /// reply, or whether all were admitted.
    fn take_for(&mut self, text: &[u8], cost: u64, permits: u64) -> Result<bool, String> {
        let costs = [cost, cost, permits];
        let mut keys: Vec<_> = (0..3).map(|at| self.key(at)).collect();
        keys.extend([
            format!("r:{}", self.life).into_bytes(),
            b"open".to_vec(),
            b"open".to_vec(),
        ]);
        let parts = self
            .plans
            .iter()
            .zip(costs)
            .map(|(plan, cost)| (plan, cost, false));
        let arguments = call::reserve_arguments(
            parts,
            (text, Nanos::from_micros(TTL), 1_000_000),
            &self.id(),
        );
        let script = Arc::clone(&self.reserve);
        let reply = self.bench.reply(&script, &keys, &arguments);
        if let Some(word) = call::word(&reply) {
            return Err(word.to_owned());
        }
        let (now, found) = call::parse(reply, 3).expect("the reply is well formed");
        let mut admitted = true;
        for ((plan, cost), before) in self.plans.iter().zip(costs).zip(found) {
            let Ok(before) = before else {
                panic!("{before:?}")
            };
            let told = plan.decisions(before.as_deref(), now, &[cost], |_, decision, _| {
                admitted &= decision.is_allowed();
            });
            told.expect("the value is a state");
        }
        Ok(admitted)
    }

    /// Corrects the limits by `correct.lua`; an expiry only those that release. Returns whether it
    /// did.
    fn correct(&mut self, actual: u64, expires: bool) -> bool {
        let first = usize::from(expires);
        let mut keys: Vec<_> = (first..3).map(|at| self.key(at)).collect();
        keys.extend((first..3).map(|at| format!("reset:{at}").into_bytes()));
        keys.extend([format!("r:{}", self.life).into_bytes(), b"open".to_vec()]);
        let parts =
            (first..3).map(|at| (at, &self.plans[at], if at == 2 { 0 } else { actual }, false));
        let arguments = call::correct_arguments(parts, expires, &self.id());
        let script = Arc::clone(&self.correct);
        let reply = self.bench.reply(&script, &keys, &arguments);
        call::word(&reply).is_none()
    }

    /// The units in use of a limit, after a caller has asked for `cost`.
    fn used_after(&mut self, at: usize, cost: u64) -> u64 {
        let plan = self.plans[at].clone();
        let script = Arc::clone(self.bench.scripts.batch(plan.kind()));
        let mut asked = Batch {
            keys: vec![self.key(at)],
            costs: vec![cost],
            counts: vec![1],
        };
        if cost > 0 {
            let _ = self
                .bench
                .call(&script, &asked.keys, &asked.arguments(&plan));
            asked.costs = vec![0];
        }
        let (now, found) = self
            .bench
            .call(&script, &asked.keys, &asked.arguments(&plan));
        let Ok(before) = &found[0] else {
            panic!("{found:?}")
        };
        let mut used = 0;
        let told = plan.decisions(before.as_deref(), now, &[0], |_, decision, _| {
            used = decision.limit() - decision.remaining();
        });
        told.expect("the value is a state");
        used
    }

    /// Plays one life. Returns what is wrong.
    fn play(&mut self, steps: &[Step]) -> Result<(), String> {
        self.life += 1;
        self.bench.set(START);
        for (at, cost) in [OTHERS, OTHERS, 1].into_iter().enumerate() {
            self.used_after(at, cost);
        }
        assert_eq!(self.take_for(b"[]", HELD, 1), Ok(true));
        let counts = [OTHERS + HELD, OTHERS + HELD, 2];
        let mut expected = Expected {
            status: Status::Open,
            due: START + TTL,
            held: HELD,
            counts,
        };
        for step in steps {
            self.step(*step, &mut expected)?;
        }
        for at in 0..3 {
            let (used, counts) = (self.used_after(at, 0), expected.counts[at]);
            let counts = if at < 2 { counts.min(LIMIT) } else { counts };
            if used != counts {
                return Err(format!("{used} of limit {at} count, not {counts}"));
            }
        }
        Ok(())
    }

    fn step(&mut self, step: Step, expected: &mut Expected) -> Result<(), String> {
        let (now, status) = (self.bench.now, expected.status);
        let is_late = now >= expected.due;
        match step {
            Pass => self.bench.set(now + TTL),
            Settle(actual) => {
                if self.correct(actual, false) != (status != Status::Done) {
                    return Err(format!("a settlement of one that is {status:?}"));
                }
                if status != Status::Done {
                    expected.counts[0] = expected.counts[0] + actual - expected.held;
                    let held = if status == Status::Open {
                        expected.held
                    } else {
                        0
                    };
                    expected.counts[1] = expected.counts[1] + actual - held;
                    expected.counts[2] = 1;
                }
                expected.status = Status::Done;
            }
            Expire => {
                let expires = status == Status::Open && is_late;
                if self.correct(0, true) != expires {
                    return Err(format!(
                        "an expiry of one that is {status:?}, late: {is_late}"
                    ));
                }
                if expires {
                    expected.counts[1] -= expected.held;
                    expected.counts[2] = 1;
                    expected.status = Status::Expired;
                }
            }
            Extend => {
                let told = self.take_for(b"", MORE, 0);
                if status != Status::Open || is_late {
                    return if told == Err("ended".to_owned()) {
                        Ok(())
                    } else {
                        Err(format!("{told:?}"))
                    };
                }
                let fits = expected.counts[..2]
                    .iter()
                    .all(|count| count + MORE <= LIMIT);
                if told != Ok(fits) {
                    return Err(format!("an extension: {told:?}, not {fits}"));
                }
                if fits {
                    expected.held += MORE;
                    expected.counts[0] += MORE;
                    expected.counts[1] += MORE;
                    expected.due = now + TTL;
                }
            }
            Take => {
                for at in 0..2 {
                    let fits = expected.counts[at] + HELD <= LIMIT;
                    expected.counts[at] += if fits { HELD } else { 0 };
                    let (used, counts) =
                        (self.used_after(at, HELD), expected.counts[at].min(LIMIT));
                    if used != counts {
                        return Err(format!(
                            "{used} of limit {at} count after a request, not {counts}"
                        ));
                    }
                }
            }
            Reserve => {
                let told = self.take_for(b"[]", HELD, 1);
                if told != Err("repeated".to_owned()) {
                    return Err(format!("the same reservation again: {told:?}"));
                }
            }
        }
        Ok(())
    }

    /// Plays every life of so many steps.
    fn play_all(&mut self, length: u32) -> Result<(), String> {
        for number in 0..STEPS.len().pow(length) {
            let digits = (0..length).map(|at| number / STEPS.len().pow(at) % STEPS.len());
            let steps: Vec<_> = digits.map(|digit| STEPS[digit]).collect();
            self.play(&steps)
                .map_err(|why| format!("{steps:?}: {why}"))?;
        }
        Ok(())
    }
}

#[test]
fn in_every_short_life_units_count_once_and_return_once() {
    let mut lives = Lives::new(None);
    // A shorter life is the beginning of a longer one, and its end is looked at too.
    (1..=4)
        .try_for_each(|length| lives.play_all(length))
        .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn each_guard_of_the_scripts_is_needed() {
    for without in [
        // A reservation is settled once.
        ("known[2] == 'd' or expires", "expires"),
        // It expires once, and neither before its time nor after its end.
        (
            "expires and (known[2] or now < tonumber(known[1]))",
            "expires and now < tonumber(known[1])",
        ),
        (
            "expires and (known[2] or now < tonumber(known[1]))",
            "expires and known[2]",
        ),
        // What an expiry has released is not released again.
        (
            "if expires then redis.call('HSET', record, field, '') end",
            "",
        ),
        // One that has ended takes nothing more, nor one whose time is over.
        (
            "if known[2] or now >= tonumber(known[1])",
            "if now >= tonumber(known[1])",
        ),
        ("if known[2] or now >= tonumber(known[1])", "if known[2]"),
        // A repeated call takes nothing.
        (
            "if known[1] then return {time[1], time[2], 'repeated'} end",
            "",
        ),
    ] {
        let mut lives = Lives::new(Some(without));
        let found = (1..=3).try_for_each(|length| lives.play_all(length));
        assert!(found.is_err(), "{without:?}");
    }
}
