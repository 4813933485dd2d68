//! Adaptive concurrency converges: compares each algorithm with the best fixed limit in a simulated
//! service.
//!
//! The best fixed limit is the smallest that reaches 0.98 of the highest goodput of any limit. The
//! short tests run with all other tests. The whole matrix, with three seeds of each scenario, takes
//! minutes: `cargo test --release -p tidegate-flow --test adaptive_simulation -- --ignored`.
#![cfg(not(loom))]

mod simulation;

use simulation::{
    Bound, Run, Scenario, Service, algorithms, beside, beside_between, best_fixed,
    best_fixed_between, run,
};

/// Asserts that no scenario has a complaint, and names all that have.
fn assert_none(complaints: impl IntoIterator<Item = String>) {
    let complaints: Vec<String> = complaints.into_iter().collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Compares each algorithm with the best fixed limit of each seed. The bounds hold for the means
/// over the seeds.
fn diverges(scenario: &Scenario, seeds: u64) -> Vec<String> {
    let best: Vec<_> = (0..seeds)
        .map(|seed| best_fixed(&Scenario { seed, ..*scenario }))
        .collect();
    let mut complaints = Vec::new();
    for (name, algorithm) in algorithms() {
        let bound = Bound::Adaptive(algorithm);
        let compared: Vec<_> = (0..seeds)
            .map(|seed| {
                let scenario = Scenario { seed, ..*scenario };
                beside(&scenario, &best[seed as usize].1, &run(&scenario, &bound))
            })
            .collect();
        let goodput = compared.iter().map(|(goodput, _)| goodput).sum::<f64>() / seeds as f64;
        let slowest = compared.iter().map(|(_, slowest)| slowest).sum::<f64>() / seeds as f64;
        if goodput < 0.97 || slowest > 1.5 {
            complaints.push(format!(
                "{name}: goodput {goodput:.3}, slowest {slowest:.2} times those of the best fixed limit in {scenario:?}"
            ));
        }
    }
    complaints
}

#[test]
fn each_algorithm_is_as_good_as_the_best_fixed_limit_under_overload() {
    assert_none(diverges(&Scenario::new(5, Service::Exponential, 1.5), 1));
}

#[test]
fn each_algorithm_is_as_good_as_the_best_fixed_limit_where_nearly_all_can_be_served() {
    assert_none(diverges(&Scenario::new(20, Service::OneInAHundred, 0.9), 1));
}

#[test]
#[ignore = "takes minutes, and with --release: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn each_algorithm_is_as_good_as_the_best_fixed_limit_in_the_whole_matrix() {
    let mut complaints = Vec::new();
    for workers in [5, 20, 100] {
        for service in Service::ALL {
            for load in [0.5, 0.9, 1.2, 1.5, 3.0] {
                complaints.extend(diverges(&Scenario::new(workers, service, load), 3));
            }
        }
    }
    assert_none(complaints);
}

fn stays_slow(workers: u32, load: f64, seeds: u64) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, algorithm) in algorithms() {
        let (mut before, mut after) = (0.0, 0.0);
        for seed in 0..seeds {
            let scenario = Scenario::new(workers, Service::Exponential, load);
            let scenario = Scenario {
                slow: Some((60, 90)),
                seconds: 130,
                seed,
                ..scenario
            };
            let run = run(&scenario, &Bound::Adaptive(algorithm.clone()));
            before += run.goodput(30, 60);
            after += run.goodput(100, 130);
        }
        if after < 0.97 * before {
            complaints.push(format!(
                "{name}: {after:.0} after {before:.0} calls a second with {workers} workers, load {load}"
            ));
        }
    }
    complaints
}

#[test]
fn five_workers_are_back_ten_seconds_after_calls_were_three_times_as_slow() {
    assert_none(stays_slow(5, 1.2, 1));
}

#[test]
fn twenty_workers_are_back_ten_seconds_after_calls_were_three_times_as_slow() {
    assert_none(stays_slow(20, 1.2, 1));
}

#[test]
fn a_hundred_workers_are_back_ten_seconds_after_calls_were_three_times_as_slow() {
    assert_none(stays_slow(100, 1.2, 1));
}

#[test]
#[ignore = "takes minutes, and with --release: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn goodput_is_back_ten_seconds_after_calls_were_three_times_as_slow_whatever_the_size_and_load() {
    let mut complaints = Vec::new();
    for workers in [5, 20, 100] {
        for load in [0.9, 1.2, 3.0] {
            complaints.extend(stays_slow(workers, load, 3));
        }
    }
    assert_none(complaints);
}

/// Returns the mean of a ratio over seeds.
fn mean(seeds: u64, ratio: impl FnMut(u64) -> f64) -> f64 {
    (0..seeds).map(ratio).sum::<f64>() / seeds as f64
}

/// Compares goodput with that of the best fixed limit from ten seconds after the service has lost
/// seven tenths of its capacity for good.
fn lags(workers: u32, service: Service, load: f64, seeds: u64) -> Vec<String> {
    let mut complaints = Vec::new();
    let scenario = |seed| {
        let slow = (Some((60, u32::MAX)), 1.0 / 0.3);
        let scenario = Scenario::new(workers, service, load);
        Scenario {
            slow: slow.0,
            slower: slow.1,
            seconds: 130,
            seed,
            ..scenario
        }
    };
    let late = |seed, bound: &Bound| run(&scenario(seed), bound).goodput(70, 130);
    let limits = [workers, workers * 2, workers * 4];
    let best: Vec<f64> = (0..seeds)
        .map(|seed| {
            limits
                .iter()
                .map(|&limit| late(seed, &Bound::Fixed(limit)))
                .fold(0.0, f64::max)
        })
        .collect();
    let bound = if service == Service::Pareto {
        0.88
    } else {
        0.95
    };
    for (name, algorithm) in algorithms() {
        let mut lowest = u64::MAX;
        let reached = mean(seeds, |seed| {
            let run = run(&scenario(seed), &Bound::Adaptive(algorithm.clone()));
            lowest = lowest.min(run.limits[60..].iter().copied().min().unwrap_or(0));
            run.goodput(70, 130) / best[seed as usize]
        });
        let figures = format!(
            "{name}: {reached:.3}, lowest limit {lowest}, with {workers} workers, {service:?}, load {load}"
        );
        println!("{figures}");
        if reached < bound || lowest <= 1 && workers > 1 {
            complaints.push(figures);
        }
    }
    complaints
}

#[test]
fn each_algorithm_follows_a_service_that_becomes_slower_for_good() {
    assert_none(lags(5, Service::Exponential, 1.5, 4));
    assert_none(lags(5, Service::LogNormal, 0.9, 4));
}

#[test]
#[ignore = "takes minutes, and with --release: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn each_algorithm_follows_a_service_that_becomes_slower_for_good_whatever_the_size_and_load() {
    let mut complaints = Vec::new();
    for workers in [1, 5, 20, 100] {
        for service in Service::ALL.into_iter().chain([Service::Pareto]) {
            for load in [0.9, 1.5, 3.0] {
                complaints.extend(lags(
                    workers,
                    service,
                    load,
                    if workers == 100 { 8 } else { 24 },
                ));
            }
        }
    }
    assert_none(complaints);
}

/// The seconds before a service loses a part of its capacity, the ten seconds after the loss, the
/// time after these, and the same after the return of the capacity.
const SEGMENTS: [(u32, u32); 5] = [(30, 60), (60, 70), (70, 120), (120, 130), (130, 180)];

/// The bounds of a segment: the least goodput and the most time of the slowest calls, both as
/// multiples of those of the best fixed limit of that segment.
fn bounds_of(segment: (u32, u32)) -> (f64, f64) {
    match segment {
        (60, 70) | (120, 130) => (0.85, 2.5),
        _ => (0.97, 1.8),
    }
}

/// Compares each algorithm in each segment with the best fixed limit of that segment, as the means
/// over the seeds.
fn strays(workers: u32, service: Service, load: f64, slower: f64, seeds: u64) -> Vec<String> {
    let scenario = |seed| Scenario {
        slow: Some((60, 120)),
        slower,
        seconds: 180,
        seed,
        ..Scenario::new(workers, service, load)
    };
    let best: Vec<Vec<Run>> = (0..seeds)
        .map(|seed| {
            let until = |(_, seconds)| Scenario {
                seconds,
                ..scenario(seed)
            };
            SEGMENTS
                .map(|segment| best_fixed_between(&until(segment), segment).1)
                .into()
        })
        .collect();
    let mut complaints = Vec::new();
    for (name, algorithm) in algorithms() {
        let runs: Vec<Run> = (0..seeds)
            .map(|seed| run(&scenario(seed), &Bound::Adaptive(algorithm.clone())))
            .collect();
        for (at, segment) in SEGMENTS.into_iter().enumerate() {
            let each: Vec<(f64, f64)> = runs
                .iter()
                .zip(&best)
                .map(|(run, best)| beside_between(service, segment, &best[at], run))
                .collect();
            let goodput = each.iter().map(|(goodput, _)| goodput).sum::<f64>() / seeds as f64;
            let slowest = each.iter().map(|(_, slowest)| slowest).sum::<f64>() / seeds as f64;
            let figures = format!(
                "{goodput:.3} {slowest:.2} {name} from {segment:?}: {workers} workers, {service:?}, load {load}, {slower:.1} times slower"
            );
            println!("{figures}");
            let (least, most) = bounds_of(segment);
            if goodput < least || slowest > most {
                complaints.push(figures);
            }
        }
    }
    complaints
}

#[test]
fn each_algorithm_keeps_its_bounds_before_and_after_a_loss_of_capacity() {
    assert_none(strays(5, Service::Exponential, 1.5, 1.0 / 0.3, 2));
}

#[test]
#[ignore = "takes minutes, and with --release: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn each_algorithm_keeps_its_bounds_around_a_loss_of_capacity_whatever_the_size_and_load() {
    let mut complaints = Vec::new();
    for workers in [5, 20] {
        for service in Service::ALL {
            for load in [0.9, 1.5, 3.0] {
                for slower in [2.0, 1.0 / 0.3] {
                    complaints.extend(strays(workers, service, load, slower, 3));
                }
            }
        }
    }
    assert_none(complaints);
}

/// Compares goodput with the usual one during ten seconds in which half of the calls fail without
/// overload, and from five seconds later on.
fn suffers(workers: u32, load: f64, seeds: u64, ignore_errors: bool) -> Vec<String> {
    let mut complaints = Vec::new();
    let (during, after) = if ignore_errors {
        (0.98, 0.98)
    } else {
        (0.5, 0.95)
    };
    for (name, algorithm) in algorithms() {
        let bound = if ignore_errors {
            Bound::IgnoringErrors(algorithm)
        } else {
            Bound::Adaptive(algorithm)
        };
        let of = |from, to| {
            mean(seeds, |seed| {
                let scenario = Scenario::new(workers, Service::Exponential, load);
                let calm = Scenario {
                    seed,
                    seconds: 100,
                    ..scenario
                };
                let failing = Scenario {
                    failing: Some((60, 70)),
                    ..calm
                };
                run(&failing, &bound).goodput(from, to) / run(&calm, &bound).goodput(from, to)
            })
        };
        let got = (of(60, 70), of(75, 100));
        let figures = format!(
            "{name}: {got:.3?} with {workers} workers, load {load}, errors ignored: {ignore_errors}"
        );
        println!("{figures}");
        if got.0 < during || got.1 < after {
            complaints.push(figures);
        }
    }
    complaints
}

#[test]
fn failures_without_overload_cost_nothing_if_ignored_and_little_after_five_seconds_otherwise() {
    for ignore_errors in [false, true] {
        assert_none(suffers(5, 1.5, 2, ignore_errors));
    }
}

#[test]
#[ignore = "takes minutes, and with --release: scripts/test.sh runs it under TIDEGATE_LONG=1"]
fn failures_without_overload_cost_little_whatever_the_size_and_load() {
    let mut complaints = Vec::new();
    for workers in [1, 5, 20, 100] {
        for load in [0.9, 1.5, 3.0] {
            for ignore_errors in [false, true] {
                complaints.extend(suffers(workers, load, 8, ignore_errors));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn no_limit_drifts_where_nothing_is_blocked() {
    // The initial limits never block a call to three workers at a fifth of their capacity, nor
    // during a time without calls.
    let scenario = Scenario {
        idle: Some((40, 80)),
        ..Scenario::new(3, Service::Exponential, 0.2)
    };
    for (name, algorithm) in algorithms() {
        let run = run(&scenario, &Bound::Adaptive(algorithm));
        assert!(
            run.limits.iter().all(|limit| *limit == 20),
            "{name}: {:?}",
            run.limits
        );
    }
}

#[test]
fn the_same_run_gives_the_same_figures() {
    let scenario = Scenario {
        seconds: 5,
        ..Scenario::new(5, Service::LogNormal, 1.2)
    };
    let (_, algorithm) = algorithms().into_iter().next().unwrap();
    let calls = || run(&scenario, &Bound::Adaptive(algorithm.clone())).calls;
    assert_eq!(calls(), calls());
}
