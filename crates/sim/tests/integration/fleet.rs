//! Limits shared by nodes, on random traffic.
//!
//! Invariants:
//! 1. one node without a way to go, asking for every decision, is one place: every number is that
//!    of a plain replay;
//! 2. exact and leased limits are never over, whatever the network and the nodes' lives; reported
//!    ones by at most what is unreported at each node;
//! 3. what comes in comes out, and the findings do not depend on the number of threads.

use std::{
    num::{NonZeroU16, NonZeroUsize},
    time::Duration,
};

use proptest::prelude::*;
use tidegate_core::Quota;
use tidegate_sim::{
    AlgorithmSpec, Findings, Fleet, Mode, Progress, Row, Trial, Workload,
    input::By,
    replay,
    workload::{Arrival, Synthetic, Trace, TraceBuilder, Traffic},
};

const SPECS: &str = "fixed-window,fixed-window:first-hit,sliding-log,sliding-log:closed,sliding-window,\
    sliding-window:slots=3:mode=balanced,sliding-counter,token-bucket,token-bucket:burst=40,leaky-bucket,\
    sliding-log:count-denied,token-bucket:count-denied,\
    sliding-window:block-for=7ms,token-bucket:block-for=3ms:block-after=2:block-within=30ms";

/// Requests of two keys within a tenth of a second, in microseconds.
fn traffic() -> impl Strategy<Value = Vec<(u8, u64)>> {
    let base = prop_oneof![Just(0), Just(1_431_857_103_000_000)];
    (
        base,
        prop::collection::vec((0..2_u8, 0..100_000_u64), 1..600),
    )
        .prop_map(|(base, requests)| {
            requests
                .into_iter()
                .map(|(key, time)| (key, (base + time) * 1_000))
                .collect()
        })
}

fn quota() -> impl Strategy<Value = Quota> {
    (0..150_u64, 5..60_u64)
        .prop_map(|(limit, window)| Quota::new(limit, Duration::from_millis(window)).unwrap())
}

fn trace(requests: &[(u8, u64)]) -> Trace {
    let mut builder = TraceBuilder::new(By::ip());
    for (key, time) in requests {
        assert!(builder.push(&[b'a' + key], *time, 1));
    }
    builder.build(true, 0)
}

fn run(workload: &impl Workload, quota: Quota, fleet: Option<Fleet>, threads: usize) -> Findings {
    let trial = Trial::new(quota, &AlgorithmSpec::parse_list(SPECS).unwrap())
        .unwrap()
        .on(fleet);
    let threads = NonZeroUsize::new(threads).unwrap();
    replay(workload, &[trial], threads, &Progress::default()).remove(0)
}

fn nodes(count: u16, mode: Mode) -> Fleet {
    Fleet::new(NonZeroU16::new(count).unwrap(), mode)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn one_node_behaves_like_one_limiter(requests in traffic(), quota in quota()) {
        let trace = trace(&requests);
        let fleet = Fleet { round_trip: Duration::ZERO, ..nodes(1, Mode::Exact) };
        let plain = run(&trace, quota, None, 1);
        let shared = run(&trace, quota, Some(fleet), 1);
        prop_assert_eq!(&plain.most_denied, &shared.most_denied);
        for (plain, row) in plain.rows.iter().zip(&shared.rows) {
            let figures = row.shared.unwrap();
            prop_assert_eq!(&Row { shared: None, ..row.clone() }, plain);
            prop_assert_eq!((figures.denied_by_sharing, figures.over), (0, 0), "{}", &row.algorithm);
            prop_assert_eq!(figures.admitted_in_one_place, row.admitted);
            prop_assert_eq!(figures.waited, figures.round_trips);
        }
    }

    #[test]
    fn exact_and_leased_limits_are_never_over(
        requests in traffic(), quota in quota(), count in 1..6_u16, leased: bool, micros in 0..9_000_u64,
        slack in 1..120_u64, life in prop::option::of(1..200_u64)
    ) {
        let trace = trace(&requests);
        let fleet = Fleet {
            round_trip: Duration::from_micros(micros),
            slack: Duration::from_millis(slack),
            node_life: life.map(Duration::from_millis),
            ..nodes(count, if leased { Mode::Leased } else { Mode::Exact })
        };
        let findings = run(&trace, quota, Some(fleet), 1);
        for row in &findings.rows {
            if row.algorithm == "fixed-window:first-hit" && life.is_some() {
                // A node may die with the unit that began a window: the windows then do not begin
                // at admissions.
                prop_assert!(row.worst_window <= 2 * quota.limit());
            } else {
                prop_assert_eq!(row.shared.unwrap().over, 0, "{}", &row.algorithm);
            }
            prop_assert_eq!(row.admitted + row.denied, requests.len() as u64);
            prop_assert_eq!(row.denied_over_time.iter().sum::<u64>(), row.denied);
            if row.algorithm.starts_with("sliding-log") {
                prop_assert!(row.worst_window <= quota.limit());
            }
        }
    }

    #[test]
    fn reported_limits_are_over_by_at_most_what_is_unreported_at_each_node(
        requests in traffic(), quota in quota(), count in 1..6_u16, unreported in 1..20_u32, micros in 0..9_000_u64
    ) {
        let fleet = Fleet {
            round_trip: Duration::from_micros(micros),
            unreported: Some(unreported),
            ..nodes(count, Mode::Reported)
        };
        let findings = run(&trace(&requests), quota, Some(fleet), 1);
        let log = findings.rows.iter().find(|row| row.algorithm == "sliding-log").unwrap();
        let most = u64::from(count) * u64::from(unreported);
        prop_assert!(log.shared.unwrap().over <= most);
        prop_assert!(log.worst_window <= quota.limit() + most);
    }
}

#[test]
fn findings_do_not_depend_on_the_number_of_threads() {
    let traffic = Traffic {
        sources: 50,
        requests: 40_000,
        arrival: Arrival::BURSTY,
        ..Traffic::default()
    };
    let traffic = Traffic {
        duration: Duration::from_secs(10),
        ..traffic
    };
    let made = Synthetic::new(traffic).unwrap();
    let fleet = Fleet {
        node_life: Some(Duration::from_secs(1)),
        ..nodes(3, Mode::Leased)
    };
    let quota = "60/1s".parse().unwrap();
    let (one, three) = (
        run(&made, quota, Some(fleet), 1),
        run(&made, quota, Some(fleet), 3),
    );
    assert_eq!(one.rows, three.rows);
    assert_eq!(one.most_denied, three.most_denied);
}

#[test]
fn leased_limits_cost_few_round_trips_and_admit_nearly_all() {
    let traffic = Traffic {
        sources: 1,
        requests: 200_000,
        zipf: 0.0,
        ..Traffic::default()
    };
    let traffic = Traffic {
        duration: Duration::from_secs(10),
        ..traffic
    };
    let made = Synthetic::new(traffic).unwrap();
    let rows = |mode| run(&made, "10000/1s".parse().unwrap(), Some(nodes(4, mode)), 1).rows;
    for (exact, leased) in rows(Mode::Exact).iter().zip(rows(Mode::Leased)) {
        let figures = leased.shared.unwrap();
        if leased.algorithm == "token-bucket:burst=40" {
            // What may be kept back of so small a bucket refills within a round trip: there is
            // nothing to lease. Each of the four nodes may return units once.
            assert!(figures.round_trips <= exact.shared.unwrap().round_trips + 4);
        } else if figures.mode == Mode::Leased {
            assert!(
                figures.round_trips * 2 < exact.shared.unwrap().round_trips,
                "{}",
                leased.algorithm
            );
            assert!(
                leased.admitted * 10 > exact.admitted * 9,
                "{}",
                leased.algorithm
            );
        } else {
            assert_eq!(
                (leased.admitted, leased.denied),
                (exact.admitted, exact.denied)
            );
        }
    }
}
