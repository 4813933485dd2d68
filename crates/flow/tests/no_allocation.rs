//! An entry and its exit allocate nothing, whatever rules the resource has.
#![cfg(not(loom))]

use std::time::Duration;

use allocation_counter::measure;
use tidegate_flow::{
    Gate, Resource,
    rules::{BreakerRule, FlowRule, IsolationRule, Rules, SystemRule, Trip},
};

/// Counts the allocations of a thousand calls on this thread.
fn allocations(work: impl Fn()) -> u64 {
    // The first entry compiles the rules and creates the thread's own structures.
    work();
    measure(|| (0..1_000).for_each(|_| work())).count_total
}

fn resource(rules: Rules) -> Resource {
    let gate = Gate::new();
    gate.load(rules).unwrap();
    gate.resource("abc")
}

fn flow(threshold: u32) -> Vec<FlowRule> {
    vec![FlowRule::new("abc", threshold)]
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(5)))), 1_000);
}

#[test]
fn an_entry_and_its_exit_allocate_nothing() {
    let four_kinds = Rules {
        flow: flow(u32::MAX),
        isolation: vec![IsolationRule::new("abc", 1_000)],
        breakers: vec![BreakerRule::new("abc", Trip::ErrorRatio { ratio: 0.5 }, Duration::from_secs(5))],
        system: vec![SystemRule { qps: Some(u64::MAX), ..SystemRule::default() }],
        ..Rules::default()
    };
    for rules in [Rules::default(), Rules { flow: flow(u32::MAX), ..Rules::default() }, four_kinds] {
        let resource = resource(rules);
        assert_eq!(allocations(|| drop(resource.enter().unwrap())), 0);
        assert_eq!(allocations(|| drop(resource.entry().inbound().count(2).enter().unwrap())), 0);
    }
}

#[test]
fn an_entry_that_is_blocked_allocates_nothing_unless_it_is_counted_with_labels() {
    let resource = resource(Rules { flow: flow(0), ..Rules::default() });
    // A counter of the feature `metrics` owns the resource's name and the list of its labels.
    let counted = if cfg!(feature = "metrics") { 2_000 } else { 0 };
    assert_eq!(allocations(|| drop(resource.enter().unwrap_err())), counted);
}

#[test]
fn a_resource_that_exists_is_found_by_its_name_without_allocating() {
    let gate = Gate::new();
    assert_eq!(allocations(|| drop(gate.resource("abc").enter().unwrap())), 0);
}
