//! Prioritized entries borrow from future slots, wait for them, and never exceed a threshold.
#![cfg(not(loom))]

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use proptest::prelude::*;
use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Event, Gate, Guard, Layout, ManualTimer, Resource,
    rules::{
        AdaptiveAlgorithm, AdaptiveRule, Aimd, Behaviour, FlowRule, IsolationRule, Origins, Rules,
        SystemRule,
    },
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a gate with two slots of 500 ms, as in Sentinel, which starts at a whole second.
fn gate(rules: Rules) -> (Gate, Arc<ManualTimer>, Resource) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let layout = Layout::new(2, ms(1_000)).unwrap();
    let gate = Gate::builder()
        .timer(timer.clone())
        .layout(layout)
        .unwrap()
        .build();
    gate.load(rules).unwrap();
    let resource = gate.resource("r");
    (gate, timer, resource)
}

fn ten() -> Rules {
    Rules::from(vec![FlowRule::new("r", 10)])
}

fn enter_all(r: &Resource, calls: usize) -> Vec<Guard<'_>> {
    (0..calls).map_while(|_| r.enter().ok()).collect()
}

fn prioritized(r: &Resource, calls: usize) -> Vec<Guard<'_>> {
    (0..calls)
        .filter_map(|_| r.entry().prioritized().enter().ok())
        .collect()
}

#[test]
fn borrowed_units_count_where_the_bounds_are_high() {
    let isolation = vec![IsolationRule::new("r", 1_000)];
    let rules = Rules::from(vec![FlowRule::new("r", 200)]).and(isolation);
    let (_gate, timer, r) = gate(rules);
    assert_eq!(enter_all(&r, 300).len(), 200);
    timer.advance(ms(600));
    let borrowed = r.entry().prioritized().count(10).enter().unwrap();
    assert_eq!(borrowed.delay(), ms(400));
    timer.advance(ms(400));
    assert_eq!(enter_all(&r, 300).len(), 190);
}

#[test]
fn a_wait_that_is_too_long_blocks() {
    let (_gate, timer, r) = gate(ten());
    let _inside = enter_all(&r, 10);
    timer.advance(ms(100));
    let blocked = r.entry().prioritized().enter().unwrap_err();
    assert_eq!(
        blocked.kind(),
        BlockKind::Flow,
        "its slot would begin in 900 ms"
    );
    assert_eq!(blocked.retry_after(), Some(ms(900)));
}

#[test]
fn ten_borrow_the_next_slot_and_fill_the_window_that_it_begins() {
    let (gate, timer, r) = gate(ten());
    drop(enter_all(&r, 10));
    timer.advance(ms(600));
    let waiting = prioritized(&r, 11);
    assert_eq!(waiting.len(), 10, "the eleventh is blocked");
    assert_eq!(r.node().in_flight(), 10, "a waiting call is in flight");
    assert!(waiting.iter().all(|guard| guard.delay() == ms(400)));
    let counts = r.node().counts(gate.now());
    assert_eq!(
        (counts.pass, counts.occupied, counts.block),
        (10, 10, 1),
        "they pass in their slot"
    );
    timer.advance(ms(400));
    let blocked = r.enter().unwrap_err();
    assert_eq!(
        r.node().counts(gate.now()).pass,
        10,
        "the units of the first slot have left the window"
    );
    assert_eq!(r.node().in_flight(), 10);
    drop(waiting);
    assert_eq!(r.node().in_flight(), 0);
    assert_eq!(blocked.retry_after(), Some(ms(1_000)));
    timer.advance(Duration::from_nanos(999_999_999));
    assert!(r.enter().is_err());
    timer.advance(Duration::from_nanos(1));
    assert!(r.enter().is_ok());
}

#[test]
fn where_there_is_room_nothing_is_borrowed() {
    let (gate, _timer, r) = gate(ten());
    let inside = prioritized(&r, 10);
    assert!(inside.len() == 10 && inside.iter().all(|guard| guard.delay().is_zero()));
    assert_eq!(r.node().sum(gate.now(), Event::OccupiedPass), 0);
}

#[test]
fn a_longer_or_shorter_wait_can_be_configured() {
    for (longest, waits) in [(ms(901), 1), (ms(900), 0)] {
        let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
        let layout = Layout::new(2, ms(1_000)).unwrap();
        let builder = Gate::builder()
            .timer(timer.clone())
            .max_priority_wait(longest);
        let gate = builder.layout(layout).unwrap().build();
        gate.load(ten()).unwrap();
        let r = gate.resource("r");
        let _inside = enter_all(&r, 10);
        timer.advance(ms(100));
        assert_eq!(prioritized(&r, 1).len(), waits);
    }
}

#[test]
fn a_call_cancelled_before_its_slot_frees_the_slot() {
    let (gate, timer, r) = gate(ten());
    drop(enter_all(&r, 10));
    timer.advance(ms(600));
    let mut waiting = prioritized(&r, 10);
    waiting.pop().unwrap().cancel();
    let more = prioritized(&r, 2);
    assert_eq!(more.len(), 1);
    waiting.extend(more);
    waiting.into_iter().for_each(Guard::cancel);
    timer.advance(ms(400));
    assert_eq!(enter_all(&r, 99).len(), 10);
    assert_eq!(gate.resource("r").node().in_flight(), 0);
}

#[test]
fn a_call_that_ends_before_its_slot_leaves_nothing_in_flight() {
    let (gate, timer, r) = gate(ten());
    drop(enter_all(&r, 10));
    timer.advance(ms(600));
    drop(prioritized(&r, 3));
    assert_eq!(r.node().in_flight(), 0);
    timer.advance(ms(400));
    assert_eq!(
        (r.node().in_flight(), r.node().counts(gate.now()).pass),
        (0, 3)
    );
}

#[test]
fn an_async_entry_sleeps_until_its_slot_begins_and_gives_it_back_when_dropped() {
    let (_gate, timer, r) = gate(ten());
    drop(enter_all(&r, 10));
    timer.advance(ms(600));
    let mut cx = Context::from_waker(Waker::noop());
    {
        let mut dropped = pin!(r.entry().prioritized().count(10).enter_async());
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        assert!(r.entry().prioritized().enter().is_err());
    }
    let mut entry = pin!(r.entry().prioritized().count(10).enter_async());
    assert!(entry.as_mut().poll(&mut cx).is_pending());
    timer.advance(ms(400));
    let std::task::Poll::Ready(Ok(guard)) = entry.as_mut().poll(&mut cx) else {
        panic!("its slot has begun")
    };
    assert_eq!(r.node().in_flight(), 10);
    drop(guard);
    assert_eq!(r.node().in_flight(), 0);
}

#[test]
fn what_is_borrowed_counts_in_flight_for_other_rules() {
    let isolated = ten().and(vec![IsolationRule::new("r", 3)]);
    let adaptive = AdaptiveRule::new("r", AdaptiveAlgorithm::Aimd(Aimd::default())).bounds(3, 3);
    let adaptive = ten().and(vec![adaptive]);
    let in_flight = Rules::from(vec![FlowRule::new("r", 10), FlowRule::in_flight("r", 3)]);
    for rules in [isolated, adaptive, in_flight] {
        let (_gate, timer, r) = gate(rules);
        for _ in 0..10 {
            drop(r.enter().unwrap());
        }
        timer.advance(ms(600));
        let waiting = prioritized(&r, 9);
        assert_eq!(waiting.len(), 3);
        timer.advance(ms(400));
        assert_eq!(r.node().in_flight(), 3);
        assert!(r.enter().is_err());
    }
}

#[test]
fn a_system_rule_also_holds_in_a_borrowed_slot() {
    let system = SystemRule::default().qps(12);
    let (gate, timer, r) = gate(ten().and(vec![system]));
    let other = gate.resource("other");
    for _ in 0..10 {
        drop(r.entry().inbound().enter().unwrap());
    }
    timer.advance(ms(600));
    assert!(other.entry().inbound().count(2).enter().is_ok());
    // In the next slot those ten units have left the window, but these two have not.
    let waiting: Vec<_> = (0..10)
        .filter_map(|_| r.entry().inbound().prioritized().enter().ok())
        .collect();
    assert_eq!(
        waiting.len(),
        0,
        "a system rule lends nothing: the second already has twelve units"
    );
    timer.advance(ms(400));
    let inside: Vec<_> = (0..12)
        .filter_map(|_| r.entry().inbound().prioritized().enter().ok())
        .collect();
    assert_eq!(inside.len(), 10);
}

#[test]
fn origins_borrow_from_their_own_window_and_throttles_never_borrow() {
    let only = FlowRule::new("r", 2).origins(Origins::Only("app".into()));
    let (_gate, timer, r) = gate(Rules::from(vec![only]));
    let app = || r.entry().origin("app");
    drop((app().enter().unwrap(), app().enter().unwrap()));
    timer.advance(ms(600));
    let waiting = app().prioritized().enter().unwrap();
    assert_eq!(waiting.delay(), ms(400));
    timer.advance(ms(400));
    assert_eq!((0..5).filter(|_| app().enter().is_ok()).count(), 1);

    let throttle = FlowRule::new("r", 10).behaviour(Behaviour::Throttle { max_wait: ms(0) });
    let (_gate, _timer, r) = gate(Rules::from(vec![throttle]));
    assert!(r.enter().is_ok() && r.entry().prioritized().enter().is_err());
}

#[test]
fn a_call_larger_than_the_threshold_is_blocked_and_one_of_nothing_passes() {
    let (_gate, timer, r) = gate(ten());
    assert!(r.entry().prioritized().count(11).enter().is_err());
    drop(enter_all(&r, 10));
    timer.advance(ms(600));
    let look = r.entry().prioritized().count(0).enter().unwrap();
    assert_eq!(look.delay(), ms(0));
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Enter { units: u32, prioritized: bool },
    Cancel(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..400_u64).prop_map(Step::Wait),
        4 => (1..6_u32, any::<bool>()).prop_map(|(units, prioritized)| Step::Enter { units, prioritized }),
        1 => any::<usize>().prop_map(Step::Cancel),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Compares with a plain list of starts: the slots of a window never contain more starts than
    /// the threshold.
    #[test]
    fn no_window_starts_more_calls_than_its_threshold(steps in prop::collection::vec(step(), 1..120), slots in 1..5_u32, strict: bool) {
        let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
        let length = 1_000 / u64::from(slots);
        let layout = Layout::new(slots, ms(length * u64::from(slots))).unwrap();
        let gate = Gate::builder().timer(timer.clone());
        let layout = if slots == 3 { Layout::new(2, ms(1_000)).unwrap() } else { layout };
        let (slots, length) = (u64::from(layout.slots()), layout.slot().as_millis() as u64);
        let gate = gate.layout(layout).unwrap().build();
        let rule = FlowRule::new("r", 10);
        let rule = if strict { rule.strict() } else { rule };
        gate.load(Rules::from(vec![rule])).unwrap();
        let r = gate.resource("r");
        // The slot in which each call starts, with its units.
        let mut started: Vec<(u64, u64)> = Vec::new();
        let mut waiting: Vec<(Guard<'_>, u64, u64)> = Vec::new();
        let slot = || gate.now().get() / 1_000_000 / length;
        for step in steps {
            match step {
                Step::Wait(span) => {
                    timer.advance(ms(span));
                    for (guard, at, units) in waiting.extract_if(.., |(_, at, _)| *at <= slot()) {
                        started.push((at, units));
                        drop(guard);
                    }
                }
                Step::Enter { units, prioritized } => {
                    let entry = r.entry().count(units);
                    let entry = if prioritized { entry.prioritized() } else { entry };
                    if let Ok(guard) = entry.enter() {
                        let at = (gate.now().get() / 1_000_000 + guard.delay().as_millis() as u64) / length;
                        prop_assert!(guard.delay() < ms(500));
                        if guard.delay().is_zero() {
                            started.push((at, units.into()));
                        } else {
                            prop_assert_eq!(guard.delay().as_nanos() as u64 + gate.now().get(), at * length * 1_000_000);
                            waiting.push((guard, at, units.into()));
                        }
                    }
                }
                Step::Cancel(at) => {
                    if !waiting.is_empty() {
                        waiting.remove(at % waiting.len()).0.cancel();
                    }
                }
            }
            let span = slots + u64::from(strict);
            let all: Vec<(u64, u64)> = started.iter().copied().chain(waiting.iter().map(|w| (w.1, w.2))).collect();
            for newest in slot().saturating_sub(1)..slot() + 2 * span {
                let units: u64 = all.iter().filter(|(at, _)| (newest + 1 - span..=newest).contains(at)).map(|(_, n)| n).sum();
                prop_assert!(units <= 10, "{units} in the window that ends with slot {newest}");
            }
        }
    }
}
