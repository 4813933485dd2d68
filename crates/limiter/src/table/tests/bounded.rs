//! The bound on keys, and what it may never cost.

use std::collections::HashMap;

use crate::table::{Forgotten, Found, HashKeys, Joint, Refused, Stats, Table, Wanted, WhenFull};
use proptest::prelude::*;
use tidegate_core::{Algorithm, Decision, Nanos, Policy, Quota};

struct Fixture {
    table: Table,
    policy: Policy,
    hash: HashKeys,
}

impl Fixture {
    fn new(policy: Policy, max_keys: usize) -> Self {
        Self {
            table: Table::new(policy.words(), max_keys).unwrap(),
            policy,
            hash: HashKeys::from_seeds(3, 5),
        }
    }

    fn ask(&self, key: &str, cost: u64, now: Nanos) -> Decision {
        let tag = self.hash.tag_of(key.as_bytes());
        let decide = |state: &mut [u64], _| self.policy.decide(state, now, cost);
        self.table.apply(&self.policy, tag, now, decide).unwrap()
    }

    /// In how many places a key is: cells and records.
    fn places(&self, now: Nanos) -> impl Fn(&str) -> usize {
        let mut records = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            from = self.table.records.walk(at, |spot, debt| {
                records.extend((!debt.is_over(now)).then_some(spot));
                true
            });
        }
        move |key| {
            let tag = self.hash.tag_of(key.as_bytes());
            let spot = self.table.records.spot(tag);
            let cell = self.table.look(&self.policy, tag, now, |_, found| found == Found::Known);
            records.iter().filter(|&&record| record == spot).count() + usize::from(cell)
        }
    }

    fn stats(&self) -> Stats {
        self.table.stats()
    }
}

fn policies(quota: Quota) -> Vec<Policy> {
    vec![
        Policy::fixed_window(quota),
        Policy::sliding_log(quota).unwrap(),
        Policy::sliding_window(quota),
        Policy::sliding_counter(quota),
        Policy::token_bucket(quota),
    ]
}

#[test]
fn a_flood_of_made_up_keys_never_resets_a_limited_key() {
    let start = Nanos::from_secs(1_000_000);
    for policy in policies("10/1h".parse().unwrap()) {
        let fixture = Fixture::new(policy, 256);
        assert!(fixture.ask("mallory", 10, start).is_allowed());
        for i in 0..20_000_u64 {
            // Each made-up key uses one unit, so none recovers within the hour.
            let now = Nanos::new(start.get() + i * 1_000_000);
            let _ = fixture.ask(&format!("made-up-{i}"), 1, now);
            if i % 100 == 0 {
                assert!(fixture.ask("mallory", 10, now).is_denied(), "{} after {i}", policy.name());
            }
            assert!(fixture.stats().keys <= 256);
        }
        assert!(fixture.stats().evicted > 10_000, "{}: the flood had to push keys out", policy.name());
    }
}

#[test]
fn recovered_keys_are_evicted_first() {
    let fixture = Fixture::new(Policy::token_bucket("10/1s".parse().unwrap()), 1_000);
    for round in 0..50_u64 {
        let now = Nanos::from_secs(1_000 + 10 * round);
        for i in 0..500 {
            let _ = fixture.ask(&format!("{round}-{i}"), 10, now);
        }
    }
    let stats = fixture.stats();
    assert_eq!(stats.evicted, 0, "half of the room was always free or recovered: {stats:?}");
    assert!(stats.reclaimed > 20_000 && stats.keys <= 1_000);
}

#[test]
fn up_to_the_bound_at_most_one_key_in_ten_thousand_is_evicted() {
    for policy in policies("200/1h".parse().unwrap()) {
        let max_keys = if policy.words() > 100 { 2_000_u64 } else { 100_000 };
        let fixture = Fixture::new(policy, max_keys as usize);
        for i in 0..max_keys {
            let _ = fixture.ask(&format!("user-{i}"), 1, Nanos::from_secs(7_200));
        }
        let stats = fixture.stats();
        assert!(stats.evicted <= (max_keys / 10_000), "{}: {stats:?}", policy.name());
    }
}

#[test]
fn a_joint_decision_keeps_its_own_keys_in_place() {
    let policy = Policy::fixed_window("1/1h".parse().unwrap());
    let fixture = Fixture::new(policy, 2);
    let now = Nanos::from_secs(5_000);
    let wanted = |keys: &[&str]| -> Vec<Wanted<'_, Policy>> {
        let tag = |key: &&str| fixture.hash.tag_of(key.as_bytes());
        keys.iter()
            .map(|key| Wanted { table: &fixture.table, algorithm: &policy, tag: tag(key), rank: (0, 0) })
            .collect()
    };
    let two = wanted(&["a", "b"]);
    let mut joint = Joint::lock(&two, now).unwrap();
    for at in 0..2 {
        assert!(policy.decide(joint.state(at).unwrap().0, now, 1).is_allowed());
    }
    drop(joint);
    assert!(fixture.ask("a", 1, now).is_denied() && fixture.ask("b", 1, now).is_denied());
    assert!(
        Joint::lock(&wanted(&["c", "d", "e", "f", "g"]), now).is_err(),
        "five keys have no room in two places"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// More keys than room: whatever is evicted and comes back, no key's true window is ever over, and a key is in one
    /// place at a time.
    #[test]
    fn no_key_is_over_its_limit_however_often_it_is_evicted(
        requests in prop::collection::vec((0_u64..40, 0_u64..300, 1_u64..3), 1..400),
        max_keys in 4_usize..12, strict in any::<bool>()
    ) {
        let quota: Quota = "3/1us".parse().unwrap();
        let policy = if strict { Policy::sliding_window(quota) } else { Policy::sliding_log(quota).unwrap() };
        let fixture = Fixture::new(policy, max_keys);
        let mut admitted: HashMap<u64, Vec<u64>> = HashMap::new();
        let mut now = 10_000;
        for (key, gap, cost) in requests {
            // No more keys than there are places for their records.
            let key = key % (4 * max_keys as u64);
            now += gap;
            if fixture.ask(&key.to_string(), cost, Nanos::new(now)).is_allowed() {
                admitted.entry(key).or_default().extend(std::iter::repeat_n(now, cost as usize));
            }
            prop_assert!(fixture.stats().keys <= max_keys as u64);
            let places = fixture.places(Nanos::new(now));
            for key in 0..4 * max_keys as u64 {
                prop_assert!(places(&key.to_string()) <= 1, "key {} is in two places", key);
            }
        }
        prop_assert_eq!(fixture.stats().forgotten.total(), 0);
        for times in admitted.values() {
            for &end in times {
                let inside = times.iter().filter(|&&t| t <= end && end - t < 1_000).count();
                prop_assert!(inside <= 3, "{} in one window", inside);
            }
        }
    }

    /// Far more keys than places for records: what is admitted beyond the limits is what the figures say was forgotten.
    #[test]
    fn a_forgotten_key_gets_no_more_than_what_it_had_used(
        requests in prop::collection::vec((0_u64..150, 1_u64..=3), 200..900), max_keys in 1_usize..4, which in 0_usize..5
    ) {
        let policy = policies("3/1h".parse().unwrap())[which];
        let fixture = Fixture::new(policy, max_keys);
        let now = Nanos::from_secs(7_200);
        let mut admitted: HashMap<u64, u64> = HashMap::new();
        for (key, cost) in requests {
            if fixture.ask(&key.to_string(), cost, now).is_allowed() {
                *admitted.entry(key).or_default() += cost;
            }
        }
        let beyond: u64 = admitted.values().map(|&used| used.saturating_sub(3)).sum();
        let Forgotten { quarter, half, three_quarters, most, exhausted } = fixture.stats().forgotten;
        prop_assert_eq!((quarter, three_quarters), (0, 0), "of three units one is a half, two are most");
        prop_assert!(beyond <= half + 2 * most + 3 * exhausted, "{} beyond {:?}", beyond, fixture.stats());
    }

    /// With `deny` no key is ever over, and a refused key gets in at the time that it was told.
    #[test]
    fn a_table_that_denies_forgets_no_exhausted_key(
        requests in prop::collection::vec((0_u64..200, 0_u64..5), 300..900), max_keys in 1_usize..4, which in 0_usize..5
    ) {
        let policy = policies("3/1s".parse().unwrap())[which];
        let mut fixture = Fixture::new(policy, max_keys);
        fixture.table = fixture.table.when_full(WhenFull::Deny);
        let mut now = Nanos::from_secs(7_200);
        let mut ends: HashMap<u64, Nanos> = HashMap::new();
        for (key, gap) in requests {
            now = now.saturating_add(Nanos::from_millis(gap));
            let tag = fixture.hash.tag_of(&key.to_le_bytes());
            match fixture.table.apply(&policy, tag, now, |state, _| policy.decide(state, now, 3)) {
                Ok(decision) if decision.is_allowed() => {
                    let reset = now.saturating_add(decision.reset_after().into());
                    let before = ends.insert(key, reset);
                    // Counter and bucket recover bit by bit; with something left, a key may be forgotten.
                    prop_assert!(which >= 3 || before.is_none_or(|end| end <= now), "{} came again early", key);
                }
                Ok(_) => {}
                Err(Refused::Full { until }) => {
                    prop_assert!(until > now && until < Nanos::MAX);
                    let later = fixture.table.apply(&policy, tag, until, |state, _| policy.check(state, until, 3));
                    prop_assert!(later.is_ok_and(|decision| decision.is_allowed()), "in at the time that it was told");
                    now = until;
                }
                Err(Refused::Closed) => panic!("nobody closed it"),
            }
        }
        prop_assert_eq!(fixture.stats().forgotten.exhausted, 0);
    }
}

#[test]
fn a_walk_looks_into_the_buckets_around_the_keys_and_an_empty_table_has_none() {
    let fixture = Fixture::new(Policy::token_bucket("10/1h".parse().unwrap()), 1 << 20);
    let now = Nanos::from_secs(7_200);
    let walk = || {
        let before = fixture.table.visited.get();
        let mut keys = 0;
        fixture.table.for_each(|_, _| keys += 1);
        fixture.table.for_each_record(|_, _| panic!("no key was evicted"));
        (keys, fixture.table.visited.get() - before)
    };
    assert_eq!(walk(), (0, 0));
    for key in 0..100 {
        let _ = fixture.ask(&format!("user-{key}"), 1, now);
    }
    let (keys, visited) = walk();
    // 64 buckets are a page.
    assert!(keys == 100 && visited <= 100 * 64, "{visited} buckets for {keys} keys");
    for key in 0..100 {
        let tag = fixture.hash.tag_of(format!("user-{key}").as_bytes());
        fixture.table.take_out(&fixture.policy, tag, now, |_| ());
    }
    assert_eq!(walk(), (0, 0), "and none when they are gone");
}
