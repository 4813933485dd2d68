//! The worked examples of the specification, one test each.

use std::time::Duration;

use tidegate_core::{
    Algorithm, Nanos, Policy, Quota,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

/// A policy with its one state.
struct One {
    policy: Policy,
    state: Vec<u64>,
}

impl One {
    fn new(policy: impl Into<Policy>) -> Self {
        let policy = policy.into();
        Self {
            policy,
            state: vec![0; policy.words()],
        }
    }

    fn at(&mut self, ms: u64) -> bool {
        self.policy
            .decide(&mut self.state, Nanos::from_millis(ms), 1)
            .is_allowed()
    }

    fn all(&mut self, times: &[u64]) -> Vec<bool> {
        times.iter().map(|&ms| self.at(ms)).collect()
    }
}

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

#[test]
fn a_closed_log_counts_an_admission_exactly_one_window_old() {
    let mut log = One::new(SlidingLog::new(quota("2/1s")).unwrap().closed());
    let answers = log.all(&[0, 999, 1000, 1001, 1002, 1999, 2000]);
    assert_eq!(answers, [true, true, false, true, false, false, true]);
}

#[test]
fn a_half_open_log_does_not_count_an_admission_exactly_one_window_old() {
    let mut log = One::new(SlidingLog::new(quota("2/1s")).unwrap());
    let answers = log.all(&[0, 999, 1000, 1001, 1002, 1999, 2000]);
    assert_eq!(answers, [true, true, true, false, false, true, true]);
}

#[test]
fn the_sliding_counter_weights_the_previous_window() {
    let mut counter = One::new(Policy::sliding_counter(quota("100/2s")));
    assert!((0..100).all(|_| counter.at(1_000)));
    assert!((0..15).all(|_| counter.at(2_400)), "100 × 0.8 + 15 = 95");
    let peek = counter
        .policy
        .peek(&counter.state, Nanos::from_millis(2_400), 0);
    assert_eq!(peek.remaining(), 5);
}

#[test]
fn fixed_windows_admit_a_burst_across_their_border_and_a_log_does_not() {
    // 60 requests in [10, 20), 80 in [20, 30), of which 110 lie in [16, 26).
    let spread = |from: u64, to: u64, n: u64| (0..n).map(move |i| from + (to - from) * i / n);
    let mut times: Vec<u64> = spread(10_000, 16_000, 10).collect();
    times.extend(spread(16_000, 20_000, 50));
    times.extend(spread(20_000, 26_000, 60));
    times.extend(spread(26_000, 30_000, 20));
    let mut fixed = One::new(Policy::fixed_window(quota("100/10s")));
    assert_eq!(fixed.all(&times).iter().filter(|&&yes| yes).count(), 140);

    let mut log = One::new(Policy::sliding_log(quota("100/10s")).unwrap());
    let admitted: Vec<u64> = times.iter().copied().filter(|&t| log.at(t)).collect();
    let most = admitted
        .iter()
        .map(|&t| {
            admitted
                .iter()
                .filter(|&&u| t <= u && u < t + 10_000)
                .count()
        })
        .max();
    assert_eq!(most, Some(100));
}

#[test]
fn one_per_two_seconds_denies_inside_and_admits_outside() {
    let mut log = One::new(Policy::sliding_log(quota("1/2s")).unwrap());
    assert_eq!(log.all(&[0, 700, 1_900, 2_000]), [true, false, false, true]);
}

#[test]
fn a_first_hit_window_starts_with_the_first_request() {
    let mut window = One::new(FixedWindow::new(quota("5/10s")).first_hit());
    let t0 = 3_456;
    assert_eq!(
        window.all(&[t0; 7]),
        [true, true, true, true, true, false, false]
    );
    assert_eq!(window.all(&[t0 + 9_999, t0 + 10_000]), [false, true]);
}

#[test]
fn strict_slots_hold_the_limit_where_balanced_slots_admit_twice_as_much() {
    // The limit at the end of slot 0, again as soon as ten slots have gone by.
    let burst = |first: u64, second: u64| [vec![first; 10], vec![second; 10]].concat();
    let mut balanced = One::new(SlidingWindow::new(quota("10/1s")).balanced());
    assert_eq!(
        balanced
            .all(&burst(99, 1_000))
            .iter()
            .filter(|&&yes| yes)
            .count(),
        20
    );
    let mut strict = One::new(SlidingWindow::new(quota("10/1s")));
    assert_eq!(
        strict
            .all(&burst(99, 1_000))
            .iter()
            .filter(|&&yes| yes)
            .count(),
        10
    );
    assert_eq!(
        strict
            .all(&burst(1_099, 1_100))
            .iter()
            .filter(|&&yes| yes)
            .count(),
        10
    );
}

#[test]
fn a_token_bucket_admits_the_burst_and_then_the_rate() {
    let mut bucket = One::new(TokenBucket::new(quota("10/1s")).burst(3).unwrap());
    assert_eq!(
        bucket.all(&[0, 0, 0, 0, 99, 100, 100]),
        [true, true, true, false, false, true, false]
    );
}

#[test]
fn a_rate_with_no_whole_interval_is_not_rounded() {
    // 3/s: after three at 0, the bucket is full again at exactly 1 s, ten thousand times over.
    let mut bucket = One::new(Policy::token_bucket(quota("3/1s")));
    for second in 0..10_000 {
        assert!((0..3).all(|_| bucket.at(second * 1_000)), "second {second}");
        assert!(!bucket.at(second * 1_000 + 333), "second {second}");
    }
}

#[test]
fn a_leaky_bucket_delays_then_denies() {
    let bucket = LeakyBucket::new(quota("10/1s"))
        .max_wait(Duration::from_millis(250))
        .unwrap();
    let mut state = [0; 1];
    let mut ask = |ms| bucket.decide(&mut state, Nanos::from_millis(ms), 1);
    assert_eq!(ask(0).delay(), Duration::ZERO);
    assert_eq!(ask(0).delay(), Duration::from_millis(100));
    assert_eq!(ask(50).delay(), Duration::from_millis(150));
    assert_eq!(ask(50).delay(), Duration::from_millis(250));
    assert_eq!(ask(50).retry_after(), Some(Duration::from_millis(100)));
}

#[test]
fn permits_return_by_refund_or_after_the_maximum_hold() {
    let mut plain = One::new(Policy::concurrency(2));
    assert_eq!(plain.all(&[0, 0, 1_000_000]), [true, true, false]);
    plain
        .policy
        .refund(&mut plain.state, Nanos::from_secs(1_000), 1);
    assert_eq!(plain.all(&[1_000_000, 1_000_000]), [true, false]);

    let mut held = One::new(Concurrency::new(2).hold(Duration::from_secs(30)).unwrap());
    assert_eq!(
        held.all(&[0, 10_000, 20_000, 29_999, 30_000, 30_000]),
        [true, true, false, false, true, false]
    );
    held.policy.refund(&mut held.state, Nanos::from_secs(31), 1);
    assert_eq!(held.all(&[31_000, 31_000]), [true, false]);
}

#[test]
fn counted_denials_delay_clients_that_retry() {
    let mut log = One::new(Policy::sliding_log(quota("1/1s")).unwrap().count_denied());
    assert_eq!(
        log.all(&[0, 900, 1_800, 2_799, 3_799]),
        [true, false, false, false, true]
    );
    let mut bucket = One::new(Policy::token_bucket(quota("2/1s")).count_denied());
    assert_eq!(
        bucket.all(&[0, 0, 499, 998, 1_497, 1_997]),
        [true, true, false, false, false, true]
    );
}

#[test]
fn a_cost_above_the_limit_never_fits_and_a_limit_of_zero_denies_all() {
    for (limit, cost) in [("2/1s", 3), ("0/1s", 1)] {
        for policy in policies(quota(limit)) {
            let mut state = vec![0; policy.words()];
            let decision = policy.decide(&mut state, Nanos::from_secs(5), cost);
            assert!(decision.is_denied(), "{}", policy.name());
            assert_eq!(decision.retry_after(), None, "{}", policy.name());
            assert!(
                policy.is_recovered(&state, Nanos::from_secs(5)),
                "{}: nothing is taken",
                policy.name()
            );
        }
    }
}

#[test]
fn a_changed_quota_keeps_what_was_used() {
    let now = Nanos::from_millis(100_500);
    for (old, new) in policies(quota("10/1s"))
        .into_iter()
        .zip(policies(quota("20/1s")))
    {
        let mut before = vec![0; old.words()];
        assert!(old.decide(&mut before, now, 6).is_allowed());
        let mut after = vec![0; new.words()];
        new.transfer(&mut after, &old, &before, now);
        let remaining = new.peek(&after, now, 0).remaining();
        let expected = if old.name() == "leaky-bucket" { 20 } else { 14 };
        assert_eq!(remaining, expected, "{} raised", old.name());

        let mut lowered = vec![0; old.words()];
        old.transfer(&mut lowered, &new, &after, now);
        assert!(new.decide(&mut after, now, 8).is_allowed());
        let mut lowered = vec![0; old.words()];
        old.transfer(&mut lowered, &new, &after, now);
        if old.name() != "leaky-bucket" {
            assert!(
                old.peek(&lowered, now, 1).is_denied(),
                "{} lowered below what is used",
                old.name()
            );
        }
    }
}

fn policies(quota: Quota) -> Vec<Policy> {
    vec![
        Policy::fixed_window(quota),
        Policy::sliding_log(quota).unwrap(),
        Policy::sliding_window(quota),
        Policy::sliding_counter(quota),
        Policy::token_bucket(quota),
        Policy::leaky_bucket(quota),
        Policy::concurrency(quota.limit() as u32),
    ]
}
