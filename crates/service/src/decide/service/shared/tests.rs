use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tidegate_core::DenialReason;

use super::*;
use crate::{
    decide::{
        limits::{Act, Limit, Limits},
        service::joint::take_in_memory,
    },
    rules,
};

/// The beginning of an hour.
const START: Nanos = Nanos::from_secs(1_800_000_000);
const RULES: &str = "limits:
  - {name: api, limit: 5000/1h, algorithm: fixed-window, shares: {weights: {a: 3}, ceiling: 90%}}
  - {name: tokens, limit: 8000/1h, algorithm: fixed-window, shares: {by: key, guarantee: {b/1: 20%}}}
  - {name: per-key, limit: 900/1h, algorithm: fixed-window}
  - {name: bucket, limit: 1000/1s, burst: 100, algorithm: token-bucket, shares: {}, deny: [mallory]}
";
const NAMES: [&str; 3] = ["api", "tokens", "per-key"];
const KEYS: [&str; 5] = ["a/1", "a/2", "b/1", "c", "d/1/2"];

fn limits() -> Limits {
    let rules = rules::parse(RULES).expect("the rules are well formed");
    Limits::new(rules, 1 << 10, |_| None, START).expect("there is memory")
}

fn limit(limits: &Limits, name: &str) -> Arc<Limit> {
    Arc::clone(limits.limit(name.as_bytes()).expect("it is in the rules"))
}

fn decide(limit: &Limit, act: Act, key: &str, cost: u64, now: Nanos) -> Decision {
    let decision = limit.decide_in_memory(act, key.as_bytes(), cost, now);
    decision.expect("it is in memory")
}

#[test]
fn threads_take_all_or_nothing_and_every_unit_is_counted_once() {
    let limits = limits();
    let each = NAMES.map(|name| limit(&limits, name));
    // A keyed limit is asked about one key, so that it has one number as well.
    let key_of = |at: usize, key: &'static str| if at == 2 { "one" } else { key };
    let (taken, steps) = (NAMES.map(|_| AtomicU64::new(0)), AtomicU64::new(0));
    let (refused, admitted) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (each, taken, steps, refused, admitted) =
                (&each, &taken, &steps, &refused, &admitted);
            scope.spawn(move || {
                for i in 0..4_000_usize {
                    let now = START.saturating_add(Nanos::from_micros(steps.fetch_add(1, Relaxed)));
                    let (key, cost) = (KEYS[(i * 7 + thread) % 5], 1 + (i % 3) as u64);
                    match (i + thread) % 6 {
                        at @ 0..3 => {
                            let key = key_of(at, key);
                            if decide(&each[at], Act::Take, key, cost, now).is_allowed() {
                                taken[at].fetch_add(cost, Relaxed);
                            }
                        }
                        3 => {
                            let up_to = each[0].take_up_to_in_memory(key.as_bytes(), cost, now);
                            taken[0].fetch_add(up_to.expect("it is in memory").0, Relaxed);
                        }
                        order => {
                            let mut at: Vec<usize> = (0..3).collect();
                            at.rotate_left(order % 3 + i % 2);
                            let part = |at: &usize| {
                                let key = key_of(*at, key).as_bytes();
                                Part::new(Arc::clone(&each[*at]), key, cost)
                            };
                            let parts: Vec<_> = at.iter().map(part).collect();
                            let all = take_in_memory(&parts, now).expect("there is room");
                            if all.iter().all(Decision::is_allowed) {
                                admitted.fetch_add(1, Relaxed);
                                for taken in taken {
                                    taken.fetch_add(cost, Relaxed);
                                }
                            } else {
                                refused.fetch_add(1, Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });
    let now = START.saturating_add(Nanos::from_micros(steps.into_inner()));
    for ((limit, taken), key) in each.iter().zip(taken).zip(["x", "x", "one"]) {
        let left = decide(limit, Act::Peek, key, 0, now).remaining();
        let most = limit.spec().policy.limit;
        assert_eq!(taken.into_inner() + left, most, "{:?}", limit.spec().name);
    }
    let (refused, admitted) = (refused.into_inner(), admitted.into_inner());
    assert!(refused > 100 && admitted > 100, "{refused}, {admitted}");
}

#[test]
fn a_share_that_refuses_takes_nothing_from_the_other_limits() {
    let limits = limits();
    let (bucket, per_key) = (limit(&limits, "bucket"), limit(&limits, "per-key"));
    let joint = |key: &'static str, now| {
        let part = |limit: &Arc<Limit>| Part::new(Arc::clone(limit), key.as_bytes(), 1);
        take_in_memory(&[part(&per_key), part(&bucket)], now).expect("there is room")
    };
    // Two tenants want all of it.
    let mut now = START;
    for ms in 0..2_000_u64 {
        now = START.saturating_add(Nanos::from_millis(ms));
        for tenant in ["a", "b"] {
            let _ = decide(&bucket, Act::Take, tenant, 1, now);
            let _ = decide(&bucket, Act::Take, tenant, 1, now);
        }
    }
    let _ = decide(&bucket, Act::Charge, "a/9", 200, now);
    now = now.saturating_add(Nanos::from_millis(190));
    assert!(decide(&bucket, Act::Peek, "c", 1, now).is_allowed());
    let all = joint("a/1", now);
    assert!(all[0].is_allowed() && all[1].is_denied(), "{all:?}");
    assert_eq!(decide(&per_key, Act::Peek, "a/1", 0, now).remaining(), 900);
    let wait = all[1].retry_after().expect("it ends");
    let all = joint("a/1", now.saturating_add(wait.into()));
    assert!(all.iter().all(Decision::is_allowed), "{all:?}");
    // A tenant that the rules deny, alone and together.
    let denied = decide(&bucket, Act::Take, "mallory/1", 1, now);
    assert_eq!(denied.reason(), Some(DenialReason::DenyListed));
    let all = joint("mallory/1", now);
    assert_eq!(all[1].reason(), Some(DenialReason::DenyListed));
    assert!(all[0].is_allowed());
    let twice = [
        Part::new(Arc::clone(&bucket), b"a", 1),
        Part::new(bucket, b"b", 1),
    ];
    let refused = take_in_memory(&twice, now).expect_err("it is named twice");
    assert!(refused.to_string().contains("names it twice"), "{refused}");
}
