//! Reservations next to other requests, compared with a plain list of what was taken and returned.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use tidegate_limiter::{
    KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Quota, Reservation, WhenFull,
    algorithm::{Concurrency, LeakyBucket, SlidingLog, SlidingWindow},
};

const SECOND: u64 = 1_000_000_000;
const WINDOW: u64 = 10 * SECOND;
const START: u64 = 100 * WINDOW;

fn quota(limit: u64) -> Quota {
    Quota::new(limit, Duration::from_nanos(WINDOW)).unwrap()
}

/// Each request with its time, and its units that count.
#[derive(Default)]
struct Taken(Vec<(u64, u64)>);

impl Taken {
    fn since(&self, from: u64) -> u64 {
        self.0
            .iter()
            .filter(|(at, _)| *at >= from)
            .map(|(_, units)| units)
            .sum()
    }

    fn used(&self, kind: usize, now: u64) -> u64 {
        match kind {
            0 => self.since(now - now % WINDOW),
            1 => self.since(now + 1 - WINDOW),
            // Ten slots and the current one.
            2 => self.since((now / SECOND - 10) * SECOND),
            _ => {
                let start = now - now % WINDOW;
                let previous = self.since(start - WINDOW) - self.since(start);
                self.since(start) + (previous * (WINDOW - (now - start))).div_ceil(WINDOW)
            }
        }
    }
}

fn exact(kind: usize, limit: u64) -> Policy {
    match kind {
        0 => Policy::fixed_window(quota(limit)),
        1 => SlidingLog::new(quota(limit)).unwrap().into(),
        2 => SlidingWindow::new(quota(limit)).into(),
        _ => Policy::sliding_counter(quota(limit)),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Acquire(u64),
    Reserve(u64),
    /// Settle one of those that are open with this share of its estimate, in eighths.
    Settle(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        prop_oneof![Just(1), 1..SECOND, SECOND..3 * SECOND, Just(WINDOW)].prop_map(Step::Pass),
        (1..30_u64).prop_map(Step::Acquire),
        (1..60_u64).prop_map(Step::Reserve),
        (0..8_usize, 0..=8_u64).prop_map(|(at, eighths)| Step::Settle(at, eighths)),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Units that are returned leave the place where they counted, whatever was taken since.
    #[test]
    fn a_settled_reservation_counts_as_if_its_cost_had_been_known(steps in steps(), kind in 0..4_usize) {
        let keys = KeyedLimiter::builder(exact(kind, 100)).max_keys(4).clock(()).build().unwrap();
        let one = Limiter::with_clock(exact(kind, 100), ());
        let (mut now, mut taken, mut open) = (START, Taken::default(), Vec::new());
        for step in steps {
            let time = Nanos::new(now);
            match step {
                Step::Pass(by) => now += by,
                Step::Acquire(cost) | Step::Reserve(cost) => {
                    let fits = taken.used(kind, now) + cost <= 100;
                    let (decision, estimate) = keys.at(time).acquire_estimate("a", cost);
                    prop_assert_eq!(decision.is_allowed(), fits);
                    let (decision, other) = one.at(time).acquire_estimate(cost);
                    prop_assert_eq!(decision.is_allowed(), fits);
                    prop_assert_eq!(estimate.cost, if fits { cost } else { 0 });
                    if fits {
                        prop_assert_eq!(estimate, other);
                        taken.0.push((now, cost));
                        if matches!(step, Step::Reserve(_)) {
                            open.push((taken.0.len() - 1, estimate));
                        }
                    }
                }
                Step::Settle(at, eighths) if at < open.len() => {
                    let (index, estimate) = open.swap_remove(at);
                    let actual = estimate.cost * eighths / 8;
                    keys.at(time).settle("a", estimate, actual);
                    one.at(time).settle(estimate, actual);
                    taken.0[index].1 = actual;
                }
                Step::Settle(..) => {}
            }
            let left = 100 - taken.used(kind, now);
            prop_assert_eq!(keys.at(Nanos::new(now)).peek("a", 0).remaining(), left);
            prop_assert_eq!(one.at(Nanos::new(now)).peek(0).remaining(), left);
        }
    }

    /// A bucket that was full in between has lost what it could not hold, so less may come back
    /// than was left over.
    #[test]
    fn a_bucket_gives_back_no_more_than_it_would_hold(steps in steps()) {
        let one = Limiter::with_clock(Policy::token_bucket(quota(100)), ());
        let known = Limiter::with_clock(Policy::token_bucket(quota(100)), ());
        // The true costs first: the same requests, of which each reservation takes at once what it
        // will have used.
        let (mut now, mut open) = (START, Vec::new());
        for step in steps {
            let time = Nanos::new(now);
            match step {
                Step::Pass(by) => now += by,
                Step::Acquire(cost) => {
                    if one.at(time).acquire(cost).is_allowed() {
                        let _ = known.at(time).charge(cost);
                    }
                }
                Step::Reserve(cost) => {
                    let (decision, estimate) = one.at(time).acquire_estimate(cost);
                    if decision.is_allowed() {
                        let _ = known.at(time).charge(cost / 2);
                        open.push(estimate);
                    }
                }
                Step::Settle(at, _) if at < open.len() => {
                    let estimate = open.swap_remove(at);
                    one.at(time).settle(estimate, estimate.cost / 2);
                }
                Step::Settle(..) => {}
            }
            let (one, known) = (one.at(Nanos::new(now)).peek(0), known.at(Nanos::new(now)).peek(0));
            prop_assert!(one.remaining() <= known.remaining(), "{one:?} {known:?}");
        }
    }
}

fn keys(policy: impl Into<Policy>) -> (ManualTimer, Arc<KeyedLimiter<ManualTimer>>) {
    let timer = ManualTimer::new(Nanos::new(START));
    let keys = KeyedLimiter::builder(policy)
        .max_keys(4)
        .clock(timer.clone())
        .build()
        .unwrap();
    (timer, Arc::new(keys))
}

fn left(keys: &KeyedLimiter<ManualTimer>) -> u64 {
    keys.peek("a", 0).remaining()
}

#[test]
fn a_reservation_is_settled_extended_cancelled_or_kept() {
    let (timer, keys) = keys(exact(1, 100));
    let mut stream = Reservation::of_key(&keys, "a", 40).unwrap();
    timer.advance(Duration::from_secs(1));
    stream.extend(50).unwrap();
    assert!(stream.extend(11).is_err(), "10 are left");
    assert_eq!((stream.cost(), left(&keys)), (90, 10));
    stream.settle(45);
    assert_eq!(left(&keys), 55, "40 of the first second, 5 of the next");
    timer.advance(Duration::from_secs(9));
    assert_eq!(left(&keys), 95, "the 40 have left");

    Reservation::of_key(&keys, "a", 20).unwrap().cancel();
    assert_eq!(left(&keys), 95);
    drop(Reservation::of_key(&keys, "a", 20).unwrap());
    assert_eq!(left(&keys), 75, "kept");
    drop(
        Reservation::of_key(&keys, "a", 20)
            .unwrap()
            .cancel_on_drop(),
    );
    assert_eq!(left(&keys), 75);
    Reservation::of_key(&keys, "a", 70).unwrap().settle(170);
    assert!(keys.peek("a", 0).is_denied(), "100 units of debt");
}

#[test]
fn many_extensions_are_settled_with_all_that_was_taken() {
    for kind in 0..4 {
        let (timer, keys) = keys(exact(kind, 1_000));
        let mut stream = Reservation::of_key(&keys, "a", 10).unwrap();
        for _ in 0..60 {
            timer.advance(Duration::from_millis(10));
            stream.extend(10).unwrap();
        }
        assert_eq!((stream.cost(), left(&keys)), (610, 390));
        stream.settle(7);
        assert!(
            left(&keys) >= 390 + 150 && left(&keys) <= 993,
            "{kind}: {}",
            left(&keys)
        );
    }
}

#[test]
fn permits_come_back_whatever_was_used() {
    let (_, keys) = keys(Policy::concurrency(3));
    for actual in [0, 2, 9] {
        let work = Reservation::of_key(&keys, "a", 2).unwrap();
        assert_eq!(left(&keys), 1);
        work.settle(actual);
        assert_eq!(left(&keys), 3);
    }
}

#[test]
fn a_leaky_bucket_keeps_the_start_times_that_it_gave_out() {
    let leaky = LeakyBucket::new(Quota::per_second(10))
        .max_wait(Duration::from_mins(1))
        .unwrap();
    let (_, keys) = keys(leaky);
    let first = Reservation::of_key(&keys, "a", 1).unwrap();
    let second = keys.acquire("a", 1).delay();
    first.settle(0);
    assert!(keys.acquire("a", 1).delay() >= second + Duration::from_millis(100));
}

#[test]
fn a_waiter_is_served_by_what_a_reservation_returns_and_waits_longer_for_what_it_charges() {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };
    for actual in [50, 150] {
        let (timer, keys) = keys(exact(2, 100));
        let work = Reservation::of_key(&keys, "a", 100).unwrap();
        timer.advance(Duration::from_secs(2));
        let mut waiting = pin!(keys.wait("a", 30, None));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        work.settle(actual);
        assert_eq!(waiting.as_mut().poll(&mut cx).is_ready(), actual == 50);
        // The 100 units have left, the 50 beyond them have not.
        timer.advance(Duration::from_secs(9));
        if actual == 150 {
            assert!(waiting.as_mut().poll(&mut cx).is_ready());
            assert_eq!(left(&keys), 20);
        }
    }
}

#[test]
fn after_a_change_of_a_rate_or_a_reset_nothing_returns() {
    let bucket = |limit| Policy::token_bucket(quota(limit));
    let (timer, keys) = keys(bucket(100));
    let slow = |keys: &KeyedLimiter<_>| keys.set_policy(bucket(10)).unwrap().finish();
    let work = Reservation::of_key(&keys, "a", 100).unwrap();
    slow(&keys);
    keys.set_policy(bucket(100)).unwrap().finish();
    work.settle(0);
    assert_eq!(left(&keys), 0, "how much refilled in between is unknown");

    timer.advance(Duration::from_nanos(3 * WINDOW));
    let work = Reservation::of_key(&keys, "a", 50).unwrap();
    assert!(keys.reset("a"));
    assert!(keys.acquire("a", 50).is_allowed());
    work.settle(0);
    assert_eq!(left(&keys), 50);
    let one = Arc::new(Limiter::with_clock(exact(2, 100), timer.clone()));
    let work = Reservation::of(&one, 50).unwrap();
    assert!(one.reset() && one.acquire(50).is_allowed());
    work.settle(0);
    assert_eq!(one.peek(0).remaining(), 50);
}

#[test]
fn a_change_of_one_key_leaves_the_estimates_of_the_others() {
    let bucket = |limit| Policy::token_bucket(quota(limit));
    for policy in [bucket(1_000), exact(0, 1_000), exact(2, 1_000)] {
        let (_, keys) = keys(policy);
        let work = Reservation::of_key(&keys, "a", 800).unwrap();
        assert!(keys.acquire("b", 1).is_allowed());
        assert!(keys.reset("b"));
        keys.set_override("b", bucket(7)).unwrap();
        assert!(keys.remove_override("b"));
        keys.set_max_keys(9).unwrap().finish();
        work.settle(100);
        assert_eq!(left(&keys), 900, "{}", policy.name());
    }
}

#[test]
fn an_override_that_came_and_went_ends_the_estimates_of_its_key() {
    let bucket = |limit| Policy::token_bucket(quota(limit));
    let (timer, keys) = keys(bucket(100));
    let work = Reservation::of_key(&keys, "a", 100).unwrap();
    keys.set_override("a", bucket(200)).unwrap();
    timer.advance(Duration::from_nanos(WINDOW / 4));
    assert!(keys.remove_override("a"));
    work.settle(0);
    assert_eq!(left(&keys), 50, "the faster rate has refilled 50 of 100");
}

#[test]
fn the_latest_resets_of_as_many_keys_as_the_limiter_holds_are_remembered() {
    let (_, keys) = keys(exact(2, 100));
    let work = Reservation::of_key(&keys, "a", 60).unwrap();
    assert!(keys.reset("a"));
    for other in 0..40 {
        assert!(keys.acquire(other, 1).is_allowed() && keys.reset(other));
    }
    assert!(keys.acquire("a", 60).is_allowed());
    work.settle(0);
    assert_eq!(left(&keys), 40, "nothing returns, as long as it is unknown");
}

#[test]
fn a_reset_ends_the_permits_that_were_taken_before_it() {
    let (_, keys) = keys(Policy::concurrency(2));
    let one = Limiter::new(Policy::concurrency(2));
    for all in [false, true] {
        let (first, mine) = (keys.permit("a", 1).unwrap(), one.permit(1).unwrap());
        assert!(one.reset());
        if all {
            keys.reset_all();
        } else {
            assert!(keys.reset("a"));
        }
        let taken = [keys.permit("a", 1).unwrap(), keys.permit("a", 1).unwrap()];
        let others = [one.permit(1).unwrap(), one.permit(1).unwrap()];
        drop((first, mine));
        assert!(keys.permit("a", 1).is_err(), "two are in use");
        assert!(one.permit(1).is_err());
        drop((taken, others));
        assert_eq!((left(&keys), one.peek(0).remaining()), (2, 2));
    }
    // A reset of another key, and changes of the limit, end no permit.
    let first = keys.permit("a", 1).unwrap();
    drop(keys.permit("b", 1).unwrap());
    keys.reset("b");
    keys.set_policy(Policy::concurrency(5)).unwrap().finish();
    keys.set_override("a", Policy::concurrency(1)).unwrap();
    assert!(keys.permit("a", 1).is_err());
    drop(first);
    assert_eq!(left(&keys), 1);
}

#[test]
fn a_permit_that_outlived_its_hold_releases_nobody_elses() {
    let held = Concurrency::new(1).hold(Duration::from_secs(10)).unwrap();
    let (timer, keys) = keys(held);
    let late = keys.permit("a", 1).unwrap();
    timer.advance(Duration::from_secs(10));
    let other = keys.permit("a", 1).unwrap();
    drop(late);
    assert!(keys.permit("a", 1).is_err(), "the other permit is in use");
    drop(other);
    assert!(keys.permit("a", 1).is_ok());
}

#[test]
fn a_leaky_bucket_takes_back_what_nobody_has_queued_behind() {
    let leaky = LeakyBucket::new(Quota::per_second(10))
        .max_wait(Duration::from_mins(1))
        .unwrap();
    let (_, keys) = keys(leaky);
    let first = Reservation::of_key(&keys, "a", 1).unwrap();
    let second = Reservation::of_key(&keys, "a", 1).unwrap();
    let third = keys.peek("a", 1).delay();
    second.settle(0);
    assert!(keys.peek("a", 1).delay() < third, "it was the last one");
    first.settle(0);
    assert!(keys.peek("a", 1).delay().is_zero(), "and so was the first");
}

#[test]
fn a_block_a_change_and_a_restore_in_between_admit_nothing_more() {
    let (timer, keys) = keys(exact(2, 100));
    let work = Reservation::of_key(&keys, "a", 60).unwrap();
    keys.block_for("a", Duration::from_secs(1)).unwrap();
    keys.set_policy(exact(2, 50)).unwrap().finish();
    let mut entries = Vec::new();
    keys.at(Nanos::new(START))
        .snapshot(|entry| entries.push(entry));
    work.settle(10);
    assert!(keys.acquire("a", 1).is_denied(), "blocked");
    timer.advance(Duration::from_secs(1));
    assert_eq!(left(&keys), 40);
    for entry in &entries {
        keys.at(Nanos::new(START + SECOND))
            .restore(&exact(2, 50), entry);
    }
    assert!(
        keys.peek("a", 0).is_denied(),
        "the snapshot has the whole estimate"
    );
}

#[test]
fn a_key_that_had_to_leave_a_full_table_gets_nothing_that_it_did_not_take() {
    let timer = ManualTimer::new(Nanos::new(START));
    for when_full in [WhenFull::Forget, WhenFull::Deny] {
        let builder = KeyedLimiter::builder(exact(2, 100))
            .max_keys(4)
            .when_full(when_full);
        let keys = Arc::new(builder.clock(timer.clone()).build().unwrap());
        let work = Reservation::of_key(&keys, "a", 100).unwrap();
        for other in 0..20 {
            let _ = keys.acquire(other, 99);
        }
        work.settle(90);
        let after = left(&keys);
        assert!(after <= 10, "{when_full:?}: {after}");
    }
}
