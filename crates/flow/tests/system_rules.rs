//! System protection: all that comes in, whatever the resource.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Gate, Guard, ManualTimer, Resource, Sample,
    rules::{Rules, SystemRule},
};

fn gate(rule: SystemRule) -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(Rules { system: vec![rule], ..Rules::default() }).unwrap();
    (gate, timer)
}

fn enter(r: &Resource) -> Option<Guard<'_>> {
    match r.entry().inbound().enter() {
        Ok(guard) => Some(guard),
        Err(blocked) => {
            assert_eq!(blocked.kind(), BlockKind::System);
            None
        }
    }
}

#[test]
fn a_rate_counts_all_resources_and_only_what_comes_in() {
    let (gate, timer) = gate(SystemRule { qps: Some(3), ..SystemRule::default() });
    let (a, b) = (gate.resource("a"), gate.resource("b"));
    assert!(enter(&a).is_some() && enter(&b).is_some() && enter(&a).is_some());
    assert!(enter(&b).is_none());
    assert!(b.enter().is_ok(), "outbound calls are not asked");
    let counts = gate.inbound().counts(gate.now());
    assert_eq!((counts.pass, counts.block), (3, 1));
    timer.advance(Duration::from_secs(1));
    assert!(enter(&b).is_some());
}

#[test]
fn units_in_flight_are_those_of_all_resources() {
    let (gate, _timer) = gate(SystemRule { in_flight: Some(2), ..SystemRule::default() });
    let (a, b) = (gate.resource("a"), gate.resource("b"));
    let first = enter(&a).unwrap();
    let _second = enter(&b).unwrap();
    assert!(enter(&a).is_none());
    drop(first);
    assert!(enter(&a).is_some());
}

#[test]
fn a_long_mean_response_time_blocks_until_it_has_left_the_second() {
    let (gate, timer) =
        gate(SystemRule { mean_rt: Some(Duration::from_millis(50)), ..SystemRule::default() });
    let r = gate.resource("r");
    for (rt, passes) in [(40, true), (60, true), (51, false)] {
        let guard = enter(&r).unwrap();
        timer.advance(Duration::from_millis(rt));
        drop(guard);
        assert_eq!(r.entry().count(0).inbound().enter().is_ok(), passes, "after {rt} ms");
    }
    timer.advance(Duration::from_secs(2));
    assert!(enter(&r).is_some());
}

#[test]
fn a_busy_machine_blocks_only_what_is_beyond_its_capacity() {
    for rule in [
        SystemRule { load: Some(2.0), ..SystemRule::default() },
        SystemRule { cpu: Some(0.5), ..SystemRule::default() },
    ] {
        let (gate, timer) = gate(rule);
        let r = gate.resource("r");
        // Ten in a slot of 100 ms, each taking 50 ms: 100 a second times 0.05 s is a capacity of 5.
        let calls: Vec<_> = (0..10).map(|_| enter(&r).unwrap()).collect();
        timer.advance(Duration::from_millis(50));
        drop(calls);
        timer.advance(Duration::from_millis(50));
        let mut calls: Vec<_> = (0..5).map(|_| enter(&r).unwrap()).collect();
        gate.set_sample(Sample { load: 2.5, cpu: 0.9, memory: 0 });
        calls.push(enter(&r).expect("five in flight are within the capacity"));
        assert!(enter(&r).is_none(), "six are not");
        calls.truncate(1);
        assert!(enter(&r).is_some(), "one in flight never blocks");
        gate.set_sample(Sample { load: 2.0, cpu: 0.5, memory: 0 });
        let _many: Vec<_> = (0..50).map(|_| enter(&r).expect("the machine is not busy")).collect();
    }
}
