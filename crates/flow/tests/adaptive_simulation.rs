//! Adaptive concurrency converges: compares each algorithm with the best fixed limit in a simulated service.
//!
//! The best fixed limit is the smallest that reaches 0.98 of the highest goodput of any limit. The short tests run with
//! all other tests. The whole matrix, with three seeds of each scenario, takes minutes:
//! `cargo test --release -p tidegate-flow --test adaptive_simulation -- --ignored`.
#![cfg(not(loom))]

mod simulation;

use simulation::{Bound, Scenario, Service, algorithms, beside, best_fixed, run};

fn assert_converges(scenario: &Scenario) {
    let (limit, best) = best_fixed(scenario);
    for (name, algorithm) in algorithms() {
        let (goodput, slowest) = beside(scenario, &best, &run(scenario, &Bound::Adaptive(algorithm)));
        assert!(
            goodput >= 0.97 && slowest <= 1.5,
            "{name}: goodput {goodput:.3}, slowest {slowest:.2} times those of the fixed limit {limit} in {scenario:?}"
        );
    }
}

#[test]
fn each_algorithm_is_as_good_as_the_best_fixed_limit_under_overload() {
    assert_converges(&Scenario::new(5, Service::Exponential, 1.5));
}

#[test]
fn each_algorithm_is_as_good_as_the_best_fixed_limit_where_nearly_all_can_be_served() {
    assert_converges(&Scenario::new(20, Service::OneInAHundred, 0.9));
}

#[test]
#[ignore = "takes minutes, and with --release: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn each_algorithm_is_as_good_as_the_best_fixed_limit_in_the_whole_matrix() {
    for workers in [5, 20, 100] {
        for service in Service::ALL {
            for load in [0.5, 0.9, 1.2, 1.5, 3.0] {
                for seed in 0..3 {
                    assert_converges(&Scenario { seed, ..Scenario::new(workers, service, load) });
                }
            }
        }
    }
}

fn assert_recovers(workers: u32, load: f64, seed: u64) {
    let slow = Some((60, 90));
    let scenario =
        Scenario { slow, seconds: 130, seed, ..Scenario::new(workers, Service::Exponential, load) };
    for (name, algorithm) in algorithms() {
        let run = run(&scenario, &Bound::Adaptive(algorithm));
        let (before, after) = (run.goodput(30, 60), run.goodput(100, 130));
        assert!(after >= 0.97 * before, "{name}: {after:.0} after {before:.0} a second in {scenario:?}");
    }
}

#[test]
fn five_workers_are_back_ten_seconds_after_calls_were_three_times_as_slow() {
    assert_recovers(5, 1.2, 0);
}

#[test]
fn twenty_workers_are_back_ten_seconds_after_calls_were_three_times_as_slow() {
    assert_recovers(20, 1.2, 0);
}

#[test]
fn a_hundred_workers_are_back_ten_seconds_after_calls_were_three_times_as_slow() {
    assert_recovers(100, 1.2, 0);
}

#[test]
#[ignore = "takes minutes, and with --release: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn goodput_is_back_ten_seconds_after_calls_were_three_times_as_slow_whatever_the_size_and_load() {
    for workers in [5, 20, 100] {
        for load in [0.9, 1.2, 3.0] {
            (0..3).for_each(|seed| assert_recovers(workers, load, seed));
        }
    }
}

#[test]
fn no_limit_drifts_where_nothing_is_blocked() {
    // The initial limits never block a call to three workers at a fifth of their capacity, nor during a time without calls.
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
