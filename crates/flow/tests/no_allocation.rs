//! An entry and its exit allocate nothing, whatever rules the resource has, once its minute is
//! there.
#![cfg(not(loom))]

use std::time::Duration;

use allocation_counter::measure;
use tidegate_core::Nanos;
use tidegate_flow::{
    Gate, ManualTimer,
    rules::{BreakerRule, FlowRule, IsolationRule, Rules, SystemRule, Trip},
};

/// Counts the allocations of a thousand calls on this thread.
fn allocations(work: impl Fn()) -> u64 {
    // The first entry compiles the rules and creates the thread's own structures. With traffic in a
    // second second, the windows allocate their minutes.
    (0..100).for_each(|_| work());
    measure(|| (0..1_000).for_each(|_| work())).count_total
}

/// A gate whose time is moved: 20 ms for each call, so that its windows turn.
fn gate(rules: Rules) -> (Gate, impl Fn()) {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    (gate, move || timer.advance(Duration::from_millis(20)))
}

fn flow(threshold: u32) -> Vec<FlowRule> {
    vec![FlowRule::new("abc", threshold)]
}

#[test]
fn the_counter_counts() {
    assert_eq!(
        allocations(|| drop(std::hint::black_box(Box::new(5)))),
        1_000
    );
}

#[test]
fn an_entry_and_its_exit_allocate_nothing() {
    let four_kinds = Rules::from(flow(u32::MAX))
        .and(vec![IsolationRule::new("abc", 1_000)])
        .and(vec![BreakerRule::new(
            "abc",
            Trip::ErrorRatio { ratio: 0.5 },
            Duration::from_secs(5),
        )])
        .and(vec![SystemRule::default().qps(u64::MAX)]);
    for rules in [Rules::default(), Rules::from(flow(u32::MAX)), four_kinds] {
        let (gate, move_time) = gate(rules);
        let resource = gate.resource("abc");
        let enter = || {
            move_time();
            drop(resource.enter().unwrap());
        };
        assert_eq!(allocations(enter), 0);
        let enter_inbound = || {
            move_time();
            drop(resource.entry().inbound().count(2).enter().unwrap());
        };
        assert_eq!(allocations(enter_inbound), 0);
    }
}

#[test]
fn an_entry_that_is_blocked_allocates_nothing_unless_it_is_counted_with_labels() {
    let (gate, move_time) = gate(Rules::from(flow(0)));
    let resource = gate.resource("abc");
    // A counter of the feature `metrics` owns the resource's name and the list of its labels.
    let counted = if cfg!(feature = "metrics") { 2_000 } else { 0 };
    let enter = || {
        move_time();
        drop(resource.enter().unwrap_err());
    };
    assert_eq!(allocations(enter), counted);
}

#[test]
fn a_resource_that_exists_is_found_by_its_name_without_allocating() {
    let (gate, move_time) = gate(Rules::default());
    let enter = || {
        move_time();
        drop(gate.resource("abc").enter().unwrap());
    };
    assert_eq!(allocations(enter), 0);
}
