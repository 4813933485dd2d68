//! Hot parameters: a separate share for each value.
#![cfg(not(loom))]

use std::{collections::HashMap, sync::Arc, time::Duration};

use proptest::prelude::*;
use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Gate, ManualTimer, Resource,
    rules::{HotParamRule, IsolationRule, ParamKey, ParamMeasure, Rules},
};

fn gate(rule: HotParamRule) -> (Resource, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(Rules::from(vec![rule])).unwrap();
    (gate.resource("r"), timer)
}

fn rule(threshold: u32) -> HotParamRule {
    HotParamRule::new("r", ParamKey::Index(0), threshold)
}

fn passes(r: &Resource, value: &str, asked: usize) -> usize {
    (0..asked)
        .filter(|_| r.entry().arg(value).enter().is_ok())
        .count()
}

const fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn five_in_one_second() {
    let (r, timer) = gate(rule(5));
    assert_eq!(passes(&r, "a", 6), 5);
    let blocked = r.entry().arg("a").enter().unwrap_err();
    assert_eq!(
        (blocked.kind(), blocked.retry_after()),
        (BlockKind::HotParam, Some(s(1)))
    );
    assert_eq!(passes(&r, "b", 6), 5, "another value has its own share");
    assert!(
        r.enter().is_ok(),
        "an entry without the argument is not checked"
    );
    timer.advance(Duration::from_millis(3_001));
    assert_eq!(passes(&r, "a", 1), 1);
}

#[test]
fn five_in_a_minute() {
    let (r, timer) = gate(rule(5).duration(s(60)));
    assert_eq!(passes(&r, "a", 5), 5);
    for later in [1, 10, 30] {
        timer.advance(s(later));
        assert_eq!(passes(&r, "a", 1), 0);
    }
    timer.advance(s(30));
    assert_eq!(passes(&r, "a", 9), 5);
}

#[test]
fn five_and_a_burst_of_three() {
    let (r, timer) = gate(rule(5).burst(3));
    assert_eq!(passes(&r, "a", 9), 8);
    timer.advance(s(1));
    assert_eq!(
        passes(&r, "a", 9),
        5,
        "one second renews five of the eight units"
    );
    timer.advance(s(2));
    assert_eq!(passes(&r, "a", 9), 8);
}

#[test]
fn arguments_are_found_from_both_ends_and_by_name() {
    let pick = |key| {
        let (r, _) = gate(HotParamRule::new("r", key, 0));
        let entry = || {
            r.entry()
                .arg("first")
                .arg(2)
                .arg(true)
                .attach("user", "ann")
        };
        entry().enter().is_err()
    };
    assert!(
        [0, 1, 2, -1, -3]
            .into_iter()
            .all(|index| pick(ParamKey::Index(index)))
    );
    assert!(
        [3, -4, i32::MIN, i32::MAX]
            .into_iter()
            .all(|index| !pick(ParamKey::Index(index)))
    );
    assert!(pick(ParamKey::Name("user".into())));
    assert!(!pick(ParamKey::Name("host".into())));
}

#[test]
fn a_value_can_have_its_own_threshold() {
    let (r, _) = gate(rule(2).exception("vip", 7).exception(5, 0));
    assert_eq!([passes(&r, "vip", 9), passes(&r, "5", 9)], [7, 2]);
    assert!(
        r.entry().arg(5).enter().is_err(),
        "the number 5 is not the text"
    );
}

#[test]
fn calls_in_flight_are_counted_by_value() {
    let (r, _) = gate(rule(2).measure(ParamMeasure::InFlight));
    let enter = |value: &'static str| r.entry().arg(value).enter();
    let (first, second) = (enter("a").unwrap(), enter("a").unwrap());
    assert!(enter("a").is_err() && enter("b").is_ok());
    drop(first);
    assert!(enter("a").is_ok());
    second.cancel();
    let _both = (enter("a").unwrap(), enter("a").unwrap());
    assert!(enter("a").is_err());
}

#[test]
fn a_throttled_value_is_spaced() {
    let (r, timer) = gate(rule(10).measure(ParamMeasure::Throttle {
        max_wait: Duration::from_millis(150),
    }));
    let delay = |value: &'static str| {
        r.entry()
            .arg(value)
            .enter()
            .map(|guard| guard.delay().as_millis())
            .ok()
    };
    assert_eq!(
        [delay("a"), delay("a"), delay("a"), delay("b")],
        [Some(0), Some(100), None, Some(0)]
    );
    timer.advance(Duration::from_millis(50));
    assert_eq!(delay("a"), Some(150));
}

#[test]
fn an_entry_blocked_by_another_rule_returns_its_share() {
    for measure in [
        ParamMeasure::Rate,
        ParamMeasure::InFlight,
        ParamMeasure::Throttle { max_wait: s(0) },
    ] {
        let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
        let gate = Gate::builder().timer(timer).build();
        let hot_params = vec![rule(1).measure(measure)];
        gate.load(Rules::from(hot_params.clone()).and(vec![IsolationRule::new("r", 0)]))
            .unwrap();
        let r = gate.resource("r");
        for _ in 0..3 {
            assert_eq!(
                r.entry().arg("a").enter().unwrap_err().kind(),
                BlockKind::Isolation,
                "{measure:?}"
            );
        }
        gate.load(Rules::from(hot_params)).unwrap();
        assert!(r.entry().arg("a").enter().is_ok(), "{measure:?}");
    }
}

#[test]
fn a_flood_of_values_blocks_no_new_value_and_renews_no_used_one() {
    flood(400, 100_000);
}

#[test]
#[ignore = "takes a minute without --release: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn a_flood_of_a_million_values_blocks_no_new_value_and_renews_no_used_one() {
    flood(4_000, 1_000_000);
}

fn flood(kept: usize, values: u32) {
    let (r, _) = gate(rule(10).max_values(kept));
    for value in ["a", "b", "c"] {
        assert_eq!(passes(&r, value, 11), 10);
    }
    let enter = |n: u32| r.entry().arg(n).enter().is_ok();
    assert!((0..values).all(enter), "each value has its own share");
    assert!(
        (values..values + values / 10).all(enter),
        "values after the flood also have their own share"
    );
    for value in ["a", "b", "c"] {
        assert_eq!(passes(&r, value, 1), 0, "{value} has used up its share");
    }
    assert!(
        r.crowded() > u64::from(values / 2),
        "forgotten values are counted: {}",
        r.crowded()
    );
}

#[test]
fn batches_in_flight_leave_whole() {
    let (r, _) = gate(rule(5).measure(ParamMeasure::InFlight));
    let enter = |n| r.entry().arg("a").count(n).enter();
    let (three, two) = (enter(3).unwrap(), enter(2).unwrap());
    assert!(enter(1).is_err());
    drop(three);
    assert!(enter(4).is_err());
    drop(enter(3).unwrap());
    drop(two);
    assert!(enter(6).is_err());
    assert!(enter(5).is_ok());
}

#[test]
fn an_evicted_value_with_calls_in_flight_is_counted_when_it_returns() {
    let (r, _) = gate(rule(2).measure(ParamMeasure::InFlight).max_values(1));
    let enter = |value: &'static str| r.entry().arg(value).enter();
    let a = enter("a").unwrap();
    let x = enter("x").unwrap();
    let more = enter("a").expect("two of a");
    assert!(enter("a").is_err());
    drop(x);
    drop(a);
    let again = enter("a").unwrap();
    assert!(enter("a").is_err());
    drop((more, again));
    assert!(r.entry().arg("a").count(2).enter().is_ok());
}

#[test]
fn calls_whose_values_were_forgotten_leave_nothing_behind() {
    let (r, _) = gate(rule(2).measure(ParamMeasure::InFlight).max_values(1));
    let held: Vec<_> = (0..1_000_u32)
        .map(|value| r.entry().arg(value).enter().unwrap())
        .collect();
    assert!(r.crowded() > 900, "{}", r.crowded());
    drop(held);
    for value in 0..1_000_u32 {
        let both = r.entry().arg(value).count(2).enter();
        assert!(
            both.is_ok() && r.entry().arg(value).enter().is_err(),
            "{value}"
        );
    }
}

#[test]
fn a_lower_bound_on_values_forgets_no_calls() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer).build();
    let load = |places| {
        let rule = rule(2).measure(ParamMeasure::InFlight).max_values(places);
        gate.load(Rules::from(vec![rule])).unwrap();
        gate.resource("r")
    };
    let r = load(4);
    let values = ["a", "b", "c", "d"];
    let held = values.map(|value| r.entry().arg(value).enter().unwrap());
    let r = load(1);
    let more = r.entry().arg("e").count(2).enter().unwrap();
    assert_eq!(
        values.map(|value| r.entry().arg(value).count(2).enter().is_ok()),
        [false; 4]
    );
    assert_eq!(values.map(|value| passes(&r, value, 1)), [1; 4]);
    assert_eq!((passes(&r, "e", 1), r.crowded()), (0, 0));
    drop((held, more));
}

#[test]
fn a_value_that_moves_between_places_has_no_more_than_its_bound() {
    // The value, the millisecond and the units of each call. In `loses`, x has a place and loses
    // it. In `gets`, x shares one and then gets its own.
    let loses = [
        ("x", 0, 1),
        ("b", 1, 1),
        ("x", 999, 4),
        ("c", 1_000, 1),
        ("x", 1_000, 5),
        ("x", 1_001, 5),
    ];
    let gets = [
        ("b", 1, 1),
        ("c", 1_000, 1),
        ("x", 1_999, 4),
        ("x", 2_000, 5),
        ("x", 2_001, 5),
    ];
    let shares = [
        ("x", 0, 1),
        ("b", 500, 1),
        ("x", 999, 4),
        ("c", 1_000, 1),
        ("x", 1_000, 5),
        ("x", 1_500, 5),
    ];
    for (places, calls) in [(2, &loses[..]), (1, &gets), (1, &shares)] {
        let (r, timer) = gate(rule(5).max_values(places));
        let mut passed = HashMap::new();
        for &(value, ms, asked) in calls {
            timer.set(Nanos::from_millis(1_000_000 + ms));
            *passed.entry((value, ms / 999)).or_insert(0) += passes(&r, value, asked);
        }
        let most = passed
            .iter()
            .filter(|((value, _), _)| *value == "x")
            .map(|(_, passed)| passed)
            .max();
        let within_bound = most.is_some_and(|most| (5..=10).contains(most));
        assert!(within_bound, "ten within a second is the bound: {passed:?}");
    }
}

#[test]
fn a_flood_does_not_free_a_throttled_value_before_its_batch_is_paid_for() {
    let measure = ParamMeasure::Throttle { max_wait: s(0) };
    let (r, timer) = gate(rule(10).measure(measure).max_values(1));
    let enter = |value: &'static str, n| r.entry().arg(value).count(n).enter().is_ok();
    assert!(enter("a", 10));
    timer.advance(Duration::from_millis(120));
    assert!(!enter("a", 10));
    assert!(enter("b", 1));
    assert!(!enter("a", 10), "b has another place");
    timer.advance(Duration::from_millis(880));
    assert!(enter("c", 1), "after a second the place is free");
    timer.advance(Duration::from_millis(120));
    assert!(
        enter("a", 10),
        "the place of c is free, and b's call is also one second ago"
    );
}

/// The documented share of a value, computed by an oracle in whole milliseconds.
#[derive(Default)]
struct Oracle(HashMap<u8, (u64, u64)>);

impl Oracle {
    fn admits(
        &mut self,
        value: u8,
        now: u64,
        n: u64,
        threshold: u64,
        burst: u64,
        duration: u64,
    ) -> bool {
        let most = threshold + burst;
        let (renewed, left) = self.0.get(&value).copied().unwrap_or((now, most));
        let renews = !self.0.contains_key(&value) || now - renewed >= duration;
        let left = if renews {
            (left + (now - renewed) * threshold / duration).min(most)
        } else {
            left
        };
        if threshold == 0 || n > left {
            return false;
        }
        self.0
            .insert(value, (if renews { now } else { renewed }, left - n));
        true
    }
}

proptest! {
    #[test]
    fn shares_agree_with_the_oracle_and_waits_are_true(
        calls in prop::collection::vec((0..3_u8, 0..700_u64, 1..4_u32), 1..80),
        threshold in 0..6_u32,
        burst in 0..4_u32,
    ) {
        let (r, timer) = gate(rule(threshold).burst(burst));
        let start = Nanos::from_secs(1_000);
        let mut oracle = Oracle::default();
        let mut now = start;
        let mut asked: Vec<(Nanos, u8, u32)> = Vec::new();
        for (value, later, n) in calls {
            now = now.saturating_add(Nanos::from_millis(later));
            timer.set(now);
            let ms = now.saturating_since(start).get() / 1_000_000;
            let want = oracle.admits(value, ms, n.into(), threshold.into(), burst.into(), 1_000);
            let got = r.entry().arg(u32::from(value)).count(n).enter();
            prop_assert_eq!(got.is_ok(), want, "value {} at {} asks {}", value, ms, n);
            if let Err(blocked) = got && let Some(wait) = blocked.retry_after() {
                // Repeat the same calls, then this one: it is refused one nanosecond early and
                // admitted in time.
                for (early, passes) in [(1, false), (0, true)] {
                    let (again, timer) = gate(rule(threshold).burst(burst));
                    for &(at, value, n) in &asked {
                        timer.set(at);
                        drop(again.entry().arg(u32::from(value)).count(n).enter());
                    }
                    let at = now.saturating_add(wait.into());
                    timer.set(at.saturating_since(Nanos::new(early)));
                    let entered = again.entry().arg(u32::from(value)).count(n).enter();
                    prop_assert_eq!(entered.is_ok(), passes, "{} ns early", early);
                }
            }
            asked.push((now, value, n));
        }
    }
}

/// Calls of a few values that compete for fewer places: the value, the time since the previous call
/// in ms, and the units.
fn crowd() -> impl Strategy<Value = Vec<(u8, u64, u32)>> {
    prop::collection::vec(
        (
            0..6_u8,
            prop_oneof![3 => 0..60_u64, 1 => 0..1_200_u64],
            1..4_u32,
        ),
        1..250,
    )
}

proptest! {
    #[test]
    fn a_crowd_never_gives_a_value_more_than_twice_its_share_in_a_duration(
        calls in crowd(),
        threshold in 1..6_u32,
        burst in 0..4_u32,
        places in 1..4_usize,
    ) {
        let (r, timer) = gate(rule(threshold).burst(burst).max_values(places));
        let (mut now, mut passed) = (0, Vec::new());
        for (value, later, n) in calls {
            now += later;
            timer.advance(Duration::from_millis(later));
            if r.entry().arg(u32::from(value)).count(n).enter().is_ok() {
                passed.push((value, now, n));
            }
        }
        for &(value, from, _) in &passed {
            let inside = passed.iter().filter(|(of, at, _)| *of == value && (from..from + 1_000).contains(at));
            let units: u32 = inside.map(|(.., n)| n).sum();
            prop_assert!(units <= 2 * (threshold + burst), "{units} of {value} from {from} on");
        }
    }

    #[test]
    fn a_crowd_never_brings_the_calls_of_a_value_closer(calls in crowd(), places in 1..4_usize) {
        let measure = ParamMeasure::Throttle { max_wait: Duration::from_millis(150) };
        let (r, timer) = gate(rule(20).measure(measure).max_values(places));
        let (mut now, mut last) = (0, HashMap::new());
        for (value, later, n) in calls {
            now += later;
            timer.advance(Duration::from_millis(later));
            let Ok(guard) = r.entry().arg(u32::from(value)).count(n).enter() else { continue };
            let start = u128::from(now) + guard.delay().as_millis();
            if let Some((before, units)) = last.insert(value, (start, n)) {
                prop_assert!(start - before >= u128::from(50 * n.min(units)), "{before} and {start} of {value}");
            }
        }
    }

    #[test]
    fn a_crowd_never_brings_more_of_a_value_in_flight(
        steps in prop::collection::vec((0..6_u8, any::<bool>(), 1..3_u32, any::<prop::sample::Index>()), 1..200),
        threshold in 1..4_u32,
        places in 1..4_usize,
    ) {
        let (r, _) = gate(rule(threshold).measure(ParamMeasure::InFlight).max_values(places));
        let mut inside = Vec::new();
        for (value, enters, n, which) in steps {
            if enters {
                let entered = r.entry().arg(u32::from(value)).count(n).enter();
                inside.extend(entered.map(|guard| (value, n, guard)));
            } else if !inside.is_empty() {
                drop(inside.swap_remove(which.index(inside.len())));
            }
            let units: u32 = inside.iter().filter(|(of, ..)| *of == value).map(|(_, n, _)| n).sum();
            prop_assert!(units <= threshold, "{units} of {value}");
        }
        drop(inside);
        for value in 0..6_u32 {
            prop_assert!(r.entry().arg(value).count(threshold).enter().is_ok(), "all units are free again");
        }
    }
}

#[test]
fn a_rule_that_denies_when_full_lets_no_value_past_its_threshold() {
    // Ten times as many values as the table keeps, each asked again and again within one second.
    const KEPT: usize = 50;
    let values = 10 * (KEPT + 4 * KEPT);
    let (r, timer) = gate(rule(10).max_values(KEPT).deny_when_full());
    let mut passed = vec![0; values];
    for _ in 0..30 {
        for (value, passed) in passed.iter_mut().enumerate() {
            *passed += passes(&r, &value.to_string(), 1);
        }
    }
    assert!(
        passed.iter().all(|passed| *passed <= 10),
        "{:?}",
        passed.iter().max()
    );
    assert!(passed.iter().filter(|passed| **passed == 10).count() >= KEPT);
    assert_eq!(r.crowded(), 0);
    let refused = r.entry().arg("new").enter().unwrap_err();
    assert_eq!(
        refused.retry_after(),
        Some(s(1)),
        "until a value has recovered"
    );
    timer.advance(s(1));
    assert_eq!(passes(&r, "new", 11), 10);
}

#[test]
fn the_default_table_has_room_for_four_thousand_values_a_second() {
    for (seconds, values) in [(1, 4_000_u32), (10, 40_000)] {
        let (r, _) = gate(rule(1).duration(s(seconds)));
        let enter = |n: u32| r.entry().arg(n).enter().is_ok();
        assert!((0..values).all(enter));
        assert_eq!(
            (0..values).filter(|value| enter(*value)).count(),
            0,
            "{values} values in {seconds} s"
        );
    }
}

#[test]
fn a_throttled_value_blocks_what_exceeds_its_threshold_and_lets_a_look_pass() {
    let measure = ParamMeasure::Throttle { max_wait: s(60) };
    let rule = HotParamRule::new("r", ParamKey::Index(0), 3)
        .measure(measure)
        .exception("none", 0);
    let (r, _timer) = gate(rule);
    let enter = |value: &'static str, units| {
        r.entry()
            .count(units)
            .arg(value)
            .enter()
            .map(|guard| guard.delay())
    };
    assert!(enter("a", 4).is_err());
    assert_eq!(
        [enter("a", 0).ok(), enter("a", 3).ok(), enter("a", 0).ok()],
        [Some(s(0)); 3]
    );
    assert_eq!(enter("a", 3).ok(), Some(s(1)));
    assert!(enter("none", 0).is_ok() && enter("none", 1).is_err());
}
