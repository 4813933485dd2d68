//! Adaptive concurrency in a gate.
#![cfg(not(loom))]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Gate, Guard, ManualTimer, Resource,
    rules::{
        AdaptiveAlgorithm, AdaptiveRule, Aimd, BreakerRule, CallWindow, ConcurrencyLimit,
        Gradient2, IsolationRule, Pace, Rules, Trip, Vegas,
    },
};

/// Runs ten calls that take `takes` each, over more than a second. During each of them, one other
/// call is blocked.
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
    let slow = Duration::from_millis(150);
    let aimd = AdaptiveAlgorithm::Aimd(Aimd::default().initial(2).slow(slow));
    gate.load(Rules::from(vec![AdaptiveRule::new("r", aimd).bounds(1, 4)]))
        .unwrap();
    let r = gate.resource("r");
    let limit = || r.adaptive_limits()[0].1;
    let inside = [r.enter().unwrap(), r.enter().unwrap()];
    let blocked = r.enter().unwrap_err();
    assert_eq!(
        (blocked.kind(), blocked.rule()),
        (BlockKind::Adaptive, "aimd 1..4 in flight")
    );
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
        rules
            .breakers
            .push(BreakerRule::new("r", Trip::ErrorCount { count: 5 }, open));
    })
    .unwrap();
    assert_eq!(limit(), 1);
    let held = r.enter().unwrap();
    assert_eq!(r.enter().unwrap_err().kind(), BlockKind::Adaptive);
    drop(held);
}

const BASE: Duration = Duration::from_millis(10);

fn all() -> [AdaptiveAlgorithm; 3] {
    [
        AdaptiveAlgorithm::Aimd(Aimd::default()),
        AdaptiveAlgorithm::Gradient2(Gradient2::default()),
        AdaptiveAlgorithm::Vegas(Vegas::default()),
    ]
}

fn with(rule: AdaptiveRule) -> (Resource, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(Rules::from(vec![rule])).unwrap();
    (gate.resource("r"), timer)
}

fn limit(r: &Resource) -> usize {
    r.adaptive_limits()[0].1 as usize
}

/// A call that went well.
fn ends(_: Guard<'_>) {}

/// As many calls at once, which take `takes`, and then `end`.
fn together(
    r: &Resource,
    timer: &ManualTimer,
    calls: usize,
    takes: Duration,
    end: impl Fn(Guard<'_>),
) {
    let calls: Vec<_> = (0..calls).map(|_| r.enter().unwrap()).collect();
    timer.advance(takes);
    calls.into_iter().for_each(end);
}

#[test]
fn failures_lower_the_limit() {
    for algorithm in all() {
        let (r, timer) = with(AdaptiveRule::new("r", algorithm.clone()).bounds(2, 50));
        (0..2_000)
            .for_each(|_| together(&r, &timer, limit(&r), BASE, |mut call| call.mark_failed()));
        assert_eq!(limit(&r), 2, "{algorithm:?}");
    }
}

/// A window of a hundred calls, one after another, of which some fail.
fn failing(r: &Resource, timer: &ManualTimer, failed: usize) -> usize {
    for call in 0..100 {
        let end = |mut guard: Guard<'_>| {
            if call < failed {
                guard.mark_failed();
            }
        };
        together(r, timer, 1, Duration::from_secs(1) / 98, end);
    }
    limit(r)
}

#[test]
fn the_limit_returns_to_its_value_after_failures_but_not_if_they_come_back_at_once() {
    let aimd = Aimd::default().slow(Duration::from_hours(1)).backoff(0.5);
    let (r, timer) = with(AdaptiveRule::new("r", AdaptiveAlgorithm::Aimd(aimd)));
    let after = |failed| failing(&r, &timer, failed);
    assert_eq!([9, 10, 50, 0, 0].map(after), [20, 10, 5, 20, 20]);
    assert_eq!(
        [50, 0].map(after),
        [10, 10],
        "again: the failures come from the overload"
    );
    assert_eq!([0; 10].map(after), [10; 10]);
    assert_eq!([50, 0].map(after), [5, 10]);
}

#[test]
fn traffic_below_half_of_the_limit_does_not_change_it() {
    for algorithm in all() {
        let (r, timer) = with(AdaptiveRule::new("r", algorithm.clone()));
        let before = limit(&r);
        for round in 0..20 {
            // Response times that rise and fall sharply, with long pauses.
            (0..100)
                .for_each(|_| together(&r, &timer, before / 2 - 1, BASE * (round % 7 + 1), ends));
            timer.advance(Duration::from_mins(1));
        }
        assert_eq!(limit(&r), before, "{algorithm:?}");
    }
}

#[test]
fn a_limit_that_is_used_and_blocks_nothing_is_lowered_by_slow_calls_and_never_raised() {
    for algorithm in all() {
        let (r, timer) = with(AdaptiveRule::new("r", algorithm.clone()));
        let mut before = limit(&r);
        for round in 0..20 {
            for _ in 0..150 {
                together(&r, &timer, limit(&r), BASE * (round % 7 + 1), ends);
                assert!(limit(&r) <= before, "{algorithm:?}");
                before = limit(&r);
            }
            timer.advance(Duration::from_mins(1));
        }
        let is_lowered = !matches!(algorithm, AdaptiveAlgorithm::Aimd(_));
        assert_eq!(before < 20, is_lowered, "{algorithm:?}: {before}");
        assert!(before >= 4, "{algorithm:?}: {before}");
    }
}

#[test]
fn the_limit_stays_within_its_bounds() {
    for algorithm in all() {
        let (r, timer) = with(AdaptiveRule::new("r", algorithm).bounds(3, 9));
        for takes in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_secs(1 << 32),
        ] {
            for of in [1, 2, 9] {
                for _ in 0..500 {
                    together(&r, &timer, (limit(&r) * of / 9).max(1), takes, |call| {
                        let _ = r.entry().count(u32::MAX).enter();
                        drop(call);
                    });
                    timer.advance(Duration::from_millis(50));
                    assert!((3..=9).contains(&limit(&r)));
                }
            }
        }
    }
}

/// Keeps what it is shown, and `says` the next limit.
struct Shown<S> {
    windows: Arc<Mutex<Vec<CallWindow>>>,
    pace: Pace,
    start: f64,
    says: S,
}

impl<S: Fn(&CallWindow) -> f64 + Send> ConcurrencyLimit for Shown<S> {
    fn start(&self) -> f64 {
        self.start
    }

    fn next(&mut self, _: f64, window: &CallWindow) -> f64 {
        self.windows.lock().unwrap().push(*window);
        (self.says)(window)
    }

    fn pace(&self) -> Pace {
        self.pace
    }
}

fn shown(
    pace: Pace,
    start: f64,
    says: fn(&CallWindow) -> f64,
) -> (AdaptiveRule, Arc<Mutex<Vec<CallWindow>>>) {
    let windows = Arc::new(Mutex::new(Vec::new()));
    let kept = windows.clone();
    let make = move || {
        Box::new(Shown {
            windows: kept.clone(),
            pace,
            start,
            says,
        }) as Box<dyn ConcurrencyLimit>
    };
    (
        AdaptiveRule::new("r", AdaptiveAlgorithm::Custom(Arc::new(make))),
        windows,
    )
}

#[test]
fn a_window_is_a_second_and_ten_calls_at_least() {
    let begin = || {
        let (rule, windows) = shown(Pace::default(), 1.0, |_| 1.0);
        let (r, timer) = with(rule);
        (r, timer, move || windows.lock().unwrap().clone())
    };
    // A call of 10 ms that ends after so many ms.
    let call = |r: &Resource, timer: &ManualTimer, after: u64, end: fn(Guard<'_>)| {
        timer.advance(Duration::from_millis(after - 10));
        together(r, timer, 1, BASE, end);
    };
    let (r, timer, windows) = begin();
    for _ in 0..9 {
        call(&r, &timer, 200, ends);
        assert_eq!(windows(), []);
    }
    let held = r.enter().unwrap();
    (0..5).for_each(|_| assert!(r.enter().is_err()));
    held.cancel();
    call(&r, &timer, 200, |mut call| call.mark_failed());
    let ended = windows()[0];
    assert_eq!(
        (ended.calls, ended.failed, ended.blocked, ended.mean_rt),
        (10, 1, 5, BASE)
    );
    let (r, timer, windows) = begin();
    for _ in 0..100 {
        call(&r, &timer, 10, ends);
        assert_eq!(windows(), [], "not yet a second");
    }
    call(&r, &timer, 10, ends);
    assert_eq!(windows().len(), 1);
    let (r, timer, windows) = begin();
    call(&r, &timer, 10, ends);
    timer.advance(Duration::from_secs(100));
    for _ in 0..9 {
        call(&r, &timer, 1_000, ends);
        assert_eq!(windows(), [], "the first is forgotten");
    }
}

#[test]
fn a_custom_algorithm_decides() {
    let pace = Pace {
        span: Duration::ZERO,
        calls: 1,
        ..Pace::default()
    };
    let (rule, _) = shown(pace, 7.0, |window| {
        assert!(window.in_flight < 8, "more than it can think of");
        if window.failed > 0 { f64::NAN } else { 8.0 }
    });
    assert_eq!(rule, rule.clone());
    let (r, timer) = with(rule);
    assert_eq!(limit(&r), 7);
    together(&r, &timer, 1, BASE, ends);
    assert_eq!(limit(&r), 8);
    let mut calls: Vec<_> = (0..8).map(|_| r.enter().unwrap()).collect();
    timer.advance(BASE);
    drop(calls.pop());
    assert_eq!(
        limit(&r),
        8,
        "a panic does not change the limit and does not propagate"
    );
    calls.into_iter().for_each(Guard::cancel);
    for _ in 0..20 {
        timer.advance(Duration::from_millis(90));
        together(&r, &timer, 1, BASE, |mut call| call.mark_failed());
    }
    assert_eq!(limit(&r), 1, "NaN becomes the lower bound");
}
