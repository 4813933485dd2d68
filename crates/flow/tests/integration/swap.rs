//! Rules are replaced during calls: every entry is checked against either the old rules or the new
//! ones.
#![cfg(not(loom))]

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use tidegate_flow::{
    BlockKind, Gate, Resource,
    rules::{AuthorityRule, BreakerRule, FlowRule, IsolationRule, Rules, SystemRule, Trip},
};

/// Returns rule sets that all block everything. In each set a different rule blocks, and the other
/// rules admit all entries. Nearly all of these rules also exist in the next set, with the blocking
/// role moved to another one. An entry that checked one rule of a set and another rule of the next
/// set would pass.
fn sets() -> Vec<Rules> {
    let flow = |threshold: u32| vec![FlowRule::new("r", threshold)];
    let isolation = |threshold| vec![IsolationRule::new("r", threshold)];
    let authority = vec![AuthorityRule::allow("r", ["caller"])];
    let system = |qps| vec![SystemRule::default().qps(qps)];
    let breakers = vec![
        BreakerRule::new("r", Trip::ErrorRatio { ratio: 0.5 }, Duration::from_secs(5))
            .min_calls(1_000),
    ];
    vec![
        // A single threshold takes a separate code path.
        Rules::from(flow(0)),
        Rules::from(flow(1_000_000)).and(isolation(0)),
        Rules::from(flow(0)).and(isolation(u32::MAX)),
        Rules::from(flow(u32::MAX)).and(isolation(0)).and(breakers),
        Rules::from(flow(0)).and(authority).and(system(1 << 40)),
        Rules::from(flow(1_000_000)).and(system(0)),
    ]
}

/// Returns the kind of rule that blocked an entry, if any.
fn call(r: &Resource, round: usize) -> Option<BlockKind> {
    // The two entry paths: with options and without.
    let entry = r.entry().inbound();
    let entered = if round.is_multiple_of(2) {
        entry.enter()
    } else {
        entry.origin("caller").enter()
    };
    entered.err().map(|blocked| blocked.kind())
}

#[test]
fn no_entry_is_decided_by_a_mix_of_old_and_new_rules() {
    let gate = Gate::new();
    let sets = sets();
    gate.load(sets[0].clone()).unwrap();
    let r = gate.resource("r");
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let [passed, flow, others] = [(); 3].map(|()| AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (r, done, calls, passed, flow, others) =
                (&r, &done, &calls, &passed, &flow, &others);
            scope.spawn(move || {
                for round in thread.. {
                    let count = match call(r, round) {
                        None => passed,
                        Some(BlockKind::Flow) => flow,
                        Some(_) => others,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    calls.fetch_add(1, Ordering::Relaxed);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        // Swap every few calls, so that many entries overlap with a swap under any thread schedule.
        for swap in 1..300 {
            gate.load(sets[swap % sets.len()].clone()).unwrap();
            let so_far = calls.load(Ordering::Relaxed);
            while calls.load(Ordering::Relaxed) < so_far + 8 {
                thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let [passed, flow, others] = [passed, flow, others].map(AtomicU64::into_inner);
    assert_eq!(passed, 0, "each set of rules blocks everything");
    assert!(
        flow > 0 && others > 0,
        "{flow} blocked by the flow rule, {others} by others"
    );
    let counts = r
        .node()
        .seconds(gate.now())
        .iter()
        .map(|second| second.counts.pass)
        .sum::<u64>();
    assert_eq!((counts, r.node().in_flight()), (0, 0));
}
