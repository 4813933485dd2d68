//! Hot parameters: a share for each value.
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
    gate.load(Rules { hot_params: vec![rule], ..Rules::default() }).unwrap();
    (gate.resource("r"), timer)
}

fn rule(threshold: u32) -> HotParamRule {
    HotParamRule::new("r", ParamKey::Index(0), threshold)
}

fn passes(r: &Resource, value: &str, asked: usize) -> usize {
    (0..asked).filter(|_| r.entry().arg(value).enter().is_ok()).count()
}

const fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn five_in_one_second() {
    let (r, timer) = gate(rule(5));
    assert_eq!(passes(&r, "a", 6), 5);
    let blocked = r.entry().arg("a").enter().unwrap_err();
    assert_eq!((blocked.kind(), blocked.retry_after()), (BlockKind::HotParam, Some(s(1))));
    assert_eq!(passes(&r, "b", 6), 5, "another value has its own");
    assert!(r.enter().is_ok(), "without the argument there is nothing to check");
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
    assert_eq!(passes(&r, "a", 9), 5, "a second renews five of the eight");
    timer.advance(s(2));
    assert_eq!(passes(&r, "a", 9), 8);
}

#[test]
fn arguments_are_found_from_both_ends_and_by_name() {
    let pick = |key| {
        let (r, _) = gate(HotParamRule::new("r", key, 0));
        let entry = || r.entry().arg("first").arg(2).arg(true).attach("user", "ann");
        entry().enter().is_err()
    };
    assert!([0, 1, 2, -1, -3].into_iter().all(|index| pick(ParamKey::Index(index))));
    assert!([3, -4, i32::MIN, i32::MAX].into_iter().all(|index| !pick(ParamKey::Index(index))));
    assert!(pick(ParamKey::Name("user".into())));
    assert!(!pick(ParamKey::Name("host".into())));
}

#[test]
fn a_value_may_have_a_threshold_of_its_own() {
    let (r, _) = gate(rule(2).exception("vip", 7).exception(5, 0));
    assert_eq!([passes(&r, "vip", 9), passes(&r, "5", 9)], [7, 2]);
    assert!(r.entry().arg(5).enter().is_err(), "the number 5 is not the text");
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
    let (r, timer) = gate(rule(10).measure(ParamMeasure::Throttle { max_wait: Duration::from_millis(150) }));
    let delay =
        |value: &'static str| r.entry().arg(value).enter().map(|guard| guard.delay().as_millis()).ok();
    assert_eq!([delay("a"), delay("a"), delay("a"), delay("b")], [Some(0), Some(100), None, Some(0)]);
    timer.advance(Duration::from_millis(50));
    assert_eq!(delay("a"), Some(150));
}

#[test]
fn an_entry_that_another_rule_blocks_gives_its_share_back() {
    for measure in [ParamMeasure::Rate, ParamMeasure::InFlight, ParamMeasure::Throttle { max_wait: s(0) }] {
        let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
        let gate = Gate::builder().timer(timer).build();
        let hot_params = vec![rule(1).measure(measure)];
        gate.load(Rules {
            hot_params: hot_params.clone(),
            isolation: vec![IsolationRule::new("r", 0)],
            ..Rules::default()
        })
        .unwrap();
        let r = gate.resource("r");
        for _ in 0..3 {
            assert_eq!(r.entry().arg("a").enter().unwrap_err().kind(), BlockKind::Isolation, "{measure:?}");
        }
        gate.load(Rules { hot_params, ..Rules::default() }).unwrap();
        assert!(r.entry().arg("a").enter().is_ok(), "{measure:?}");
    }
}

#[test]
fn a_flood_of_values_does_not_renew_a_used_one() {
    let (r, _) = gate(rule(1).max_values(50));
    assert_eq!(passes(&r, "used", 2), 1);
    let flood = (0..10_000_u32).filter(|n| r.entry().arg(*n).enter().is_ok()).count();
    assert!(flood <= 50, "49 places and the shared one: {flood}");
    assert_eq!(passes(&r, "used", 2), 0);
    assert!(r.crowded() > 9_000);
}

/// What a value may have, as the rule's page says it, told by an oracle that works in whole milliseconds.
#[derive(Default)]
struct Oracle(HashMap<u8, (u64, u64)>);

impl Oracle {
    fn admits(&mut self, value: u8, now: u64, n: u64, threshold: u64, burst: u64, duration: u64) -> bool {
        let most = threshold + burst;
        let (renewed, left) = self.0.get(&value).copied().unwrap_or((now, most));
        let renews = !self.0.contains_key(&value) || now - renewed >= duration;
        let left = if renews { (left + (now - renewed) * threshold / duration).min(most) } else { left };
        if threshold == 0 || n > left {
            return false;
        }
        self.0.insert(value, (if renews { now } else { renewed }, left - n));
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
                // The same calls again, and then this one: a nanosecond early it is refused, in time it is not.
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
