//! System protection: limits on all inbound traffic, whatever the resource.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Gate, Guard, ManualTimer, Resource, Sample,
    rules::{FlowRule, IsolationRule, Rules, SystemRule},
};

fn gate(rule: SystemRule) -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(Rules::from(vec![rule])).unwrap();
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
    let (gate, timer) = gate(SystemRule::default().qps(3));
    let (a, b) = (gate.resource("a"), gate.resource("b"));
    assert!(enter(&a).is_some() && enter(&b).is_some() && enter(&a).is_some());
    assert!(enter(&b).is_none());
    assert!(b.enter().is_ok(), "outbound calls are not checked");
    let counts = gate.inbound().counts(gate.now());
    assert_eq!((counts.pass, counts.block), (3, 1));
    timer.advance(Duration::from_secs(1));
    assert!(enter(&b).is_some());
}

#[test]
fn an_entry_that_the_gate_refuses_spends_nothing_of_its_resource() {
    let (gate, timer) = gate(SystemRule::default().qps(150));
    gate.update(|rules| {
        rules.flow = vec![FlowRule::new("r", 200)];
        rules.isolation = vec![IsolationRule::new("r", 200)];
    })
    .unwrap();
    let r = gate.resource("r");
    for _ in 0..150 {
        assert!(enter(&r).is_some());
    }
    for _ in 0..30 {
        assert!(enter(&r).is_none());
    }
    for node in [r.node(), gate.inbound()] {
        let counts = node.counts(gate.now());
        assert_eq!((counts.pass, counts.block, node.in_flight()), (150, 30, 0));
    }
    // 50 of the resource's own 200 are left.
    let outbound: Vec<_> = (0..51).map(|_| r.enter().is_ok()).collect();
    assert_eq!(outbound.iter().filter(|entered| **entered).count(), 50);
    timer.advance(Duration::from_secs(1));
    assert!(enter(&r).is_some());
}

#[test]
fn units_in_flight_are_those_of_all_resources() {
    let (gate, _timer) = gate(SystemRule::default().in_flight(2));
    let (a, b) = (gate.resource("a"), gate.resource("b"));
    let first = enter(&a).unwrap();
    let _second = enter(&b).unwrap();
    assert!(enter(&a).is_none());
    drop(first);
    assert!(enter(&a).is_some());
}

#[test]
fn a_long_mean_response_time_blocks_until_it_has_left_the_second() {
    let (gate, timer) = gate(SystemRule::default().mean_rt(Duration::from_millis(50)));
    let r = gate.resource("r");
    for (rt, passes) in [(40, true), (60, true), (51, false)] {
        let guard = enter(&r).unwrap();
        timer.advance(Duration::from_millis(rt));
        drop(guard);
        assert_eq!(
            r.entry().count(0).inbound().enter().is_ok(),
            passes,
            "after {rt} ms"
        );
    }
    timer.advance(Duration::from_secs(2));
    assert!(enter(&r).is_some());
}

#[test]
fn a_busy_machine_blocks_only_what_is_beyond_its_capacity() {
    for rule in [
        SystemRule::default().load(2.0),
        SystemRule::default().cpu(0.5),
    ] {
        let (gate, timer) = gate(rule);
        let r = gate.resource("r");
        // Ten calls in a slot of 100 ms take 50 ms each: 100 a second times 0.05 s is a capacity of
        // 5.
        let calls: Vec<_> = (0..10).map(|_| enter(&r).unwrap()).collect();
        timer.advance(Duration::from_millis(50));
        drop(calls);
        timer.advance(Duration::from_millis(50));
        let mut calls: Vec<_> = (0..5).map(|_| enter(&r).unwrap()).collect();
        gate.set_sample(Sample {
            load: 2.5,
            cpu: 0.9,
            memory: 0,
        });
        calls.push(enter(&r).expect("five in flight are within the capacity"));
        assert!(enter(&r).is_none(), "six are not");
        calls.truncate(1);
        assert!(enter(&r).is_some(), "one in flight never blocks");
        gate.set_sample(Sample {
            load: 2.0,
            cpu: 0.5,
            memory: 0,
        });
        let _many: Vec<_> = (0..50)
            .map(|_| enter(&r).expect("the machine is not busy"))
            .collect();
    }
}

#[test]
fn a_burst_does_not_open_the_gate_for_itself_on_a_busy_machine() {
    let (gate, timer) = gate(SystemRule::default().load(2.0));
    let r = gate.resource("r");
    // One call of 200 ms ends in each slot of 100 ms: ten a second, two in flight.
    let mut inside = std::collections::VecDeque::from([enter(&r).unwrap()]);
    for _ in 0..20 {
        timer.advance(Duration::from_millis(100));
        inside.push_back(enter(&r).unwrap());
        if inside.len() > 2 {
            inside.pop_front();
        }
    }
    inside.clear();
    timer.advance(Duration::from_millis(100));
    gate.set_sample(Sample {
        load: 9.0,
        cpu: 0.0,
        memory: 0,
    });
    let burst: Vec<_> = (0..500).filter_map(|_| enter(&r)).collect();
    assert!(
        (2..=6).contains(&burst.len()),
        "{} of 500 passed",
        burst.len()
    );
}

#[test]
fn a_busy_machine_on_which_nothing_has_ended_yet_takes_five_seconds_of_one_completion_a_slot() {
    let (gate, _timer) = gate(SystemRule::default().cpu(0.5));
    let r = gate.resource("r");
    gate.set_sample(Sample {
        load: 0.0,
        cpu: 0.9,
        memory: 0,
    });
    // Ten a second times five seconds: the rule blocks while more than 50 are in flight.
    let inside: Vec<_> = (0..500).filter_map(|_| enter(&r)).collect();
    assert_eq!(inside.len(), 51);
}

#[test]
fn a_mean_is_right_for_thousands_of_calls_that_took_a_minute() {
    let (gate, timer) = gate(SystemRule::default().mean_rt(Duration::from_secs(59)));
    let r = gate.resource("r");
    let calls: Vec<_> = (0..10_000).map(|_| enter(&r).unwrap()).collect();
    timer.advance(Duration::from_mins(1));
    drop(calls);
    assert_eq!(
        gate.inbound().counts(gate.now()).mean_rt(),
        Duration::from_mins(1)
    );
    assert!(enter(&r).is_none());
}

#[test]
fn a_resource_that_comes_back_after_hours_is_judged_by_the_last_second() {
    let (gate, timer) = gate(SystemRule::default().qps(50));
    let rare: Vec<_> = (0..40).map(|at| gate.resource(&at.to_string())).collect();
    for rare in &rare {
        drop(enter(rare).unwrap());
    }
    let busy = gate.resource("busy");
    // Run until the turn numbers wrap around.
    for turn in 0..65_550_u32 {
        timer.advance(Duration::from_millis(100));
        drop(enter(&busy).unwrap());
        if let Some(rare) = turn
            .checked_sub(65_510)
            .and_then(|at| rare.get(at as usize))
        {
            assert!(
                rare.entry().inbound().count(0).enter().is_ok(),
                "after {turn} turns"
            );
        }
    }
}
