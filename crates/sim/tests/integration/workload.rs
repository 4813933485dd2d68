//! The traffic to replay: read requests by key, and synthetic ones.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_sim::{
    Workload,
    input::By,
    workload::{Arrival, ParseArrivalError, Synthetic, SyntheticError, TraceBuilder, Traffic},
};

#[test]
fn requests_come_back_by_key_and_in_order_of_time() {
    let mut builder = TraceBuilder::new(By::ip());
    for (key, time, count) in [
        ("b", 30, 1),
        ("a", 20, 2),
        ("b", 10, 1),
        ("a", 5, 1),
        ("c", 1, 0),
    ] {
        assert!(builder.push(key.as_bytes(), time, count));
    }
    let trace = builder.build(true, 0);
    assert_eq!(
        (trace.keys(), trace.requests(), trace.span()),
        (3, 5, (5, 30))
    );
    let times = |key| trace.times(key).collect::<Vec<_>>();
    assert_eq!((trace.label(0).as_str(), times(0)), ("b", vec![10, 30]));
    assert_eq!((trace.label(1).as_str(), times(1)), ("a", vec![5, 20, 20]));
    assert_eq!((trace.label(2).as_str(), times(2)), ("c", vec![]));
}

proptest! {
    #[test]
    fn each_request_comes_at_its_share_of_the_spread(count in 1..2_000_u32, spread in 0..3_000_000_000_u64) {
        let mut builder = TraceBuilder::new(By::GLOBAL);
        prop_assert!(builder.push(b"", 7, count));
        let due = (0..u128::from(count)).map(|at| 7 + (at * u128::from(spread) / u128::from(count)) as u64);
        prop_assert!(builder.build(false, spread).times(0).eq(due));
    }
}

#[test]
fn times_from_a_time_on_are_the_last_of_all_times() {
    let mut builder = TraceBuilder::new(By::GLOBAL);
    for (time, count) in [(1_000, 3), (2_000, 1), (5_000, 4)] {
        assert!(builder.push(b"", time, count));
    }
    for spread in [0, 1_000] {
        let trace = builder.clone().build(false, spread);
        for from in 0..7_000 {
            assert!(
                trace
                    .times_from(0, from)
                    .eq(trace.times(0).filter(|&time| time >= from)),
                "{from}"
            );
        }
    }
}

#[test]
fn requests_of_one_key_at_one_time_are_spread_together() {
    let mut builder = TraceBuilder::new(By::ip());
    for key in ["a", "b", "a", "a", "b"] {
        assert!(builder.push(key.as_bytes(), 2_000_000_000, 1));
    }
    assert_eq!(builder.resolution(), 1_000_000_000);
    let trace = builder.build(true, 1_200);
    assert_eq!(
        trace.times(0).collect::<Vec<_>>(),
        [2_000_000_000, 2_000_000_400, 2_000_000_800]
    );
    assert_eq!(
        trace.times(1).collect::<Vec<_>>(),
        [2_000_000_000, 2_000_000_600]
    );
}

#[test]
fn the_resolution_is_the_coarsest_grain_of_all_times() {
    let resolution = |times: &[u64]| {
        let mut builder = TraceBuilder::new(By::GLOBAL);
        assert!(times.iter().all(|time| builder.push(b"", *time, 1)));
        builder.resolution()
    };
    let minute = 60_000_000_000;
    assert_eq!(resolution(&[60 * minute, 61 * minute]), minute);
    assert_eq!(
        resolution(&[60 * minute, minute + 1_000_000_000]),
        1_000_000_000
    );
    assert_eq!(resolution(&[minute, minute + 250_000_000]), 1_000_000);
    assert_eq!(resolution(&[minute, minute + 1]), 1);
}

#[test]
fn requests_may_be_spread_over_their_second() {
    let mut builder = TraceBuilder::new(By::GLOBAL);
    assert!(builder.push(b"", 1_000, 4));
    let trace = builder.build(false, 1_000);
    assert_eq!(
        trace.times(0).collect::<Vec<_>>(),
        [1_000, 1_250, 1_500, 1_750]
    );
}

fn traffic(arrival: Arrival) -> Synthetic {
    let traffic = Traffic {
        sources: 50,
        requests: 20_000,
        arrival,
        ..Traffic::default()
    };
    Synthetic::new(traffic).unwrap()
}

#[test]
fn the_sources_make_exactly_the_requests_asked_for_by_zipfs_law() {
    for zipf in [0.0, 1.0, 2.5] {
        let traffic = Traffic {
            sources: 1_000,
            requests: 1_000_000,
            zipf,
            ..Traffic::default()
        };
        let made = Synthetic::new(traffic).unwrap();
        let counts: Vec<usize> = (0..1_000)
            .map(|source| made.times(source).count())
            .collect();
        assert_eq!(counts.iter().sum::<usize>(), 1_000_000);
        let all: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-zipf)).sum();
        for (source, &count) in counts.iter().enumerate() {
            let expected = 1e6 * (source as f64 + 1.0).powf(-zipf) / all;
            // Six standard deviations of the binomial, and a few for where the normal bound is too
            // tight.
            assert!(
                (count as f64 - expected).abs() < 6.0 * expected.sqrt() + 5.0,
                "{source}: {count}"
            );
        }
    }
}

#[test]
fn all_sources_as_one_key_are_their_merged_requests() {
    let made = traffic(Arrival::BURSTY);
    let mut expected: Vec<u64> = (0..50).flat_map(|key| made.times(key)).collect();
    expected.sort_unstable();
    assert_eq!(made.global().times(0).collect::<Vec<_>>(), expected);
}

#[test]
fn poisson_sources_as_one_key_are_as_many_requests_in_order() {
    let made = traffic(Arrival::Poisson);
    let times: Vec<u64> = made.global().times(0).collect();
    assert_eq!(times.len(), 20_000);
    assert!(times.is_sorted());
}

#[test]
fn fewer_requests_than_sources_leave_some_without() {
    let traffic = Traffic {
        sources: 1_000,
        requests: 3,
        ..Traffic::default()
    };
    let made = Synthetic::new(traffic).unwrap();
    assert_eq!(
        (0..1_000)
            .map(|source| made.times(source).count())
            .sum::<usize>(),
        3
    );
}

#[test]
fn bounds_are_kept() {
    let refused = |change: fn(&mut Traffic)| {
        let mut traffic = Traffic::default();
        change(&mut traffic);
        Synthetic::new(traffic).unwrap_err()
    };
    assert_eq!(
        refused(|traffic| traffic.sources = 0),
        SyntheticError::Sources
    );
    assert_eq!(
        refused(|traffic| traffic.requests = 0),
        SyntheticError::Requests
    );
    assert_eq!(
        refused(|traffic| traffic.duration = Duration::ZERO),
        SyntheticError::Duration
    );
    assert_eq!(
        refused(|traffic| traffic.zipf = f64::NAN),
        SyntheticError::Zipf
    );
    assert_eq!(refused(|traffic| traffic.zipf = -0.1), SyntheticError::Zipf);
}

const HOUR: Duration = Duration::from_hours(1);

/// The times of a source with so many requests.
fn times(seed: u64, requests: u64, arrival: Arrival) -> Vec<u64> {
    let traffic = Traffic {
        sources: 1,
        requests,
        duration: HOUR,
        arrival,
        seed,
        ..Traffic::default()
    };
    Synthetic::new(traffic).unwrap().times(0).collect()
}

/// Variance over mean of the counts in the seconds of the hour: about 1 for a Poisson process.
fn dispersion(times: &[u64]) -> f64 {
    let mut counts = vec![0.0_f64; 3_600];
    for time in times {
        counts[(time / 1_000_000_000) as usize] += 1.0;
    }
    let mean = times.len() as f64 / 3_600.0;
    counts
        .iter()
        .map(|count| (count - mean).powi(2))
        .sum::<f64>()
        / 3_600.0
        / mean
}

#[test]
fn exactly_as_many_requests_come_as_asked_for_and_in_order() {
    for arrival in [Arrival::Poisson, Arrival::BURSTY] {
        for count in [1, 2, 127, 128, 129, 5_000] {
            let times = times(7, count, arrival);
            assert_eq!(times.len() as u64, count);
            assert!(
                times.is_sorted() && times.iter().all(|time| u128::from(*time) < HOUR.as_nanos())
            );
        }
    }
}

#[test]
fn a_seed_makes_the_same_times_again_and_another_seed_others() {
    for arrival in [Arrival::Poisson, Arrival::BURSTY] {
        assert_eq!(times(1, 1_000, arrival), times(1, 1_000, arrival));
        assert_ne!(times(1, 1_000, arrival), times(2, 1_000, arrival));
    }
}

#[test]
fn poisson_counts_vary_as_much_as_their_mean_and_bursty_ones_far_more() {
    for seed in 0..5 {
        // The variance of the dispersion itself is 2 / 3600: 0.15 is more than six standard
        // deviations.
        let smooth = dispersion(&times(seed, 100_000, Arrival::Poisson));
        assert!((smooth - 1.0).abs() < 0.15, "{smooth}");
        let bursty = dispersion(&times(seed, 100_000, Arrival::BURSTY));
        assert!(bursty > 10.0, "{bursty}");
    }
}

#[test]
fn arrivals_are_read_as_they_are_written() {
    for arrival in [
        Arrival::Poisson,
        Arrival::BURSTY,
        Arrival::Bursty { bias: 0.9 },
    ] {
        assert_eq!(arrival.to_string().parse(), Ok(arrival));
    }
    assert_eq!("bursty=1".parse::<Arrival>(), Err(ParseArrivalError::Bias));
    assert_eq!(
        "bursty=nan".parse::<Arrival>(),
        Err(ParseArrivalError::Bias)
    );
    assert_eq!("smooth".parse::<Arrival>(), Err(ParseArrivalError::Unknown));
}
