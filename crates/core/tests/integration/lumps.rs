//! Fixed windows that save what is left, against a naive bucket: a number of tokens, which gets a
//! window's limit at each window's end.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Algorithm, Nanos, Policy, Quota, StoredState, algorithm::FixedWindow};

const WINDOW: u64 = 10;

/// All times in milliseconds.
#[derive(Clone, Debug)]
struct Bucket {
    limit: u64,
    burst: u64,
    first_hit: bool,
    /// The longest wait of a cost above the burst; 0 if such costs are denied.
    oversize_wait: u64,
    /// Below zero after a charge.
    tokens: i64,
    /// The end of the window that has begun.
    next: u64,
    now: u64,
}

impl Bucket {
    fn is_full(&self) -> bool {
        self.tokens >= self.burst.cast_signed()
    }

    fn advance(&mut self, now: u64) {
        while self.now < now {
            self.now += 1;
            if self.now == self.next && !self.is_full() {
                self.tokens =
                    (self.tokens + self.limit.cast_signed()).min(self.burst.cast_signed());
                self.next += WINDOW;
            }
        }
    }

    fn admits(&self, cost: u64) -> bool {
        if cost > self.burst {
            return self.is_full() && self.may_wait(cost);
        }
        cost.cast_signed() <= self.tokens || cost == 0 && self.tokens >= 0
    }

    /// Whether the rest of a cost above the burst comes in time.
    fn may_wait(&self, cost: u64) -> bool {
        self.burst > 0 && cost <= self.burst + self.oversize_wait / WINDOW * self.limit
    }

    fn take(&mut self, cost: u64) {
        if cost == 0 {
            return;
        }
        // A full bucket's windows begin anew.
        if self.is_full() {
            self.next = if self.first_hit {
                self.now + WINDOW
            } else {
                self.now - self.now % WINDOW + WINDOW
            };
        }
        self.tokens -= cost.cast_signed();
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Advance(u64),
    Take(u64),
    UpTo(u64),
    Charge(u64),
    Refund(u64),
    /// The state is written down, and joined with itself of before.
    Join,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..35_u64).prop_map(Step::Advance),
        8 => (0..9_u64).prop_map(Step::Take),
        3 => (0..40_u64).prop_map(Step::Take),
        1 => (0..9_u64).prop_map(Step::UpTo),
        1 => (0..30_u64).prop_map(Step::Charge),
        1 => (0..9_u64).prop_map(Step::Refund),
        1 => Just(Step::Join),
    ]
}

fn policy(limit: u64, burst: u64, first_hit: bool) -> Policy {
    waiting_policy(limit, burst, first_hit, 0)
}

fn waiting_policy(limit: u64, burst: u64, first_hit: bool, oversize_wait: u64) -> Policy {
    let quota = Quota::new(limit, Duration::from_millis(WINDOW)).unwrap();
    let windows = FixedWindow::new(quota);
    let windows = if first_hit {
        windows.first_hit()
    } else {
        windows
    };
    let windows = windows.burst(burst).unwrap();
    let wait = Duration::from_millis(oversize_wait);
    if wait.is_zero() {
        windows.into()
    } else {
        windows.oversize_wait(wait).unwrap().into()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_window_that_saves_is_a_bucket_that_gets_its_tokens_in_lumps(
        limit in 1..6_u64, burst in 0..14_u64, first_hit in any::<bool>(),
        oversize_wait in prop_oneof![Just(0), WINDOW..8 * WINDOW], start in 1_000..1_010_u64, steps in proptest::collection::vec(step(), 1..60),
    ) {
        let policy = waiting_policy(limit, burst, first_hit, oversize_wait);
        prop_assert_eq!(policy.to_string().parse(), Ok(policy));
        let mut state = vec![0; policy.words()];
        let mut bucket = Bucket { limit, burst, first_hit, oversize_wait, tokens: burst.cast_signed(), next: 0, now: start };
        for step in steps {
            let now = Nanos::from_millis(bucket.now);
            match step {
                Step::Advance(ms) => bucket.advance(bucket.now + ms),
                Step::Take(cost) => {
                    let before = state.clone();
                    let decision = policy.decide(&mut state, now, cost);
                    prop_assert_eq!(decision.is_allowed(), bucket.admits(cost));
                    if decision.is_allowed() {
                        bucket.take(cost);
                        // It starts when its rest has come, and not earlier.
                        let wait = decision.delay().as_millis() as u64;
                        let mut later = bucket.clone();
                        later.advance(bucket.now + wait.saturating_sub(1));
                        prop_assert_eq!(later.tokens < 0, wait > 0);
                        later.advance(bucket.now + wait);
                        prop_assert!(later.tokens >= 0 && wait <= oversize_wait);
                    } else {
                        prop_assert_eq!(&before, &state);
                    }
                    // A denial says when the cost is admitted, and not earlier.
                    if let Some(wait) = decision.retry_after() {
                        let wait = wait.as_millis() as u64;
                        let mut later = bucket.clone();
                        later.advance(bucket.now + wait - 1);
                        prop_assert!(!later.admits(cost));
                        later.advance(bucket.now + wait);
                        prop_assert!(later.admits(cost), "{} after {}", cost, wait);
                    } else {
                        prop_assert_eq!(decision.is_denied(), cost > burst && !bucket.may_wait(cost));
                        prop_assert_eq!(decision.is_denied(), cost > policy.highest_cost());
                    }
                }
                Step::UpTo(cost) => {
                    let (granted, _) = policy.decide_up_to(&mut state, now, cost);
                    prop_assert_eq!(granted, cost.min(bucket.tokens.max(0).cast_unsigned()));
                    bucket.take(granted);
                }
                Step::Charge(cost) => {
                    policy.charge(&mut state, now, cost);
                    bucket.take(cost);
                }
                Step::Refund(cost) => {
                    policy.refund(&mut state, now, cost);
                    bucket.tokens = (bucket.tokens + cost.cast_signed()).min(burst.cast_signed());
                }
                Step::Join => {
                    let other = state.clone();
                    policy.join(&mut state, &other, now);
                }
            }
            let now = Nanos::from_millis(bucket.now);
            prop_assert!(policy.accepts(&state));
            prop_assert_eq!(policy.used(&state, now).cast_signed(), burst.cast_signed() - bucket.tokens);
            let look = policy.peek(&state, now, 0);
            prop_assert_eq!(look.remaining().cast_signed(), bucket.tokens.max(0));
            prop_assert_eq!(look.is_allowed(), bucket.tokens >= 0);
            let reset = look.reset_after().as_millis() as u64;
            let mut later = bucket.clone();
            later.advance(bucket.now + reset);
            prop_assert!(later.is_full());
            if reset > 0 {
                later = bucket.clone();
                later.advance(bucket.now + reset - 1);
                prop_assert!(!later.is_full());
            }
            prop_assert_eq!(policy.is_recovered(&state, now), bucket.is_full());
        }
    }

    #[test]
    fn what_is_given_back_late_is_less_what_the_lumps_gave_back(
        limit in 1..6_u64, burst in 6..14_u64, first_hit in any::<bool>(), before in 0..6_u64,
        cost in 1..6_u64, after in 0..40_u64, probes in proptest::collection::vec((0..80_u64, 1..14_u64), 20),
    ) {
        let policy = policy(limit, burst, first_hit);
        let (mut with, mut without) = (vec![0; policy.words()], vec![0; policy.words()]);
        let at = |ms| Nanos::from_millis(1_000 + ms);
        for state in [&mut with, &mut without] {
            policy.record(state, at(0), before);
        }
        let taken = at(3);
        prop_assume!(policy.decide(&mut with, taken, cost).is_allowed());
        let now = at(3 + after);
        policy.give_back(&mut with, now, taken, cost);
        for (ms, cost) in probes {
            let at = Nanos::new(now.get() + ms * 1_000_000);
            if policy.peek(&with, at, cost).is_allowed() {
                prop_assert!(policy.peek(&without, at, cost).is_allowed(), "{} after {}", cost, ms);
            }
        }
    }
}

#[test]
fn a_burst_of_the_limit_is_a_fixed_window() {
    let mut draw = 7_u64;
    let plain = Policy::fixed_window("5/10ms".parse().unwrap());
    let (saving, mut one, mut two) = (policy(5, 5, false), [0; 2], [0; 2]);
    let mut now = 0;
    for _ in 0..20_000 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        now += draw >> 33 & 0x3F_FFFF;
        let cost = draw >> 60 & 7;
        let at = Nanos::new(now);
        assert_eq!(
            plain.decide(&mut one, at, cost),
            saving.decide(&mut two, at, cost)
        );
    }
}

#[test]
fn bursts_that_windows_cannot_save_are_refused() {
    for (text, expected) in [
        ("fixed-window:burst=9007199254740992 1/1s", "`burst` wants"),
        ("fixed-window:burst=5000000000 1/1s", "73 years"),
        ("fixed-window:burst=20:calendar 10/1d", "save nothing"),
        ("fixed-window:burst=20 10/month", "save nothing"),
    ] {
        match text.parse::<Policy>() {
            Err(error) => assert!(error.to_string().contains(expected), "{text}: {error}"),
            Ok(policy) => panic!("{text} is {policy}"),
        }
    }
    let denies_all: Policy = "fixed-window:burst=20 0/1s".parse().unwrap();
    assert!(denies_all.peek(&[0; 2], Nanos::ZERO, 1).is_denied());
}
