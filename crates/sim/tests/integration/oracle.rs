//! Replays against a naive oracle that walks all requests of all keys in one order of time and
//! keeps every admission.
//!
//! Invariants, on random traffic:
//! 1. every number of every algorithm is the oracle's, in whatever order the requests were read;
//! 2. the findings do not depend on the number of threads;
//! 3. a suggested limit is the smallest of all limits that meet the goal, and a higher limit never
//!    denies more;
//! 4. the exact log and the core's sliding log, written apart, decide alike.

use std::{collections::BTreeMap, num::NonZeroUsize, time::Duration};

use proptest::prelude::*;
use tidegate_core::{Algorithm, Nanos, Policy, Quota};
use tidegate_sim::{
    AlgorithmSpec, Estimate, Findings, Goal, Live, Progress, Row, SuggestError, Survey, Timeline,
    Trial, Workload, heat_map,
    input::By,
    replay, suggest_all,
    workload::{Arrival, Synthetic, Trace, TraceBuilder, Traffic},
};

const SPECS: &str = "fixed-window,fixed-window:first-hit,sliding-log,sliding-log:closed,sliding-window,\
    sliding-window:slots=3:mode=balanced,sliding-counter,token-bucket,token-bucket:burst=2,leaky-bucket,\
    leaky-bucket:max-wait=3ns,sliding-log:count-denied,sliding-window:count-denied,sliding-counter:count-denied,\
    token-bucket:count-denied,leaky-bucket:count-denied,fixed-window:count-denied";

fn specs() -> Vec<AlgorithmSpec> {
    AlgorithmSpec::parse_list(SPECS).unwrap()
}

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

/// A key and a time.
type Request = (u8, u64);

fn trace(requests: &[Request]) -> Trace {
    let mut builder = TraceBuilder::new(By::ip());
    for (key, time) in requests {
        assert!(builder.push(&[b'a' + key], *time, 1));
    }
    builder.build(true, 0)
}

/// Times around an epoch, so that windows aligned to it begin anywhere; few enough that many fall
/// together.
fn traffic() -> impl Strategy<Value = Vec<Request>> {
    let base = prop_oneof![Just(0), Just(1_431_857_103_000_000_000)];
    (base, prop::collection::vec((0..4_u8, 0..120_u64), 1..120)).prop_map(|(base, requests)| {
        requests
            .into_iter()
            .map(|(key, time)| (key, base + time))
            .collect()
    })
}

fn quota() -> impl Strategy<Value = Quota> {
    (0..7_u64, 10..40_u64)
        .prop_map(|(limit, window)| Quota::new(limit, Duration::from_nanos(window)).unwrap())
}

/// Admissions of each key: all of them, for ever.
type Admitted = BTreeMap<u8, Vec<u64>>;

fn in_window(admitted: &Admitted, key: u8, now: u64, window: u64) -> u64 {
    admitted.get(&key).map_or(0, |times| {
        times.iter().filter(|&&time| now - time < window).count()
    }) as u64
}

/// What the oracle makes of one algorithm.
fn oracle(requests: &[Request], quota: Quota, spec: &AlgorithmSpec) -> Row {
    let policy = spec.policy(quota).unwrap();
    let window = quota.window_nanos();
    let mut ordered = requests.to_vec();
    ordered.sort_by_key(|(_, time)| *time);
    let mut states: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
    let (mut admitted, mut exactly_admitted) = (Admitted::new(), Admitted::new());
    let mut denied_keys = std::collections::BTreeSet::new();
    let mut row = Row::default();
    for (key, now) in ordered {
        let exact = in_window(&exactly_admitted, key, now, window) < quota.limit();
        if exact {
            exactly_admitted.entry(key).or_default().push(now);
        }
        let state = states.entry(key).or_insert_with(|| vec![0; policy.words()]);
        if policy.decide(state, Nanos::new(now), 1).is_allowed() {
            admitted.entry(key).or_default().push(now);
            row.admitted += 1;
            row.wrongly_admitted += u64::from(!exact);
        } else {
            denied_keys.insert(key);
            row.denied += 1;
            row.wrongly_denied += u64::from(exact);
        }
    }
    row.denied_keys = denied_keys.len() as u64;
    // Every window that could be the worst begins at an admission.
    let starts = admitted
        .values()
        .flat_map(|times| times.iter().map(move |&start| (times, start)));
    row.worst_window = starts
        .map(|(times, start)| {
            times
                .iter()
                .filter(|&&time| time >= start && time - start < window)
                .count() as u64
        })
        .max()
        .unwrap_or(0);
    row
}

/// A key, a time, how long the answer takes, and its cost.
type Charged = (u8, u64, u64, u64);

/// What the oracle makes of requests that ask with a cost of 0 and are charged when their answers
/// end.
fn charging_oracle(requests: &[Charged], quota: Quota, spec: &AlgorithmSpec) -> Row {
    let policy = spec.policy(quota).unwrap();
    let window = quota.window_nanos();
    let mut row = Row::default();
    for key in 0..4 {
        let mut own: Vec<_> = requests.iter().filter(|(of, ..)| *of == key).collect();
        own.sort_by_key(|(_, time, ..)| *time);
        let mut state = vec![0; policy.words()];
        // When each admitted request is charged, and its cost: by the exact rule, and by the
        // algorithm, of which some are done.
        let [mut exactly, mut charges] = [const { Vec::<(u64, u64)>::new() }; 2];
        let mut done = 0;
        for &&(_, now, took, cost) in &own {
            let counts = |(end, _): &&(u64, u64)| *end <= now && now - end < window;
            let used: u64 = exactly.iter().filter(counts).map(|(_, cost)| *cost).sum();
            let exact = used <= quota.limit();
            if exact {
                exactly.push((now + took, cost));
            }
            charges[done..].sort_unstable();
            while let Some(&(end, cost)) = charges.get(done).filter(|(end, _)| *end <= now) {
                policy.charge(&mut state, Nanos::new(end), cost);
                done += 1;
            }
            if policy.decide(&mut state, Nanos::new(now), 0).is_allowed() {
                charges.push((now + took, cost));
                row.admitted += 1;
                row.wrongly_admitted += u64::from(!exact);
            } else {
                row.denied += 1;
                row.wrongly_denied += u64::from(exact);
            }
        }
        row.denied_keys += u64::from(charges.len() < own.len());
        for &(start, _) in &charges {
            let within = |(end, _): &&(u64, u64)| *end >= start && end - start < window;
            let used = charges.iter().filter(within).map(|(_, cost)| *cost).sum();
            row.worst_window = row.worst_window.max(used);
        }
    }
    row
}

fn same(found: &Row, expected: &Row) -> Result<(), TestCaseError> {
    let numbers = |row: &Row| {
        [
            row.admitted,
            row.denied,
            row.denied_keys,
            row.wrongly_admitted,
            row.wrongly_denied,
            row.worst_window,
        ]
    };
    prop_assert_eq!(numbers(found), numbers(expected), "{}", &found.algorithm);
    Ok(())
}

fn run<W: Workload>(workload: &W, quota: Quota, count: usize) -> Findings {
    let trial = Trial::new(quota, &specs()).unwrap();
    replay(workload, &[trial], threads(count), &Progress::default()).remove(0)
}

proptest! {
    #[test]
    fn every_number_agrees_with_the_oracle(requests in traffic(), quota in quota()) {
        let findings = run(&trace(&requests), quota, 1);
        for (row, spec) in findings.rows.iter().zip(specs()) {
            same(row, &oracle(&requests, quota, &spec))?;
            prop_assert_eq!(row.denied_over_time.iter().sum::<u64>(), row.denied);
        }
        let keys: std::collections::BTreeSet<u8> = requests.iter().map(|(key, _)| *key).collect();
        prop_assert_eq!((findings.requests, findings.keys), (requests.len() as u64, keys.len() as u64));
        prop_assert_eq!(findings.requests_over_time.iter().sum::<u64>(), findings.requests);
    }

    #[test]
    fn requests_that_are_charged_afterwards_agree_with_the_oracle(
        requests in prop::collection::vec((0..4_u8, 0..120_u64, 0..30_u64, 0..5_u64), 1..120), quota in quota(), count in 1..4_usize,
    ) {
        let mut builder = TraceBuilder::new(By::ip());
        for (key, time, took, cost) in &requests {
            prop_assert!(builder.push_charged(&[b'a' + key], *time, time + took, *cost));
        }
        let trace = builder.build(true, 0);
        let findings = run(&trace, quota, count);
        for (row, spec) in findings.rows.iter().zip(specs()) {
            same(row, &charging_oracle(&requests, quota, &spec))?;
        }
        // The same without the keys' other requests.
        let one = run(&trace.of_keys(|key| key == "a"), quota, 1);
        let own: Vec<Charged> = requests.iter().copied().filter(|(key, ..)| *key == 0).collect();
        prop_assert!(own.is_empty() || one.rows[0].denied == charging_oracle(&own, quota, &specs()[0]).denied);
    }

    #[test]
    fn the_core_s_sliding_log_is_never_wrong(requests in traffic(), quota in quota()) {
        let findings = run(&trace(&requests), quota, 1);
        let log = findings.rows.iter().find(|row| row.algorithm == "sliding-log").unwrap();
        prop_assert_eq!((log.wrongly_admitted, log.wrongly_denied), (0, 0));
        prop_assert!(log.worst_window <= quota.limit());
    }

    #[test]
    fn the_most_denied_keys_agree_with_the_oracle(requests in traffic(), quota in quota()) {
        let trace = trace(&requests);
        let findings = run(&trace, quota, 1);
        for found in &findings.most_denied {
            let name = trace.label(found.key);
            let own: Vec<Request> =
                requests.iter().copied().filter(|(key, _)| [b'a' + key] == *name.as_bytes()).collect();
            prop_assert_eq!(found.requests, own.len() as u64);
            for (denied, spec) in found.denied.iter().zip(specs()) {
                prop_assert_eq!(*denied, oracle(&own, quota, &spec).denied);
            }
        }
    }

    #[test]
    fn a_higher_limit_never_denies_more(requests in traffic(), window in 10..40_u64) {
        let trace = trace(&requests);
        let rows = |limit| run(&trace, Quota::new(limit, Duration::from_nanos(window)).unwrap(), 1).rows;
        let mut before = rows(0);
        for limit in 1..12 {
            let after = rows(limit);
            for (less, more) in before.iter().zip(&after) {
                prop_assert!(
                    more.denied <= less.denied && more.denied_keys <= less.denied_keys,
                    "{} at {limit}", more.algorithm
                );
            }
            before = after;
        }
    }

}

proptest! {
    // Each case replays for every limit up to the suggested one.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_suggestion_is_the_smallest_limit_that_meets_the_goal(
        requests in traffic(), window in 10..40_u64, keys in prop::option::of(0..=4_u32), share in 0..=40_u32,
    ) {
        let trace = trace(&requests);
        let window = Duration::from_nanos(window);
        let percent = |share: u32| format!("{share}%").parse().unwrap();
        let goal = Goal { keys: keys.map(|keys| percent(keys * 25)), requests: Some(percent(share)) };
        let all = trace.requests();
        let distinct = run(&trace, Quota::new(1, window).unwrap(), 1).keys;
        for (at, spec) in specs().into_iter().enumerate() {
            let meets = |limit| {
                let row = &run(&trace, Quota::new(limit, window).unwrap(), 1).rows[at];
                row.denied * 100 <= all * u64::from(share)
                    && keys.is_none_or(|keys| row.denied_keys * 4 <= distinct * u64::from(keys))
            };
            let survey = Survey::new(&trace, window, threads(1), &Progress::default()).unwrap();
            let specs = std::slice::from_ref(&spec);
            match suggest_all(&trace, &survey, specs, goal, threads(1), &Progress::default()).remove(0) {
                Ok(found) => {
                    let limit = found.quota.limit();
                    prop_assert!(meets(limit), "{}", spec.label());
                    prop_assert!((1..limit).all(|lower| !meets(lower)), "{}", spec.label());
                }
                // A fixed burst of two, and a wait of three nanoseconds, deny what comes at once
                // with any limit.
                Err(error) => {
                    prop_assert!(matches!(error, SuggestError::Unattainable { .. }), "{error}");
                    prop_assert!(!meets(1_000_000) && spec.label().contains('='), "{}", spec.label());
                }
            }
        }
    }
}

#[test]
fn findings_do_not_depend_on_the_number_of_threads() {
    for arrival in [Arrival::Poisson, Arrival::BURSTY] {
        let traffic = Traffic {
            sources: 500,
            requests: 50_000,
            arrival,
            ..Traffic::default()
        };
        let made = Synthetic::new(traffic).unwrap();
        let quota = "7/10s".parse().unwrap();
        let one = run(&made, quota, 1);
        for count in [2, 3, 8] {
            let several = run(&made, quota, count);
            assert_eq!(several.rows, one.rows);
            assert_eq!(several.most_denied, one.most_denied);
            assert_eq!(
                (several.keys, &several.requests_over_time),
                (one.keys, &one.requests_over_time)
            );
        }
    }
}

#[test]
fn a_large_sliding_log_starts_empty_for_each_key() {
    // Above 4,096 words a state is cleared only as far as it was used; a leftover would deny the
    // next key.
    let mut builder = TraceBuilder::new(By::ip());
    for key in 0..3_u8 {
        assert!(builder.push(&[key], 1_000, 6_000 - 1_000 * u32::from(key)));
    }
    let trial = Trial::new(
        "5000/1s".parse().unwrap(),
        &AlgorithmSpec::parse_list("sliding-log").unwrap(),
    )
    .unwrap();
    let findings = replay(
        &builder.build(true, 0),
        &[trial],
        threads(1),
        &Progress::default(),
    )
    .remove(0);
    assert_eq!(
        (findings.rows[0].denied, findings.rows[0].denied_keys),
        (1_000, 1)
    );
    assert_eq!(
        (
            findings.rows[0].wrongly_admitted,
            findings.rows[0].wrongly_denied
        ),
        (0, 0)
    );
}

#[test]
fn a_delay_is_told_and_the_request_counts_when_it_came() {
    let mut builder = TraceBuilder::new(By::GLOBAL);
    assert!(builder.push(b"", 0, 5));
    let trial = Trial::new(
        "1/1s".parse().unwrap(),
        &AlgorithmSpec::parse_list("leaky-bucket:max-wait=2s").unwrap(),
    )
    .unwrap();
    let row = &replay(
        &builder.build(false, 0),
        &[trial],
        threads(1),
        &Progress::default(),
    )[0]
    .rows[0];
    // At once, after one second and after two; the fourth and the fifth would wait longer.
    assert_eq!((row.admitted, row.denied, row.worst_window), (3, 2, 3));
    let delays = row.delays.unwrap();
    assert_eq!(
        (delays.delayed, delays.longest),
        (2, Duration::from_secs(2))
    );
    assert_eq!(delays.mean(), Duration::from_millis(1_500));
}

#[test]
fn the_only_key_is_shown_as_if_it_were_replayed() {
    let mut builder = TraceBuilder::new(By::GLOBAL);
    for at in 0..500 {
        assert!(builder.push(b"", at * at * 40_000_000, 1 + at as u32 % 3));
    }
    let trace = builder.build(false, 0);
    let specs = AlgorithmSpec::parse_list("sliding-window,token-bucket").expect("known algorithms");
    let trial = Trial::new("5/10s".parse().expect("a quota"), &specs).expect("they suit it");
    let mut findings = replay(
        &trace,
        std::slice::from_ref(&trial),
        threads(1),
        &Progress::default(),
    )
    .remove(0);
    let told = heat_map(&trace, &trial, &findings);
    assert!(
        told.keys[0]
            .iter()
            .any(|&(requests, denied)| denied > 0 && denied < requests)
    );
    // Of several keys, each is replayed.
    findings.keys = 2;
    assert_eq!(heat_map(&trace, &trial, &findings), told);
}

#[test]
fn a_name_alone_is_the_algorithm_with_its_defaults() {
    let quota = Quota::per_second(10);
    for spec in AlgorithmSpec::all() {
        assert_eq!(spec.label().parse(), Ok(spec.clone()));
        assert_eq!(spec.policy(quota).unwrap().name(), spec.label());
    }
}

#[test]
fn a_mistake_is_named_with_a_hint() {
    let message = |text: &str| AlgorithmSpec::parse_list(text).unwrap_err().to_string();
    assert!(
        message("sliding-log,windows").contains("`windows`; choose from fixed-window, sliding-log")
    );
    assert!(
        message("token-bucket:slots=3")
            .contains("token-bucket has no option `slots`; it has burst")
    );
    assert!(message("sliding-window:slots=x").contains("whole number"));
    assert!(message("leaky-bucket:max-wait=5").contains("`max-wait` wants a duration"));
    assert!(message("concurrency").contains("in flight"));
    assert!(message("").contains("choose from"));
}

/// How well the sliding counter's formula counts the requests of one key at these times.
fn estimate(limit: u64, window: u64, times: &[u64]) -> Estimate {
    let requests: Vec<Request> = times.iter().map(|&time| (0, time)).collect();
    let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
    let rows = run(&trace(&requests), quota, 1).rows;
    rows.into_iter()
        .find(|row| row.algorithm == "sliding-counter")
        .and_then(|row| row.estimate)
        .unwrap()
}

#[test]
fn the_published_example_is_49_and_a_half() {
    // 42 requests in one minute, 18 in the first 15 seconds of the next: 42 × 0.75 + 18 = 49.5
    // against a true 18.
    let times: Vec<u64> = [0; 42].into_iter().chain([75; 18]).collect();
    let sum = |requests: usize| {
        let mean = estimate(49, 60, &times[..requests]).mean_difference_billionths;
        (mean * requests as u64) as f64
    };
    // A mean is rounded down.
    let last = sum(60) - sum(59);
    assert!((last - (49.5 - 18.0) / 18.0 * 1e9).abs() <= 60.0, "{last}");
    assert_eq!(estimate(49, 60, &times).falsely_limited_keys, 1);
    assert_eq!(estimate(50, 60, &times).falsely_limited_keys, 0);
}

#[test]
fn a_burst_at_the_end_of_a_window_may_be_missed() {
    // Six at 19, six at 21: 12 are in the window, and the estimate, 6 × 0.95 + 6 = 11.7, sees it.
    let times: Vec<u64> = [19; 6].into_iter().chain([21; 6]).collect();
    assert_eq!(estimate(11, 20, &times).missed_keys, 0);
    // Six at 26: still 12 in the window, but the estimate is 6 × 0.7 + 6 = 10.2.
    let times: Vec<u64> = [19; 6].into_iter().chain([26; 6]).collect();
    let estimate = estimate(11, 20, &times);
    assert_eq!(
        (
            estimate.missed_keys,
            estimate.wrong_requests,
            estimate.falsely_limited_keys
        ),
        (1, 1, 0)
    );
}

proptest! {
    #[test]
    fn the_estimate_is_the_sliding_counters(gaps in prop::collection::vec(0..30_u64, 1..80), limit in 1..20_u64) {
        let mut now = 0;
        let times: Vec<u64> = gaps.iter().map(|gap| { now += gap; now }).collect();
        // A counter that never denies counts all that comes, as the estimate does.
        let counter = Policy::sliding_counter(Quota::new(u32::MAX.into(), Duration::from_nanos(20)).unwrap());
        let mut state = vec![0; counter.words()];
        let mut wrong = 0;
        for (at, &now) in times.iter().enumerate() {
            let _ = counter.decide(&mut state, Nanos::new(now), 1);
            // `used` rounds up, and no whole limit lies between a number and its rounding up.
            let estimate = counter.used(&state, Nanos::new(now));
            let truth = times[..=at].iter().filter(|&&old| now - old < 20).count();
            wrong += u64::from((estimate > limit) != (truth > limit as usize));
        }
        prop_assert_eq!(estimate(limit, 20, &times).wrong_requests, wrong);
    }

    #[test]
    fn every_time_of_the_span_is_in_one_of_a_bounded_number_of_stretches(
        first in 0..=Nanos::MAX.get(), length in 0..=Nanos::MAX.get(), at in 0..=Nanos::MAX.get(),
    ) {
        let timeline = Timeline::new((first, first + length), true);
        prop_assert!(timeline.stretches <= 150);
        let time = first + at % (length + 1);
        let start = timeline.start + timeline.stretch(time) as u64 * timeline.step;
        prop_assert!(start <= time && time - start < timeline.step);
    }
}

#[test]
fn the_steps_of_a_timeline_are_round() {
    const SECOND: u64 = 1_000_000_000;
    let day = 86_400 * SECOND;
    assert_eq!(
        Timeline::new((5, 5), false),
        Timeline {
            start: 5,
            step: 1,
            stretches: 1,
            has_dates: false
        }
    );
    for (span, step) in [
        ((0, 3_600 * SECOND), 30 * SECOND),
        ((day / 2, 4 * day), 3_600 * SECOND),
        ((0, 1_000 * day), 7 * day),
    ] {
        assert_eq!(Timeline::new(span, true).step, step);
    }
}

#[test]
fn the_twenty_most_denied_are_named_whichever_threads_saw_them() {
    // Each key has five requests that fit, and from none to 49 more.
    let requests = (0..200_u8).flat_map(|key| (0..5 + usize::from(key % 50)).map(move |_| key));
    let mut builder = TraceBuilder::new(By::ip());
    for key in requests {
        assert!(builder.push(&[key + 1], 7, 1));
    }
    let trace = builder.build(true, 0);
    for count in [1, 2, 7] {
        let findings = run(
            &trace,
            Quota::new(5, Duration::from_nanos(20)).unwrap(),
            count,
        );
        let kept: Vec<u32> = findings.most_denied.iter().map(|key| key.key).collect();
        let most = (45..50)
            .rev()
            .flat_map(|denied| [0, 50, 100, 150].map(|from| from + denied));
        assert!(kept.iter().copied().eq(most), "{kept:?}");
    }
}

#[test]
fn a_followed_limit_goes_on_from_one_look_to_the_next() {
    const SECOND: u64 = 1_000_000_000;
    let trial = Trial::new(
        "2/10s".parse().unwrap(),
        &AlgorithmSpec::parse_list("sliding-log").unwrap(),
    )
    .unwrap();
    let mut live = Live::new(&[trial]);
    let first = live.take(&trace(&[(0, SECOND), (0, 2 * SECOND), (1, 2 * SECOND)]), 0);
    assert_eq!(
        (first.requests, first.keys, first.limits[0].denied),
        (3, 2, 0)
    );
    let second = live.take(
        &trace(&[(0, 3 * SECOND), (1, 3 * SECOND), (0, 11 * SECOND)]),
        1,
    );
    assert_eq!(
        (second.limits[0].denied, second.limits[0].denied_keys),
        (1, 1)
    );
    let mut counts = live.total().clone();
    assert_eq!(
        counts.to_string(),
        "6 requests of 2 keys; sliding-log 2/10s denies 1 (16.7%) of 1 key; no requests: 1 line"
    );
    // Numbers are grouped; a small share is not nothing and a large one not all.
    for (denied, requests, shown) in [
        (
            1_402,
            10_000,
            "10,000 requests of 2 keys; sliding-log 2/10s denies 1,402 (14.0%) of",
        ),
        (
            12_000,
            400_000_000,
            "400,000,000 requests of 2 keys; sliding-log 2/10s denies 12,000 (0.00300%) of",
        ),
        (1, 1_000_000_000_000, "denies 1 (<0.00001%) of"),
        (99_999, 100_000, "denies 99,999 (>99.9%) of"),
        (
            999,
            999,
            "999 requests of 2 keys; sliding-log 2/10s denies 999 (100%) of",
        ),
        (u64::MAX, u64::MAX, "18,446,744,073,709,551,615 requests"),
    ] {
        (counts.requests, counts.limits[0].denied) = (requests, denied);
        assert!(counts.to_string().contains(shown), "{counts}");
    }
}
