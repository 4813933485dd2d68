use proptest::prelude::*;

use super::*;

fn quiet(_: &Breaker, _: BreakerState, _: BreakerState) {}

fn trips() -> impl Strategy<Value = Trip> {
    prop_oneof![
        (0..6_u64).prop_map(|count| Trip::ErrorCount { count }),
        (0..11_u32).prop_map(|tenths| Trip::ErrorRatio { ratio: f64::from(tenths) / 10.0 }),
    ]
}

proptest! {
    /// Both breakers get the same calls. One counts good calls in stripes.
    #[test]
    fn a_breaker_with_stripes_opens_at_the_same_call(
        trip in trips(),
        min_calls in 1..30_u32,
        calls in prop::collection::vec(
            (prop_oneof![8 => 0..150_i64, 1 => 0..1_500_i64, 1 => -300..0_i64], 1..8_u32, prop::bool::weighted(0.15), prop::option::weighted(0.8, 0..4_usize)),
            1..200,
        ),
    ) {
        let rule = BreakerRule::new("r", trip, Duration::from_millis(700)).min_calls(min_calls);
        let (one, striped) = (Breaker::new(rule.clone()), Breaker::new(rule));
        let mut now = Nanos::from_secs(1_000);
        for (later, times, bad, at) in calls {
            now = Nanos::from_millis((now.get() / 1_000_000).saturating_add_signed(later));
            for _ in 0..times {
                let (first, second) = (one.enter(now, &quiet), striped.enter(now, &quiet));
                prop_assert_eq!(&first, &second);
                let verdict = if bad { Verdict::Bad } else { Verdict::Good };
                match (first, second) {
                    (Ok(Some(first)), Ok(Some(second))) => {
                        one.settle(first, verdict, now, &quiet);
                        striped.settle(second, verdict, now, &quiet);
                    }
                    (Ok(None), Ok(None)) => {
                        one.record(now, now, bad, &quiet);
                        striped.record_in(at.map(|at| Stripe { at, of: 4 }), now, now, bad, &quiet);
                    }
                    _ => {}
                }
                prop_assert_eq!(one.state(), striped.state(), "at {:?}", now);
            }
        }
    }
}

#[test]
fn good_calls_count_in_stripes_while_nothing_bad_is_in_view() {
    let rule = BreakerRule::new("r", Trip::ErrorCount { count: 0 }, Duration::from_secs(5)).min_calls(100);
    let breaker = Breaker::new(rule);
    let record = |at, bad, ms| {
        let now = Nanos::from_millis(ms);
        breaker.record_in(Some(Stripe { at, of: 2 }), now, now, bad, &quiet);
        breaker.striped.in_view(|| now)
    };
    assert_eq!(record(0, false, 0), 0, "the first one makes the stripes");
    assert_eq!((record(0, false, 0), record(1, false, 0)), (1, 2));
    assert_eq!((record(0, true, 0), record(1, false, 0)), (2, 2), "something bad is in view");
    assert_eq!((record(0, false, 1_100), breaker.state()), (1, BreakerState::Closed));
}
