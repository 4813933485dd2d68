//! Compares rules with simple oracles that remember everything.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use tidegate_core::Nanos;
use tidegate_flow::{
    BreakerState, Gate, ManualTimer, Resource,
    rules::{Behaviour, BreakerRule, FlowRule, IsolationRule, Rules, Trip},
};

const START: u64 = 1_000_000;

fn resource(rules: Rules) -> (Resource, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_millis(START)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    (gate.resource("r"), timer)
}

/// A call: the time since the previous one (negative for a jump backwards) and its units.
fn calls() -> impl Strategy<Value = Vec<(i64, u32)>> {
    let later = prop_oneof![4 => 0..120_i64, 1 => 0..2_500_i64, 1 => -300..0_i64];
    prop::collection::vec((later, 1..4_u32), 1..120)
}

/// A rate admits exactly the calls that fit with those admitted in `span` slots of 100 ms, and the
/// reported waits are correct.
fn check_rate(
    rule: FlowRule,
    threshold: u32,
    span: u64,
    calls: Vec<(i64, u32)>,
) -> Result<(), TestCaseError> {
    let (r, timer) = resource(Rules::from(vec![rule]));
    let (mut now, mut newest) = (START, 0);
    let mut admitted: Vec<(u64, u64)> = Vec::new();
    for (later, n) in calls {
        now = now.saturating_add_signed(later);
        timer.set(Nanos::from_millis(now));
        newest = newest.max(now / 100);
        let used: u64 = admitted
            .iter()
            .filter(|(slot, _)| slot + span > newest)
            .map(|(_, n)| n)
            .sum();
        let fits = used + u64::from(n) <= u64::from(threshold);
        match r.entry().count(n).enter() {
            Ok(_) => {
                prop_assert!(fits, "{n} at {now} with {used} used");
                admitted.push((newest, n.into()));
            }
            Err(blocked) => {
                prop_assert!(!fits, "{n} at {now} with {used} used");
                prop_assert_eq!(blocked.retry_after().is_some(), n <= threshold);
                if let Some(wait) = blocked.retry_after() {
                    // A query takes nothing. It is refused one nanosecond early and admitted in
                    // time.
                    let at = Nanos::from_millis(now).saturating_add(wait.into());
                    let free = |slot: u64| {
                        let used: u64 = admitted
                            .iter()
                            .filter(|(s, _)| s + span > slot)
                            .map(|(_, n)| n)
                            .sum();
                        used + u64::from(n) <= u64::from(threshold)
                    };
                    prop_assert!(free(at.get() / 100_000_000));
                    prop_assert!(!free((at.get() - 1) / 100_000_000));
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_rate_admits_what_the_slots_leave_and_its_waits_are_true(
        calls in calls(),
        threshold in 0..12_u32,
        slots in prop::sample::select(vec![1_u64, 2, 5, 10]),
        strict in any::<bool>(),
    ) {
        let rule = FlowRule::new("r", threshold).interval(Duration::from_millis(slots * 100));
        let rule = if strict { rule.strict() } else { rule };
        check_rate(rule, threshold, slots + u64::from(strict), calls)?;
    }

    /// An addition admits small calls far from a high threshold. Large calls, and calls near the
    /// threshold, check first.
    #[test]
    fn a_high_rate_admits_the_same_near_it_and_far_from_it(
        calls in calls(),
        large in prop::collection::vec(0..2_000_u32, 120),
        threshold in 3_000..9_000_u32,
    ) {
        let calls = calls.into_iter().zip(large).map(|((later, n), large)| (later, if large < 900 { n * 20 } else { large }));
        check_rate(FlowRule::new("r", threshold), threshold, 10, calls.collect())?;
    }

    #[test]
    fn a_throttle_gives_slots_in_queue_order(
        calls in prop::collection::vec((0..400_u64, 1..4_u32), 1..100),
        rate in 1..30_u32,
        max_wait in 0..600_u64,
    ) {
        let behaviour = Behaviour::Throttle { max_wait: Duration::from_millis(max_wait) };
        let (r, timer) = resource(Rules::from(vec![FlowRule::new("r", rate).behaviour(behaviour)]));
        let (mut now, mut last) = (START * 1_000_000, None);
        for (later, n) in calls {
            now += later * 1_000_000;
            timer.set(Nanos::new(now));
            let cost = (u64::from(n) * 1_000_000_000).div_ceil(rate.into());
            let place = last.map_or(now, |last: u64| (last + cost).max(now));
            let wait = place - now;
            match r.entry().count(n).enter() {
                Err(blocked) if n > rate => prop_assert_eq!(blocked.retry_after(), None),
                Ok(guard) => {
                    prop_assert!(n <= rate);
                    prop_assert_eq!(guard.delay(), Duration::from_nanos(wait));
                    prop_assert!(wait <= max_wait * 1_000_000);
                    last = Some(place);
                }
                Err(blocked) => {
                    prop_assert!(wait > max_wait * 1_000_000);
                    prop_assert_eq!(blocked.retry_after(), Some(Duration::from_nanos(wait - max_wait * 1_000_000)));
                }
            }
        }
    }

    #[test]
    fn calls_in_flight_stay_within_their_bound(
        steps in prop::collection::vec((any::<bool>(), 1..5_u32, any::<prop::sample::Index>()), 1..150),
        threshold in 0..12_u32,
    ) {
        let (r, _timer) = resource(Rules::from(vec![IsolationRule::new("r", threshold)]));
        let mut out = Vec::new();
        for (enters, n, which) in steps {
            let in_flight: u32 = out.iter().map(|(_, n)| n).sum();
            if enters {
                let entered = r.entry().count(n).enter_owned();
                prop_assert_eq!(entered.is_ok(), in_flight + n <= threshold);
                out.extend(entered.map(|guard| (guard, n)));
            } else if !out.is_empty() {
                drop(out.swap_remove(which.index(out.len())));
            }
            let in_flight: u32 = out.iter().map(|(_, n)| n).sum();
            prop_assert_eq!(r.node().in_flight(), u64::from(in_flight));
        }
    }

    #[test]
    fn a_breaker_does_what_a_plain_one_does(
        calls in prop::collection::vec((0..700_u64, any::<bool>(), any::<bool>()), 1..150),
        min_calls in 1..6_u32,
        probes in 1..4_u32,
    ) {
        let trip = Trip::ErrorRatio { ratio: 0.5 };
        let rule = BreakerRule::new("r", trip, Duration::from_secs(2)).min_calls(min_calls).probes(probes);
        let (r, timer) = resource(Rules::from(vec![rule]));
        let mut plain = Plain { min_calls: min_calls as usize, probes, ..Plain::default() };
        let mut now = START;
        for (later, fails, cancels) in calls {
            now += later;
            timer.set(Nanos::from_millis(now));
            let entered = r.enter();
            prop_assert_eq!(entered.is_ok(), plain.lets(now), "at {} in {:?}", now, plain);
            if let Ok(mut guard) = entered {
                if cancels && fails {
                    guard.cancel();
                    plain.cancelled();
                } else {
                    if fails {
                        guard.mark_failed();
                    }
                    drop(guard);
                    plain.ended(now, fails);
                }
            }
            prop_assert_eq!(r.breakers()[0].1, plain.state, "at {} in {:?}", now, plain);
        }
    }
}

/// A simple single-threaded breaker that keeps every call.
#[derive(Debug)]
struct Plain {
    state: BreakerState,
    until: u64,
    good: u32,
    calls: Vec<(u64, bool)>,
    min_calls: usize,
    probes: u32,
}

impl Default for Plain {
    fn default() -> Self {
        let state = BreakerState::Closed;
        Self {
            state,
            until: 0,
            good: 0,
            calls: Vec::new(),
            min_calls: 0,
            probes: 0,
        }
    }
}

impl Plain {
    fn lets(&mut self, now: u64) -> bool {
        if self.state == BreakerState::Open && now >= self.until {
            self.state = BreakerState::HalfOpen;
        }
        self.state != BreakerState::Open
    }

    fn ended(&mut self, now: u64, failed: bool) {
        if self.state == BreakerState::HalfOpen {
            self.good += 1;
            if failed {
                self.open(now);
            } else if self.good == self.probes {
                self.state = BreakerState::Closed;
                self.good = 0;
                self.calls.clear();
            }
            return;
        }
        self.calls.push((now / 100, failed));
        let seen: Vec<_> = self
            .calls
            .iter()
            .filter(|(slot, _)| slot + 10 > now / 100)
            .collect();
        let bad = seen.iter().filter(|(_, failed)| *failed).count();
        if seen.len() >= self.min_calls && bad * 2 > seen.len() {
            self.open(now);
        }
    }

    /// No probe is in flight then, and a new one may start at once.
    fn cancelled(&mut self) {
        if self.state == BreakerState::HalfOpen {
            self.state = BreakerState::Open;
        }
    }

    fn open(&mut self, now: u64) {
        self.state = BreakerState::Open;
        self.until = now + 2_000;
        self.good = 0;
    }
}
