use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The heavy keys of a limit, sampled as its counters would.
struct Asked {
    sampling: Sampling,
    heavy: HeavyKeys,
    number: u64,
    sampled: u64,
}

impl Asked {
    fn new(capacity: usize) -> Self {
        let sampling = Sampling { seed: 7, ..Sampling::default() };
        let heavy = HeavyKeys::new(capacity, &sampling);
        Self { sampling, heavy, number: 0, sampled: 0 }
    }

    fn ask(&mut self, key: &[u8], denied: bool, now: Nanos) {
        if self.sampling.takes(self.number) {
            self.heavy.record(key, denied, &self.sampling, now);
            self.sampled += 1;
        }
        self.number += 1;
    }

    fn top(&self, now: Nanos) -> Top {
        self.heavy.top(usize::MAX, now).unwrap()
    }
}

fn bounds(keys: &[TopKey]) -> Vec<(&[u8], u64, u64, u64)> {
    keys.iter().map(|key| (&*key.key, key.count, key.at_least, key.at_most)).collect()
}

#[test]
fn requests_and_denials_are_counted_separately() {
    let mut asked = Asked::new(10);
    for second in 0..100 {
        let now = Nanos::from_secs(1_000_000 + second);
        asked.ask(b"busy", false, now);
        if second % 4 == 0 {
            asked.ask(b"denied", true, now);
        }
    }
    let top = asked.top(Nanos::from_secs(1_000_100));
    assert_eq!((top.one_in, top.requests, top.denials, top.span), (1, 125, 25, Nanos::from_secs(100)));
    assert_eq!(bounds(&top.asked), [(&b"busy"[..], 100, 100, 100), (b"denied", 25, 25, 25)]);
    assert_eq!(bounds(&top.denied), [(&b"denied"[..], 25, 25, 25)]);
}

#[test]
fn counts_of_the_period_before_are_shown_and_older_ones_are_forgotten() {
    let mut asked = Asked::new(10);
    let begin = Nanos::new(1_000 * PERIOD.get());
    asked.ask(b"old", false, begin);
    let next = begin.saturating_add(PERIOD);
    asked.ask(b"new", false, next);
    let top = asked.top(next);
    assert_eq!(bounds(&top.asked), [(&b"new"[..], 1, 1, 1), (b"old", 1, 1, 1)]);
    assert_eq!(top.span, PERIOD);
    let later = next.saturating_add(PERIOD);
    assert_eq!(bounds(&asked.top(later).asked), [(&b"new"[..], 1, 1, 1)]);
    assert_eq!(asked.top(later).span, PERIOD, "the span that is shown, not the server's age");
    assert!(asked.top(later.saturating_add(PERIOD)).asked.is_empty());
}

#[test]
fn time_that_jumps_back_counts_in_the_period_under_way() {
    let mut asked = Asked::new(10);
    let begin = Nanos::new(1_000 * PERIOD.get());
    asked.ask(b"a", false, begin);
    asked.ask(b"a", false, Nanos::ZERO);
    assert_eq!(bounds(&asked.top(begin).asked), [(&b"a"[..], 2, 2, 2)]);
}

#[test]
fn a_flood_costs_no_more_than_the_budget_and_its_keys_are_still_found() {
    let mut asked = Asked::new(100);
    let mut exact: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    // Three seconds of a million requests: one request in ten is for one of three keys, in a rhythm that sampling at a fixed
    // stride would miss.
    for number in 0..3_000_000_u64 {
        let now = Nanos::new(5_000 * PERIOD.get() + number * 1_000);
        let key = match number % 16 {
            0..=2 => format!("heavy-{}", number % 16),
            _ => format!("made-up-{number}"),
        };
        if key.starts_with("heavy") {
            *exact.entry(key.clone().into_bytes()).or_default() += 1;
        }
        asked.ask(key.as_bytes(), number % 16 == 1, now);
    }
    // At the budget the sampling rate is halved. So the first second has a budget, and half of one for each halving.
    assert!(asked.sampled < u64::from(BUDGET) * 10, "{} were sampled", asked.sampled);
    let top = asked.top(Nanos::new(5_000 * PERIOD.get() + 3_000_000_000));
    assert!(top.one_in > 1);
    let heavy: Vec<_> = top.asked.iter().take(3).collect();
    for key in heavy {
        let exact = exact.get(&*key.key).unwrap_or_else(|| panic!("{key:?} is none of the heavy ones"));
        assert!((key.at_least..=key.at_most).contains(exact), "{exact} is not within {key:?}");
        assert!(key.at_least > 100_000, "the bound is useful: {key:?}");
    }
    assert_eq!(&*top.denied[0].key, b"heavy-1");
    assert_eq!(top.denied.len(), 1);
}

#[test]
fn after_a_flood_all_decisions_are_counted_again() {
    let mut asked = Asked::new(100);
    let begin = 5_000 * PERIOD.get();
    for number in 0..1_000_000_u64 {
        asked.ask(b"a", false, Nanos::new(begin + number * 1_000));
    }
    let mut now = begin;
    for _ in 0..10_000 {
        now += 1_000_000_000;
        asked.ask(b"a", false, Nanos::new(now));
    }
    let before = asked.sampled;
    for _ in 0..100 {
        asked.ask(b"a", false, Nanos::new(now));
    }
    assert_eq!(asked.sampled - before, 100);
}

#[test]
fn a_limit_without_room_for_names_returns_none() {
    let mut asked = Asked::new(0);
    asked.ask(b"a", true, Nanos::from_secs(1));
    assert_eq!(asked.heavy.top(10, Nanos::from_secs(1)), None);
}

proptest! {
    /// The bounds over two periods when all decisions are counted.
    #[test]
    fn exact_counts_lie_within_the_bounds_of_both_periods(
        capacity in 1_usize..8,
        asks in prop::collection::vec((0_u8..20, any::<bool>()), 0..300),
        change in 0_usize..300,
    ) {
        let mut asked = Asked::new(capacity);
        let mut exact: BTreeMap<(bool, u8), u64> = BTreeMap::new();
        let begin = 77 * PERIOD.get();
        for (at, (key, denied)) in asks.iter().enumerate() {
            let now = begin + if at < change { 0 } else { PERIOD.get() };
            asked.ask(&[*key], *denied, Nanos::new(now));
            *exact.entry((false, *key)).or_default() += 1;
            if *denied {
                *exact.entry((true, *key)).or_default() += 1;
            }
        }
        let top = asked.top(Nanos::new(begin + PERIOD.get()));
        for (kind, keys) in [(false, &top.asked), (true, &top.denied)] {
            for key in keys {
                let exact = exact.get(&(kind, key.key[0])).copied().unwrap_or(0);
                prop_assert!((key.at_least..=key.at_most).contains(&exact), "{} {:?}", exact, key);
            }
        }
    }

    /// Whatever the rhythm of the traffic, a sample contains about its share of each beat.
    #[test]
    fn no_rhythm_hides_from_the_sample(beats in 2_u64..64, power in 1_u32..7, seed: u64) {
        let sampling = Sampling { seed, ..Sampling::default() };
        sampling.set(power);
        let mut found = vec![0_u64; beats as usize];
        for number in 0..beats << (power + 8) {
            if sampling.takes(number) {
                found[(number % beats) as usize] += 1;
            }
        }
        for count in found {
            prop_assert!((128..=384).contains(&count), "{} where 256 are expected", count);
        }
    }
}
