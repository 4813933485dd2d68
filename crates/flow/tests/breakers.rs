//! Breakers together with other rules, through the public API.
#![cfg(not(loom))]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, BreakerState, Gate, ManualTimer,
    rules::{BreakerRule, Rules, Trip},
};

type Heard = Arc<Mutex<Vec<(String, BreakerState, BreakerState)>>>;

/// Returns a gate with one breaker for each open time. One failed call has opened all of them.
fn opened(open_seconds: &[u64], probes: u32) -> (Gate, Arc<ManualTimer>, Heard) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let breaker = |seconds: &u64| {
        let trip = Trip::ErrorCount { count: 0 };
        let rule = BreakerRule::new("r", trip, Duration::from_secs(*seconds)).min_calls(1).probes(probes);
        BreakerRule { id: Some(seconds.to_string()), ..rule }
    };
    gate.load(Rules { breakers: open_seconds.iter().map(breaker).collect(), ..Rules::default() }).unwrap();
    gate.resource("r").enter().unwrap().mark_failed();
    let heard = Heard::default();
    let told = heard.clone();
    gate.on_breaker_change(move |change| {
        told.lock().unwrap().push((change.rule.id.clone().unwrap(), change.from, change.to));
    });
    (gate, timer, heard)
}

#[test]
fn a_breaker_whose_probe_is_refused_by_another_reopens_and_tells_its_listeners() {
    let (gate, timer, heard) = opened(&[1, 20], 1);
    let r = gate.resource("r");
    timer.advance(Duration::from_secs(1));
    assert_eq!(r.enter().unwrap_err().rule(), "20");
    assert_eq!(r.breakers()[0], ("1".to_owned(), BreakerState::Open));
    let (open, half) = (BreakerState::Open, BreakerState::HalfOpen);
    assert_eq!(*heard.lock().unwrap(), [("1".to_owned(), open, half), ("1".to_owned(), half, open)]);
    // Both admit the same probe, and close.
    timer.advance(Duration::from_secs(19));
    drop(r.enter().unwrap());
    assert!(r.breakers().iter().all(|(_, state)| *state == BreakerState::Closed));
}

#[test]
fn a_good_probe_after_a_cancelled_one_closes_the_breaker_however_much_later_it_comes() {
    let (gate, timer, _) = opened(&[1], 1);
    let r = gate.resource("r");
    timer.advance(Duration::from_secs(1));
    r.enter().unwrap().cancel();
    assert_eq!(r.breakers()[0].1, BreakerState::Open, "no probe is in flight");
    timer.advance(Duration::from_secs(10));
    let probe = r.enter().unwrap();
    timer.advance(Duration::from_millis(1));
    let refused = r.enter().unwrap_err();
    assert_eq!((refused.kind(), r.breakers()[0].1), (BlockKind::Breaker, BreakerState::HalfOpen));
    drop(probe);
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn two_good_calls_every_five_seconds_close_a_breaker_that_wants_five() {
    let (gate, timer, _) = opened(&[1], 5);
    let r = gate.resource("r");
    for free in [2, 2, 1] {
        timer.advance(Duration::from_secs(5));
        let calls = [r.enter(), r.enter()];
        assert_eq!(calls.iter().filter(|call| call.is_ok()).count(), free, "five permits in all");
        timer.advance(Duration::from_millis(10));
    }
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn a_call_reports_to_the_breakers_that_were_in_force_when_it_began() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let breaker = |resource: &str| {
        BreakerRule::new(resource, Trip::ErrorCount { count: 0 }, Duration::from_secs(5)).min_calls(1)
    };
    let load = |breakers| gate.load(Rules { breakers, ..Rules::default() }).unwrap();
    let r = gate.resource("r");
    let state = || r.breakers()[0].1;
    load(vec![breaker("r")]);
    let mut call = r.enter().unwrap();
    timer.advance(Duration::from_millis(10));
    load(vec![breaker("r"), breaker("other")]);
    call.mark_failed();
    drop(call);
    assert_eq!(state(), BreakerState::Open, "the same rule, loaded again, keeps its breaker");

    load(Vec::new());
    let mut before = r.enter().unwrap();
    timer.advance(Duration::from_millis(10));
    load(vec![breaker("r")]);
    let mut after = r.enter().unwrap();
    before.mark_failed();
    drop(before);
    assert_eq!(state(), BreakerState::Closed, "it began before the rule");
    load(vec![breaker("other")]);
    assert_eq!(r.breakers(), [], "the rule was removed");
    timer.advance(Duration::from_millis(10));
    load(vec![breaker("r")]);
    after.mark_failed();
    drop(after);
    assert_eq!(state(), BreakerState::Closed, "it passed another breaker, which was removed");
    let mut now = r.enter().unwrap();
    now.mark_failed();
    drop(now);
    assert_eq!(state(), BreakerState::Open);
}
