//! Many threads: never one over, whatever the interleaving.

#[path = "integration/policies/mod.rs"]
mod policies;

use std::sync::{
    Barrier,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tidegate_limiter::{
    Decision, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Quota, Request, WhenFull,
    acquire_all_at, algorithm::Concurrency,
};

const THREADS: u64 = 64;

fn policies(limit: u64) -> Vec<Policy> {
    let mut all = policies::denying(Quota::per_hour(limit));
    all.extend([
        Policy::token_bucket(Quota::new(limit, std::time::Duration::from_secs(3_601)).unwrap()),
        Policy::concurrency(limit as u32),
        Concurrency::new(limit as u32)
            .hold(std::time::Duration::from_mins(1))
            .unwrap()
            .into(),
    ]);
    all
}

/// Sixty-four threads ask at once, `rounds` times each; returns how much was admitted.
fn admitted(rounds: u64, ask: impl Fn(u64, u64) -> u64 + Sync) -> u64 {
    let (total, start) = (AtomicU64::new(0), Barrier::new(THREADS as usize));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (total, start, ask) = (&total, &start, &ask);
            scope.spawn(move || {
                start.wait();
                for round in 0..rounds {
                    total.fetch_add(ask(thread, round), Ordering::Relaxed);
                }
            });
        }
    });
    total.into_inner()
}

fn one(decision: Decision) -> u64 {
    u64::from(decision.is_allowed())
}

#[test]
fn sixty_four_threads_on_one_limiter_get_exactly_the_limit() {
    let now = Nanos::from_secs(7_200);
    for policy in policies(1_000) {
        let limiter = Limiter::with_clock(policy, ());
        assert_eq!(
            admitted(200, |_, _| one(limiter.at(now).acquire(1))),
            1_000,
            "{}",
            policy.name()
        );
        let limiter = Limiter::with_clock(policy, ManualTimer::new(now));
        assert_eq!(
            admitted(200, |_, _| one(limiter.acquire(1))),
            1_000,
            "{}",
            policy.name()
        );
    }
}

#[test]
fn sixty_four_threads_on_one_key_get_exactly_the_limit() {
    let now = Nanos::from_secs(7_200);
    for policy in policies(1_000) {
        let limiter = KeyedLimiter::builder(policy)
            .max_keys(1_000)
            .clock(())
            .build()
            .unwrap();
        assert_eq!(
            admitted(200, |_, _| one(limiter.at(now).acquire("one", 1))),
            1_000,
            "{}",
            policy.name()
        );
    }
}

#[test]
fn sixty_four_threads_on_many_keys_get_exactly_the_limit_of_each() {
    let now = Nanos::from_secs(7_200);
    for policy in policies(5) {
        let limiter = KeyedLimiter::builder(policy)
            .max_keys(10_000)
            .clock(())
            .build()
            .unwrap();
        // Each of a thousand keys is asked for by every thread, in orders that differ.
        let ask = |thread: u64, round: u64| {
            let key = (round * 7 + thread * 131) % 1_000;
            one(limiter.at(now).acquire(key.to_le_bytes(), 1))
        };
        assert_eq!(admitted(1_000, ask), 5_000, "{}", policy.name());
    }
}

#[test]
fn evictions_under_sixty_four_threads_never_hand_out_a_second_allowance() {
    let now = Nanos::from_secs(7_200);
    for policy in policies(5) {
        let limiter = KeyedLimiter::builder(policy)
            .max_keys(100)
            .clock(())
            .build()
            .unwrap();
        // Four hundred keys in a hundred places; each key may be stricter than its limit, none may
        // be over.
        let counts: Vec<AtomicU64> = (0..400).map(|_| AtomicU64::new(0)).collect();
        let ask = |thread: u64, round: u64| {
            let key = (round * 7 + thread * 131) % 400;
            let allowed = one(limiter.at(now).acquire(key.to_le_bytes(), 1));
            counts[key as usize].fetch_add(allowed, Ordering::Relaxed);
            allowed
        };
        admitted(1_000, ask);
        let most = counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .max();
        assert!(most <= Some(5), "{}: {most:?}", policy.name());
        assert!(limiter.stats().keys <= 100 && limiter.stats().evicted > 0);
        assert_eq!(limiter.stats().forgotten.total(), 0);
    }
}

#[test]
fn a_joint_decision_never_charges_a_part() {
    let now = Nanos::from_secs(7_200);
    let per_key = KeyedLimiter::builder(Policy::fixed_window(Quota::per_hour(100)))
        .clock(())
        .build()
        .unwrap();
    let other = KeyedLimiter::builder(Policy::sliding_log(Quota::per_hour(350)).unwrap())
        .clock(())
        .build()
        .unwrap();
    let total = Limiter::with_clock(Policy::token_bucket(Quota::per_hour(250)), ());
    // Different orders of the same limits must not meet in a deadlock.
    let ask = |thread: u64, round: u64| {
        let key = [b"a", b"b", b"c", b"d"][(thread + round) as usize % 4];
        let mut requests = [
            Request::keyed(&per_key, key, 1),
            Request::unkeyed(&total, 1),
            Request::keyed(&other, b"all", 1),
        ];
        requests.rotate_left(thread as usize % 3);
        u64::from(acquire_all_at(&requests, now).unwrap().is_allowed())
    };
    assert_eq!(admitted(100, ask), 250);
    assert_eq!(total.at(now).peek(1).remaining(), 0);
    assert_eq!(
        other.at(now).peek("all", 0).remaining(),
        100,
        "only what all admitted was charged"
    );
    let used: u64 = [b"a", b"b", b"c", b"d"]
        .iter()
        .map(|key| 100 - per_key.at(now).peek(key, 0).remaining())
        .sum();
    assert_eq!(used, 250);
}

#[test]
fn a_change_of_policy_under_load_loses_nothing() {
    let now = Nanos::from_secs(7_200);
    let small = Policy::sliding_log(Quota::per_hour(500)).unwrap();
    let wide = Policy::fixed_window(Quota::per_hour(500));
    let limiter = KeyedLimiter::builder(small)
        .max_keys(100)
        .clock(())
        .build()
        .unwrap();
    let ask = |thread: u64, round: u64| {
        if thread == 0 && round.is_multiple_of(20) {
            let next = if round.is_multiple_of(40) {
                wide
            } else {
                small
            };
            limiter.at(now).set_policy(next).unwrap();
        }
        one(limiter.at(now).acquire("one", 1))
    };
    // 64 × 400 requests while the policy changes twenty times.
    assert_eq!(admitted(400, ask), 500);
}

#[test]
fn a_limiter_whose_policy_changes_under_load_admits_no_more_than_its_highest_limit() {
    let now = Nanos::from_secs(7_200);
    for (at, policy) in policies(200).into_iter().enumerate() {
        let limiter = Limiter::with_clock(policy, ());
        let ask = |thread: u64, round: u64| {
            if thread == 0 && round.is_multiple_of(4) {
                // The same algorithm with another limit; or another algorithm, which counts all
                // that was used. Permits do not count what a rate has used.
                let limit = 150 + (round * 7 % 50);
                let is_other = round.is_multiple_of(3) && !policy.is_concurrency();
                let next = if is_other { 0 } else { at };
                limiter.at(now).set_policy(policies(limit)[next]);
            }
            one(limiter.at(now).acquire(1))
        };
        let while_changing = admitted(200, ask);
        limiter.at(now).set_policy(policy);
        let total = while_changing + limiter.at(now).acquire_up_to(200).0;
        // A bucket's use has fractions of a unit, which a window of another algorithm counts as a
        // whole one: at each of 17 changes to one.
        let most_lost = if policy.name().ends_with("bucket") {
            17
        } else {
            0
        };
        let lost = 200 - total.min(200);
        assert!(
            total <= 200 && lost <= most_lost,
            "{}: {total}",
            policy.name()
        );
    }
}

#[test]
fn a_change_of_the_bound_under_load_loses_nothing() {
    let now = Nanos::from_secs(7_200);
    // A state may move by way of a record, which is exact for limits up to 127.
    for policy in [
        Policy::sliding_log(Quota::per_hour(100)).unwrap(),
        Policy::fixed_window(Quota::per_hour(100)),
    ] {
        let limiter = KeyedLimiter::builder(policy)
            .max_keys(8)
            .clock(())
            .build()
            .unwrap();
        let ask = |thread: u64, round: u64| {
            if thread == 0 && round.is_multiple_of(20) {
                limiter
                    .at(now)
                    .set_max_keys([1_000, 1, 64][round as usize / 20 % 3])
                    .unwrap();
            } else if thread == 1 && round.is_multiple_of(30) {
                let when_full = if round.is_multiple_of(60) {
                    WhenFull::Deny
                } else {
                    WhenFull::Forget
                };
                limiter.at(now).set_when_full(when_full).unwrap();
            }
            one(limiter.at(now).acquire("one", 1))
        };
        // 64 × 400 requests while the bound changes twenty times.
        assert_eq!(admitted(400, ask), 100, "{}", policy.name());
    }
}

#[test]
fn overrides_that_come_and_go_under_load_lose_nothing() {
    let now = Nanos::from_secs(7_200);
    let policy = Policy::fixed_window(Quota::per_hour(500));
    let limiter = KeyedLimiter::builder(policy)
        .max_keys(100)
        .clock(())
        .build()
        .unwrap();
    let ask = |thread: u64, round: u64| {
        if thread == 0 && round.is_multiple_of(20) {
            limiter
                .at(now)
                .set_override("one", Policy::sliding_log(Quota::per_hour(500)).unwrap())
                .unwrap();
        } else if thread == 1 && round.is_multiple_of(20) {
            limiter.at(now).remove_override("one");
        }
        one(limiter.at(now).acquire("one", 1))
    };
    assert_eq!(admitted(400, ask), 500);
}

/// Runs `work` on a thread of its own, and fails where it is not done in time: a deadlock would
/// hang the tests.
fn ends(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    is_done
        .recv_timeout(std::time::Duration::from_mins(1))
        .unwrap_or_else(|e| panic!("{what}: {e}"));
}

#[test]
fn joint_decisions_and_changes_of_policy_never_deadlock() {
    ends("joint decisions beside changes of policy", || {
        let now = Nanos::from_secs(7_200);
        let quota = Quota::per_hour(400);
        let policies = [
            Policy::sliding_log(quota).unwrap(),
            Policy::fixed_window(quota),
        ];
        let limiter = || {
            KeyedLimiter::builder(policies[0])
                .max_keys(64)
                .clock(())
                .build()
                .unwrap()
        };
        let (one, two) = (limiter(), limiter());
        let (changing, admitted) = (AtomicBool::new(true), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (one, two, changing, admitted) = (&one, &two, &changing, &admitted);
                scope.spawn(move || {
                    let mut requests = [
                        Request::keyed(one, b"a", 1),
                        Request::keyed(two, b"b", 1),
                        Request::keyed(one, b"c", 1),
                        Request::keyed(two, b"d", 1),
                        Request::keyed(one, b"e", 1),
                        Request::keyed(one, b"f", 1),
                    ];
                    requests.rotate_left(thread);
                    while changing.load(Ordering::Relaxed) {
                        let all = acquire_all_at(&requests, now).unwrap();
                        admitted.fetch_add(u64::from(all.is_allowed()), Ordering::Relaxed);
                    }
                });
            }
            for round in 0..600 {
                let policy = policies[round % 2];
                one.at(now).set_policy(policy).unwrap();
                two.at(now).set_policy(policy).unwrap();
                one.at(now).set_override("a", policy).unwrap();
                two.at(now).set_override("d", policy).unwrap();
                one.at(now).remove_override("a");
                two.at(now).remove_override("d");
            }
            changing.store(false, Ordering::Relaxed);
        });
        assert_eq!(admitted.into_inner(), 400);
    });
}
