use super::*;

const BASE: Duration = Duration::from_millis(10);

fn all() -> [Algorithm; 3] {
    [
        Algorithm::Aimd(Aimd::default()),
        Algorithm::Gradient2(Gradient2::default()),
        Algorithm::Vegas(Vegas::default()),
    ]
}

/// Runs calls that end 10 ms apart, starting at `from_ms`, with as many in flight as the limit allows.
fn learn(adaptive: &Adaptive, from_ms: u64, calls: u64, rt: Duration, failed: bool) {
    learn_beside(adaptive, from_ms, calls, rt, failed, adaptive.units());
}

fn learn_beside(adaptive: &Adaptive, from_ms: u64, calls: u64, rt: Duration, failed: bool, in_flight: u64) {
    for call in 0..calls {
        let sample = CallSample { rt: rt.into(), in_flight, failed };
        adaptive.learn(Nanos::from_millis(from_ms + call * 10), &sample);
    }
}

#[test]
fn failures_lower_the_limit() {
    for algorithm in all() {
        let adaptive = Adaptive::new(AdaptiveRule::new("r", algorithm.clone()).bounds(2, 50));
        learn(&adaptive, 0, 10_000, BASE, true);
        assert_eq!(adaptive.units(), 2, "{algorithm:?}");
    }
}

#[test]
fn traffic_below_half_of_the_limit_does_not_change_it() {
    for algorithm in all() {
        let adaptive = Adaptive::new(AdaptiveRule::new("r", algorithm.clone()));
        let before = adaptive.units();
        for round in 0..20 {
            // Response times that rise and fall sharply, with long pauses.
            learn_beside(
                &adaptive,
                round * 60_000,
                500,
                BASE * (round as u32 % 7 + 1),
                false,
                before / 2 - 1,
            );
        }
        assert_eq!(adaptive.units(), before, "{algorithm:?}");
    }
}

#[test]
fn a_limit_that_is_used_and_blocks_nothing_is_lowered_by_slow_calls_and_never_raised() {
    for algorithm in all() {
        let adaptive = Adaptive::new(AdaptiveRule::new("r", algorithm.clone()));
        let mut limit = adaptive.units();
        for round in 0..20 {
            learn(&adaptive, round * 60_000, 500, BASE * (round as u32 % 7 + 1), false);
            assert!(adaptive.units() <= limit, "{algorithm:?}");
            limit = adaptive.units();
        }
        let is_lowered = !matches!(algorithm, Algorithm::Aimd(_));
        assert_eq!(limit < 20, is_lowered, "{algorithm:?}: {limit}");
        assert!(limit >= 4, "{algorithm:?}: {limit}");
    }
}

#[test]
fn a_window_is_a_second_and_ten_calls_at_least() {
    let call = |rt| CallSample { rt: Nanos::from_millis(rt), in_flight: 1, failed: rt == 9 };
    let mut window = Open::new(Pace::default());
    for at in 0..9 {
        assert_eq!(window.add(Nanos::from_millis(at * 200), &call(10), 7), None);
    }
    let ended = window.add(Nanos::from_millis(1_800), &call(9), 12).unwrap();
    assert_eq!((ended.calls, ended.failed, ended.blocked, ended.mean_rt), (10, 1, 5, BASE));
    let mut window = Open::new(Pace::default());
    for at in 0..100 {
        assert_eq!(window.add(Nanos::from_millis(at * 10), &call(10), 0), None, "not yet a second");
    }
    assert!(window.add(Nanos::from_millis(1_000), &call(10), 0).is_some());
    let mut window = Open::new(Pace::default());
    window.add(Nanos::ZERO, &call(10), 0);
    for at in 0..9 {
        assert_eq!(window.add(Nanos::from_secs(100 + at), &call(10), 0), None, "the first is forgotten");
    }
}

#[test]
fn the_limit_stays_within_its_bounds() {
    for algorithm in all() {
        let adaptive = Adaptive::new(AdaptiveRule::new("r", algorithm).bounds(3, 9));
        let mut at = Nanos::ZERO;
        for rt in [Duration::ZERO, Duration::MAX, Duration::from_nanos(1)] {
            for in_flight in [0, 5, u64::MAX] {
                for _ in 0..500 {
                    at = at.saturating_add(Duration::from_millis(50).into());
                    adaptive.note_blocked(u32::MAX);
                    adaptive.learn(at, &CallSample { rt: rt.into(), in_flight, failed: false });
                    assert!((3..=9).contains(&adaptive.units()));
                }
            }
        }
    }
}

#[test]
fn a_custom_algorithm_decides() {
    struct Fixed;
    impl ConcurrencyLimit for Fixed {
        fn start(&self) -> f64 {
            7.0
        }
        fn next(&mut self, _: f64, window: &CallWindow) -> f64 {
            assert!(window.in_flight < 9, "more than it can think of");
            if window.failed > 0 { f64::NAN } else { 8.0 }
        }
        fn pace(&self) -> Pace {
            Pace { span: Duration::ZERO, calls: 1, ..Pace::default() }
        }
    }
    let rule = AdaptiveRule::new("r", Algorithm::Custom(Arc::new(|| Box::new(Fixed))));
    assert_eq!(rule, rule.clone());
    let adaptive = Adaptive::new(rule);
    assert_eq!(adaptive.units(), 7);
    let call = CallSample { rt: BASE.into(), in_flight: 1, failed: false };
    let learn = |call: &CallSample| adaptive.learn(Nanos::from_secs(1), call);
    learn(&call);
    assert_eq!(adaptive.units(), 8);
    learn(&CallSample { in_flight: 9, ..call });
    assert_eq!(adaptive.units(), 8, "a panic does not change the limit and does not propagate");
    let later = Nanos::from_secs(1_000);
    (0..20).for_each(|_| adaptive.learn(later, &CallSample { failed: true, ..call }));
    for at in 0..20 {
        adaptive.learn(Nanos::from_millis(1_001_000 + at * 100), &CallSample { failed: true, ..call });
    }
    assert_eq!(adaptive.units(), 1, "NaN becomes the lower bound");
}
