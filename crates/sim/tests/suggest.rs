//! The quick search for a limit beside a plain one: a full replay for each limit that is tried.
//!
//! Invariants, on random traffic of one and of several keys, bursts, quiet stretches and steady
//! loads:
//! 1. the suggested limit, its denials and its denied keys are those that the plain search finds,
//!    for every algorithm and option, however many threads search;
//! 2. a curve's points are what replays of its limits deny.

use std::{num::NonZeroUsize, time::Duration};

use proptest::prelude::*;
use tidegate_core::Quota;
use tidegate_sim::{
    AlgorithmSpec, Goal, Progress, Survey, Trial, Workload, curve,
    input::By,
    replay, suggest_all,
    workload::{Trace, TraceBuilder},
};

const SPECS: &str = "fixed-window,fixed-window:first-hit,sliding-log,sliding-log:closed,sliding-window,\
    sliding-window:slots=3:mode=balanced,sliding-window:slots=7,sliding-counter,token-bucket,token-bucket:burst=9,\
    leaky-bucket,leaky-bucket:max-wait=70ns,sliding-log:count-denied,sliding-window:count-denied,\
    sliding-counter:count-denied,token-bucket:count-denied,leaky-bucket:count-denied,fixed-window:count-denied,\
    fixed-window:first-hit:count-denied";

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

/// Requests of one key or of several.
fn traffic() -> impl Strategy<Value = Trace> {
    prop_oneof![stretches(), steady()]
}

/// Stretches of requests: of a key, with gaps up to so long, so many.
fn stretches() -> impl Strategy<Value = Trace> {
    let base = prop_oneof![Just(0), Just(1_431_857_103_000_000_000)];
    let sparse = (0..3_u8, 0..60_u64, 1..60_u64, 0..900_u64);
    // So many at once that windows are first looked at in parts.
    let dense = (0..3_u8, 0..2_u64, 20..120_u64, 0..900_u64);
    let stretches = prop_oneof![
        prop::collection::vec(sparse, 1..25),
        prop::collection::vec(dense, 1..25)
    ];
    (base, stretches, 1..=3_u8).prop_map(|(base, stretches, keys)| {
        let mut builder = TraceBuilder::new(By::ip());
        let mut now = base;
        for (key, gap, requests, quiet) in stretches {
            now += quiet;
            for at in 0..requests {
                // Neither all at once nor even: three in a row, then a pause.
                now += if at % 4 == 0 { gap } else { gap / 8 };
                assert!(builder.push(&[b'a' + key % keys], now, 1));
            }
        }
        builder.build(true, 0)
    })
}

/// Counts, like those of each second in a log, of one key or two, at once or spread: loads near a
/// limit, and seldom above it.
fn steady() -> impl Strategy<Value = Trace> {
    let counts = prop::collection::vec((0..2_u8, 1..25_u64, 1..30_u32), 10..100);
    (counts, 1..=2_u8, prop_oneof![Just(0_u64), 1..25_u64]).prop_map(|(counts, keys, spread)| {
        let mut builder = TraceBuilder::new(By::ip());
        let mut now = 0;
        for (key, gap, count) in counts {
            now += gap.max(spread);
            assert!(builder.push(&[b'a' + key % keys], now, count));
        }
        builder.build(true, spread)
    })
}

/// Requests and keys that a limit denies.
fn denials(trace: &Trace, spec: &AlgorithmSpec, quota: Quota) -> (u64, u64) {
    let trial = Trial::new(quota, std::slice::from_ref(spec)).unwrap();
    let row = &replay(trace, &[trial], threads(1), &Progress::default())[0].rows[0];
    (row.denied, row.denied_keys)
}

/// The smallest limit by doubling and halving, each with a full replay. `None` above 10,000.
fn plain(
    trace: &Trace,
    spec: &AlgorithmSpec,
    window: Duration,
    goal: Goal,
    keys: u64,
) -> Option<(u64, u64, u64)> {
    let meets = |limit| {
        let (denied, denied_keys) = denials(trace, spec, Quota::new(limit, window).unwrap());
        let met = goal
            .requests
            .is_none_or(|share| denied <= share.of(trace.requests()))
            && goal.keys.is_none_or(|share| denied_keys <= share.of(keys));
        met.then_some((limit, denied, denied_keys))
    };
    let (mut low, mut high) = (0, 1);
    let mut found = loop {
        match meets(high) {
            Some(found) => break found,
            None if high > 10_000 => return None,
            None => (low, high) = (high, high * 2),
        }
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match meets(middle) {
            Some(better) => (found, high) = (better, middle),
            None => low = middle,
        }
    }
    Some(found)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn the_quick_search_finds_what_the_plain_one_finds(
        trace in traffic(), window in 20..400_u64, keys in prop::option::of(0..=3_u32), share in 0..=30_u32,
        workers in 1..4_usize,
    ) {
        let window = Duration::from_nanos(window);
        let percent = |share: u32| format!("{share}%").parse().unwrap();
        let goal = Goal { keys: keys.map(|keys| percent(keys * 33)), requests: Some(percent(share)) };
        let specs = AlgorithmSpec::parse_list(SPECS).unwrap();
        let progress = Progress::default();
        let survey = Survey::new(&trace, window, threads(workers), &progress).unwrap();
        let found = suggest_all(&trace, &survey, &specs, goal, threads(workers), &progress);
        for (spec, found) in specs.iter().zip(found) {
            let found = found.ok().map(|found| (found.quota.limit(), found.denied, found.denied_keys));
            prop_assert_eq!(found, plain(&trace, spec, window, goal, survey.keys()), "{}", spec.label());
        }
    }

    #[test]
    fn a_curve_is_what_replays_deny(trace in traffic(), window in 20..400_u64, limits in prop::collection::vec(1..80_u64, 1..6)) {
        let window = Duration::from_nanos(window);
        let progress = Progress::default();
        let survey = Survey::new(&trace, window, threads(1), &progress).unwrap();
        for spec in AlgorithmSpec::parse_list(SPECS).unwrap() {
            for point in curve(&trace, &survey, &spec, limits.clone(), threads(2), &progress) {
                let quota = Quota::new(point.limit, window).unwrap();
                prop_assert_eq!((point.denied, point.denied_keys), denials(&trace, &spec, quota), "{}", spec.label());
            }
        }
    }
}

#[test]
fn a_survey_tells_the_busiest_window_of_the_median_and_of_the_busiest_key() {
    let mut builder = TraceBuilder::new(By::ip());
    for (key, time, count) in [
        ("a", 0, 3),
        ("a", 10, 2),
        ("b", 0, 1),
        ("c", 5, 1),
        ("c", 9, 7),
        ("c", 12, 1),
    ] {
        assert!(builder.push(key.as_bytes(), time, count));
    }
    let trace = builder.build(true, 0);
    let survey = Survey::new(
        &trace,
        Duration::from_nanos(10),
        threads(2),
        &Progress::default(),
    )
    .unwrap();
    assert_eq!(
        (
            survey.keys(),
            survey.busiest_window(500),
            survey.busiest_window(1_000)
        ),
        (3, 3, 8)
    );
    assert_eq!(
        (survey.busiest_window(0), survey.busiest_window(333)),
        (1, 1)
    );
}
