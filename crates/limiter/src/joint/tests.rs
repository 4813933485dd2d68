//! The short path of a joint decision next to the long one, which decides alone otherwise: the same
//! decisions, estimates and states, for every algorithm.

use std::time::Duration;

use tidegate_core::{AlgorithmSpec, Decision, Estimate, Nanos, Penalty, Policy, Quota};

use super::{AllDecision, Few, Request, near, tags, with_tags};
use crate::{HashKeys, KeyedLimiter, Limiter, SnapshotEntry, block::Until};

const STEPS: u64 = 1_500;

/// Every algorithm, and what a denial can change.
fn policies() -> Vec<Policy> {
    let quota = Quota::per_second(9);
    let mut all: Vec<Policy> = AlgorithmSpec::all()
        .filter(AlgorithmSpec::limits_rate)
        .map(|spec| spec.policy(quota).unwrap())
        .collect();
    let whole = Policy::token_bucket(Quota::per_second(10));
    let penalty = Penalty::new(&[Duration::from_millis(300)]).unwrap();
    let penalty = penalty.after(2, Duration::from_millis(700)).unwrap();
    all.extend([
        Policy::concurrency(9),
        whole,
        whole.count_denied(),
        whole.block_for(penalty),
        Policy::sliding_window(quota).count_denied(),
        Policy::fixed_window(quota).block_for(penalty),
    ]);
    all
}

/// Random numbers (`SplitMix64`), the same for both sets of limiters.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % bound
    }
}

struct Limits {
    one: KeyedLimiter<()>,
    two: KeyedLimiter<()>,
    all: Limiter<()>,
}

impl Limits {
    fn new([one, two, all]: [Policy; 3]) -> Self {
        let keyed = |policy| {
            let builder = KeyedLimiter::builder(policy).max_keys(1_000).clock(());
            builder
                .hash_keys(HashKeys::from_seeds(1, 2))
                .build()
                .unwrap()
        };
        Self {
            one: keyed(one),
            two: keyed(two),
            all: Limiter::with_clock(all, ()),
        }
    }

    fn states(&self, now: Nanos) -> (Vec<SnapshotEntry>, Vec<u64>) {
        let mut entries = Vec::new();
        for limiter in [&self.one, &self.two] {
            limiter.at(now).snapshot(|entry| entries.push(entry));
        }
        (entries, self.all.snapshot())
    }
}

/// The long path alone.
fn long(requests: &[Request<'_, ()>], now: Nanos) -> (Few<Decision>, Vec<Estimate>) {
    let decided = with_tags(
        requests,
        &tags(requests),
        now,
        true,
        |states, blocked, wakes| states.decide_and_note(blocked, &[], now, wakes),
    );
    let (decisions, estimates) = decided.unwrap();
    (decisions, estimates.into_vec())
}

#[test]
fn the_short_path_decides_as_the_long_one() {
    let policies = policies();
    for at in 0..policies.len() {
        let chosen = [0, 1, 3].map(|further| policies[(at + further) % policies.len()]);
        let [short, other] = [(); 2].map(|()| Limits::new(chosen));
        let (mut random, mut now, mut near_ones) = (Random(at as u64), Nanos::from_secs(100), 0);
        for step in 0..STEPS {
            now = now.saturating_add(Nanos::from_millis(random.below(200)));
            let [first, second] = [(); 2].map(|()| format!("k{}", random.below(4)));
            let costs = [(); 4].map(|()| [1, 1, 2, 3, 0][random.below(5) as usize]);
            let (twice, own) = (random.below(9) == 0, random.below(9) == 0);
            let mut ask = |limits: &Limits, is_short: bool| {
                let own = own.then(|| chosen[0]);
                let mut requests = vec![
                    Request::keyed(&limits.one, first.as_bytes(), costs[0])
                        .with_policy(own.as_ref()),
                    Request::keyed(&limits.two, second.as_bytes(), costs[1]),
                    Request::unkeyed(&limits.all, costs[2]),
                ];
                if twice {
                    requests.push(Request::keyed(&limits.one, second.as_bytes(), costs[3]));
                }
                let (mut decisions, mut estimates) = (Few::new(), Vec::new());
                let tags = tags(&requests);
                let noted = Some(&mut estimates);
                if is_short && near::decide(&requests, &tags, now, &mut decisions, noted) {
                    near_ones += 1;
                } else {
                    assert!(decisions.is_empty() && estimates.is_empty());
                    (decisions, estimates) = long(&requests, now);
                }
                (AllDecision::new(decisions), estimates)
            };
            let (one, taken) = ask(&short, true);
            let (all, noted) = ask(&other, false);
            assert_eq!(
                one.decisions(),
                all.decisions(),
                "{chosen:?} in step {step}"
            );
            // Places differ from limiter to limiter.
            let units = |estimates: &[Estimate]| -> Vec<(u64, Nanos)> {
                estimates.iter().map(|one| (one.cost, one.taken)).collect()
            };
            assert_eq!(units(&taken), units(&noted));
            assert_eq!(
                short.states(now),
                other.states(now),
                "{chosen:?} in step {step}"
            );
            for (limits, estimates) in [(&short, &taken), (&other, &noted)] {
                if let [first_taken, _, third_taken, ..] = estimates[..]
                    && step % 3 == 0
                {
                    limits.one.at(now).settle(&*first, first_taken, 1);
                    limits.all.at(now).settle(third_taken, 0);
                }
                match step % 50 {
                    7 => {
                        let until = Until(now.saturating_add(Nanos::from_millis(300)));
                        limits.one.at(now).block(&*first, until).unwrap();
                    }
                    11 => limits
                        .all
                        .block(Until(now.saturating_add(Nanos::from_millis(100)))),
                    17 => limits
                        .two
                        .at(now)
                        .set_override(&*second, chosen[1])
                        .unwrap(),
                    27 => drop(limits.two.at(now).remove_override(&*second)),
                    33 => drop(limits.one.at(now).reset(&*first)),
                    41 => limits.one.at(now).reset_all(),
                    _ => {}
                }
            }
        }
        assert!(near_ones > STEPS / 4, "{near_ones} with {chosen:?}");
    }
}
