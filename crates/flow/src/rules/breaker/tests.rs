use std::{sync::Mutex, thread};

use super::*;

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn quiet(_: &Breaker, _: BreakerState, _: BreakerState) {}

fn breaker(trip: Trip, min_calls: u32) -> Breaker {
    let rule = BreakerRule::new("r", trip, Duration::from_secs(5));
    Breaker::new(rule.interval(Duration::from_secs(20)).min_calls(min_calls))
}

fn run(breaker: &Breaker, at: u64, rt_ms: u64, failed: bool) -> Result<(), Option<Duration>> {
    let probe = breaker.enter(ms(at), &quiet)?;
    let bad = breaker.is_bad(ms(rt_ms), failed);
    match probe {
        Some(probe) => {
            breaker.settle(probe, if bad { Verdict::Bad } else { Verdict::Good }, ms(at), &quiet);
        }
        None => breaker.record(ms(at), ms(at), bad, &quiet),
    }
    Ok(())
}

#[test]
fn slow_calls_open_it_and_a_fast_probe_closes_it() {
    let slow = Trip::SlowRatio { rt: Duration::from_millis(50), ratio: 0.8 };
    let breaker = breaker(slow, 10);
    for call in 0..10 {
        run(&breaker, 0, if call < 7 { 51 } else { 50 }, false).unwrap();
    }
    assert_eq!(breaker.state(), BreakerState::Closed, "7 of 10 is not above 0.8");
    for _ in 0..6 {
        assert_eq!(breaker.state(), BreakerState::Closed);
        run(&breaker, 0, 60, false).unwrap();
    }
    assert_eq!(breaker.state(), BreakerState::Open, "13 of 16 is");
    assert_eq!(run(&breaker, 1_000, 1, false), Err(Some(Duration::from_secs(4))));
    assert!(run(&breaker, 5_000, 60, false).is_ok(), "a probe");
    assert_eq!(breaker.state(), BreakerState::Open, "it was slow");
    assert!(run(&breaker, 9_999, 1, false).is_err());
    assert!(run(&breaker, 11_000, 1, false).is_ok());
    assert_eq!(breaker.state(), BreakerState::Closed);
    // The earlier calls are forgotten: one slow call among few does not open the breaker.
    for _ in 0..9 {
        run(&breaker, 11_000, 60, false).unwrap();
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    run(&breaker, 11_000, 60, false).unwrap();
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn errors_open_it_above_their_ratio_or_count() {
    let ratio = breaker(Trip::ErrorRatio { ratio: 0.5 }, 10);
    for call in 0..10 {
        assert_eq!(ratio.state(), BreakerState::Closed);
        run(&ratio, call, 1, call < 6 || call == 9).unwrap();
    }
    assert_eq!(ratio.state(), BreakerState::Open);

    let count = breaker(Trip::ErrorCount { count: 2 }, 1);
    for failed in [true, false, true, true] {
        assert_eq!(count.state(), BreakerState::Closed);
        run(&count, 0, 1, failed).unwrap();
    }
    assert_eq!(count.state(), BreakerState::Open);
}

#[test]
fn a_ratio_of_one_opens_when_all_are_bad() {
    let all = breaker(Trip::SlowRatio { rt: Duration::from_millis(10), ratio: 1.0 }, 3);
    for _ in 0..3 {
        run(&all, 0, 20, false).unwrap();
    }
    assert_eq!(all.state(), BreakerState::Open);
}

#[test]
fn calls_expire_from_the_interval_slot_by_slot() {
    let breaker = breaker(Trip::ErrorCount { count: 4 }, 1);
    for at in (0..20_000).step_by(5_000) {
        run(&breaker, at, 1, true).unwrap();
    }
    // The first of the four has left the interval when the fifth arrives.
    run(&breaker, 20_000, 1, true).unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);
    run(&breaker, 20_001, 1, true).unwrap();
    assert_eq!(breaker.state(), BreakerState::Open);
}

fn opened(probes: u32) -> Breaker {
    let rule = BreakerRule::new("r", Trip::ErrorCount { count: 0 }, Duration::from_secs(5)).min_calls(1);
    let breaker = Breaker::new(rule.probes(probes));
    run(&breaker, 0, 1, true).unwrap();
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker
}

#[test]
fn exactly_its_probes_pass_and_all_must_be_good() {
    let breaker = opened(3);
    let enter = || breaker.enter(ms(5_000), &quiet);
    let probes: Vec<_> = (0..3).map(|_| enter().unwrap().unwrap()).collect();
    assert_eq!(enter(), Err(None));
    breaker.settle(probes[0], Verdict::Good, ms(5_001), &quiet);
    breaker.settle(probes[1], Verdict::Good, ms(5_001), &quiet);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert_eq!(enter(), Err(None), "a successful probe keeps its permit");
    breaker.settle(probes[2], Verdict::Good, ms(5_001), &quiet);
    assert_eq!(breaker.state(), BreakerState::Closed);

    let breaker = opened(2);
    let probes: Vec<_> = (0..2).map(|_| breaker.enter(ms(5_000), &quiet).unwrap().unwrap()).collect();
    breaker.settle(probes[0], Verdict::Bad, ms(6_000), &quiet);
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker.settle(probes[1], Verdict::Good, ms(6_000), &quiet);
    assert_eq!(breaker.state(), BreakerState::Open, "a late probe of an earlier half-open state is ignored");
    assert_eq!(breaker.enter(ms(10_999), &quiet), Err(Some(Duration::from_millis(1))));
    assert!(breaker.enter(ms(11_000), &quiet).unwrap().is_some());
}

#[test]
fn a_cancelled_probe_is_returned() {
    let breaker = opened(1);
    for at in 5_000..5_010 {
        let probe = breaker.enter(ms(at), &quiet).unwrap().unwrap();
        assert_eq!(breaker.enter(ms(at), &quiet), Err(None));
        breaker.settle(probe, Verdict::None, ms(at), &quiet);
        assert_eq!(breaker.state(), BreakerState::Open, "no probe is in flight");
    }
    let probe = breaker.enter(ms(6_000), &quiet).unwrap().unwrap();
    breaker.settle(probe, Verdict::Good, ms(6_000), &quiet);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn probes_that_never_report_do_not_keep_it_half_open() {
    let breaker = opened(1);
    let lost = breaker.enter(ms(5_000), &quiet).unwrap().unwrap();
    assert_eq!(breaker.enter(ms(54_999), &quiet), Err(None));
    assert_eq!(breaker.enter(ms(55_000), &quiet), Err(Some(Duration::from_secs(5))));
    assert_eq!(breaker.state(), BreakerState::Open);
    let probe = breaker.enter(ms(60_000), &quiet).unwrap().unwrap();
    breaker.settle(lost, Verdict::Bad, ms(60_001), &quiet);
    breaker.settle(probe, Verdict::Good, ms(60_001), &quiet);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_probe_is_lost_by_its_own_start_not_by_that_of_the_half_open_period() {
    let rule = BreakerRule::new("r", Trip::ErrorCount { count: 0 }, Duration::from_secs(1)).min_calls(1);
    let breaker = Breaker::new(rule);
    run(&breaker, 0, 1, true).unwrap();
    let cancelled = breaker.enter(ms(1_000), &quiet).unwrap().unwrap();
    breaker.settle(cancelled, Verdict::None, ms(1_000), &quiet);
    let probe = breaker.enter(ms(11_000), &quiet).unwrap().unwrap();
    assert_eq!(breaker.enter(ms(11_001), &quiet), Err(None), "the probe has just begun");
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    breaker.settle(probe, Verdict::Good, ms(11_002), &quiet);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn good_probes_close_it_however_seldom_they_come() {
    let rule = BreakerRule::new("r", Trip::ErrorCount { count: 0 }, Duration::from_secs(1)).min_calls(1);
    let breaker = Breaker::new(rule.probes(5));
    run(&breaker, 0, 1, true).unwrap();
    for (round, free) in [(1, 2), (2, 2), (3, 1)] {
        // Two overlapping calls every five seconds. The second call of the last pair finds all five permits in use.
        let calls = [(); 2].map(|()| breaker.enter(ms(round * 5_000), &quiet));
        assert_eq!(calls.iter().filter(|call| call.is_ok()).count(), free);
        for probe in calls.into_iter().flatten().flatten() {
            breaker.settle(probe, Verdict::Good, ms(round * 5_000 + 100), &quiet);
        }
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn probes_that_ended_well_still_count_after_one_was_given_up() {
    let breaker = opened(2);
    let enter = |at| breaker.enter(ms(at), &quiet).unwrap().unwrap();
    breaker.settle(enter(5_000), Verdict::Good, ms(5_001), &quiet);
    breaker.settle(enter(5_002), Verdict::None, ms(5_003), &quiet);
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker.settle(enter(5_004), Verdict::Good, ms(5_005), &quiet);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_call_from_before_an_outage_does_not_reopen_the_breaker() {
    let breaker = opened(1);
    run(&breaker, 5_000, 1, false).unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);
    breaker.record(ms(4_999), ms(5_001), true, &quiet);
    assert_eq!(breaker.state(), BreakerState::Closed, "it began before the probe had closed it");
    breaker.record(ms(5_000), ms(5_001), true, &quiet);
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[test]
fn a_peek_answers_as_an_entry_would_and_changes_nothing() {
    let breaker = opened(2);
    assert_eq!(breaker.peek(ms(4_999)), Err(Some(Duration::from_millis(1))));
    assert_eq!((breaker.peek(ms(5_000)), breaker.state()), (Ok(()), BreakerState::Open));
    for _ in 0..2 {
        assert_eq!(breaker.peek(ms(5_000)), Ok(()));
        breaker.enter(ms(5_000), &quiet).unwrap().unwrap();
    }
    assert_eq!(breaker.peek(ms(5_000)), Err(None));
    assert_eq!(breaker.peek(ms(55_000)), Err(Some(Duration::from_secs(5))), "its probes are lost");
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
}

#[test]
fn listeners_are_told_each_change_once() {
    let breaker = opened(1);
    let heard = Mutex::new(Vec::new());
    let tell = |_: &Breaker, from, to| heard.lock().unwrap().push((from, to));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                if let Ok(Some(probe)) = breaker.enter(ms(5_000), &tell) {
                    breaker.settle(probe, Verdict::Good, ms(5_000), &tell);
                }
            });
        }
    });
    let changes =
        [(BreakerState::Open, BreakerState::HalfOpen), (BreakerState::HalfOpen, BreakerState::Closed)];
    assert_eq!(*heard.lock().unwrap(), changes);
}

#[test]
fn sixty_four_threads_get_exactly_the_probes_of_each_period() {
    let breaker = opened(3);
    for period in 1..200_u64 {
        let at = period * 5_000;
        let probes = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    if let Ok(probe) = breaker.enter(ms(at), &quiet) {
                        probes.lock().unwrap().push(probe.expect("a half-open breaker admits only probes"));
                    }
                });
            }
        });
        let probes = probes.into_inner().unwrap();
        assert_eq!(probes.len(), 3);
        breaker.settle(probes[0], Verdict::Bad, ms(at), &quiet);
    }
}
