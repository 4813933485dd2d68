//! What a change of policy leaves behind.

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Nanos, Policy, Quota};

use super::KeyedLimiter;

const NOW: Nanos = Nanos::from_secs(7_200);

#[test]
fn a_change_of_policy_leaves_the_keys_where_they_are_until_they_are_asked_for() {
    let limiter = KeyedLimiter::builder(Policy::fixed_window(Quota::per_hour(3))).clock(()).build().unwrap();
    let keys = || (0..10_000_u32).map(u32::to_le_bytes);
    for key in keys() {
        assert!(limiter.acquire_at(key, 2, NOW).is_allowed());
    }
    let change = limiter.set_policy_at(Policy::sliding_counter(Quota::per_hour(3)), NOW).unwrap();
    assert_eq!(limiter.stats().keys, 0, "nothing has moved yet");
    for key in keys().take(100) {
        assert_eq!(limiter.peek_at(key, 0, NOW).remaining(), 1, "what was used is seen where it is");
        assert!(limiter.acquire_at(key, 2, NOW).is_denied() && limiter.acquire_at(key, 1, NOW).is_allowed());
    }
    assert_eq!(limiter.stats().keys, 100);
    assert!(change.step_at(NOW), "there is more");
    change.finish_at(NOW);
    assert_eq!(limiter.stats().keys, 10_000);
    for (at, key) in keys().enumerate() {
        assert_eq!(limiter.peek_at(key, 0, NOW).remaining(), u64::from(at >= 100));
    }
}

#[test]
fn ten_thousand_changes_under_load_keep_three_tables_of_each_width() {
    let limiter = KeyedLimiter::builder(Policy::token_bucket(Quota::per_hour(7)))
        .max_keys(64)
        .clock(())
        .build()
        .unwrap();
    let changing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while changing.load(Ordering::Relaxed) {
                for key in 0..100_u32 {
                    let _ = limiter.acquire_at(key.to_le_bytes(), 1, NOW);
                }
            }
        });
        for round in 0..10_000_u32 {
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
    // One and two words for buckets and windows; logs of 7 to 46 entries in steps of an eighth.
    assert!(limiter.generations.count() <= 3 * 24, "{}", limiter.generations.count());
    let count = limiter.generations.count();
    for round in 0..1_000_u32 {
        limiter.set_policy_at(Policy::fixed_window(Quota::per_hour(7 + round % 2)), NOW).unwrap();
    }
    assert!(limiter.generations.count() <= count + 2);
}
