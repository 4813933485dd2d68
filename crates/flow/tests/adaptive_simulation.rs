//! Adaptive concurrency converges: each algorithm beside the best fixed limit, in a simulated service.
//!
//! The best fixed limit is the smallest that reaches 0.98 of the most that any limit reaches. The short tests run with all
//! others; the whole matrix takes minutes: `cargo test --release -p tidegate-flow --test adaptive_simulation -- --ignored`.
#![cfg(not(loom))]

mod simulation;

use simulation::{Bound, Run, SETTLED, Scenario, Service, algorithms, best_fixed, run};

/// How an algorithm fares beside the best fixed limit: by goodput, and by the time of the slowest in a hundred.
fn beside_best(scenario: &Scenario, best: &Run, run: &Run) -> (f64, f64) {
    let goodput = |run: &Run| run.goodput(SETTLED, scenario.seconds);
    let slowest = |run: &Run| run.percentile(scenario.service.percentile(), SETTLED, scenario.seconds);
    (goodput(run) / goodput(best), slowest(run) / slowest(best))
}

fn assert_converges(scenario: &Scenario) {
    let (limit, best) = best_fixed(scenario);
    // At 0.9 of the load that can be served hardly a call is blocked, so little is learnt: 1.6 is the worst of twelve.
    let most = if (scenario.load - 0.9).abs() < 0.01 { 1.65 } else { 1.5 };
    for (name, algorithm) in algorithms() {
        let (goodput, slowest) = beside_best(scenario, &best, &run(scenario, &Bound::Adaptive(algorithm)));
        assert!(
            goodput >= 0.97 && slowest <= most,
            "{name}: goodput {goodput:.3}, slowest {slowest:.2} times those of the fixed limit {limit} in {scenario:?}"
        );
    }
}

#[test]
fn each_algorithm_is_as_good_as_the_best_fixed_limit_under_overload() {
    assert_converges(&Scenario::new(5, Service::Exponential, 1.5));
}

#[test]
#[ignore = "takes minutes without --release"]
fn each_algorithm_is_as_good_as_the_best_fixed_limit_in_the_whole_matrix() {
    for workers in [5, 20, 100] {
        for service in Service::ALL {
            for load in [0.5, 0.9, 1.2, 1.5, 3.0] {
                assert_converges(&Scenario::new(workers, service, load));
            }
        }
    }
}

fn assert_recovers(workers: u32, load: f64) {
    let slow = Some((60, 90));
    let scenario = Scenario { slow, seconds: 130, ..Scenario::new(workers, Service::Exponential, load) };
    for (name, algorithm) in algorithms() {
        let run = run(&scenario, &Bound::Adaptive(algorithm));
        let (before, after) = (run.goodput(30, 60), run.goodput(100, 130));
        assert!(after >= 0.97 * before, "{name}, {workers} workers: {after:.0} after {before:.0} a second");
    }
}

#[test]
fn goodput_is_back_ten_seconds_after_calls_were_three_times_as_slow() {
    assert_recovers(5, 1.2);
}

#[test]
#[ignore = "takes minutes without --release"]
fn goodput_is_back_ten_seconds_after_calls_were_three_times_as_slow_whatever_the_size() {
    for workers in [5, 20, 100] {
        for load in [0.9, 1.2, 3.0] {
            assert_recovers(workers, load);
        }
    }
}

#[test]
fn no_limit_drifts_where_nothing_is_blocked() {
    // A limit of 20 never blocks three workers at a fifth of what they can do, nor when nobody comes at all.
    let scenario = Scenario { idle: Some((40, 80)), ..Scenario::new(3, Service::Exponential, 0.2) };
    for (name, algorithm) in algorithms() {
        let run = run(&scenario, &Bound::Adaptive(algorithm));
        assert!(run.limits.iter().all(|limit| *limit == 20), "{name}: {:?}", run.limits);
    }
}

#[test]
fn the_same_run_gives_the_same_figures() {
    let scenario = Scenario { seconds: 5, ..Scenario::new(5, Service::LogNormal, 1.2) };
    let (_, algorithm) = algorithms().into_iter().next().unwrap();
    let calls = || run(&scenario, &Bound::Adaptive(algorithm.clone())).calls;
    assert_eq!(calls(), calls());
}
