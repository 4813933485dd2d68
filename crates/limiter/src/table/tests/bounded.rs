//! The bound on keys, and what it may never cost.

use std::collections::HashMap;

use crate::table::{HashKeys, Joint, Stats, Table, Wanted};
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

    fn ask(&self, key: &str, cost: u32, now: Nanos) -> Decision {
        let tag = self.hash.tag(key.as_bytes());
        self.table.apply(&self.policy, tag, now, |state, _| self.policy.decide(state, now, cost))
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
fn recovered_keys_give_way_before_any_other() {
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
fn up_to_the_bound_at_most_one_key_in_ten_thousand_has_to_give_way() {
    for policy in policies("200/1h".parse().unwrap()) {
        let max_keys = if policy.words() > 100 { 2_000_u32 } else { 100_000 };
        let fixture = Fixture::new(policy, max_keys as usize);
        for i in 0..max_keys {
            let _ = fixture.ask(&format!("user-{i}"), 1, Nanos::from_secs(7_200));
        }
        let stats = fixture.stats();
        assert!(stats.evicted <= u64::from(max_keys / 10_000), "{}: {stats:?}", policy.name());
    }
}

#[test]
fn a_joint_decision_keeps_its_own_keys_in_place() {
    let policy = Policy::fixed_window("1/1h".parse().unwrap());
    let fixture = Fixture::new(policy, 2);
    let now = Nanos::from_secs(5_000);
    let wanted = |keys: &[&str]| -> Vec<Wanted<'_, Policy>> {
        let tag = |key: &&str| fixture.hash.tag(key.as_bytes());
        keys.iter()
            .map(|key| Wanted { table: &fixture.table, algorithm: &policy, tag: tag(key), rank: (0, 0) })
            .collect()
    };
    let two = wanted(&["a", "b"]);
    let mut joint = Joint::lock(&two, now).unwrap();
    for at in 0..2 {
        assert!(policy.decide(joint.state(at).0, now, 1).is_allowed());
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

    /// More keys than room: whatever is evicted and comes back, no key's true window is ever over.
    #[test]
    fn no_key_is_over_its_limit_however_often_it_is_evicted(
        requests in prop::collection::vec((0_u64..40, 0_u64..300, 1_u32..3), 1..400),
        max_keys in 1_usize..12, strict in any::<bool>()
    ) {
        let quota: Quota = "3/1us".parse().unwrap();
        let policy = if strict { Policy::sliding_window(quota) } else { Policy::sliding_log(quota).unwrap() };
        let fixture = Fixture::new(policy, max_keys);
        let mut admitted: HashMap<u64, Vec<u64>> = HashMap::new();
        let mut now = 10_000;
        for (key, gap, cost) in requests {
            now += gap;
            if fixture.ask(&key.to_string(), cost, Nanos::new(now)).is_allowed() {
                admitted.entry(key).or_default().extend(std::iter::repeat_n(now, cost as usize));
            }
            prop_assert!(fixture.stats().keys <= max_keys as u64);
        }
        for times in admitted.values() {
            for &end in times {
                let inside = times.iter().filter(|&&t| t <= end && end - t < 1_000).count();
                prop_assert!(inside <= 3, "{} in one window", inside);
            }
        }
    }
}
