use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use tidegate_core::clock::ManualTimer;

use super::*;
use crate::{
    Gate, OwnedGuard, Resource,
    rules::{FlowRule, IsolationRule, Rules, SystemRule},
};

mod oracle;
mod threads;

const START: u64 = 1_000_000;

/// A gate whose resource `r` and inbound traffic have stripes.
fn striped(stripes: usize, rules: Rules) -> (Gate, Arc<ManualTimer>, Resource) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_millis(START)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    let r = gate.resource("r");
    for node in [r.node(), gate.inbound()] {
        node.set_stripes(Stripes::new(Layout::second(), stripes));
    }
    (gate, timer, r)
}

fn limits(passed: u32, in_flight: u32, inbound: u32) -> Rules {
    Rules {
        flow: vec![FlowRule::new("r", passed)],
        isolation: vec![IsolationRule::new("r", in_flight)],
        system: vec![SystemRule { qps: Some(inbound.into()), ..SystemRule::default() }],
        ..Rules::default()
    }
}

/// Enters until the stripes of the resource and of the gate are open.
fn open(gate: &Gate, timer: &ManualTimer, r: &Resource) {
    for _ in 0..3 {
        drop(r.entry().inbound().enter());
        timer.advance(Duration::from_millis(100));
    }
    for node in [r.node(), gate.inbound()] {
        assert_eq!(node.stripes().unwrap().word.load(Ordering::Relaxed) & STATE, OPEN);
    }
}

#[test]
fn a_busy_node_gets_stripes_and_a_quiet_one_does_not() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).striping(Striping::new(2, 10_000)).build();
    let (busy, quiet) = (gate.resource("busy"), gate.resource("quiet"));
    for _ in 0..100 {
        drop(busy.entry().count(600).enter().unwrap());
        drop(quiet.entry().count(400).enter().unwrap());
        timer.advance(Duration::from_millis(50));
    }
    // 12,000 units a second, and 8,000.
    assert!(busy.node().stripes().is_some());
    assert!(quiet.node().stripes().is_none());
    assert_eq!(busy.node().counts(gate.now()).pass, 18 * 600);
}

#[test]
fn entries_far_from_the_limits_count_in_the_stripe_of_their_thread() {
    let (gate, timer, r) = striped(4, limits(1_000_000, 10_000, 1_000_000));
    open(&gate, &timer, &r);
    let stripes = r.node().stripes().unwrap();
    let inside: Vec<OwnedGuard> = (0..4)
        .map(|thread| {
            set_thread_number(thread);
            r.entry().inbound().enter_owned().unwrap()
        })
        .collect();
    assert!(stripes.windows().all(|window| window.in_flight() == 1));
    assert!(gate.inbound().stripes().unwrap().windows().all(|window| window.in_flight() == 1));
    // A call ends where it entered, on whatever thread.
    std::thread::spawn(move || drop(inside)).join().unwrap();
    assert!(stripes.windows().all(|window| window.in_flight() == 0));
    assert_eq!(r.node().in_flight() + gate.inbound().in_flight(), 0);
}

#[test]
fn entries_without_rules_count_in_stripes() {
    let (gate, timer, r) = striped(2, Rules::default());
    open(&gate, &timer, &r);
    let guard = r.enter().unwrap();
    assert_eq!(r.node().stripes().unwrap().in_flight(), 1);
    drop(guard);
}

#[test]
fn the_most_in_flight_of_a_slot_counts_those_inside_idle_stripes() {
    let (gate, timer, r) = striped(2, Rules::default());
    open(&gate, &timer, &r);
    timer.set(Nanos::from_millis(START + 2_000));
    set_thread_number(0);
    let idle: Vec<_> = (0..5).map(|_| r.enter().unwrap()).collect();
    timer.advance(Duration::from_millis(300));
    set_thread_number(1);
    let one = r.enter().unwrap();
    // A later slot, so that the idle stripe has none for the one entry.
    timer.advance(Duration::from_millis(200));
    let slots = r.node().slots(gate.now());
    let last = slots.iter().rfind(|slot| slot.counts.pass == 1).unwrap();
    assert_eq!(last.counts.max_in_flight, 6);
    assert_eq!(r.node().counts(gate.now()).max_in_flight, 6);
    assert_eq!(r.node().seconds(gate.now()).last().unwrap().counts.max_in_flight, 6);
    drop((idle, one));
}

#[test]
fn the_shortest_time_and_the_seconds_are_those_of_all_stripes() {
    let (gate, timer, r) = striped(2, Rules::default());
    open(&gate, &timer, &r);
    timer.set(Nanos::from_millis(START + 2_000));
    for (thread, ms) in [(0, 30), (1, 20), (0, 40)] {
        set_thread_number(thread);
        let guard = r.enter().unwrap();
        timer.advance(Duration::from_millis(ms));
        drop(guard);
    }
    assert_eq!(r.node().min_rt(gate.now()), Some(Duration::from_millis(20)));
    let second = *r.node().seconds(gate.now()).last().unwrap();
    assert_eq!((second.counts.pass, second.counts.success), (3, 3));
    assert_eq!(
        (second.counts.rt, second.counts.min_rt),
        (Duration::from_millis(90), Some(Duration::from_millis(20)))
    );
    assert_eq!(r.node().passed_last_second(Nanos::from_millis(START + 3_000)), Some(3));
}

/// Fills stripes under high limits.
fn filled(rules: Rules) -> (Gate, Arc<ManualTimer>, Resource, Vec<OwnedGuard>) {
    let (gate, timer, r) = striped(4, rules);
    open(&gate, &timer, &r);
    let mut inside = Vec::new();
    for call in 0..800 {
        set_thread_number(call % 4);
        inside.push(r.entry().inbound().enter_owned().unwrap());
    }
    assert_eq!(r.node().stripes().unwrap().in_flight(), 800);
    (gate, timer, r, inside)
}

#[test]
fn lower_limits_count_the_units_that_stripes_hold() {
    let high = || limits(10_000, 10_000, 10_000);
    for low in [limits(700, 10_000, 10_000), limits(10_000, 700, 10_000), limits(10_000, 10_000, 700)] {
        let (gate, timer, r, inside) = filled(high());
        gate.load(low).unwrap();
        // In later slots, too, in which stripes may open.
        for step in 0..5 {
            set_thread_number(step);
            assert!((0..10).all(|_| r.entry().inbound().enter().is_err()), "{:?}", gate.rules());
            timer.advance(Duration::from_millis(100));
        }
        drop(inside);
    }
}

#[test]
fn an_entry_that_no_rule_checks_closes_the_stripes_when_it_needs_more_than_half() {
    let (_gate, _timer, r, inside) = filled(limits(10_000, 10_000, 10_000));
    let stripes = r.node().stripes().unwrap();
    let is_open = || stripes.word.load(Ordering::Relaxed) & STATE == OPEN;
    let now = Nanos::from_millis(START + 300);
    // The three entries before the stripes opened are in the main window.
    r.node().pass_now(now, 4_990);
    assert!(is_open());
    r.node().pass_now(now, 20);
    assert!(!is_open());
    drop(inside);
}

#[test]
fn a_reservation_closes_the_stripes_until_nothing_is_borrowed() {
    let (gate, timer, r, inside) = filled(limits(10_000, 10_000, 10_000));
    let stripes = r.node().stripes().unwrap();
    let is_open = || stripes.word.load(Ordering::Relaxed) & STATE == OPEN;
    let slot = gate.now().get() / 100_000_000 + 3;
    assert!(r.node().reserve(gate.now(), slot, 5, |_| Ok::<(), ()>(())).is_ok());
    for _ in 0..2 {
        assert!(!is_open());
        timer.advance(Duration::from_millis(100));
        drop(r.entry().inbound().enter().unwrap());
    }
    // The units count in their slot, and an entry in a later slot opens the stripes.
    for _ in 0..3 {
        timer.advance(Duration::from_millis(100));
        drop(r.entry().inbound().enter().unwrap());
    }
    assert!(is_open());
    drop(inside);
}

#[test]
fn a_gate_stripes_a_bounded_number_of_nodes() {
    let striping = Striping { left: AtomicUsize::new(1), ..Striping::new(2, 10) };
    let window = Window::new(Layout::second());
    assert!(striping.stripes_for(&window, Nanos::ZERO).is_none(), "it is not busy");
    window.pass(Nanos::ZERO, 11);
    assert!(striping.stripes_for(&window, Nanos::ZERO).is_some());
    assert!(striping.stripes_for(&window, Nanos::ZERO).is_none());
    striping.give_back();
    assert!(striping.stripes_for(&window, Nanos::ZERO).is_some());
    assert!(Striping::new(1, 0).stripes_for(&window, Nanos::ZERO).is_none(), "one processor");
}
