//! Lines against a naive model, and the moment between a grant and its caller's end.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::FutureExt as _;
use tidegate_core::{Clock as _, DenialReason, clock::ManualTimer};

use super::*;
use crate::{
    decide::{
        limits::{Act, Limits, Operation, Operator},
        throttle::Throttle,
        waits::{WaitOutcome, Waits},
    },
    rules,
};

/// The start of a window.
const START: u64 = 1_800_000_000;
const WINDOW: u64 = 10;
const KEYS: [&str; 2] = ["alice", "bob"];
/// The bounds of callers that wait.
const MOST: usize = 16;
const MOST_PER_KEY: usize = 10;
const FOREVER: u64 = u64::MAX;

fn rules_with(limit: u64) -> rules::Rules {
    let text =
        format!("limits:\n  - {{name: w, limit: {limit}/{WINDOW}s, algorithm: fixed-window}}\n");
    rules::parse(&text).expect("the rules are well formed")
}

fn without_the_limit() -> rules::Rules {
    rules::parse("limits: [{name: other, limit: 1/1s}]").expect("the rules are well formed")
}

fn service(clock: &ManualTimer) -> Service {
    let limits = Limits::new(rules_with(6), 1 << 10, |_| None, clock.now()).expect("memory");
    let throttle = Throttle::new(1 << 10, None).expect("memory");
    let mut service = Service::new(limits, throttle, Arc::new(clock.clone()));
    service.waits = Waits::new(MOST, Some(MOST_PER_KEY));
    service
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % below
}

/// The answer to a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    Admitted,
    /// With the seconds to wait, if they are known.
    Denied(Option<u64>),
    TooMany,
    Ended,
}

impl Got {
    fn of(answer: Result<Vec<Decision>, Refusal>) -> Self {
        match answer {
            Ok(decisions) if decisions[0].is_allowed() => Self::Admitted,
            Ok(decisions) => Self::Denied(decisions[0].retry_after().map(|wait| wait.as_secs())),
            Err(Refusal::TooManyWaiting { .. }) => Self::TooMany,
            Err(Refusal::WaitEnded { .. }) => Self::Ended,
            Err(other) => panic!("{other}"),
        }
    }

    /// Whether an answer after a wait is as expected. Its times are not compared.
    fn is_like(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Denied(_), Self::Denied(_))) || self == other
    }
}

/// A key of the model: a count in a window, and a list of callers.
#[derive(Clone, Debug)]
struct Key {
    used: u64,
    window: u64,
    limit: u64,
    has_own: bool,
    blocked: u64,
    line: Vec<Caller>,
}

#[derive(Clone, Debug)]
struct Caller {
    number: usize,
    cost: u64,
    deadline: u64,
    came: u64,
    level: u64,
}

impl Key {
    fn new(limit: u64) -> Self {
        Self {
            used: 0,
            window: 0,
            limit,
            has_own: false,
            blocked: 0,
            line: Vec::new(),
        }
    }

    fn roll(&mut self, now: u64) {
        if now / WINDOW > self.window {
            (self.window, self.used) = (now / WINDOW, 0);
        }
    }

    fn fits(&mut self, cost: u64, now: u64) -> bool {
        self.roll(now);
        self.used + cost <= self.limit
    }

    /// Serves the line, and returns who has left it.
    fn serve(&mut self, now: u64) -> Vec<(usize, Got)> {
        let mut gone = Vec::new();
        while let Some(first) = self.line.first().cloned() {
            let got = if first.cost > self.limit {
                Got::Denied(None)
            } else if self.blocked <= now && self.fits(first.cost, now) {
                self.used += first.cost;
                Got::Admitted
            } else {
                break;
            };
            gone.push((self.line.remove(0).number, got));
        }
        gone
    }

    /// The place of a new caller: in front of those of a lower level who came less than ten seconds
    /// before for each level between them.
    fn place(&self, level: u64, now: u64) -> usize {
        let passes =
            |other: &Caller| level > other.level && now - other.came < 10 * (level - other.level);
        let place = self.line.iter().position(passes);
        place.unwrap_or(self.line.len())
    }

    /// The time at which a new caller at this place would be admitted if nothing changes.
    fn due(&self, cost: u64, place: usize, now: u64) -> Option<u64> {
        if cost > self.limit || self.blocked == FOREVER {
            return None;
        }
        let (mut then, mut at) = (self.clone(), now.max(self.blocked));
        let costs = self.line[..place].iter().map(|caller| caller.cost);
        for cost in costs.filter(|cost| *cost <= self.limit).chain([cost]) {
            while !then.fits(cost, at) {
                at += 1;
            }
            then.used += cost;
        }
        Some(at)
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Waiting = Pin<Box<dyn Future<Output = Result<Vec<Decision>, Refusal>>>>;

struct Run {
    timer: ManualTimer,
    service: Arc<Service>,
    now: u64,
    /// The limit of the rules.
    limit: u64,
    keys: BTreeMap<&'static str, Key>,
    callers: BTreeMap<usize, (Waiting, Arc<Woken>)>,
    next: usize,
    /// How the waits ended, as the metrics count them since the limit was made.
    ended: [u64; 4],
    refused: u64,
    /// Callers who went in front of others.
    overtaken: usize,
}

impl Run {
    fn new() -> Self {
        let timer = ManualTimer::new(Nanos::from_secs(START));
        Self {
            service: Arc::new(service(&timer)),
            timer,
            now: START,
            limit: 6,
            keys: KEYS.map(|key| (key, Key::new(6))).into(),
            callers: BTreeMap::new(),
            next: 0,
            ended: [0; 4],
            refused: 0,
            overtaken: 0,
        }
    }

    fn in_line(&self) -> usize {
        self.keys.values().map(|key| key.line.len()).sum()
    }

    fn poll(&mut self, number: usize) -> Option<Got> {
        let (waiting, woken) = self.callers.get_mut(&number).expect("it waits");
        let waker = Waker::from(Arc::clone(woken));
        match waiting.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => None,
            Poll::Ready(answer) => {
                self.callers.remove(&number);
                Some(Got::of(answer))
            }
        }
    }

    /// A caller joins the line, or gets an answer at once.
    fn join(&mut self, name: &'static str, cost: u64, wait: u64, level: u64) {
        let (now, total) = (self.now, self.in_line());
        let key = self.keys.get_mut(name).unwrap();
        assert!(key.serve(now).is_empty(), "the line was served before");
        key.roll(now);
        let place = key.place(level, now);
        let due = key.due(cost, place, now);
        let expected = match due {
            None => {
                // A cost above the limit never fits, and a block without end never ends.
                Some(Got::Denied(None))
            }
            Some(at) if at == now && place == 0 => {
                key.used += cost;
                self.overtaken += usize::from(!key.line.is_empty());
                Some(Got::Admitted)
            }
            Some(at) if at > now + wait => Some(Got::Denied(Some(at - now))),
            Some(_) if total == MOST || key.line.len() == MOST_PER_KEY => {
                self.refused += 1;
                Some(Got::TooMany)
            }
            Some(_) => None,
        };
        let number = self.next;
        self.next += 1;
        let service = Arc::clone(&self.service);
        let limit = Arc::clone(service.limits().limit(b"w").expect("it is in the rules"));
        let waiting = Box::pin(async move {
            let part = [Part::new(limit, name.as_bytes(), cost)];
            let priority = Priority::try_from(level).expect("it is a level");
            let wait = WaitFor::new(Duration::from_secs(wait), priority);
            service.take_all_waiting(&part, wait).await
        });
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        self.callers.insert(number, (waiting, woken));
        let got = self.poll(number);
        assert_eq!(got, expected, "{name} {cost} within {wait} s of {due:?}");
        if got.is_none() {
            let deadline = now + wait;
            let key = self.keys.get_mut(name).unwrap();
            self.overtaken += usize::from(place < key.line.len());
            let caller = Caller {
                number,
                cost,
                deadline,
                came: now,
                level,
            };
            key.line.insert(place, caller);
        }
    }

    /// A caller goes away: from its place, or with what was granted in the same moment.
    fn leave(&mut self, number: usize, granted: &[(usize, Got)]) -> Vec<(usize, Got)> {
        drop(self.callers.remove(&number).expect("it waits"));
        self.ended[3] += 1;
        let now = self.now;
        let was_granted = granted.iter().any(|(other, _)| *other == number);
        for key in self.keys.values_mut() {
            let at = key.line.iter().position(|caller| caller.number == number);
            if let Some(at) = at {
                key.line.remove(at);
                return key.serve(now);
            }
        }
        assert!(was_granted, "it was in no line");
        Vec::new()
    }

    /// Compares what callers get with the model, which says who has left the lines. With `gone`, one
    /// of those that were granted goes away before it knows.
    fn settle(
        &mut self,
        mut left: Vec<(usize, Got)>,
        costs: &BTreeMap<usize, (&'static str, u64)>,
        gone: bool,
    ) {
        if gone && let Some(at) = left.iter().position(|(_, got)| *got == Got::Admitted) {
            let (number, _) = left[at];
            let more = self.leave(number, &left);
            assert!(more.is_empty());
            left.remove(at);
            let (name, cost) = costs[&number];
            let key = self.keys.get_mut(name).unwrap();
            key.used -= cost;
            left.extend(key.serve(self.now));
        }
        for (number, expected) in left {
            let (_, woken) = &self.callers[&number];
            assert!(woken.0.load(Ordering::Relaxed), "{number} was not woken");
            let got = self.poll(number);
            assert!(
                got.as_ref().is_some_and(|got| got.is_like(&expected)),
                "{number}: {got:?} instead of {expected:?}"
            );
            match expected {
                Got::Admitted => self.ended[0] += 1,
                Got::Denied(_) => self.ended[1] += 1,
                Got::Ended | Got::TooMany => self.ended[2] += 1,
            }
        }
        // No other one has an answer, also if it was woken.
        let others: Vec<usize> = self.callers.keys().copied().collect();
        for number in others {
            assert_eq!(self.poll(number), None, "{number} has no answer yet");
        }
        let limits = self.service.limits();
        let Some(limit) = limits.limit(b"w") else {
            return;
        };
        let counts = limit.memory.waits.counts();
        assert_eq!(counts.waiting as usize, self.in_line());
        assert_eq!((counts.ended, counts.refused), (self.ended, self.refused));
    }

    /// Callers and their keys and costs.
    fn costs(&self) -> BTreeMap<usize, (&'static str, u64)> {
        let of = |(name, key): (&&'static str, &Key)| {
            let name = *name;
            let callers = key.line.iter();
            callers
                .map(move |caller| (caller.number, (name, caller.cost)))
                .collect::<Vec<_>>()
        };
        self.keys.iter().flat_map(of).collect()
    }

    fn second(&mut self) {
        self.now += 1;
        self.timer.advance(Duration::from_secs(1));
        // In the order of the callers, as they are polled here: the first that is late makes room
        // for those behind it.
        let numbers: Vec<usize> = self.callers.keys().copied().collect();
        let mut left: Vec<(usize, Got)> = Vec::new();
        for number in numbers {
            for key in self.keys.values_mut() {
                if !key.line.iter().any(|caller| caller.number == number) {
                    continue;
                }
                left.extend(key.serve(self.now));
                let late = |caller: &Caller| caller.number == number && caller.deadline <= self.now;
                if let Some(at) = key.line.iter().position(late) {
                    key.line.remove(at);
                    left.push((number, Got::Denied(None)));
                    left.extend(key.serve(self.now));
                }
            }
        }
        // A caller is polled when its time has come, or another one has made room for it, which may
        // have come later.
        for (number, expected) in left {
            let got = self.poll(number);
            assert!(
                got.as_ref().is_some_and(|got| got.is_like(&expected)),
                "{number}: {got:?} instead of {expected:?}"
            );
            self.ended[usize::from(expected != Got::Admitted)] += 1;
        }
        self.settle(Vec::new(), &BTreeMap::new(), false);
    }

    fn operate(&mut self, name: &'static str, operation: &Operation) {
        let by = Operator {
            client: "test",
            note: None,
        };
        let done = self
            .service
            .operate_in_memory(b"w", Some(name.as_bytes()), operation, &by);
        assert!(matches!(done, Some(Ok(_))), "{done:?}");
    }

    /// Any change about a key, or of the rules.
    fn change(&mut self, seed: &mut u64) {
        let name = KEYS[random(seed, 2) as usize];
        let costs = self.costs();
        let amount = 1 + random(seed, 5);
        let gone = random(seed, 3) == 0;
        let now = self.now;
        let at = Nanos::from_secs(now);
        let key = self.keys.get_mut(name).unwrap();
        key.roll(now);
        let service = Arc::clone(&self.service);
        let ask = Ask {
            limit: b"w",
            key: Some(name.as_bytes()),
            cost: amount,
        };
        let decide = |act| {
            let asked = service.decide(ask, act, at).now_or_never();
            asked.expect("memory decides").expect("it is in the rules")
        };
        match random(seed, 9) {
            0 => {
                let expected = key.line.is_empty() && key.blocked <= now && key.fits(amount, now);
                key.used += if expected { amount } else { 0 };
                assert_eq!(
                    decide(Act::Take).is_allowed(),
                    expected,
                    "no caller passes the line"
                );
            }
            1 => {
                key.used += amount;
                decide(Act::Charge);
            }
            2 | 3 => {
                key.used = key.used.saturating_sub(amount);
                decide(Act::Refund);
            }
            4 => {
                let span = (amount > 1).then(|| Duration::from_secs(4 * amount));
                key.blocked = span.map_or(FOREVER, |span| now + span.as_secs());
                self.operate(name, &Operation::Block(span));
            }
            5 => {
                key.blocked = 0;
                self.operate(name, &Operation::Unblock);
            }
            6 if key.has_own => {
                (key.limit, key.has_own) = (self.limit, false);
                self.operate(name, &Operation::EndOverride);
            }
            6 => {
                (key.limit, key.has_own) = (2 * amount, true);
                let quota = format!("{}/{WINDOW}s", 2 * amount);
                self.operate(name, &Operation::Override(quota, None));
            }
            7 => {
                key.used = 0;
                self.operate(name, &Operation::Reset);
            }
            _ => return self.reload(4 + amount, random(seed, 20) == 0, &costs, gone),
        }
        let left = self.keys.get_mut(name).unwrap().serve(now);
        self.settle(left, &costs, gone);
    }

    /// Other numbers in the rules; or the limit leaves them, and comes back.
    fn reload(
        &mut self,
        limit: u64,
        leaves: bool,
        costs: &BTreeMap<usize, (&'static str, u64)>,
        gone: bool,
    ) {
        let at = Nanos::from_secs(self.now);
        let follow = |rules| {
            let limits = self.service.limits().follow(rules, at).expect("memory");
            self.service.set_limits(limits);
        };
        if leaves {
            follow(without_the_limit());
            let mut left = Vec::new();
            for key in self.keys.values_mut() {
                left.extend(key.line.drain(..).map(|caller| (caller.number, Got::Ended)));
                *key = Key::new(limit);
            }
            self.settle(left, costs, false);
            self.ended = [0; 4];
            self.refused = 0;
        }
        let follow = |rules| {
            let limits = self.service.limits().follow(rules, at).expect("memory");
            self.service.set_limits(limits);
        };
        follow(rules_with(limit));
        self.limit = limit;
        let mut left = Vec::new();
        for key in self.keys.values_mut() {
            key.roll(self.now);
            if !key.has_own {
                key.limit = limit;
            }
            left.extend(key.serve(self.now));
        }
        self.settle(left, costs, gone);
    }

    fn step(&mut self, seed: &mut u64) {
        match random(seed, 12) {
            0..=4 => {
                let (cost, wait) = (1 + random(seed, 5), 1 + random(seed, 45));
                // Half of the callers give no priority.
                let level = match random(seed, 2) {
                    0 => Priority::DEFAULT.level().into(),
                    _ => random(seed, 10),
                };
                self.join(KEYS[random(seed, 2) as usize], cost, wait, level);
            }
            5 => {
                let all: Vec<usize> = self.callers.keys().copied().collect();
                if !all.is_empty() {
                    let (costs, number) =
                        (self.costs(), all[random(seed, all.len() as u64) as usize]);
                    let left = self.leave(number, &[]);
                    self.settle(left, &costs, random(seed, 3) == 0);
                }
            }
            6..=8 => self.second(),
            _ => self.change(seed),
        }
    }
}

fn play(steps: usize, first_seed: u64) {
    let mut outcomes = [0; 4];
    let (mut done, mut overtaken, mut seed) = (0, 0, first_seed);
    while done < steps {
        let mut run = Run::new();
        for _ in 0..1_000 {
            run.step(&mut seed);
            done += 1;
        }
        overtaken += run.overtaken;
        for (sum, count) in outcomes.iter_mut().zip(run.ended) {
            *sum += count;
        }
    }
    assert!(
        overtaken > steps / 50,
        "{overtaken} callers overtook others"
    );
    for (count, (_, name)) in outcomes.iter().zip(WaitOutcome::COUNTED) {
        assert!(
            name == "ended" || *count as usize > steps / 1_000,
            "{name}: {outcomes:?}"
        );
    }
}

#[test]
fn callers_get_what_a_naive_model_says_after_random_steps() {
    play(20_000, 0x9E37_79B9_7F4A_7C15);
}

#[test]
#[ignore = "a minute: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn callers_get_what_a_naive_model_says_after_a_million_random_steps() {
    play(1_000_000, 0xD1B5_4A32_D192_ED03);
}

#[test]
fn a_key_that_is_blocked_for_longer_than_its_caller_waits_is_denied_with_the_reason() {
    let run = Run::new();
    run.service
        .operate_in_memory(
            b"w",
            Some(b"alice"),
            &Operation::Block(Some(Duration::from_mins(1))),
            &Operator {
                client: "test",
                note: None,
            },
        )
        .expect("it is in memory")
        .expect("there is room");
    let ask = [Ask {
        limit: b"w",
        key: Some(b"alice"),
        cost: 1,
    }];
    let waits = run
        .service
        .acquire_all_waiting(&ask, Duration::from_secs(59));
    let answer = waits.now_or_never().expect("at once").expect("no refusal");
    let decision = answer.into_bound().decision;
    assert_eq!(decision.reason(), Some(DenialReason::Blocked));
    assert_eq!(decision.retry_after(), Some(Duration::from_mins(1)));
}
