//! Adaptive concurrency in a gate.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Gate, ManualTimer,
    rules::{AdaptiveRule, Aimd, Algorithm, BreakerRule, IsolationRule, Rules, Trip},
};

/// Runs ten calls that take `takes` each, over more than a second. During each of them, one other call is blocked.
fn window(gate: &Gate, timer: &ManualTimer, takes: Duration) {
    let r = gate.resource("r");
    for _ in 0..12 {
        let calls: Vec<_> = std::iter::from_fn(|| r.enter().ok()).collect();
        assert!(r.enter().is_err());
        timer.advance(takes);
        drop(calls);
    }
    timer.advance(Duration::from_secs(5));
}

#[test]
fn the_limit_follows_windows_of_calls_and_blocks_what_is_beyond() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let slow = Some(Duration::from_millis(150));
    let aimd = Algorithm::Aimd(Aimd { initial: 2, slow, ..Aimd::default() });
    gate.load(Rules { adaptive: vec![AdaptiveRule::new("r", aimd).bounds(1, 4)], ..Rules::default() })
        .unwrap();
    let r = gate.resource("r");
    let limit = || r.adaptive_limits()[0].1;
    let inside = [r.enter().unwrap(), r.enter().unwrap()];
    let blocked = r.enter().unwrap_err();
    assert_eq!((blocked.kind(), blocked.rule()), (BlockKind::Adaptive, "aimd 1..4 in flight"));
    drop(inside);
    timer.advance(Duration::from_secs(5));
    window(&gate, &timer, Duration::from_millis(140));
    assert_eq!(limit(), 3, "a good window");
    window(&gate, &timer, Duration::from_millis(160));
    assert_eq!(limit(), 2, "a slow one");
    for _ in 0..50 {
        timer.advance(Duration::from_millis(100));
        r.enter().unwrap().cancel();
    }
    assert_eq!(limit(), 2, "a cancelled call does not change the limit");
    for _ in 0..200 {
        timer.advance(Duration::from_millis(100));
        r.enter().unwrap().mark_failed();
    }
    assert_eq!(limit(), 1, "the limit stays at or above its lower bound");
    // Changes to other rules do not affect the adaptive rule.
    gate.update(|rules| {
        rules.isolation.push(IsolationRule::new("r", 10));
        let open = Duration::from_secs(1);
        rules.breakers.push(BreakerRule::new("r", Trip::ErrorCount { count: 5 }, open));
    })
    .unwrap();
    assert_eq!(limit(), 1);
    let held = r.enter().unwrap();
    assert_eq!(r.enter().unwrap_err().kind(), BlockKind::Adaptive);
    drop(held);
}
