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
    let newest = *r.node().slots(gate.now()).last().unwrap();
    assert_eq!((newest.counts.pass, newest.counts.max_in_flight), (1, 6));
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
