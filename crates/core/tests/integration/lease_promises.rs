//! What leased and reported limits promise, on random traffic, over a network that delays, reorders
//! and loses, with nodes that die and leave, and clocks that agree on nothing but (within 1/1024)
//! the length of a second.
//!
//! Invariants, watched by an oracle that sees every admission of every node:
//! 1. leased: the algorithm, asked at the moments of the admissions, admits every one of them; no
//!    true window holds more than its bound;
//! 2. reported: no true window holds more than the bound and `unreported` for each node that there
//!    was;
//! 3. what is lost in the network, or with a node, never makes room for more.

use crate::fleet;

use std::time::Duration;

use fleet::{Fleet, Skew, Step, Travel};
use proptest::prelude::*;
use tidegate_core::lease::{Answer, Lease, Mode, Terms};
use tidegate_core::{
    Algorithm, Nanos, Policy, Quota,
    algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket},
};

const MS: u64 = 1_000_000;

fn policies() -> impl Strategy<Value = (Policy, Quota, u64)> {
    let limits = prop_oneof![1_u64..40, 40_u64..400];
    (limits, 5_u64..200, 0_usize..8, 1_u32..12, 16_u64..300).prop_map(
        |(limit, ms, which, slots, burst)| {
            let quota = Quota::new(limit, Duration::from_millis(ms)).unwrap();
            let sliding = SlidingWindow::new(quota).slots(slots).unwrap();
            let (policy, bound): (Policy, u64) = match which {
                0 => (FixedWindow::new(quota).into(), 2 * limit),
                1 => (FixedWindow::new(quota).first_hit().into(), 2 * limit),
                2 => (SlidingLog::new(quota).unwrap().into(), limit),
                3 => (SlidingLog::new(quota).unwrap().closed().into(), limit),
                4 => (sliding.into(), limit),
                5 => (sliding.balanced().into(), 2 * limit),
                6 => (Policy::sliding_counter(quota), 2 * limit),
                _ => (
                    TokenBucket::new(quota).burst(burst).unwrap().into(),
                    limit + burst,
                ),
            };
            (policy, quota, bound)
        },
    )
}

fn skew() -> impl Strategy<Value = Skew> {
    (0_u64..10_000_000 * MS, -400_i64..=400).prop_map(|(offset, ppm)| Skew { offset, ppm })
}

/// Gaps in nanoseconds: mostly busy, at times quiet.
fn steps(nodes: usize) -> impl Strategy<Value = Vec<(u64, Step)>> {
    let gap = prop_oneof![4 => Just(0), 8 => 0..300_000_u64, 2 => 0..5 * MS, 1 => 0..60 * MS];
    // Some costs are so large that only a full bucket can hold them.
    let cost = prop_oneof![12 => Just(1_u64), 2 => 1_u64..5, 1 => 0_u64..50, 1 => 14_u64..300];
    let step = (0..nodes, cost, 0_u64..100).prop_map(|(node, cost, what)| match what {
        0 => Step::Die { node },
        1 => Step::Leave { node },
        2..10 => Step::Tick { node },
        // One node has more traffic than the others.
        10..40 => Step::Ask { node: 0, cost },
        _ => Step::Ask { node, cost },
    });
    prop::collection::vec((gap, step), 1..700)
}

fn network() -> impl Strategy<Value = Vec<(u64, u64, u8)>> {
    let delay = || prop_oneof![8 => 5_000..400_000_u64, 1 => 0..8 * MS];
    prop::collection::vec((delay(), delay(), 0_u8..40), 1..40)
}

fn travels(plan: Vec<(u64, u64, u8)>) -> impl FnMut() -> Travel {
    let mut plan = plan.into_iter().cycle();
    move || {
        let (there, back, luck) = plan.next().unwrap();
        Travel {
            there: (luck != 0).then_some(there),
            back: (luck != 1).then_some(back),
        }
    }
}

/// Everything that a case needs but the limit.
#[derive(Clone, Debug)]
struct World {
    clock: Skew,
    nodes: Vec<Skew>,
    steps: Vec<(u64, Step)>,
    network: Vec<(u64, u64, u8)>,
}

fn world() -> impl Strategy<Value = World> {
    prop::collection::vec(skew(), 1..5).prop_flat_map(|nodes| {
        (skew(), steps(nodes.len()), network()).prop_map(move |(clock, steps, network)| World {
            clock,
            nodes: nodes.clone(),
            steps,
            network,
        })
    })
}

fn run(terms: Terms, world: &World) -> Fleet {
    let mut fleet = Fleet::new(
        terms,
        world.clock,
        &world.nodes,
        travels(world.network.clone()),
    );
    let mut time = 0;
    for &(gap, step) in &world.steps {
        time += gap;
        fleet.at(time, step);
    }
    fleet.run();
    fleet
}

/// The most admitted in any half-open window that ends with an admission.
fn worst_window(admitted: &[(u64, u64)], window: u64) -> u64 {
    let (mut first, mut sum, mut worst) = (0, 0, 0);
    for &(time, cost) in admitted {
        sum += cost;
        while time - admitted[first].0 >= window {
            sum -= admitted[first].1;
            first += 1;
        }
        worst = worst.max(sum);
    }
    worst
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn leased_is_never_over(
        (policy, quota, bound) in policies(), slack in 1_u64..120, world in world()
    ) {
        let terms = Terms::leased(policy, Nanos::from_millis(slack));
        let fleet = run(terms, &world);
        let admitted = fleet.admissions();
        let mut judge = vec![0; policy.words()];
        for (at, &(time, cost)) in admitted.iter().enumerate() {
            let verdict = policy.decide(&mut judge, Nanos::new(time), cost);
            prop_assert!(verdict.is_allowed(), "admission {} of {} at {}: {}", at, admitted.len(), time, cost);
        }
        prop_assert!(worst_window(&admitted, quota.window_nanos()) <= bound);
    }

    #[test]
    fn reported_is_over_by_at_most_what_is_unreported_at_each_node(
        (policy, quota, bound) in policies(), unreported in 1_u32..40, interval in 1_u64..120, world in world()
    ) {
        let terms = Terms::reported(policy, unreported, Nanos::from_millis(interval));
        prop_assert_eq!(terms.mode(), Mode::Reported);
        let fleet = run(terms, &world);
        let gone = world.steps.iter().filter(|(_, step)| matches!(step, Step::Die { .. } | Step::Leave { .. }));
        // What a node that left had in its last report may be lost on the way, as what a dead one
        // had is.
        let nodes = (world.nodes.len() + gone.count()) as u64;
        // Bounds of twice the limit are those of two windows that a true window touches, or of two
        // counts.
        let windows = if bound == 2 * quota.limit() { 2 } else { 1 };
        let most = bound + windows * nodes * u64::from(unreported);
        prop_assert!(worst_window(&fleet.admissions(), quota.window_nanos()) <= most);
    }
}

/// Four nodes share a hot key for some windows, each asked every 100 µs; the round trip is half a
/// millisecond.
fn hot(terms: Terms) -> Fleet {
    let skew = |node: u32| Skew {
        offset: u64::from(node) * 77_777_777,
        ppm: 100 * i64::from(node) - 200,
    };
    let travel = || Travel {
        there: Some(250_000),
        back: Some(250_000),
    };
    let mut fleet = Fleet::new(
        terms,
        skew(9),
        &[skew(0), skew(1), skew(2), skew(3)],
        travel,
    );
    for step in 0..20_000_u64 {
        for node in 0..4 {
            fleet.at(
                step * 100_000 + node as u64 * 25_000,
                Step::Ask { node, cost: 1 },
            );
            if step.is_multiple_of(100) {
                fleet.at(step * 100_000 + 7, Step::Tick { node });
            }
        }
    }
    fleet.run();
    fleet
}

/// 80,000 requests in two seconds at limits between a half and ten times that.
#[test]
fn a_hot_key_costs_few_round_trips_and_little_of_its_quota() {
    for limit in [20_000, 400_000] {
        let quota = Quota::per_second(limit);
        let all = [
            Policy::fixed_window(quota),
            Policy::sliding_log(quota).unwrap(),
            Policy::sliding_window(quota),
            Policy::sliding_counter(quota),
            Policy::token_bucket(quota),
        ];
        for policy in all {
            let one_place = hot(Terms::exact(policy));
            let leased = hot(Terms::leased(policy, Terms::SLACK));
            let most: u64 = one_place.admitted.iter().map(|(_, cost)| cost).sum();
            let got: u64 = leased.admitted.iter().map(|(_, cost)| cost).sum();
            let name = policy.name();
            assert!(got <= most + most / 100, "{name} {limit}: {got} of {most}");
            assert!(got >= most - most / 10, "{name} {limit}: {got} of {most}");
            assert!(
                leased.round_trips < 8_000,
                "{name} {limit}: {} round trips",
                leased.round_trips
            );
        }
    }
}

/// A bucket that forgot what it has no room for would admit a multiple of its rate for ever.
#[test]
fn usage_reported_beyond_a_bucket_is_repaid() {
    let policy = Policy::token_bucket(Quota::per_second(10_000));
    let fleet = hot(Terms::reported(policy, 200, Terms::SLACK));
    let got: u64 = fleet.admitted.iter().map(|(_, cost)| cost).sum();
    assert!(got <= 10_000 + 2 * 10_000 + 4 * 200, "{got}");
}

#[test]
fn usage_during_a_report_stays_within_the_unreported_bound() {
    let policy = Policy::fixed_window(Quota::per_hour(1_000));
    let terms = Terms::reported(policy, 10, Terms::SLACK);
    let (mut shared, now) = (vec![0; policy.words()], Nanos::from_secs(5));
    let lease = Lease::new(terms);
    let first = lease.ask(1, now).request().unwrap();
    let grant = terms.serve(&mut shared, now, &first);
    let _ = lease.granted(first, &grant, now);
    // Until half is used, and then the rest while the report of that half is out.
    let report = (0..5).find_map(|_| lease.ask(1, now).request()).unwrap();
    assert_eq!(report.spent, 5);
    assert!((0..5).all(|_| matches!(lease.ask(1, now), Answer::Decided(_))));
    let grant = terms.serve(&mut shared, now, &report);
    let _ = lease.granted(report, &grant, now);
    // Five are not yet charged, so five more may be used before the authority must be asked.
    let more = (0..100)
        .take_while(|_| lease.ask(1, now).decision().is_some())
        .count();
    assert_eq!(more, 5);
}

#[test]
fn a_new_allotment_ends_the_denials_that_it_could_have_admitted() {
    let policy = Policy::sliding_window(Quota::per_hour(1_000));
    let terms = Terms::leased(policy, Terms::SLACK);
    let (mut shared, now) = (vec![0; policy.words()], Nanos::from_secs(5));
    let lease = Lease::new(terms);
    let first = lease.ask(1, now).request().unwrap();
    let second = lease.ask(20, now).request().unwrap();
    assert!(
        lease
            .granted(first, &terms.serve(&mut shared, now, &first), now)
            .is_allowed()
    );
    // Somebody else takes all that is left, beyond the allotment; the next cost is more than that
    // allotment.
    assert!(
        lease
            .granted(second, &terms.serve(&mut shared, now, &second), now)
            .is_allowed()
    );
    let left = policy.peek(&shared, now, 0).remaining();
    assert!(policy.decide(&mut shared, now, left).is_allowed());
    let third = lease.ask(200, now).request().unwrap();
    assert!(
        lease
            .granted(third, &terms.serve(&mut shared, now, &third), now)
            .is_denied()
    );
    assert!(
        lease
            .ask(200, now)
            .decision()
            .is_some_and(|denied| denied.is_denied()),
        "remembered"
    );
    policy.give_back(&mut shared, now, now, left);
    // The allotment reaches its mark, and another comes as a reserve.
    let renewal = (0..1_000)
        .find_map(|_| lease.ask(1, now).request())
        .unwrap();
    assert_eq!(renewal.cost, 0);
    let grant = terms.serve(&mut shared, now, &renewal);
    assert!(grant.units >= 200, "{renewal:?}: {grant:?}");
    let _ = lease.granted(renewal, &grant, now);
    assert!(
        lease
            .ask(200, now)
            .decision()
            .is_none_or(|decision| decision.is_allowed())
    );
}

#[test]
fn a_leaving_node_returns_its_whole_allotment() {
    let policy = Policy::sliding_log(Quota::per_minute(1_000)).unwrap();
    let terms = Terms::leased(policy, Terms::SLACK);
    let travel = || Travel {
        there: Some(100_000),
        back: Some(100_000),
    };
    let mut fleet = Fleet::new(
        terms,
        Skew { offset: 5, ppm: 0 },
        &[Skew { offset: 0, ppm: 0 }; 2],
        travel,
    );
    for step in 0..200_u64 {
        for node in 0..2 {
            fleet.at(step * 20_000, Step::Ask { node, cost: 1 });
        }
    }
    for node in 0..2 {
        fleet.at(8 * MS, Step::Leave { node });
    }
    fleet.run();
    let used = terms.policy().used(&fleet.shared, Nanos::from_millis(20));
    let admitted: u64 = fleet.admitted.iter().map(|(_, cost)| cost).sum();
    assert_eq!((used, admitted), (400, 400));
}

#[test]
fn a_denial_causes_no_round_trip_until_it_expires() {
    let policy = Policy::sliding_log(Quota::per_second(1)).unwrap();
    let travel = || Travel {
        there: Some(100_000),
        back: Some(100_000),
    };
    for terms in [Terms::exact(policy), Terms::leased(policy, Terms::SLACK)] {
        let mut fleet = Fleet::new(
            terms,
            Skew { offset: 5, ppm: 0 },
            &[Skew { offset: 0, ppm: 0 }],
            travel,
        );
        for step in 0..900_u64 {
            fleet.at(step * MS, Step::Ask { node: 0, cost: 1 });
        }
        fleet.run();
        assert_eq!(
            (fleet.admitted.len(), fleet.round_trips, fleet.denied),
            (1, 2, 899)
        );
    }
}

#[test]
fn a_failed_probe_does_not_deny_later_requests() {
    let policy = Policy::sliding_window(Quota::per_hour(10));
    let terms = Terms::leased(policy, Terms::SLACK);
    let (mut shared, mut now) = (vec![0; policy.words()], Nanos::from_secs(5));
    let lease = Lease::new(terms);
    // A round trip takes 10 ms, and what others have left is not enough for a cost of 3.
    assert!(policy.decide(&mut shared, now, 8).is_allowed());
    let request = lease.ask(3, now).request().unwrap();
    now = now.saturating_add(Nanos::from_millis(10));
    assert!(
        lease
            .granted(request, &terms.serve(&mut shared, now, &request), now)
            .is_denied()
    );
    let probe = lease.ask(1, now).request().unwrap();
    assert!(
        lease
            .ask(1, now)
            .decision()
            .is_some_and(|denied| denied.is_denied()),
        "one asks at a time"
    );
    lease.failed(probe);
    // Nobody is denied but by whoever answers in the store's place; the store's own denial holds.
    for _ in 0..10 {
        let request = lease.ask(1, now).request().unwrap();
        let (another, remembered) = (
            lease.ask(1, now).request().unwrap(),
            lease.ask(3, now).decision(),
        );
        assert!(remembered.is_some_and(|denied| denied.is_denied()));
        lease.failed(request);
        lease.failed(another);
    }
    // An answer that is scarce brings the probing back.
    let request = lease.ask(2, now).request().unwrap();
    assert!(
        lease
            .granted(request, &terms.serve(&mut shared, now, &request), now)
            .is_allowed()
    );
    let request = lease.ask(1, now).request().unwrap();
    assert!(
        lease
            .granted(request, &terms.serve(&mut shared, now, &request), now)
            .is_denied()
    );
    assert!(lease.ask(2, now).request().is_some() && lease.ask(2, now).request().is_none());
}

#[test]
fn late_answers_cost_one_allotment_and_not_the_quota() {
    let policy = Policy::sliding_window(Quota::per_hour(100_000));
    let terms = Terms::leased(policy, Terms::SLACK);
    let (mut shared, mut now) = (vec![0; policy.words()], Nanos::from_secs(5));
    let lease = Lease::new(terms);
    let later = |now: Nanos| now.saturating_add(Nanos::from_millis(1));
    // Well used, so that allotments are worth their round trip.
    for _ in 0..1_000 {
        now = later(now);
        if let Some(request) = lease.ask(1, now).request() {
            let _ = lease.granted(request, &terms.serve(&mut shared, now, &request), now);
        }
    }
    let used = policy.used(&shared, now);
    let mut asked = 0;
    let mut allotments = 0;
    for _ in 0..5_000 {
        now = later(now);
        if let Some(request) = lease.ask(1, now).request() {
            // Charged, and the answer comes when nobody waits for it any more.
            allotments += u64::from(terms.serve(&mut shared, now, &request).units > 0);
            asked += request.cost;
            lease.failed(request);
        }
    }
    // And the one that is in reserve, where it was asked for before.
    assert!(allotments <= 1, "{allotments} allotments lost");
    let lost = policy.used(&shared, now) - used - asked;
    assert!(asked > 4_000 && lost <= 200, "{lost} lost beside {asked}");
    // The first answer that is in time brings the next allotment.
    let request = lease.ask(1, now).request().unwrap();
    let _ = lease.granted(request, &terms.serve(&mut shared, now, &request), now);
    assert!((0..100).any(|_| {
        now = later(now);
        let request = lease.ask(1, now).request();
        let ahead = request.is_some_and(|request| request.ahead > 0);
        if let Some(request) = request {
            let _ = lease.granted(request, &terms.serve(&mut shared, now, &request), now);
        }
        ahead
    }));
}

#[test]
fn a_node_stops_in_time_despite_clock_drift() {
    let longest = Nanos::from_secs(86_400);
    let terms = Terms::leased(Policy::fixed_window("1000/365d".parse().unwrap()), longest);
    assert_eq!((terms.mode(), terms.slack()), (Mode::Leased, longest));
    for span in [Nanos::from_micros(10), Nanos::from_millis(100), longest] {
        let used = terms.usable_for(span).get();
        // The node's clock slow and the authority's fast by 1/2100 each, and a microsecond not yet
        // shown.
        assert!(used + used / 1_050 + 999 < span.get(), "{span:?}");
        assert!(
            used >= span.get() - span.get() / 8,
            "and little is lost: {span:?}"
        );
    }
    assert_eq!(terms.usable_for(Nanos::new(900)), Nanos::ZERO);
}

#[test]
fn policies_without_leases_are_exact() {
    let quota = Quota::per_second(1_000);
    let (leaky, window) = (Policy::leaky_bucket(quota), Policy::sliding_window(quota));
    for policy in [leaky, Policy::concurrency(9), window.count_denied()] {
        assert_eq!(Terms::leased(policy, Terms::SLACK), Terms::exact(policy));
        assert_eq!(
            Terms::reported(policy, 9, Terms::SLACK),
            Terms::exact(policy)
        );
    }
    assert_eq!(
        Terms::reported(window, 0, Terms::SLACK),
        Terms::exact(window)
    );
    assert_eq!(Terms::leased(window, Nanos::ZERO), Terms::exact(window));
}
