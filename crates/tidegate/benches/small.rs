//! Measures single calls in under two minutes: `cargo bench -p tidegate --all-features`.
//! `bench/peers` measures them next to rivals, and with several threads.

use std::{collections::LinkedList, hint::black_box, time::Duration};

use divan::{Bencher, counter::ItemsCount};
use tidegate::{
    KeyedLimiter, Limiter, Policy, Quota,
    flow::{
        Gate,
        rules::{BreakerRule, FlowRule, IsolationRule, Rules, SystemRule, Trip},
    },
};

fn main() {
    divan::main();
}

/// So much that nothing is denied.
fn plenty() -> Quota {
    Quota::per_second(1_000_000_000)
}

const KEYS: usize = 100_000;
const BATCH: usize = 32;

fn policies() -> [(&'static str, Policy); 6] {
    [
        ("token-bucket", Policy::token_bucket(plenty())),
        ("leaky-bucket", Policy::leaky_bucket(plenty())),
        ("fixed-window", Policy::fixed_window(plenty())),
        ("sliding-counter", Policy::sliding_counter(plenty())),
        ("sliding-window", Policy::sliding_window(plenty())),
        (
            "sliding-log",
            Policy::sliding_log(Quota::per_second(1_000)).expect("short"),
        ),
    ]
}

#[divan::bench(min_time = 0.5, args = policies().map(|(name, _)| name))]
fn limiter(bencher: Bencher<'_, '_>, name: &str) {
    let policy = policies()
        .into_iter()
        .find(|(known, _)| *known == name)
        .expect("one of them")
        .1;
    let limiter = Limiter::new(policy);
    bencher.bench(|| limiter.acquire(black_box(1)));
}

fn keys() -> Vec<String> {
    // In an order that no processor guesses.
    (0..KEYS)
        .map(|at| format!("user:{:010}", at * 7_919 % KEYS))
        .collect()
}

/// A limiter that knows all its keys.
fn keyed() -> (KeyedLimiter, Vec<String>) {
    let limiter = KeyedLimiter::new(Policy::token_bucket(plenty())).expect("there is memory");
    let keys = keys();
    for key in &keys {
        let _ = limiter.acquire(key.as_str(), 1);
    }
    (limiter, keys)
}

#[divan::bench(min_time = 0.5)]
fn keyed_one_by_one(bencher: Bencher<'_, '_>) {
    let (limiter, keys) = keyed();
    let mut at = 0;
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for key in &keys[at..at + BATCH] {
            let _ = black_box(limiter.acquire(key.as_str(), 1));
        }
        at = (at + BATCH) % (KEYS - BATCH);
    });
}

#[divan::bench(min_time = 0.5)]
fn keyed_in_batches(bencher: Bencher<'_, '_>) {
    let (limiter, keys) = keyed();
    let mut at = 0;
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        let requests: [(&str, u64); BATCH] =
            std::array::from_fn(|nth| (keys[at + nth].as_str(), 1));
        at = (at + BATCH) % (KEYS - BATCH);
        limiter.acquire_many(&requests)
    });
}

/// A gate with `kinds` kinds of rules, none of which blocks.
fn gate(kinds: usize) -> Gate {
    let (name, most) = ("resource", u32::MAX);
    let mut rules = Rules::default();
    if kinds > 0 {
        rules.flow = vec![FlowRule::new(name, most)];
    }
    if kinds > 1 {
        rules.isolation = vec![IsolationRule::new(name, most)];
        rules.breakers = vec![BreakerRule::new(
            name,
            Trip::ErrorRatio { ratio: 0.5 },
            Duration::from_secs(5),
        )];
        rules.system = vec![SystemRule::default().qps(most.into())];
    }
    let gate = Gate::new();
    gate.load(rules).expect("possible rules");
    gate
}

#[divan::bench(args = [0, 1, 4], min_time = 0.5)]
fn entry_and_exit_by_kinds_of_rules(bencher: Bencher<'_, '_>, kinds: usize) {
    let resource = gate(kinds).resource("resource");
    bencher.bench(|| resource.entry().inbound().enter().is_ok());
}

/// `count` flow rules with different thresholds.
#[divan::bench(args = [1, 10, 100], sample_size = 1_000, min_time = 0.5)]
fn entry_and_exit_by_number_of_flow_rules(bencher: Bencher<'_, '_>, count: u32) {
    let flow = (0..count)
        .map(|at| FlowRule::new("resource", 1_000_000_000 + at))
        .collect::<Vec<_>>();
    enter_with(bencher, Rules::from(flow));
}

/// `count` breakers with different ratios.
#[divan::bench(args = [1, 10, 100], sample_size = 1_000, min_time = 0.5)]
fn entry_and_exit_by_number_of_breakers(bencher: Bencher<'_, '_>, count: u32) {
    let breaker = |at: u32| {
        let trip = Trip::ErrorRatio {
            ratio: 0.5 + f64::from(at) / 1_000.0,
        };
        BreakerRule::new("resource", trip, Duration::from_secs(5))
    };
    enter_with(
        bencher,
        Rules::from((0..count).map(breaker).collect::<Vec<_>>()),
    );
}

fn enter_with(bencher: Bencher<'_, '_>, rules: Rules) {
    let gate = Gate::new();
    gate.load(rules).expect("possible rules");
    let resource = gate.resource("resource");
    bencher.bench(|| resource.enter().is_ok());
}

/// The slots of a window in two layouts, as an algorithm without Tidegate's growing counts would
/// keep them: each slot has the number of the time it counts, and is emptied when its turn comes
/// again. Single-threaded; a second slot each add.
mod window_layout {
    use super::{Bencher, LinkedList, black_box};

    trait Slots {
        fn new(slots: u64) -> Self;
        fn add(&mut self, slot: u64);
        fn sum(&self, slot: u64) -> u64;
    }

    struct Array(Vec<(u64, u64)>);

    impl Slots for Array {
        fn new(slots: u64) -> Self {
            Self(vec![(0, 0); slots as usize])
        }

        fn add(&mut self, slot: u64) {
            let at = (slot % self.0.len() as u64) as usize;
            if self.0[at].0 != slot {
                self.0[at] = (slot, 0);
            }
            self.0[at].1 += 1;
        }

        fn sum(&self, slot: u64) -> u64 {
            let oldest = slot.saturating_sub(self.0.len() as u64 - 1);
            self.0
                .iter()
                .filter(|(of, _)| *of >= oldest)
                .map(|(_, count)| count)
                .sum()
        }
    }

    #[allow(clippy::linkedlist, reason = "it is what is measured")]
    struct List(u64, LinkedList<(u64, u64)>);

    impl Slots for List {
        fn new(slots: u64) -> Self {
            Self(slots, LinkedList::new())
        }

        fn add(&mut self, slot: u64) {
            match self.1.back_mut() {
                Some((of, count)) if *of == slot => *count += 1,
                _ => self.1.push_back((slot, 1)),
            }
            while self.1.front().is_some_and(|(of, _)| of + self.0 <= slot) {
                self.1.pop_front();
            }
        }

        fn sum(&self, slot: u64) -> u64 {
            self.1
                .iter()
                .filter(|(of, _)| of + self.0 > slot)
                .map(|(_, count)| count)
                .sum()
        }
    }

    /// A ring that has turned often, so that a list's nodes lie where an allocator has put them
    /// among others.
    fn full<S: Slots>(slots: u64) -> (S, u64) {
        let mut rings: Vec<S> = (0..16).map(|_| S::new(slots)).collect();
        let last = 4 * slots;
        for slot in 0..=last {
            for ring in &mut rings {
                ring.add(slot);
            }
        }
        (rings.swap_remove(5), last)
    }

    #[divan::bench(types = [Array, List], args = [10, 60, 3_600], min_time = 0.5)]
    fn add<S: Slots>(bencher: Bencher<'_, '_>, slots: u64) {
        let (mut ring, mut slot) = full::<S>(slots);
        let mut odd = false;
        bencher.bench_local(|| {
            odd = !odd;
            slot += u64::from(odd);
            ring.add(black_box(slot));
        });
    }

    #[divan::bench(types = [Array, List], args = [10, 60, 3_600], min_time = 0.5)]
    fn sum<S: Slots>(bencher: Bencher<'_, '_>, slots: u64) {
        let (ring, slot) = full::<S>(slots);
        bencher.bench_local(|| ring.sum(black_box(slot)));
    }
}
