use loom::{sync::Arc, thread};

use super::*;

fn quiet(_: &Breaker, _: BreakerState, _: BreakerState) {}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

fn opened() -> Arc<Breaker> {
    let trip = Trip::ErrorCount { count: 0 };
    let rule = BreakerRule {
        slots: 1,
        ..BreakerRule::new("r", trip, Duration::from_secs(1))
    };
    let breaker = Breaker::new(rule.min_calls(1));
    breaker.record(Nanos::ZERO, Nanos::ZERO, true, &quiet);
    assert_eq!(breaker.state(), BreakerState::Open);
    Arc::new(breaker)
}

#[test]
fn one_probe_goes_to_one_thread_and_is_returned() {
    model(|| {
        let breaker = opened();
        let now = Nanos::from_secs(1);
        let inside = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (breaker, inside) = (breaker.clone(), inside.clone());
                thread::spawn(move || {
                    if let Ok(Some(probe)) = breaker.enter(now, &quiet) {
                        assert_eq!(
                            inside.fetch_add(1, Ordering::Relaxed),
                            0,
                            "one permit admits one probe"
                        );
                        inside.fetch_sub(1, Ordering::Relaxed);
                        breaker.settle(probe, ProbeOutcome::None, now, &quiet);
                    }
                })
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        let probe = breaker
            .enter(now, &quiet)
            .expect("the permit is free again")
            .unwrap();
        breaker.settle(probe, ProbeOutcome::Good, now, &quiet);
        assert_eq!(breaker.state(), BreakerState::Closed);
    });
}

#[test]
fn two_reports_make_one_transition() {
    model(|| {
        let rule = BreakerRule {
            slots: 1,
            ..opened().rule.clone()
        };
        let breaker = Arc::new(Breaker::new(rule.probes(2)));
        breaker.record(Nanos::ZERO, Nanos::ZERO, true, &quiet);
        let now = Nanos::from_secs(1);
        let probes = [(); 2].map(|()| breaker.enter(now, &quiet).unwrap().unwrap());
        let other = {
            let breaker = breaker.clone();
            thread::spawn(move || breaker.settle(probes[0], ProbeOutcome::Good, now, &quiet))
        };
        breaker.settle(probes[1], ProbeOutcome::Bad, now, &quiet);
        other.join().unwrap();
        assert_eq!(
            breaker.state(),
            BreakerState::Open,
            "one bad probe opens the breaker, in any order of reports"
        );
    });
}

#[test]
fn a_thread_that_slept_does_not_make_a_running_probe_look_lost() {
    model(|| {
        let breaker = opened();
        let slept = {
            let breaker = breaker.clone();
            thread::spawn(move || {
                let now = Nanos::from_secs(1);
                if let Ok(Some(probe)) = breaker.enter(now, &quiet) {
                    breaker.settle(probe, ProbeOutcome::Bad, now, &quiet);
                }
            })
        };
        let probe = breaker.enter(Nanos::from_secs(20), &quiet);
        slept.join().unwrap();
        if let Ok(Some(_)) = probe {
            // The probe is not lost before ten open times have passed.
            assert_eq!(breaker.enter(Nanos::from_secs(29), &quiet), Err(None));
        }
    });
}

#[test]
fn a_bad_call_and_a_good_call_together_open_the_breaker() {
    let trip = Trip::ErrorCount { count: 0 };
    let rule = BreakerRule {
        slots: 1,
        ..BreakerRule::new("r", trip, Duration::from_secs(1))
    }
    .min_calls(2);
    model(move || {
        let breaker = Arc::new(Breaker::new(rule.clone()));
        let other = {
            let breaker = breaker.clone();
            thread::spawn(move || breaker.record(Nanos::ZERO, Nanos::ZERO, false, &quiet))
        };
        breaker.record(Nanos::ZERO, Nanos::ZERO, true, &quiet);
        other.join().unwrap();
        assert_eq!(breaker.state(), BreakerState::Open);
    });
}
