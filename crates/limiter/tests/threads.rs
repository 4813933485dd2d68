//! Many threads: never one over, whatever the interleaving.

use std::sync::{
    Barrier,
    atomic::{AtomicU64, Ordering},
};

use tidegate_limiter::{
    Decision, KeyedLimiter, Limiter, Nanos, Policy, Quota, Request, acquire_all_at, algorithm::Concurrency,
};

const THREADS: u64 = 64;

fn policies(limit: u32) -> Vec<Policy> {
    let quota = Quota::per_hour(limit);
    vec![
        Policy::fixed_window(quota),
        Policy::sliding_log(quota).unwrap(),
        Policy::sliding_window(quota),
        Policy::sliding_counter(quota),
        Policy::token_bucket(quota),
        Policy::token_bucket(Quota::new(limit, std::time::Duration::from_secs(3_601)).unwrap()),
        Policy::concurrency(limit),
        Concurrency::new(limit).hold(std::time::Duration::from_mins(1)).unwrap().into(),
    ]
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
        assert_eq!(admitted(200, |_, _| one(limiter.acquire_at(1, now))), 1_000, "{}", policy.name());
    }
}

#[test]
fn sixty_four_threads_on_one_key_get_exactly_the_limit() {
    let now = Nanos::from_secs(7_200);
    for policy in policies(1_000) {
        let limiter = KeyedLimiter::builder(policy).max_keys(1_000).clock(()).build().unwrap();
        assert_eq!(admitted(200, |_, _| one(limiter.acquire_at("one", 1, now))), 1_000, "{}", policy.name());
    }
}

#[test]
fn sixty_four_threads_on_many_keys_get_exactly_the_limit_of_each() {
    let now = Nanos::from_secs(7_200);
    for policy in policies(5) {
        let limiter = KeyedLimiter::builder(policy).max_keys(10_000).clock(()).build().unwrap();
        // Each of a thousand keys is asked for by every thread, in orders that differ.
        let ask = |thread: u64, round: u64| {
            let key = (round * 7 + thread * 131) % 1_000;
            one(limiter.acquire_at(key.to_le_bytes(), 1, now))
        };
        assert_eq!(admitted(1_000, ask), 5_000, "{}", policy.name());
    }
}

#[test]
fn evictions_under_sixty_four_threads_never_hand_out_a_second_allowance() {
    let now = Nanos::from_secs(7_200);
    for policy in policies(5) {
        let limiter = KeyedLimiter::builder(policy).max_keys(100).clock(()).build().unwrap();
        // A thousand keys in a hundred places; each key may be stricter than its limit, none may be over.
        let counts: Vec<AtomicU64> = (0..1_000).map(|_| AtomicU64::new(0)).collect();
        let ask = |thread: u64, round: u64| {
            let key = (round * 7 + thread * 131) % 1_000;
            let allowed = one(limiter.acquire_at(key.to_le_bytes(), 1, now));
            counts[key as usize].fetch_add(allowed, Ordering::Relaxed);
            allowed
        };
        admitted(1_000, ask);
        let most = counts.iter().map(|count| count.load(Ordering::Relaxed)).max();
        assert!(most <= Some(5), "{}: {most:?}", policy.name());
        assert!(limiter.stats().keys <= 100 && limiter.stats().evicted > 0);
    }
}

#[test]
fn a_joint_decision_never_charges_a_part() {
    let now = Nanos::from_secs(7_200);
    let per_key =
        KeyedLimiter::builder(Policy::fixed_window(Quota::per_hour(100))).clock(()).build().unwrap();
    let other =
        KeyedLimiter::builder(Policy::sliding_log(Quota::per_hour(350)).unwrap()).clock(()).build().unwrap();
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
    assert_eq!(total.peek_at(1, now).remaining(), 0);
    assert_eq!(other.peek_at("all", 0, now).remaining(), 100, "only what all admitted was charged");
    let used: u64 =
        [b"a", b"b", b"c", b"d"].iter().map(|key| 100 - per_key.peek_at(key, 0, now).remaining()).sum();
    assert_eq!(used, 250);
}

#[test]
fn a_change_of_policy_under_load_loses_nothing() {
    let now = Nanos::from_secs(7_200);
    let small = Policy::sliding_log(Quota::per_hour(500)).unwrap();
    let wide = Policy::fixed_window(Quota::per_hour(500));
    let limiter = KeyedLimiter::builder(small).max_keys(100).clock(()).build().unwrap();
    let ask = |thread: u64, round: u64| {
        if thread == 0 && round.is_multiple_of(20) {
            let next = if round.is_multiple_of(40) { wide } else { small };
            limiter.set_policy_at(next, now).unwrap();
        }
        one(limiter.acquire_at("one", 1, now))
    };
    // 64 × 400 requests while the policy changes twenty times.
    assert_eq!(admitted(400, ask), 500);
}

#[test]
fn overrides_that_come_and_go_under_load_lose_nothing() {
    let now = Nanos::from_secs(7_200);
    let policy = Policy::fixed_window(Quota::per_hour(500));
    let limiter = KeyedLimiter::builder(policy).max_keys(100).clock(()).build().unwrap();
    let ask = |thread: u64, round: u64| {
        if thread == 0 && round.is_multiple_of(20) {
            limiter.set_override_at("one", Policy::sliding_log(Quota::per_hour(500)).unwrap(), now).unwrap();
        } else if thread == 1 && round.is_multiple_of(20) {
            limiter.remove_override_at("one", now);
        }
        one(limiter.acquire_at("one", 1, now))
    };
    assert_eq!(admitted(400, ask), 500);
}
