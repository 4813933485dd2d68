use std::{collections::HashMap, sync::Arc};

use futures_util::FutureExt as _;
use tidegate_core::{Clock as _, clock::ManualTimer};
use tidegate_limiter::repeats::REMEMBERED_SECONDS;

use super::*;
use crate::{
    decide::{limits::Limits, throttle::Throttle},
    rules,
};

const START: Nanos = Nanos::from_secs(1_800_000_000);
const RULES: &str = "limits:
  - {name: window, limit: 1000/1m, algorithm: fixed-window}
  - {name: bucket, limit: 20/1s, burst: 40, algorithm: token-bucket}
  - {name: queue, limit: 50/1s, algorithm: leaky-bucket, max_wait: 1s}
  - {name: log, limit: 7/30s, algorithm: sliding-log, deny: [key-0]}
  - {name: tried, limit: 3/10s, algorithm: sliding-log, shadow: true}
";
const NAMES: [&str; 5] = ["window", "bucket", "queue", "log", "tried"];

fn service(clock: &Arc<ManualTimer>) -> Service {
    let rules = rules::parse(RULES).expect("the rules are well formed");
    let limits = Limits::new(rules, 1 << 10, |_| None, START).expect("there is memory");
    let throttle = Throttle::new(1 << 10, None).expect("there is memory");
    Service::new(limits, throttle, clock.clone())
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % below
}

/// The part of a decision that a client sees.
fn seen(decision: &Decision) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        decision.is_allowed(),
        decision.limit(),
        decision.remaining(),
        decision.delay(),
        decision.retry_after(),
        decision.reset_after_nanos(),
        decision.reason(),
    )
}

/// A question: limits, a key and a cost.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Asked {
    limits: Vec<&'static str>,
    key: String,
    cost: u64,
}

impl Asked {
    fn asks(&self) -> Vec<Ask<'_>> {
        let ask = |limit: &&'static str| Ask {
            limit: limit.as_bytes(),
            key: Some(self.key.as_bytes()),
            cost: self.cost,
        };
        self.limits.iter().map(ask).collect()
    }
}

/// The answers of a service that is asked with ids must be those of another one that is asked once
/// for each id, within the time.
#[test]
fn each_id_counts_once_for_a_minute_in_random_steps() {
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some();
    let steps: u32 = if is_long { 100_000 } else { 20_000 };
    let clock = Arc::new(ManualTimer::new(START));
    let (subject, oracle) = (service(&clock), service(&clock));
    let mut first: HashMap<(u64, Asked), (u64, Vec<Decision>)> = HashMap::new();
    let mut asked: Vec<(u64, Asked)> = Vec::new();
    let (mut seed, mut repeats, mut expired) = (0x5EED, 0_u32, 0_u32);
    for step in 0..steps {
        clock.advance(match random(&mut seed, 100) {
            0 => Nanos::from_millis(random(&mut seed, 5_000)),
            1 if step.is_multiple_of(500) => Nanos::from_secs(random(&mut seed, 200_000)),
            _ => Nanos::from_millis(random(&mut seed, 20)),
        });
        let now = clock.now();
        // A lost answer is a request that is repeated later; also the repeats of old ones.
        let is_new = asked.is_empty() || random(&mut seed, 3) > 0;
        let (id, question) = if is_new {
            let many = 1 + random(&mut seed, 2) as usize;
            let limits = (0..many).map(|_| NAMES[random(&mut seed, 5) as usize]);
            let question = Asked {
                limits: limits.collect(),
                key: format!("key-{}", random(&mut seed, 20)),
                cost: random(&mut seed, 4),
            };
            // Some clients use one id for several questions.
            let id = if random(&mut seed, 10) == 0 {
                7
            } else {
                u64::from(step)
            };
            asked.push((id, question.clone()));
            (id, question)
        } else {
            let back = random(&mut seed, (asked.len() as u64).min(6_000)) as usize;
            asked[asked.len() - 1 - back].clone()
        };
        let text = id.to_string();
        let (second, place) = (now.get() / 1_000_000_000, (id, question.clone()));
        let known = first
            .get(&place)
            .filter(|(then, _)| second - then <= REMEMBERED_SECONDS);
        let expected = if let Some((_, decisions)) = known {
            repeats += 1;
            decisions.clone()
        } else {
            expired += u32::from(first.contains_key(&place));
            let joint = oracle.acquire_all(&question.asks(), now).now_or_never();
            let answers = joint
                .expect("memory answers at once")
                .expect("it is valid")
                .answers;
            let decisions: Vec<_> = answers.iter().map(|answer| answer.decision).collect();
            first.insert(place, (second, decisions.clone()));
            decisions
        };
        let got: Vec<Decision> = if question.limits.len() == 1 && random(&mut seed, 2) == 0 {
            let limits = subject.limits();
            let limit = limits
                .limit(question.limits[0].as_bytes())
                .expect("it exists");
            let (key, cost) = (question.key.as_bytes(), question.cost);
            let decided = subject.take_once_in_memory(text.as_bytes(), limit, key, cost, now);
            vec![decided.expect("it is in memory")]
        } else {
            let asks = question.asks();
            let joint = subject
                .acquire_all_once(text.as_bytes(), &asks, now)
                .now_or_never();
            let answers = joint
                .expect("memory answers at once")
                .expect("it is valid")
                .answers;
            answers.iter().map(|answer| answer.decision).collect()
        };
        let shown = |all: &[Decision]| all.iter().map(seen).collect::<Vec<_>>();
        assert_eq!(shown(&got), shown(&expected), "step {step}");
        if step.is_multiple_of(97) {
            subject.repeats.expire(now);
            for name in NAMES {
                for key in 0..20 {
                    let key = format!("key-{key}");
                    let standing = |service: &Service| {
                        let limits = service.limits();
                        let limit = limits.limit(name.as_bytes()).expect("it exists");
                        limit.decide_in_memory(Act::Peek, key.as_bytes(), 0, now)
                    };
                    let (one, other) = (standing(&subject), standing(&oracle));
                    assert_eq!(
                        one.as_ref().map(seen),
                        other.as_ref().map(seen),
                        "{name} {key}"
                    );
                }
            }
        }
    }
    assert!(
        repeats > steps / 10 && expired > steps / 100,
        "{repeats} repeats, {expired} expired"
    );
    assert_eq!(subject.repeats.repeated(), u64::from(repeats));
    assert_eq!(subject.repeats.forgotten(), 0);
}
