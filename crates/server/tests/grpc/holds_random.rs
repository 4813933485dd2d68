//! Holds without a server around them: random requests against a plain reading of the rule, and a
//! budget that many threads spend.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use futures_util::FutureExt;
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_limiter::HashKeys;
use tidegate_server::{
    descriptors::{
        AnswerFields, Consume, Descriptor, DescriptorService, Descriptors, Modes, Question,
    },
    envoy,
    limits::Limits,
    rules::{Keeping, Rules},
    service::{InForce, Service},
    throttle::Throttle,
};

use crate::{interop::random::Random, rls::START};

fn service(config: &str, consume: Consume, clock: &Arc<ManualTimer>) -> DescriptorService {
    let envoy::Config { domains, limits } = envoy::parse(config, 0, Keeping::Memory)
        .unwrap()
        .into_config();
    let rules = Rules {
        limits,
        ..Rules::default()
    };
    let hash = |_: &str| Some(HashKeys::from_seeds(1, 2));
    let limits = Limits::new(rules, 1 << 12, hash, START).unwrap();
    let attached = Descriptors::new(domains, |name| limits.limit(name.as_bytes()), None);
    let in_force = InForce::new(limits, vec![Box::new(attached)]);
    let throttle = Throttle::new(4, None).unwrap();
    let service = Service::new(in_force, throttle, Arc::clone(clock) as _);
    DescriptorService::new(
        Arc::new(service),
        consume,
        AnswerFields::None,
        None,
        Modes::default(),
        None,
    )
}

const TTL: u64 = 60;
/// By rule: whether it releases, and its limit. The last one has no holds.
const RULES: [(&str, bool, u64); 3] = [
    ("user", true, 900),
    ("team", false, 1_500),
    ("plain", false, 2_000),
];
const CONFIG: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 900, hold: 1m, on_expiry: release}}
  - {key: team, rate_limit: {unit: year, requests_per_unit: 1500, hold: 60s}}
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 2000}}
";
const KEYS: [&str; 2] = ["ada", "bob"];
const IDS: [&str; 6] = ["", "1", "2", "3", "4", "5"];

/// One descriptor: a rule, a key, an id (empty for none), units, and what it says of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    rule: usize,
    key: usize,
    id: &'static str,
    units: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ask,
    Used,
    Unused,
}

impl Said {
    fn descriptor(&self) -> Descriptor<'static> {
        let mut entries = vec![(RULES[self.rule].0, KEYS[self.key])];
        entries.extend((!self.id.is_empty()).then_some(("hold_id", self.id)));
        entries.extend((self.kind == Kind::Used).then_some(("hold_report", "")));
        Descriptor {
            hits: Some(self.units),
            is_refund: self.kind == Kind::Unused,
            ..Descriptor::new(entries.into_iter())
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open,
    Expired,
    Done,
}

#[derive(Clone, Debug)]
struct OneHold {
    place: (usize, usize),
    /// `None` for one that no report finds.
    id: Option<&'static str>,
    units: u64,
    due: u64,
    state: State,
}

#[derive(Default)]
struct Oracle {
    now: u64,
    used: BTreeMap<(usize, usize), u64>,
    holds: Vec<OneHold>,
}

impl Oracle {
    fn used(&mut self, place: (usize, usize)) -> &mut u64 {
        self.used.entry(place).or_default()
    }

    /// The hold that a report means.
    fn meant(&mut self, said: &Said) -> Option<usize> {
        let (place, now) = ((said.rule, said.key), self.now);
        self.holds.iter().position(|hold| {
            let is_meant = if said.id.is_empty() {
                hold.state == State::Open && now < hold.due
            } else {
                hold.state != State::Done
            };
            hold.place == place && hold.id == Some(said.id) && is_meant
        })
    }

    fn report(&mut self, said: &Said) {
        let (place, units) = ((said.rule, said.key), said.units);
        let meant = if said.rule == 2 {
            None
        } else {
            self.meant(said)
        };
        let Some(at) = meant else {
            let used = self.used(place);
            *used = match said.kind {
                Kind::Used => *used + units,
                _ => used.saturating_sub(units),
            };
            return;
        };
        let hold = &mut self.holds[at];
        let is_back = hold.state == State::Expired && RULES[said.rule].1;
        hold.state = State::Done;
        let held = hold.units;
        let actual = match said.kind {
            Kind::Used => units,
            _ => held.saturating_sub(units),
        };
        let used = self.used(place);
        let held = if is_back { 0 } else { held };
        // A refund may have taken units that were held.
        *used = (*used + actual.saturating_sub(held)).saturating_sub(held.saturating_sub(actual));
    }

    /// Whether the request is denied.
    fn decide(&mut self, request: &[Said], each: bool) -> bool {
        let mut is_over = false;
        // Plain refunds come first, then reports, then what is held.
        let order = |said: &&Said| match (said.rule, said.kind) {
            (2, Kind::Unused) => 0,
            (_, Kind::Used | Kind::Unused) => 1,
            _ => 2,
        };
        for step in 0..2 {
            for said in request.iter().filter(|said| order(said) == step) {
                self.report(said);
            }
        }
        let fits = |used: u64, said: &Said| used + said.units <= RULES[said.rule].2;
        let mut made = Vec::new();
        for said in request
            .iter()
            .filter(|said| order(said) == 2 && said.rule < 2)
        {
            let place = (said.rule, said.key);
            if !fits(*self.used(place), said) {
                is_over = true;
                continue;
            }
            *self.used(place) += said.units;
            let is_taken = !said.id.is_empty()
                && self
                    .holds
                    .iter()
                    .any(|hold| hold.place == place && hold.id == Some(said.id));
            made.push(self.holds.len());
            self.holds.push(OneHold {
                place,
                id: (!is_taken).then_some(said.id),
                units: said.units,
                due: self.now + TTL,
                state: State::Open,
            });
        }
        let plain: Vec<&Said> = request
            .iter()
            .filter(|said| order(said) == 2 && said.rule == 2)
            .collect();
        let all_fit = plain
            .iter()
            .all(|said| fits(*self.used((2, said.key)), said));
        for said in &plain {
            if each || all_fit && !is_over {
                *self.used((2, said.key)) += said.units;
            }
        }
        is_over |= !all_fit;
        if is_over {
            for at in made {
                let OneHold { place, units, .. } = self.holds[at];
                let used = self.used(place);
                *used = used.saturating_sub(units);
                self.holds[at].state = State::Done;
                // A reservation that is cancelled is remembered for a minute from then.
                self.holds[at].due = self.holds[at].due.max(self.now + TTL);
            }
        }
        is_over
    }

    fn advance(&mut self, seconds: u64) {
        self.now += seconds;
        let now = self.now;
        let mut back = Vec::new();
        self.holds.retain_mut(|hold| {
            if hold.due > now {
                return true;
            }
            if hold.state != State::Open {
                return false;
            }
            if RULES[hold.place.0].1 {
                back.push((hold.place, hold.units));
            }
            hold.state = State::Expired;
            hold.due = (hold.due + TTL).max(now + 1);
            true
        });
        for (place, units) in back {
            let used = self.used(place);
            *used = used.saturating_sub(units);
        }
    }
}

fn compare(seed: u64, requests: usize, consume: Consume) {
    let clock = Arc::new(ManualTimer::new(START));
    let (mut random, mut oracle) = (Random(seed), Oracle::default());
    let mut rates = service(CONFIG, consume, &clock);
    let mut denied = 0;
    for at in 0..requests {
        if at % 300 == 0 {
            // Everything is used up after a while.
            rates = service(CONFIG, consume, &clock);
            oracle = Oracle::default();
        }
        let mut pick = |below: usize| usize::try_from(random.below(below as u64)).unwrap();
        if pick(6) == 0 {
            let seconds = [1, 5, 30, 59, 61][pick(5)];
            clock.set(clock_after(&clock, seconds));
            oracle.advance(seconds);
            rates
                .service()
                .expire_reservations(false)
                .now_or_never()
                .unwrap();
        }
        let mut request: Vec<Said> = Vec::new();
        for _ in 0..=pick(3) {
            let said = Said {
                rule: pick(3),
                key: pick(2),
                id: IDS[pick(6)],
                units: [0, 1, 10, 60, 200][pick(5)],
                kind: [Kind::Ask, Kind::Ask, Kind::Used, Kind::Unused][pick(4)],
            };
            // One without holds has no reports.
            let said = if said.rule == 2 && said.kind == Kind::Used {
                Said {
                    kind: Kind::Ask,
                    ..said
                }
            } else {
                said
            };
            if !request
                .iter()
                .any(|other| (other.rule, other.key) == (said.rule, said.key))
            {
                request.push(said);
            }
        }
        let question = Question {
            id: None,
            domain: "shop",
            hits: 0,
            descriptors: request.iter().map(Said::descriptor).collect(),
        };
        let answer = rates
            .decide(&question, rates.service().now())
            .now_or_never()
            .unwrap()
            .unwrap();
        let is_over = oracle.decide(&request, consume == Consume::Each);
        assert_eq!(
            answer.is_over, is_over,
            "request {at} of seed {seed}: {request:?}"
        );
        denied += usize::from(is_over);
        for (rule, (name, _, most)) in RULES.iter().enumerate() {
            for (key, text) in KEYS.iter().enumerate() {
                let limits = rates.service().limits();
                let limit = limits.limit(format!("shop.{name}").as_bytes()).unwrap();
                let left = limit
                    .limiter()
                    .at(rates.service().now())
                    .peek(text.as_bytes(), 0);
                let used = *oracle.used((rule, key));
                assert_eq!(
                    left.remaining(),
                    most.saturating_sub(used),
                    "{name} {text} after request {at} of seed {seed}: {request:?}"
                );
                assert_eq!(left.is_denied(), used > *most);
            }
        }
    }
    assert!(
        denied > requests / 20 && denied < requests * 19 / 20,
        "{denied} of {requests}"
    );
}

fn clock_after(clock: &ManualTimer, seconds: u64) -> Nanos {
    use tidegate_core::Clock;
    clock.now().saturating_add(Nanos::from_secs(seconds))
}

#[test]
fn random_holds_are_those_of_a_plain_reading() {
    let requests = if std::env::var_os("TIDEGATE_LONG").is_some() {
        100_000
    } else {
        9_000
    };
    compare(1, requests, Consume::Each);
    compare(2, requests, Consume::AllOrNone);
}

/// 10,000 USD a month, in millionths.
const BUDGET: u64 = 10_000_000_000;

/// A stream that was admitted: its number, what it held, and what it used.
type Stream = (u64, u64, u64);

/// 1,000 streams run at any time, in several threads, until the budget is spent.
#[test]
fn a_months_money_is_exact_and_never_over_by_more_than_the_streams_in_flight_exceed_their_estimates()
 {
    const THREADS: u64 = 8;
    const EACH: usize = 125;
    let config = format!(
        "domain: shop\ndescriptors:\n  - {{key: team, rate_limit: {{unit: month, requests_per_unit: {BUDGET}, hold: 5m}}}}\n"
    );
    let clock = Arc::new(ManualTimer::new(START));
    let rates = service(&config, Consume::Each, &clock);
    let say = |id: Option<&str>, is_report: bool, units: u64| {
        let mut entries = vec![("team", "research")];
        entries.extend(id.map(|id| ("hold_id", id)));
        entries.extend(is_report.then_some(("hold_report", "")));
        let descriptor = Descriptor {
            hits: Some(units),
            ..Descriptor::new(entries.into_iter())
        };
        let question = Question {
            id: None,
            domain: "shop",
            hits: 0,
            descriptors: vec![descriptor],
        };
        let decided = rates.decide(&question, rates.service().now());
        !decided.now_or_never().unwrap().unwrap().is_over
    };
    // The order of events: when the last admission began, and when each stream was settled.
    let (events, last) = (AtomicU64::new(0), AtomicU64::new(0));
    let begin = Barrier::new(usize::try_from(THREADS).unwrap());
    let run = &|thread: u64| {
        let mut random = Random(thread);
        let (mut open, mut settled): (Vec<Stream>, Vec<(u64, Stream)>) = (Vec::new(), Vec::new());
        let (mut next, mut is_spent) = (thread << 32, false);
        begin.wait();
        while !is_spent || !open.is_empty() {
            while !is_spent && open.len() < EACH {
                // From a tenth of a cent to 1.50 dollars.
                let held = 1_000 + random.below(1_500_000);
                let used = held / 2 + random.below(held);
                let began = events.fetch_add(1, Ordering::SeqCst);
                // Half of the threads have no ids: then any hold is as good as another.
                let id = next.to_string();
                if say(thread.is_multiple_of(2).then_some(&id), false, held) {
                    last.fetch_max(began, Ordering::SeqCst);
                    open.push((next, held, used));
                } else {
                    is_spent = true;
                }
                next += 1;
            }
            if open.is_empty() {
                break;
            }
            let at = usize::try_from(random.below(open.len() as u64)).unwrap();
            let stream @ (number, _, used) = open.swap_remove(at);
            assert!(say(
                thread.is_multiple_of(2).then_some(&number.to_string()),
                true,
                used
            ));
            settled.push((events.fetch_add(1, Ordering::SeqCst), stream));
        }
        settled
    };
    let settled: Vec<(u64, Stream)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let spent: u64 = settled.iter().map(|(_, (_, _, used))| used).sum();
    let limits = rates.service().limits();
    let limit = limits.limit(b"shop.team").unwrap();
    let left = limit.limiter().at(START).peek(b"research", 0).remaining();
    assert_eq!(left, BUDGET.saturating_sub(spent), "{spent} were spent");
    // Units above the budget are owed: as much again makes room for nothing more.
    let owed = spent.saturating_sub(BUDGET);
    limit.limiter().at(START).refund(b"research", owed);
    assert_eq!(
        limit.limiter().at(START).peek(b"research", 0).remaining(),
        left
    );
    limit.limiter().at(START).refund(b"research", 1);
    assert_eq!(
        limit.limiter().at(START).peek(b"research", 0).remaining(),
        left + 1
    );
    let last = last.into_inner();
    let in_flight = settled.iter().filter(|(ended, _)| *ended > last);
    let most: u64 = in_flight
        .map(|(_, (_, held, used))| used.saturating_sub(*held))
        .sum();
    assert!(
        owed <= most,
        "{owed} above the budget, and {most} above the estimates"
    );
    assert!(
        spent > BUDGET * 9 / 10 && settled.len() > 5_000,
        "{spent} by {}",
        settled.len()
    );
}
