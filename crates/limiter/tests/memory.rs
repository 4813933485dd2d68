//! What stays allocated: changes and exceptions that come and go leave nothing behind.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tidegate_limiter::{KeyedLimiter, Limiter, Nanos, Policy, Quota, Until};

/// A multiple of an hour.
const NOW: Nanos = Nanos::from_secs(7_200);

/// Counts the bytes in use. What a table maps is not among them, but what describes the table is.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(unsafe_code, reason = "the trait is unsafe; all calls are passed on")]
// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// One test at a time: they share the counter.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

#[test]
fn ten_thousand_changes_under_load_keep_a_few_tables_of_each_width() {
    let _alone = alone();
    let limiter = KeyedLimiter::builder(Policy::token_bucket(Quota::per_hour(7)))
        .max_keys(64)
        .clock(())
        .build()
        .unwrap();
    let changing = AtomicBool::new(true);
    let before = bytes();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while changing.load(Ordering::Relaxed) {
                for key in 0..100_u64 {
                    let _ = limiter.at(NOW).acquire(key, 1);
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
            limiter.at(NOW).set_policy(policy).unwrap();
        }
        changing.store(false, Ordering::Relaxed);
    });
    // One and two words for buckets and windows, and logs of 7 to 46 entries in steps of an eighth:
    // 24 widths, each with one in force, up to four that may have states, and one that a thread may
    // still use. A small table is described in less than 8 KiB.
    let kept = bytes().saturating_sub(before);
    assert!(kept <= 6 * 24 * 8_192, "{kept} bytes");
    let before = bytes();
    for round in 0..1_000_u64 {
        limiter
            .at(NOW)
            .set_policy(Policy::fixed_window(Quota::per_hour(7 + round % 2)))
            .unwrap();
    }
    let kept = bytes().saturating_sub(before);
    assert!(kept <= 5 * 8_192, "{kept} bytes");
}

#[test]
fn any_number_of_policies_takes_bounded_memory_and_keeps_what_was_used() {
    let _alone = alone();
    let before = bytes();
    let policy = |round: u64| Policy::token_bucket(Quota::per_hour(100 + round % 40_000));
    let limiter = Limiter::with_clock(policy(0), ());
    assert!(limiter.at(NOW).acquire(10).is_allowed());
    let wide = Policy::sliding_log(Quota::per_hour(50)).unwrap();
    for round in 1..40_000 {
        limiter.at(NOW).set_policy(policy(round));
        if round % 1_000 == 0 {
            limiter.at(NOW).set_policy(wide);
            limiter.at(NOW).set_policy(policy(round));
            assert_eq!(limiter.policy(), policy(round));
            // A bucket counts a started unit as a whole one.
            let left = limiter.at(NOW).peek(0).remaining();
            assert!(
                (90 + round - 1..=90 + round).contains(&left),
                "{round}: {left}"
            );
        }
    }
    let kept = bytes().saturating_sub(before);
    assert!(kept <= 64 << 10, "{kept} bytes");
}

#[test]
fn a_policy_that_returns_takes_no_more_memory() {
    let _alone = alone();
    let policies = ["token-bucket 5/1h", "sliding-log 5/1h", "fixed-window 5/1h"];
    let policies = policies.map(|text| text.parse::<Policy>().unwrap());
    let limiter = Limiter::with_clock(policies[0], ());
    let mut before = 0;
    for round in 0..3_000 {
        limiter.at(NOW).set_policy(policies[round % 3]);
        assert_eq!(
            limiter.at(NOW).acquire(1).is_allowed(),
            round < 5,
            "round {round}"
        );
        if round == 3 {
            before = bytes();
        }
    }
    // A policy and its state take about 400 bytes, and 2,997 returned. The test runner may take a
    // buffer for its output meanwhile.
    let kept = bytes().saturating_sub(before);
    assert!(kept < 8_192, "{kept} bytes");
}

#[test]
fn a_key_that_is_blocked_again_stays_blocked_and_leaves_no_ends_behind() {
    let _alone = alone();
    let limiter = KeyedLimiter::builder(Policy::concurrency(9))
        .max_keys(10)
        .clock(())
        .build()
        .unwrap();
    let before = bytes();
    for second in 1..10_000 {
        limiter
            .at(Nanos::from_secs(second))
            .block("eve", Until(Nanos::from_secs(second + 5)))
            .unwrap();
    }
    let last = Nanos::from_secs(10_003);
    assert!(limiter.at(last).blocked("eve").is_some());
    assert!(
        limiter
            .at(Nanos::from_secs(10_004))
            .blocked("eve")
            .is_none()
    );
    let kept = bytes().saturating_sub(before);
    assert!(kept < 8_192, "{kept} bytes");
}
