//! Reservations while the rules change, while keys are reset, and after a restart.

use std::sync::{Arc, Barrier};

use futures_util::FutureExt as _;
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_limiter::{HashKeys, Policy};

use super::{Ask, Id, Service};
use crate::{
    decide::{
        limits::{Act, Limits},
        throttle::Throttle,
    },
    rules,
};

const START: Nanos = Nanos::from_secs(1_800_000_000);
const TTL: Nanos = Nanos::from_secs(10);

fn parsed(limit: &str) -> rules::Rules {
    with_another(limit, "a")
}

/// There is room for one key that another limit denies.
fn with_another(limit: &str, denied: &str) -> rules::Rules {
    let other = format!("limit: 1/1s, max_keys: 1, deny: [{denied}]");
    let text = format!("limits: [{{name: l, {limit}}}, {{name: other, {other}}}]");
    rules::parse(&text).unwrap()
}

fn service(limit: &str) -> (Arc<ManualTimer>, Service) {
    let clock = Arc::new(ManualTimer::new(START));
    let hash = |_: &str| Some(HashKeys::from_seeds(1, 2));
    let limits = Limits::new(parsed(limit), 1 << 10, hash, START).unwrap();
    let throttle = Throttle::new(4, None).unwrap();
    (
        Arc::clone(&clock),
        Service::new(limits, throttle, clock as _),
    )
}

fn reload(service: &Service, limit: &str) {
    let limits = service.limits().follow(parsed(limit), service.now());
    service.set_limits(limits.unwrap());
}

fn reserve(service: &Service, key: &str, cost: u64) -> Option<Id> {
    let asks = [Ask {
        limit: b"l",
        key: Some(key.as_bytes()),
        cost,
    }];
    let reserved = service.reserve(None, &asks, TTL, service.now());
    reserved.now_or_never().unwrap().ok().unwrap().1
}

fn settle(service: &Service, id: Id, cost: u64) {
    let costs = [cost];
    let settled = service.settle(id, Some(&costs), service.now());
    assert_eq!(settled.now_or_never().unwrap(), Ok(true));
}

/// The units that are left for a key.
fn left(service: &Service, key: &str) -> u64 {
    let ask = Ask {
        limit: b"l",
        key: Some(key.as_bytes()),
        cost: 0,
    };
    let peeked = service.decide(ask, Act::Peek, service.now());
    let answer = peeked.now_or_never().unwrap().ok().unwrap();
    answer.decision.remaining()
}

const RATE: &str = "limit: 5/1h, algorithm: fixed-window";
const PERMITS: &str = "limit: 5, algorithm: concurrency";

#[test]
fn an_extension_of_permits_ends_with_its_reservation_of_a_rate() {
    let (clock, service) = service(RATE);
    let id = reserve(&service, "a", 1).unwrap();
    reload(&service, PERMITS);
    assert_eq!(left(&service, "a"), 5);
    let extended = service.extend(id, &[2], service.now());
    assert!(extended.now_or_never().unwrap().is_ok());
    assert_eq!(left(&service, "a"), 3);
    clock.set(START.saturating_add(TTL));
    service.expire_reservations(false).now_or_never().unwrap();
    assert_eq!(left(&service, "a"), 5);
}

#[test]
fn an_extension_takes_nothing_of_a_shadow_limit_that_would_deny_it() {
    let (_, service) = service(&format!("{PERMITS}, shadow: true"));
    let [first, second] = [3, 2].map(|cost| reserve(&service, "a", cost).unwrap());
    let extended = service.extend(first, &[2], service.now());
    assert!(extended.now_or_never().unwrap().is_ok());
    settle(&service, first, 0);
    assert_eq!(left(&service, "a"), 3, "the second one has two");
    settle(&service, second, 0);
    assert_eq!(left(&service, "a"), 5);
}

/// Copies all states in the order of the state file, and goes on from them.
fn restarted(service: &Service, limit: &str) -> Service {
    let (_, after) = self::service(limit);
    let seen = service.reservations.seen();
    let states = Arc::clone(&service.limits().limits()[0]);
    let to = Arc::clone(&after.limits().limits()[0]);
    let policy = to.spec().policy.policy().unwrap();
    states.while_unchanged(|rules| {
        states.snapshot(rules, START, |entry| {
            assert!(to.restore(&policy, &entry, START));
        });
    });
    for (text, due) in service.reservation_texts(seen) {
        assert!(after.reservations.restore(&text, due));
    }
    after
}

#[test]
fn units_that_were_taken_after_a_reset_return_after_a_restart_and_those_from_before_do_not() {
    for limit in [PERMITS, RATE] {
        let (_, service) = service(limit);
        let before = reserve(&service, "a", 4).unwrap();
        service.limits().limits()[0].limiter().at(START).reset("a");
        let after = reserve(&service, "a", 5).unwrap();
        assert_eq!(reserve(&service, "a", 1), None);
        let service = restarted(&service, limit);
        settle(&service, before, 0);
        assert_eq!(left(&service, "a"), 0, "{limit}");
        settle(&service, after, 0);
        assert_eq!(left(&service, "a"), 5, "{limit}");
    }
}

#[test]
fn permits_return_though_the_limit_became_one_of_permits_while_they_were_reserved() {
    let (_, service) = service(RATE);
    let limiter = || Arc::clone(&service.limits().limits()[0]);
    let policy = |text: &str| text.parse::<Policy>().unwrap();
    for round in 0..1_000 {
        let key = format!("{round}");
        let change = |text| {
            let limit = limiter();
            let change = limit.limiter().at(START).set_policy(policy(text));
            change.unwrap().finish_at(START);
        };
        change("fixed-window 5/1h");
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                change("concurrency 5");
            });
            barrier.wait();
            let id = reserve(&service, &key, 1).unwrap();
            settle(&service, id, 0);
        });
        assert_eq!(left(&service, &key), 5, "round {round}");
    }
}

#[test]
fn a_settled_permit_returns_to_its_tenant_whatever_was_used() {
    let (_, service) = service("limit: 10, algorithm: concurrency, shares: {ceiling: 20%}");
    for used in [0, 1, 2, 1, 1] {
        let ids = ["a/1", "a/2"].map(|key| reserve(&service, key, 1).unwrap());
        assert_eq!(reserve(&service, "a/3", 1), None, "the ceiling is two");
        for id in ids {
            settle(&service, id, used);
        }
    }
}

#[test]
fn rules_that_are_refused_leave_permits_and_units_of_a_rate_in_use() {
    for (limit, refused) in [(RATE, PERMITS), (PERMITS, RATE)] {
        let (_, service) = service(limit);
        let id = reserve(&service, "a", 3).unwrap();
        let rules = with_another(refused, "a, b");
        assert!(service.limits().follow(rules, service.now()).is_err());
        assert_eq!(left(&service, "a"), 2, "{limit}");
        settle(&service, id, 0);
        assert_eq!(left(&service, "a"), 5, "{limit}");
    }
}

/// One thread reserves, and another one resets all keys. A place that is noted before the units are
/// taken may be that of before a reset: these units would never return.
#[test]
fn permits_that_are_taken_while_all_keys_are_reset_return() {
    for limit in [
        PERMITS,
        "limit: 5, algorithm: concurrency, shares: {}",
        "limit: 5, algorithm: concurrency, shadow: true",
        "limit: 5, algorithm: concurrency, shares: {}, shadow: true",
    ] {
        let (_, service) = service(limit);
        let (begin, end) = (Barrier::new(2), Barrier::new(2));
        let rounds = 0..5_000;
        let kept = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in rounds.clone() {
                    begin.wait();
                    service.limits().limits()[0].reset_all_in_memory(START);
                    end.wait();
                }
            });
            let mut kept = 0;
            for _ in rounds.clone() {
                begin.wait();
                let id = reserve(&service, "a", 1);
                end.wait();
                if let Some(id) = id {
                    settle(&service, id, 1);
                }
                kept += u32::from(left(&service, "a") < 5);
            }
            kept
        });
        assert_eq!(kept, 0, "{limit}");
        // The shares have none in use, too.
        let all: Vec<_> = (0..5).map_while(|_| reserve(&service, "a", 1)).collect();
        assert_eq!(all.len(), 5, "{limit}");
    }
}

/// A shadow limit takes its units after the others, and notes where they count.
#[test]
fn units_of_a_shadow_limit_return() {
    for limit in [
        "limit: 5/1h, algorithm: sliding-log, shadow: true",
        "limit: 5/1h, algorithm: sliding-log, shares: {}, shadow: true",
        "limit: 5/1h, algorithm: sliding-log, soft: true",
        "limit: 5, algorithm: concurrency, shadow: true",
    ] {
        let (_, service) = service(limit);
        let id = reserve(&service, "a", 3).unwrap();
        assert_eq!(left(&service, "a"), 2, "{limit}");
        settle(&service, id, 0);
        assert_eq!(left(&service, "a"), 5, "{limit}");
    }
}
