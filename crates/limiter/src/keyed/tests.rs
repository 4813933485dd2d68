//! Memory that a change of policy leaves behind.

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Nanos, Policy, Quota};

use super::KeyedLimiter;

const NOW: Nanos = Nanos::from_secs(7_200);

#[test]
fn ten_thousand_changes_under_load_keep_a_few_tables_of_each_width() {
    let limiter = KeyedLimiter::builder(Policy::token_bucket(Quota::per_hour(7)))
        .max_keys(64)
        .clock(())
        .build()
        .unwrap();
    let changing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while changing.load(Ordering::Relaxed) {
                for key in 0..100_u64 {
                    let _ = limiter.acquire_at(key.to_le_bytes(), 1, NOW);
                }
            }
        });
        for round in 0..10_000_u64 {
            let quota = Quota::per_hour(7 + round % 40);
            let policy = match round % 3 {
                0 => Policy::token_bucket(quota),
                1 => Policy::fixed_window(quota),
                _ => Policy::sliding_log(quota).unwrap(),
            };
            limiter.set_policy_at(policy, NOW).unwrap();
        }
        changing.store(false, Ordering::Relaxed);
    });
    // Each width has one in force, up to four that may have states, and one that a thread may still use. One and two words
    // for buckets and windows; logs of 7 to 46 entries in steps of an eighth.
    assert!(limiter.generations.count() <= 6 * 24, "{}", limiter.generations.count());
    let count = limiter.generations.count();
    for round in 0..1_000_u64 {
        limiter.set_policy_at(Policy::fixed_window(Quota::per_hour(7 + round % 2)), NOW).unwrap();
    }
    assert!(limiter.generations.count() <= count + 5);
}

#[test]
fn a_change_of_policy_does_not_wait_for_the_change_before_it() {
    let quotas = Quota::per_hour(3);
    let limiter = KeyedLimiter::builder(Policy::fixed_window(quotas)).clock(()).build().unwrap();
    let keys = || (0..10_000_u64).map(u64::to_le_bytes);
    for key in keys() {
        assert!(limiter.acquire_at(key, 1, NOW).is_allowed());
    }
    let policies = [
        Policy::sliding_counter(quotas),
        Policy::fixed_window(quotas),
        Policy::sliding_log(quotas).unwrap(),
        Policy::fixed_window(quotas),
    ];
    for (round, policy) in policies.into_iter().enumerate() {
        limiter.set_policy_at(policy, NOW).unwrap();
        assert_eq!(limiter.generations.current().count_older(), round + 1, "nothing was swept");
        // Some keys move each time, so that there are some in every table.
        for key in keys().skip(round * 100).take(100) {
            assert_eq!(limiter.peek_at(key, 0, NOW).remaining(), 2);
            assert!(limiter.acquire_at(key, 1, NOW).is_allowed());
        }
        assert_eq!(limiter.stats().keys, 100);
    }
    for key in keys().step_by(7) {
        let used = limiter.peek_at(key, 0, NOW).remaining();
        assert_eq!(used, u64::from(u64::from_le_bytes(key) >= 400) + 1, "seen wherever it is");
    }
    // Before the fifth the oldest table is emptied, and no other.
    let change = limiter.set_policy_at(Policy::sliding_counter(quotas), NOW).unwrap();
    assert_eq!(limiter.generations.current().count_older(), 4);
    change.finish_at(NOW);
    assert_eq!((limiter.generations.current().count_older(), limiter.stats().keys), (0, 10_000));
    for (at, key) in keys().enumerate() {
        let left = if at < 400 { 1 } else { 2 };
        assert_eq!(limiter.peek_at(key, 0, NOW).remaining(), left);
        assert!(limiter.acquire_at(key, left, NOW).is_allowed());
        assert!(limiter.acquire_at(key, 1, NOW).is_denied());
    }
}
