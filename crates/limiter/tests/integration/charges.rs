//! Costs that are known only after the work: asked for with 0, charged afterwards, whatever
//! remains.

use crate::policies;

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate_limiter::{
    Admission, AlgorithmSpec, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Quota, Until,
    WaitError, WhenFull,
};

const START: Nanos = Nanos::from_secs(6_000);

fn quota() -> Quota {
    Quota::new(1_000, Duration::from_mins(1)).unwrap()
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Admission, WaitError>> + Send + 'a>>;

fn poll(waiting: &mut Waiting<'_>) -> Poll<Result<Admission, WaitError>> {
    waiting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_report_after_the_work_ends_the_next_questions() {
    for policy in policies::denying(quota()) {
        for (report, most) in [(100, 11), (300, 4), (1_200, 1)] {
            let one = Limiter::with_clock(policy, ());
            let keys = KeyedLimiter::builder(policy)
                .max_keys(100)
                .clock(())
                .build()
                .unwrap();
            let (mut passed, mut keyed) = (0, 0);
            for _ in 0..200 {
                if one.at(START).acquire(0).is_allowed() {
                    passed += 1;
                    let _ = one.at(START).charge(report);
                }
                if keys.at(START).acquire("a", 0).is_allowed() {
                    keyed += 1;
                    let _ = keys.at(START).charge("a", report);
                }
            }
            assert_eq!(
                [passed, keyed],
                [most, most],
                "{} with reports of {report}",
                policy.name()
            );
            assert!(
                keys.at(START).acquire("b", 1_000).is_allowed(),
                "another key has its own"
            );
        }
    }
}

#[test]
fn waiters_wait_for_what_was_charged_meanwhile() {
    for policy in policies::denying(quota()) {
        let timer = ManualTimer::new(START);
        let one = Limiter::with_clock(policy, timer.clone());
        assert!(one.acquire(1_000).is_allowed());
        let mut waiting: Waiting<'_> = Box::pin(one.wait(1, None));
        assert!(poll(&mut waiting).is_pending());
        let _ = one.charge(1_000);
        // Time has repaid the first thousand, and the units charged are those of a second window or
        // fill.
        timer.advance(Duration::from_secs(59));
        assert!(poll(&mut waiting).is_pending(), "{}", policy.name());
        timer.advance(Duration::from_mins(2));
        assert!(poll(&mut waiting).is_ready(), "{}", policy.name());
    }
}

#[test]
fn a_wait_for_nothing_lasts_until_the_debt_is_repaid() {
    for policy in policies::denying(quota()) {
        let timer = ManualTimer::new(START);
        let keys = KeyedLimiter::builder(policy)
            .max_keys(100)
            .clock(timer.clone())
            .build()
            .unwrap();
        assert!(keys.charge("a", 2_500).is_denied());
        let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 0, None));
        assert!(poll(&mut waiting).is_pending(), "{}", policy.name());
        let until = keys.peek("a", 0).retry_after().unwrap();
        timer.advance(until.saturating_sub(Duration::from_micros(1)));
        assert!(poll(&mut waiting).is_pending(), "{}", policy.name());
        timer.advance(Duration::from_micros(1));
        assert!(
            matches!(poll(&mut waiting), Poll::Ready(Ok(_))),
            "{}",
            policy.name()
        );
        // Nobody else waits for it, and the next question is answered at once.
        assert!(keys.acquire("a", 0).is_allowed(), "{}", policy.name());
    }
}

#[test]
fn a_debt_outlives_evictions_changes_and_restores() {
    for policy in policies::denying(quota()) {
        let bucket = policy.name() == "token-bucket";
        let keys = KeyedLimiter::builder(policy)
            .max_keys(64)
            .when_full(WhenFull::Forget)
            .clock(())
            .build();
        let keys = keys.unwrap();
        assert!(keys.at(START).charge("a", 30_000).is_denied());
        for other in 0..200_u64 {
            let _ = keys.at(START).acquire(other, 1);
        }
        assert!(
            keys.at(START).peek("a", 1).is_denied(),
            "{}: after an eviction",
            policy.name()
        );
        let _ = keys.at(START).set_policy(
            policies::denying(Quota::new(900, Duration::from_mins(1)).unwrap())
                .into_iter()
                .find(|other| other.name() == policy.name())
                .unwrap(),
        );
        let _ = keys.at(START).set_policy(policy);
        assert!(
            keys.at(START).peek("a", 0).is_denied(),
            "{}: after changes",
            policy.name()
        );

        let other = KeyedLimiter::builder(policy)
            .max_keys(64)
            .hash_keys(keys.hash_keys())
            .clock(())
            .build();
        let other = other.unwrap();
        let mut entries = Vec::new();
        keys.at(START).snapshot(|entry| entries.push(entry));
        assert!(
            entries
                .iter()
                .all(|entry| other.at(START).restore(&policy, entry))
        );
        assert!(
            other.at(START).peek("a", 0).is_denied(),
            "{}: after a restore",
            policy.name()
        );
        // 30,000 of 1,000 a minute: a bucket repays for half an hour, a window forgets when it
        // ends.
        let later = START.saturating_add(Nanos::from_secs(28 * 60));
        assert_eq!(
            keys.at(later).peek("a", 1).is_denied(),
            bucket,
            "{}",
            policy.name()
        );
        let later = START.saturating_add(Nanos::from_secs(31 * 60));
        assert!(
            keys.at(later).peek("a", 1).is_allowed(),
            "{}",
            policy.name()
        );
    }
}

#[test]
fn a_blocked_key_is_charged_all_the_same() {
    let policy = Policy::fixed_window(quota());
    let keys = KeyedLimiter::builder(policy)
        .max_keys(64)
        .clock(())
        .build()
        .unwrap();
    keys.at(START).block("a", Until::UNBLOCKED).unwrap();
    assert!(keys.at(START).charge("a", 600).is_denied());
    assert!(keys.at(START).unblock("a"));
    assert_eq!(keys.at(START).peek("a", 0).remaining(), 400);
}

#[test]
fn a_full_table_forgets_keys_that_were_charged_to_a_limit_of_nothing() {
    for policy in AlgorithmSpec::all()
        .filter(AlgorithmSpec::limits_rate)
        .map(|algorithm| algorithm.policy("0/1m".parse().unwrap()).unwrap())
    {
        let keys = KeyedLimiter::builder(policy).max_keys(8).build().unwrap();
        for key in 0..200_u64 {
            let now = START.saturating_add(Nanos::new(key));
            assert!(keys.at(now).charge(key, 3).is_denied(), "{policy:?}");
            assert!(keys.at(now).acquire(key, 1).is_denied(), "{policy:?}");
        }
    }
}
