//! What a change of limit promises: nothing that was used is forgotten, and nothing stays shut for
//! longer than a window.
//!
//! Invariants, over any sequence of requests and changes:
//! 1. no window holds more than the highest limit that stood in it admits (by the algorithm's own
//!    bound);
//! 2. a limit lowered and raised again at once admits no more than if nothing had changed;
//! 3. charges survive every change: whatever limits stood in between, nothing is admitted that the
//!    highest of them, with the same charges, would not have admitted.
//! 4. a window without traffic after the last change (two for a sliding counter, one and a token's
//!    time for a bucket), something is admitted.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Nanos, Policy, Quota, StoredState,
    algorithm::{Concurrency, FixedWindow, SlidingLog, SlidingWindow},
};

const WINDOW: u64 = 1_000_000_007;

/// A state and the policy that it is of.
#[derive(Clone)]
struct Limit {
    policy: Policy,
    state: Vec<u64>,
}

impl Limit {
    fn new(policy: Policy) -> Self {
        Self {
            policy,
            state: vec![0; policy.words()],
        }
    }

    fn change(&mut self, to: Policy, now: u64) {
        let mut state = vec![0; to.words()];
        to.transfer(&mut state, &self.policy, &self.state, Nanos::new(now));
        assert!(
            to.accepts(&state),
            "a changed state is one that the algorithm accepts"
        );
        *self = Self { policy: to, state };
    }

    fn admits(&mut self, now: u64, cost: u64) -> bool {
        self.policy
            .decide(&mut self.state, Nanos::new(now), cost)
            .is_allowed()
    }

    /// How many units are admitted, one by one.
    fn admitted_of(&mut self, wanted: u64, now: u64) -> u64 {
        (0..wanted).filter(|_| self.admits(now, 1)).count() as u64
    }
}

const KINDS: usize = 10;
const LEAKY: usize = 6;
const PERMITS: usize = 7;
/// Its windows begin with a request, or with a change: at other times than without the change.
const SAVING_FROM_FIRST_HIT: usize = 9;

fn policy(kind: usize, limit: u64) -> Policy {
    let quota = Quota::new(limit, Duration::from_nanos(WINDOW)).unwrap();
    match kind {
        0 => Policy::fixed_window(quota),
        1 => FixedWindow::new(quota).first_hit().into(),
        2 => Policy::sliding_log(quota).unwrap(),
        3 => SlidingWindow::new(quota).slots(7).unwrap().into(),
        4 => Policy::sliding_counter(quota),
        5 => Policy::token_bucket(quota),
        LEAKY => Policy::leaky_bucket(quota),
        8 => FixedWindow::new(quota).burst(limit).unwrap().into(),
        9 => FixedWindow::new(quota)
            .first_hit()
            .burst(limit)
            .unwrap()
            .into(),
        // `PERMITS`
        _ => Concurrency::new(limit as u32)
            .hold(quota.window())
            .unwrap()
            .into(),
    }
}

#[test]
fn permits_above_a_lowered_limit_stay_in_use() {
    for policies in [
        [100, 10].map(Policy::concurrency),
        [100_u32, 10].map(|limit| {
            Concurrency::new(limit)
                .hold(Duration::from_mins(1))
                .unwrap()
                .into()
        }),
    ] {
        let mut limit = Limit::new(policies[0]);
        assert_eq!(limit.admitted_of(200, 0), 100);
        let full = limit.state.clone();
        limit.change(policies[1], 0);
        limit.policy.refund(&mut limit.state, Nanos::ZERO, 10);
        assert_eq!(limit.admitted_of(1, 0), 0, "90 are out at a limit of 10");
        limit.policy.refund(&mut limit.state, Nanos::ZERO, 81);
        assert_eq!(limit.admitted_of(9, 0), 1, "the tenth");

        let mut back = Limit {
            policy: policies[0],
            state: full,
        };
        back.change(policies[1], 0);
        back.change(policies[0], 0);
        assert_eq!(back.admitted_of(9, 0), 0);
        back.policy.refund(&mut back.state, Nanos::ZERO, 7);
        assert_eq!(back.admitted_of(100, 0), 7, "100 -> 10 -> 100 is exact");
    }
}

#[test]
fn an_exhausted_limit_stays_exhausted_through_changes_of_the_quota() {
    for kind in (0..KINDS).filter(|&kind| kind != LEAKY) {
        for way in [
            &[100, 10, 100][..],
            &[100, 10, 20, 100],
            &[100, 0, 100],
            &[1_000, 3, 70, 2, 1_000],
        ] {
            let mut limit = Limit::new(policy(kind, way[0]));
            assert!(limit.admits(0, way[0]));
            for &next in &way[1..] {
                limit.change(policy(kind, next), 0);
                assert_eq!(limit.admitted_of(1, 0), 0, "kind {kind}, {way:?} at {next}");
            }
        }
    }
}

#[test]
fn changing_the_algorithm_and_back_loses_nothing() {
    for (kind, other) in (0..KINDS).flat_map(|kind| (0..KINDS).map(move |other| (kind, other))) {
        if kind != LEAKY && other != LEAKY {
            let mut limit = Limit::new(policy(kind, 100));
            assert!(limit.admits(0, 100));
            for (to, next) in [(other, 10), (kind, 100)] {
                // Units of a rate are no permits.
                let free = u64::from((kind == PERMITS) != (other == PERMITS) && to == PERMITS);
                limit.change(policy(to, next), 0);
                assert_eq!(limit.admitted_of(1, 0), free, "{kind} by way of {other}");
                if free > 0 {
                    break;
                }
            }
        }
    }
}

/// Nobody returns units of a rate, so a key that has used its rate up would stay shut.
#[test]
fn units_of_a_rate_are_no_permits() {
    let lasting = Policy::concurrency(10);
    for (kind, to) in (0..KINDS).flat_map(|kind| [(kind, policy(PERMITS, 10)), (kind, lasting)]) {
        let mut limit = Limit::new(policy(kind, 100));
        limit.admitted_of(100, 0);
        limit.change(to, 0);
        let free = if kind == PERMITS { 0 } else { 10 };
        assert_eq!(limit.admitted_of(11, 0), free, "kind {kind} to {to}");
        limit.policy.refund(&mut limit.state, Nanos::ZERO, 10);
        assert_eq!(limit.admitted_of(11, 0), free, "kind {kind} to {to}");
    }
}

#[test]
fn lowering_a_limit_and_restoring_it_changes_nothing_where_the_state_has_room() {
    for kind in 0..KINDS {
        let mut limit = Limit::new(policy(kind, 200));
        let mut now = 0;
        for _ in 0..40 {
            now += WINDOW / 100;
            assert!(limit.admits(now, 3), "kind {kind}");
        }
        let mut changed = limit.clone();
        for _ in 0..1_000 {
            changed.change(policy(kind, 150), now);
            changed.change(policy(kind, 200), now);
        }
        let left = |limit: &Limit| {
            limit
                .policy
                .peek(&limit.state, Nanos::new(now), 0)
                .remaining()
        };
        assert_eq!(left(&changed), left(&limit), "kind {kind}");
    }
}

#[test]
fn a_sliding_window_whose_counts_lose_bits_counts_as_full() {
    let mut limit = Limit::new(policy(3, 70_000));
    assert!(limit.admits(0, 300) && limit.admits(WINDOW / 2, 300));
    limit.change(policy(3, 5), WINDOW / 2);
    assert_eq!(
        limit.policy.used(&limit.state, Nanos::new(WINDOW / 2)),
        255,
        "all that eight bits tell"
    );
    limit.change(policy(3, 70_000), WINDOW / 2);
    assert_eq!(limit.admitted_of(1, WINDOW / 2), 0);
    assert_eq!(limit.admitted_of(1, WINDOW * 2), 1);
}

#[test]
fn charged_debt_outlasts_a_lowered_limit() {
    let minutes = |limit| Policy::token_bucket(Quota::per_minute(limit));
    for lowered in [0, 1, 10, 400, 999] {
        let mut limit = Limit::new(minutes(1_000));
        assert!(limit.admits(0, 1_000));
        limit.policy.charge(&mut limit.state, Nanos::ZERO, 1_000);
        limit.change(minutes(lowered), 0);
        limit.change(minutes(1_000), 61_000_000_000);
        // Without the change, 1,016 of 2,000 units would be repaid.
        let free = limit.admitted_of(2_000, 61_000_000_000);
        assert!(free <= 16, "{free} are free after {lowered}/1m");
    }
}

/// A key has two states if it moved while its earlier state was restored.
#[test]
fn an_exhausted_bucket_stays_exhausted_after_a_join() {
    let policy = |limit| Policy::token_bucket(Quota::per_minute(limit));
    // A bucket's mark is the lowest byte of a time, so each byte is tried.
    for now in 0..256 {
        let mut exhausted = Limit::new(policy(253));
        assert!(exhausted.admits(now, 252));
        let mut restored = Limit::new(policy(2));
        assert!(restored.admits(now, 2));
        for limit in [&mut exhausted, &mut restored] {
            limit.change(policy(2), now);
            limit.change(policy(1), now);
        }
        for (one, other) in [(&exhausted, &restored), (&restored, &exhausted)] {
            let mut joined = one.clone();
            let time = Nanos::new(now);
            policy(1).join(&mut joined.state, &other.state, time);
            assert!(policy(1).accepts(&joined.state));
            joined.change(policy(126), now);
            assert_eq!(joined.admitted_of(126, now), 0, "at {now}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u64),
    Change(u64),
    GiveBack(u64),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let gap = prop_oneof![4 => Just(0), 4 => 0_u64..100, 2 => 0_u64..700, 1 => 0_u64..2_500];
    let limit = prop_oneof![
        Just(0_u64),
        1_u64..4,
        1_u64..12,
        Just(20),
        Just(100),
        250_u64..300
    ];
    let step = prop_oneof![
        6 => (1_u64..40).prop_map(Step::Ask),
        2 => limit.prop_map(Step::Change),
        1 => (1_u64..5).prop_map(Step::GiveBack),
    ];
    prop::collection::vec((gap, step), 1..150)
}

/// Admissions and limits as they came.
struct Past {
    kind: usize,
    admitted: Vec<(u64, u64)>,
    limits: Vec<(u64, u64)>,
}

impl Past {
    /// The highest limit that stood at any time from `since` on.
    fn highest(&self, since: u64) -> u64 {
        let stood = |at: usize| self.limits.get(at + 1).is_none_or(|&(end, _)| end >= since);
        let limits = self.limits.iter().enumerate().filter(|&(at, _)| stood(at));
        limits.map(|(_, &(_, limit))| limit).max().unwrap_or(0)
    }

    fn within_bound(&self, now: u64) -> bool {
        let since = (now + 1).saturating_sub(WINDOW);
        let recent = self.admitted.iter().filter(|&&(at, _)| at >= since);
        let count: u64 = recent.map(|&(_, cost)| cost).sum();
        let factor = if matches!(self.kind, 2 | 3 | 7) { 1 } else { 2 };
        count <= factor * self.highest(since)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_admitted_that_the_highest_limit_with_the_same_charges_would_deny(
        kind in (0..KINDS).prop_filter("starts, not arrivals, and windows at the same times", |&kind| {
            kind != LEAKY && kind != SAVING_FROM_FIRST_HIT
        }),
        first in 0_u64..300, steps in steps(), charges in prop::collection::vec(0_u64..900, 150)
    ) {
        let limits = steps.iter().map(|(_, step)| match step {
            Step::Change(to) => *to,
            _ => 0,
        });
        let highest = limits.max().unwrap_or(0).max(first);
        let mut limit = Limit::new(policy(kind, first));
        let mut same = Limit::new(policy(kind, highest));
        let mut now = 12_345;
        for ((gap, step), units) in steps.into_iter().zip(charges) {
            now += gap * WINDOW / 1_000;
            match step {
                Step::Ask(cost) => {
                    if limit.admits(now, cost) {
                        prop_assert!(same.admits(now, cost), "kind {kind}: {cost} at {now}");
                    }
                }
                Step::Change(to) => limit.change(policy(kind, to), now),
                Step::GiveBack(_) => {
                    for one in [&mut limit, &mut same] {
                        one.policy.charge(&mut one.state, Nanos::new(now), units);
                    }
                }
            }
            // Also by the highest limit, from now on: a fault may show only once debt is repaid.
            let mut raised = limit.clone();
            raised.change(policy(kind, highest), now);
            for later in 0..16 {
                let at = now + later * WINDOW / 3;
                let free = |limit: &Limit, at| {
                    let standing = limit.policy.peek(&limit.state, Nanos::new(at), 0);
                    standing.remaining()
                };
                // A bucket's time is up to 256 ns later after each charge.
                let marks = if kind == 5 { 256 * 150 } else { 0 };
                let (free, bound) = (free(&raised, at), free(&same, at + marks));
                prop_assert!(free <= bound, "kind {kind}: {free} of {bound} are free at {at}");
            }
        }
    }

    #[test]
    fn no_window_holds_more_than_its_highest_limit_admits(
        kind in (0..KINDS).prop_filter("starts, not arrivals", |&kind| kind != LEAKY),
        first in 0_u64..300, steps in steps()
    ) {
        let mut limit = Limit::new(policy(kind, first));
        let mut past = Past { kind, admitted: Vec::new(), limits: vec![(0, first)] };
        let mut now = 12_345;
        for (gap, step) in steps {
            now += gap * WINDOW / 1_000;
            match step {
                Step::Ask(cost) => {
                    if limit.admits(now, cost) {
                        past.admitted.push((now, cost));
                        prop_assert!(past.within_bound(now), "kind {} at {}", kind, now);
                    }
                }
                Step::Change(to) => {
                    limit.change(policy(kind, to), now);
                    past.limits.push((now, to));
                }
                Step::GiveBack(_) => {}
            }
        }
    }

    #[test]
    fn one_window_after_the_last_change_requests_are_admitted(
        kind in 0..KINDS, first in 0_u64..300, last in 1_u64..300, steps in steps()
    ) {
        let mut limit = Limit::new(policy(kind, first));
        let mut now = 12_345;
        for (gap, step) in steps {
            now += gap * WINDOW / 1_000;
            match step {
                Step::Ask(cost) => { let _ = limit.admits(now, cost); }
                Step::Change(to) => limit.change(policy(kind, to), now),
                Step::GiveBack(cost) => limit.policy.refund(&mut limit.state, Nanos::new(now), cost),
            }
        }
        limit.change(policy(kind, last), now);
        let quiet = match kind {
            3 => WINDOW + WINDOW.div_ceil(7),
            4 => 2 * WINDOW,
            // Then it is as good as just used up, and the next token comes; the time is rounded up
            // to 256 ns.
            5 => WINDOW + WINDOW / last + 260,
            8 | 9 => 301 * WINDOW,
            _ => WINDOW,
        };
        prop_assert!(limit.admits(now + quiet, 1), "kind {}", kind);
    }

    /// Exact while the log's ring has room: decisions are those of a log that was never changed but
    /// in its limit.
    #[test]
    fn changing_the_limit_of_a_log_keeps_its_times(steps in steps()) {
        let log = |limit: u64| -> Policy {
            SlidingLog::new(Quota::new(limit + 300, Duration::from_nanos(WINDOW)).unwrap()).unwrap().into()
        };
        let mut limit = Limit::new(log(0));
        let (mut admitted, mut now) = (Vec::<(u64, u64)>::new(), WINDOW);
        for (gap, step) in steps {
            now += gap * WINDOW / 1_000;
            let live: u64 = admitted.iter().filter(|(at, _)| now - at < WINDOW).map(|(_, cost)| cost).sum();
            match step {
                Step::Ask(cost) => {
                    let fits = (live + cost) <= limit.policy.peek(&limit.state, Nanos::new(now), 0).limit();
                    if live <= 300 {
                        prop_assert_eq!(limit.admits(now, cost), fits);
                        if fits { admitted.push((now, cost)); }
                    }
                }
                // The times of entries that the smaller ring has no room for are lost, and those
                // that no longer count are still in it.
                Step::Change(to) if limit.state[0] & 0xF_FFFF > to + 300 => return Ok(()),
                Step::Change(to) => limit.change(log(to), now),
                Step::GiveBack(_) => {}
            }
        }
    }
}

#[test]
fn a_refund_does_not_open_a_bucket_whose_debt_exceeds_its_range() {
    let now = Nanos::from_secs(100);
    let (high, low) = (
        Policy::token_bucket(Quota::per_second(8)),
        Policy::token_bucket(Quota::per_second(1)),
    );
    let (mut state, mut lowered, mut raised) = ([0], [0], [0]);
    assert!(high.decide(&mut state, now, 8).is_allowed());
    low.transfer(&mut lowered, &high, &state, now);
    // Of the eight that were taken two are given back; six are not.
    low.refund(&mut lowered, now, 2);
    high.transfer(&mut raised, &low, &lowered, now);
    assert!(high.decide(&mut raised, now, 3).is_denied());
}
