//! Costs above the limit that wait for their rest: in line, with deadlines, dropped early, together
//! with other limits, in a table that is full, and after a restore.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate_limiter::{
    Admission, Clock as _, Decision, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Request,
    WaitError, acquire_all, acquire_any, wait_all,
};

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Admission, WaitError>> + Send + 'a>>;

/// Ten at once, one each 100 ms, and costs of up to 40.
const RULES: [&str; 2] = [
    "token-bucket:oversize-wait=3s 10/1s",
    "fixed-window:burst=10:oversize-wait=3s 10/1s",
];

fn policies() -> [Policy; 2] {
    RULES.map(|text| text.parse().unwrap())
}

fn poll<F: Future + ?Sized>(waiting: &mut Pin<Box<F>>) -> Poll<F::Output> {
    waiting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn limiter(policy: Policy) -> (ManualTimer, Limiter<ManualTimer>) {
    let timer = ManualTimer::new(Nanos::from_secs(100));
    (timer.clone(), Limiter::with_clock(policy, timer))
}

#[test]
fn a_large_cost_waits_in_line_for_the_whole_limit_and_then_for_its_rest() {
    for policy in policies() {
        let (timer, limiter) = limiter(policy);
        assert!(limiter.acquire(1).is_allowed());
        let mut large: Waiting<'_> = Box::pin(limiter.wait(30, None));
        let mut small: Waiting<'_> = Box::pin(limiter.wait(1, None));
        assert!(poll(&mut large).is_pending() && poll(&mut small).is_pending());
        // The limit is whole after a second at the latest, and the rest comes in two more.
        let mut served = Vec::new();
        for step in 1..=40 {
            timer.advance(Nanos::from_millis(100));
            let next = if served.is_empty() {
                &mut large
            } else {
                &mut small
            };
            if served.len() < 2 && poll(next).is_ready() {
                served.push(step);
            }
            assert!(limiter.acquire(1).is_denied() || served.len() == 2);
        }
        let expected = if policy.name() == "token-bucket" {
            [21, 22]
        } else {
            [30, 40]
        };
        assert_eq!(served, expected, "{policy}");
    }
}

#[test]
fn a_caller_that_gives_up_while_its_rest_comes_leaves_nothing_behind() {
    for policy in policies() {
        let (timer, limiter) = limiter(policy);
        let mut large: Waiting<'_> = Box::pin(limiter.wait(30, None));
        assert!(poll(&mut large).is_pending());
        assert!(limiter.acquire(1).is_denied());
        drop(large);
        assert!(limiter.acquire(10).is_allowed(), "{policy}");
        // A start after the deadline is refused at once, and takes nothing.
        timer.advance(Nanos::from_secs(2));
        let deadline = timer.now().saturating_add(Nanos::from_millis(1_500));
        let mut late: Waiting<'_> = Box::pin(limiter.wait(30, Some(deadline)));
        let Poll::Ready(Err(WaitError::Deadline(_))) = poll(&mut late) else {
            panic!("{policy}: it starts after the deadline");
        };
        assert!(limiter.acquire(10).is_allowed(), "{policy}");
        // Above the highest cost nothing helps.
        let mut never: Waiting<'_> = Box::pin(limiter.wait(41, None));
        assert!(matches!(
            poll(&mut never),
            Poll::Ready(Err(WaitError::Never(_)))
        ));
    }
}

#[test]
fn all_limits_admit_a_large_cost_or_none_takes_it() {
    for policy in policies() {
        let timer = ManualTimer::new(Nanos::from_secs(100));
        let waits = Limiter::with_clock(policy, timer.clone());
        let small = Limiter::with_clock("25/1s".parse::<Policy>().unwrap(), timer.clone());
        let both = |cost| {
            [
                Request::unkeyed(&waits, cost),
                Request::unkeyed(&small, cost.min(25)),
            ]
        };
        let all = acquire_all(&both(30)).unwrap();
        assert!(all.is_allowed());
        let delays: Vec<Duration> = all.decisions().iter().map(Decision::delay).collect();
        assert_eq!(delays, [Duration::from_secs(2), Duration::ZERO]);
        assert!(!acquire_all(&both(1)).unwrap().is_allowed());
        timer.advance(Nanos::from_secs(3));
        // The other limit denies, so nothing is owed.
        assert!(small.acquire(25).is_allowed());
        assert!(!acquire_all(&both(30)).unwrap().is_allowed());
        assert!(waits.acquire(10).is_allowed(), "{policy}");
        // The first that admits takes the cost, also if it then waits for its rest.
        timer.advance(Nanos::from_secs(3));
        let any =
            acquire_any(&[Request::unkeyed(&small, 30), Request::unkeyed(&waits, 30)]).unwrap();
        assert_eq!(any.chosen(), Some(1), "{policy}");
        assert!(waits.peek(0).is_denied());
        timer.advance(Nanos::from_secs(4));
        let requests = both(30);
        let mut waiting = Box::pin(wait_all(&requests, None));
        assert!(poll(&mut waiting).is_pending());
        timer.advance(Nanos::from_secs(2));
        assert!(matches!(poll(&mut waiting), Poll::Ready(Ok(_))), "{policy}");
    }
}

#[test]
fn what_a_large_cost_owes_survives_a_change_a_restore_and_a_full_table() {
    let now = Nanos::from_secs(100);
    let at = |ms: u64| now.saturating_add(Nanos::from_millis(ms));
    for (rule, policy) in RULES.into_iter().zip(policies()) {
        let limiter = KeyedLimiter::builder(policy).max_keys(64).build().unwrap();
        let decision = limiter.at(now).acquire("alice", 40);
        assert_eq!(decision.delay(), Duration::from_secs(3), "{rule}");
        let mut entries = Vec::new();
        limiter.at(now).snapshot(|entry| entries.push(entry));
        assert_eq!(entries.len(), 1);
        let restored = KeyedLimiter::builder(policy)
            .max_keys(64)
            .hash_keys(limiter.hash_keys())
            .build()
            .unwrap();
        for entry in entries {
            assert!(restored.at(now).restore(&policy, &entry));
        }
        // A flood of other keys.
        for key in 0..10_000_u32 {
            let _ = limiter.at(at(1)).acquire(key.to_le_bytes(), 10);
        }
        // A change that denies costs above the limit: what was admitted is still owed.
        let plain: Policy = rule
            .replace(":oversize-wait=3s", "")
            .parse()
            .expect("the rule is well formed");
        restored
            .at(at(1))
            .set_policy(plain)
            .unwrap()
            .finish_at(at(1));
        for (name, limiter) in [("full", &limiter), ("restored", &restored)] {
            let look = limiter.at(at(2_990)).acquire("alice", 0);
            assert!(look.is_denied(), "{rule}, {name}: {look}");
            assert!(limiter.at(at(2_990)).acquire("alice", 1).is_denied());
            assert!(limiter.at(at(4_100)).acquire("alice", 10).is_allowed());
        }
        assert!(restored.at(at(9_000)).acquire("alice", 30).exceeds_limit());
    }
}

/// What the book says about credit and about fewer units at the start: no option is needed.
#[test]
fn an_override_is_credit_above_the_limit_and_a_charge_is_fewer_units_at_the_start() {
    let now = Nanos::from_secs(100);
    let at = |ms: u64| now.saturating_add(Nanos::from_millis(ms));
    for text in [
        "fixed-window 5/1s",
        "sliding-window 5/1s",
        "token-bucket 5/1s",
    ] {
        let policy: Policy = text.parse().unwrap();
        let limiter = KeyedLimiter::builder(policy).max_keys(64).build().unwrap();
        assert!(limiter.at(now).acquire("alice", 3).is_allowed());
        // A credit of 7 while the override lasts: what is in use stays in use.
        let more: Policy = text.replace("5/1s", "12/1s").parse().unwrap();
        limiter.at(now).set_override("alice", more).unwrap();
        assert_eq!(limiter.at(now).peek("alice", 0).remaining(), 9, "{text}");
        assert!(limiter.at(now).acquire("alice", 9).is_allowed(), "{text}");
        assert!(limiter.at(now).acquire("alice", 1).is_denied(), "{text}");
        // Bob begins with 2 of 5.
        let _ = limiter.at(now).charge("bob", 3);
        assert!(limiter.at(now).acquire("bob", 3).is_denied(), "{text}");
        assert!(limiter.at(now).acquire("bob", 2).is_allowed(), "{text}");
        assert!(
            limiter.at(at(1_100)).acquire("bob", 5).is_allowed(),
            "{text}"
        );
    }
}
