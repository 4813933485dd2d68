//! Adaptive concurrency at a gate.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Gate, ManualTimer,
    rules::{AdaptiveRule, Aimd, Algorithm, BreakerRule, IsolationRule, Rules, Trip},
};

#[test]
fn the_limit_follows_the_calls_and_blocks_what_is_beyond() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let slow = Duration::from_millis(100);
    let aimd = Algorithm::Aimd(Aimd { initial: 2, slow, ..Aimd::default() });
    gate.load(Rules { adaptive: vec![AdaptiveRule::new("r", aimd).bounds(1, 4)], ..Rules::default() })
        .unwrap();
    let r = gate.resource("r");
    let limit = || r.adaptive_limits()[0].1;
    let first = r.enter().unwrap();
    let second = r.enter().unwrap();
    let blocked = r.enter().unwrap_err();
    assert_eq!((blocked.kind(), blocked.rule()), (BlockKind::Adaptive, "aimd 1..4 in flight"));
    drop(first);
    assert_eq!(limit(), 3, "a good call");
    timer.advance(slow + Duration::from_millis(1));
    drop(second);
    assert_eq!(limit(), 2, "a slow one");
    r.enter().unwrap().mark_failed();
    let after_failure = limit();
    assert!(after_failure <= 2);
    r.enter().unwrap().cancel();
    assert_eq!(limit(), after_failure, "a cancelled call teaches nothing");
    for _ in 0..50 {
        r.enter().unwrap().mark_failed();
    }
    assert_eq!(limit(), 1, "never below its bound");
    // Rules that are not about it leave it alone.
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
