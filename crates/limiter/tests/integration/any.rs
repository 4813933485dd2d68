//! The first of several limits that admits, against the same limits asked one after another.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::prelude::*;
use tidegate_limiter::{
    KeyedLimiter, Limiter, ManualTimer, Nanos, Penalty, Policy, Request, WhenFull, acquire_any_at,
};

const START: Nanos = Nanos::from_secs(100);

/// A keyed bucket, a keyed log whose denials block, and a window without keys.
struct Limits {
    bucket: KeyedLimiter,
    log: KeyedLimiter,
    window: Limiter,
}

impl Limits {
    fn new() -> Self {
        let penalty = Penalty::new(&[Duration::from_millis(900)]).unwrap();
        let penalty = penalty.after(2, Duration::from_millis(700)).unwrap();
        let log: Policy = "sliding-log 5/1s".parse().unwrap();
        Self {
            bucket: KeyedLimiter::new("token-bucket:burst=4 6/1s".parse::<Policy>().unwrap())
                .unwrap(),
            log: KeyedLimiter::new(log.block_for(penalty)).unwrap(),
            window: Limiter::new("7/2s".parse::<Policy>().unwrap()),
        }
    }

    fn request<'a>(&'a self, (limit, key, cost): (usize, &'a [u8], u64)) -> Request<'a> {
        match limit {
            0 => Request::keyed(&self.bucket, key, cost),
            1 => Request::keyed(&self.log, key, cost),
            _ => Request::unkeyed(&self.window, cost),
        }
    }

    fn peek(&self, (limit, key, cost): (usize, &[u8], u64), now: Nanos) -> bool {
        let decision = match limit {
            0 => self.bucket.at(now).peek(key, cost),
            1 => self.log.at(now).peek(key, cost),
            _ => self.window.at(now).peek(cost),
        };
        decision.is_allowed()
    }

    fn acquire(&self, (limit, key, cost): (usize, &[u8], u64), now: Nanos) -> bool {
        let decision = match limit {
            0 => self.bucket.at(now).acquire(key, cost),
            1 => self.log.at(now).acquire(key, cost),
            _ => self.window.at(now).acquire(cost),
        };
        decision.is_allowed()
    }
}

proptest! {
    #[test]
    fn it_is_the_first_that_admits_when_asked_alone(
        steps in proptest::collection::vec(
            (0_u64..600, proptest::collection::vec((0_usize..3, 0_u8..3, 0_u64..6), 1..5)),
            1..120,
        )
    ) {
        let (any, alone) = (Limits::new(), Limits::new());
        let mut now = START;
        for (ms, asked) in steps {
            now = now.saturating_add(Nanos::from_millis(ms));
            let keys: Vec<[u8; 1]> = asked.iter().map(|(_, key, _)| [*key]).collect();
            let asked = asked.iter().zip(&keys).map(|((limit, _, cost), key)| (*limit, &key[..], *cost));
            let mut asked: Vec<_> = asked.collect();
            // The denials of two requests for one key count once.
            asked.sort_by_key(|(limit, key, _)| (*limit, *key));
            asked.dedup_by_key(|(limit, key, _)| (*limit, *key));
            let turn = ms as usize % asked.len();
            asked.rotate_left(turn);
            let requests: Vec<_> = asked.iter().map(|part| any.request(*part)).collect();
            let decided = acquire_any_at(&requests, now).unwrap();
            let expected = asked.iter().position(|part| alone.peek(*part, now));
            prop_assert_eq!(decided.chosen(), expected, "{:?} at {:?}", asked, now);
            match expected {
                Some(at) => prop_assert!(alone.acquire(asked[at], now)),
                None => for part in &asked {
                    prop_assert!(!alone.acquire(*part, now));
                },
            }
            for (part, decision) in asked.iter().zip(decided.decisions()) {
                // Blocks of denials that were counted now are in the decisions of a denial.
                if expected.is_some_and(|at| asked[at] == *part) {
                    prop_assert!(decision.is_allowed());
                } else {
                    prop_assert!(expected.is_some() || decision.is_denied());
                }
            }
        }
    }
}

#[test]
fn a_limit_with_a_line_is_passed_over() {
    let timer = ManualTimer::new(START);
    let limit = |policy: &str| {
        let policy: Policy = policy.parse().unwrap();
        Limiter::with_clock(policy, timer.clone())
    };
    let (first, second) = (limit("fixed-window 5/1h"), limit("fixed-window 2/1h"));
    assert!(first.acquire(3).is_allowed());
    let mut waiting = pin!(first.wait(4, None));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(waiting.as_mut().poll(&mut context), Poll::Pending));
    let requests = [Request::unkeyed(&first, 1), Request::unkeyed(&second, 1)];
    for expected in [Some(1), Some(1), None] {
        let decided = acquire_any_at(&requests, START).unwrap();
        assert_eq!(
            decided.chosen(),
            expected,
            "two units are left behind the line"
        );
    }
}

#[test]
fn a_full_table_that_denies_new_keys_is_passed_over() {
    let policy = || "fixed-window 5/1h".parse::<Policy>().unwrap();
    let full = KeyedLimiter::builder(policy()).max_keys(1);
    let full = full.when_full(WhenFull::Deny).build().unwrap();
    let other = Limiter::new(policy());
    let mut known = 0;
    while full
        .at(START)
        .acquire(known.to_string().as_str(), 5)
        .is_allowed()
    {
        known += 1;
    }
    let requests = [
        Request::keyed(&full, b"a new key", 1),
        Request::unkeyed(&other, 1),
    ];
    let decided = acquire_any_at(&requests, START).unwrap();
    assert_eq!(decided.chosen(), Some(1));
}
