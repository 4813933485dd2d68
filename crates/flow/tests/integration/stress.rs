//! Concurrent entries from many threads never exceed a threshold and leak nothing.
#![cfg(not(loom))]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tidegate_core::{Clock, Nanos};
use tidegate_flow::{
    BlockKind, BreakerState, Event, Gate, ManualTimer, Node,
    rules::{
        Behaviour, BreakerRule, FlowRule, HotParamRule, IsolationRule, Origins, ParamKey,
        ParamMeasure, Rules, SystemRule, Trip,
    },
};

const THREADS: usize = 64;

fn gate(rules: Rules) -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    (gate, timer)
}

/// Runs `step` on all threads concurrently for each time in turn. The clock does not move during a
/// step.
fn in_steps(timer: &ManualTimer, steps: &[u64], step: impl Fn(usize, usize) + Sync) {
    let barrier = Barrier::new(THREADS);
    let start = timer.now();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (barrier, step) = (&barrier, &step);
            scope.spawn(move || {
                for (at, &ms) in steps.iter().enumerate() {
                    if barrier.wait().is_leader() {
                        timer.set(start.saturating_add(Nanos::from_millis(ms)));
                    }
                    barrier.wait();
                    step(thread, at);
                }
            });
        }
    });
}

fn most_in_a_second(steps: &[u64], passed: &[AtomicU64]) -> u64 {
    let passed: Vec<u64> = passed
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .collect();
    let seconds = steps.iter().map(|&last| {
        let inside = steps
            .iter()
            .zip(&passed)
            .filter(|&(&at, _)| at <= last && last / 100 - at / 100 < 10);
        inside.map(|(_, count)| count).sum()
    });
    seconds.max().unwrap()
}

fn counters(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

fn never_more_than(threshold: u32) {
    let (gate, timer) = gate(Rules::from(vec![FlowRule::new("r", threshold)]));
    let r = gate.resource("r");
    let steps: Vec<u64> = (0..50).map(|step| step * 70).collect();
    let passed = counters(steps.len());
    let calls = threshold as usize / 50;
    in_steps(&timer, &steps, |thread, at| {
        for _ in 0..if (thread + at).is_multiple_of(3) {
            calls / 10
        } else {
            calls
        } {
            if r.enter().is_ok() {
                passed[at].fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    assert_eq!(
        most_in_a_second(&steps, &passed),
        u64::from(threshold),
        "the threshold is reached and never exceeded"
    );
    assert_eq!(r.node().in_flight(), 0);
    let all: u64 = passed
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .sum();
    let counted: u64 = r
        .node()
        .seconds(timer.now())
        .iter()
        .map(|second| second.counts.pass)
        .sum();
    assert_eq!(counted, all, "every passed call is counted exactly once");
}

#[test]
fn sixty_four_threads_never_pass_a_thousand_a_second_over_slot_turns() {
    never_more_than(1_000);
}

#[test]
fn sixty_four_threads_never_pass_a_high_threshold() {
    never_more_than(5_000);
}

#[test]
fn each_of_several_limits_holds_and_a_refusal_by_one_spends_nothing_of_the_others() {
    let rules = Rules::from(vec![
        FlowRule::new("r", 500),
        FlowRule::new("r", 20).origins(Origins::Others),
        FlowRule::new("r", 3_000).interval(Duration::from_secs(30)),
    ])
    .and(vec![SystemRule::default().qps(700)]);
    let (gate, timer) = gate(rules);
    let (r, other) = (gate.resource("r"), gate.resource("other"));
    let steps: Vec<u64> = (0..40).map(|step| step * 100).collect();
    let [all, inbound, one] = [(); 3].map(|()| counters(steps.len()));
    let long = AtomicU64::new(0);
    in_steps(&timer, &steps, |thread, at| {
        for round in 0..10 {
            let origin = format!("o{}", (thread + round) % 40);
            if r.entry().inbound().origin(&origin).enter().is_ok() {
                all[at].fetch_add(1, Ordering::Relaxed);
                inbound[at].fetch_add(1, Ordering::Relaxed);
                long.fetch_add(1, Ordering::Relaxed);
                if origin == "o7" {
                    one[at].fetch_add(1, Ordering::Relaxed);
                }
            }
            if other.entry().inbound().enter().is_ok() {
                inbound[at].fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    assert!(most_in_a_second(&steps, &all) <= 500);
    assert!(most_in_a_second(&steps, &one) <= 20);
    let busiest = most_in_a_second(&steps, &inbound);
    assert!((690..=700).contains(&busiest), "{busiest}");
    // The clock did not move during the calls, so units of entries that were refused late were
    // removed from the same slot.
    let counted = |node: &Node| {
        node.seconds(timer.now())
            .iter()
            .map(|second| second.counts.pass)
            .sum::<u64>()
    };
    let passed = |counts: &[AtomicU64]| {
        counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum::<u64>()
    };
    assert_eq!(counted(r.node()), passed(&all));
    assert_eq!(counted(r.node()) + counted(other.node()), passed(&inbound));
    assert_eq!(counted(gate.inbound()), passed(&inbound));
    for node in [r.node(), other.node(), gate.inbound()] {
        assert_eq!(node.in_flight(), 0);
    }
    let mut long = long.load(Ordering::Relaxed);
    for _ in 0..10 {
        timer.advance(Duration::from_secs(1));
        let from = |n: u32| r.entry().origin(&format!("o{}", n % 40)).enter().is_ok();
        long += (0..600).filter(|n| from(*n)).count() as u64;
    }
    assert_eq!(long, 3_000);
}

#[test]
fn throttled_calls_are_never_closer_than_their_interval() {
    let rule = FlowRule::new("r", 3_000).behaviour(Behaviour::Throttle {
        max_wait: Duration::from_millis(40),
    });
    let (gate, timer) = gate(Rules::from(vec![rule]));
    let r = gate.resource("r");
    let goes_ahead = Mutex::new(Vec::new());
    let steps: Vec<u64> = (0..60).map(|step| step * 13).collect();
    in_steps(&timer, &steps, |_, _| {
        for _ in 0..5 {
            if let Ok(guard) = r.enter() {
                let at = timer.now().saturating_add(guard.delay().into());
                goes_ahead.lock().unwrap().push(at.get());
            }
        }
    });
    let mut goes_ahead = goes_ahead.into_inner().unwrap();
    goes_ahead.sort_unstable();
    assert!(goes_ahead.len() > 2_000, "{}", goes_ahead.len());
    let closest = goes_ahead
        .windows(2)
        .map(|two| two[1] - two[0])
        .min()
        .unwrap();
    assert_eq!(closest, 333_334);
}

#[test]
fn calls_in_flight_never_exceed_their_bounds() {
    let rules = Rules::from(vec![IsolationRule::new("r", 7)]).and(vec![
        HotParamRule::new("r", ParamKey::Index(0), 3).measure(ParamMeasure::InFlight),
    ]);
    let (gate, _timer) = gate(rules);
    let r = gate.resource("r");
    let inside = AtomicUsize::new(0);
    let of_value: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    let entered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (r, inside, of_value, entered) = (&r, &inside, &of_value, &entered);
            scope.spawn(move || {
                for round in 0..2_000 {
                    let value = (thread + round) % 4;
                    let Ok(guard) = r.entry().arg(value as u32).enter() else {
                        continue;
                    };
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < 7);
                    assert!(of_value[value].fetch_add(1, Ordering::SeqCst) < 3);
                    entered.fetch_add(1, Ordering::Relaxed);
                    if round % 16 == 0 {
                        thread::yield_now();
                    }
                    of_value[value].fetch_sub(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    assert!(entered.load(Ordering::Relaxed) > 1_000);
    assert_eq!(r.node().in_flight(), 0);
    let all = (0..4_u32).map(|value| {
        (0..3)
            .map(|_| r.entry().arg(value).enter())
            .collect::<Vec<_>>()
    });
    let all: Vec<_> = all.flatten().collect();
    assert_eq!(
        all.iter().filter(|guard| guard.is_ok()).count(),
        7,
        "every permit is free again"
    );
}

#[test]
fn high_bounds_of_a_resource_and_of_the_gate_hold_together() {
    let rules = Rules::from(vec![FlowRule::new("r", 10_000_000)])
        .and(vec![IsolationRule::new("r", 256)])
        .and(vec![BreakerRule::new(
            "r",
            Trip::ErrorRatio { ratio: 0.5 },
            Duration::from_secs(5),
        )])
        .and(vec![SystemRule::default().in_flight(300).qps(20_000_000)]);
    let (gate, timer) = gate(rules);
    let (r, other) = (gate.resource("r"), gate.resource("other"));
    let [inside, in_all, most_inside, most_in_all, refused] = [(); 5].map(|()| AtomicUsize::new(0));
    let add = |count: &AtomicUsize, most: &AtomicUsize| {
        most.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    };
    let everybody = Barrier::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (r, other, timer, refused, everybody) = (&r, &other, &timer, &refused, &everybody);
            let (inside, in_all, most_inside, most_in_all) =
                (&inside, &in_all, &most_inside, &most_in_all);
            scope.spawn(move || {
                for round in 0..200 {
                    let mut held = Vec::new();
                    for call in 0..(thread + round) % 16 {
                        let is_other = call % 4 == 3;
                        let from = if is_other { other } else { r };
                        let Ok(guard) = from.entry().inbound().enter() else {
                            refused.fetch_add(1, Ordering::Relaxed);
                            continue;
                        };
                        if !is_other {
                            add(inside, most_inside);
                        }
                        add(in_all, most_in_all);
                        held.push((guard, is_other));
                    }
                    // All calls of the first round are in flight together: more than the bounds.
                    if round == 0 {
                        everybody.wait();
                    }
                    if thread == 0 {
                        timer.advance(Duration::from_millis(100));
                    }
                    thread::yield_now();
                    for (guard, is_other) in held {
                        in_all.fetch_sub(1, Ordering::SeqCst);
                        inside.fetch_sub(usize::from(!is_other), Ordering::SeqCst);
                        drop(guard);
                    }
                }
            });
        }
    });
    assert!(refused.load(Ordering::Relaxed) > 0);
    let most = [most_inside, most_in_all].map(AtomicUsize::into_inner);
    assert!(most[0] <= 256 && most[1] <= 300, "{most:?}");
    for node in [r.node(), other.node(), gate.inbound()] {
        assert_eq!(node.in_flight(), 0);
    }
    timer.advance(Duration::from_secs(2));
    let mine: Vec<_> = (0..256)
        .map(|_| r.entry().inbound().enter().unwrap())
        .collect();
    assert_eq!(
        r.entry().inbound().enter().unwrap_err().kind(),
        BlockKind::Isolation
    );
    let others: Vec<_> = (0..44)
        .map(|_| other.entry().inbound().enter().unwrap())
        .collect();
    for from in [&r, &other] {
        // System rules come first.
        assert_eq!(
            from.entry().inbound().enter().unwrap_err().kind(),
            BlockKind::System
        );
    }
    let most = [r.node(), gate.inbound()].map(|node| node.counts(timer.now()).max_in_flight);
    assert_eq!(most, [256, 300], "a refused call was never in flight");
    drop((mine, others));
    assert!(r.entry().inbound().enter().is_ok());
}

#[test]
fn a_breaker_lets_exactly_its_probes_through_and_always_recovers() {
    let rule = BreakerRule::new(
        "r",
        Trip::ErrorRatio { ratio: 0.5 },
        Duration::from_millis(500),
    );
    // Of three threads that saw the window empty and got a probe permit, the window refuses one.
    let flow = vec![FlowRule::new("r", 2).interval(Duration::from_millis(500))];
    let rules = Rules::from(vec![rule.min_calls(1).probes(3)]).and(flow);
    let (gate, timer) = gate(rules);
    let r = gate.resource("r");
    r.enter().unwrap().mark_failed();
    let steps: Vec<u64> = (1..101).map(|step| step * 500).collect();
    let probes = counters(steps.len());
    let barrier = Barrier::new(THREADS);
    in_steps(&timer, &steps, |_, at| {
        let guard = r.enter();
        barrier.wait();
        let Ok(mut guard) = guard else { return };
        probes[at].fetch_add(1, Ordering::Relaxed);
        match at % 4 {
            0 | 3 => guard.mark_failed(),
            1 => guard.cancel(),
            _ => drop(guard),
        }
    });
    // Two probes fail, so the breaker opens. Two are cancelled, so their permits are free again.
    // Two succeed, so one more probe may pass. It fails.
    let probes: Vec<_> = probes
        .iter()
        .map(|probes| probes.load(Ordering::Relaxed))
        .collect();
    assert_eq!(probes, [2, 2, 2, 1].repeat(steps.len() / 4));
    for _ in 0..3 {
        assert_ne!(r.breakers()[0].1, BreakerState::Closed);
        timer.advance(Duration::from_millis(500));
        drop(r.enter().unwrap());
    }
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
    assert_eq!(r.node().in_flight(), 0);
}

#[test]
fn half_open_admits_its_probes_and_no_more_at_each_opening() {
    let rule = BreakerRule::new(
        "r",
        Trip::ErrorCount { count: 0 },
        Duration::from_millis(500),
    );
    let (gate, timer) = gate(Rules::from(vec![rule.min_calls(1).probes(3)]));
    let r = gate.resource("r");
    r.enter().unwrap().mark_failed();
    let steps: Vec<u64> = (1..200).map(|step| step * 500).collect();
    let probes = counters(steps.len());
    let barrier = Barrier::new(THREADS);
    in_steps(&timer, &steps, |_, at| {
        let guard = r.enter();
        barrier.wait();
        if let Ok(mut guard) = guard {
            probes[at].fetch_add(1, Ordering::Relaxed);
            guard.mark_failed();
        }
    });
    assert!(
        probes
            .iter()
            .all(|probes| probes.load(Ordering::Relaxed) == 3)
    );
}

#[test]
fn statistics_count_every_entry_once_while_rules_are_swapped() {
    let (gate, timer) = gate(Rules::default());
    let r = gate.resource("r");
    let [passed, blocked] = [(); 2].map(|()| AtomicU64::new(0));
    let stop = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..16 {
            let (r, passed, blocked, stop, timer) = (&r, &passed, &blocked, &stop, &timer);
            scope.spawn(move || {
                for round in 0..5_000 {
                    let entry = if thread % 2 == 0 {
                        r.entry().inbound()
                    } else {
                        r.entry()
                    };
                    let count = if entry.enter().is_ok() {
                        passed
                    } else {
                        blocked
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    if thread == 0 && round % 500 == 0 {
                        timer.advance(Duration::from_millis(100));
                    }
                }
                stop.fetch_add(1, Ordering::Relaxed);
            });
        }
        while stop.load(Ordering::Relaxed) < 16 {
            for threshold in [0, 10, 1_000_000] {
                let flow = vec![FlowRule::new("r", threshold)];
                gate.load(Rules::from(flow)).unwrap();
                thread::yield_now();
            }
            gate.load(Rules::default()).unwrap();
        }
    });
    let seconds = r.node().seconds(gate.now());
    let sum = |of: fn(&tidegate_flow::Counts) -> u64| {
        seconds.iter().map(|second| of(&second.counts)).sum::<u64>()
    };
    assert_eq!(sum(|c| c.pass), passed.load(Ordering::Relaxed));
    assert_eq!(sum(|c| c.success), passed.load(Ordering::Relaxed));
    assert_eq!(sum(|c| c.block), blocked.load(Ordering::Relaxed));
    assert_eq!(r.node().in_flight(), 0);
}

#[test]
fn a_hundred_thousand_resources_are_each_counted() {
    let (gate, _timer) = gate(Rules::default());
    thread::scope(|scope| {
        for thread in 0..4 {
            let gate = &gate;
            scope.spawn(move || {
                for n in 0..100_000 {
                    if n % 4 == thread || n % 1_000 == 0 {
                        drop(gate.resource(&format!("resource {n}")).enter());
                    }
                }
            });
        }
    });
    let resources = gate.resources();
    assert_eq!((resources.len(), gate.overflowed()), (100_000, 0));
    let mut passes: BTreeMap<u64, usize> = BTreeMap::new();
    for resource in &resources {
        *passes
            .entry(resource.node().sum(gate.now(), Event::Pass))
            .or_default() += 1;
    }
    assert_eq!(
        passes.into_iter().collect::<Vec<_>>(),
        [(1, 99_900), (4, 100)]
    );
}
