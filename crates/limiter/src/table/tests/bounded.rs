//! The bound on keys, and what it may never cost.

use std::collections::HashMap;

use crate::table::{Found, HashKeys, Joint, Table, Wanted};
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
            prop_assert!(fixture.table.stats().keys <= max_keys as u64);
            let places = fixture.places(Nanos::new(now));
            for key in 0..4 * max_keys as u64 {
                prop_assert!(places(&key.to_string()) <= 1, "key {} is in two places", key);
            }
        }
        prop_assert_eq!(fixture.table.stats().forgotten.total(), 0);
        for times in admitted.values() {
            for &end in times {
                let inside = times.iter().filter(|&&t| t <= end && end - t < 1_000).count();
                prop_assert!(inside <= 3, "{} in one window", inside);
            }
        }
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
