//! A limiter with everything at once: any numbers that come while it runs (policies of requests,
//! overrides, changes of the policy and of the number of keys), decisions, charges, estimates,
//! refunds, blocks and resets, at any times. No step panics, and no decision has more units left
//! than its limit.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tidegate_limiter::{
    Algorithm as _, AlgorithmSpec, KeyedLimiter, Nanos, Policy, Quota, Request, Until,
    acquire_all_at,
};

/// The algorithm, the limit, how many of its bits are left out, and the window in nanoseconds.
type Numbers = (u8, u64, u8, u64);
/// What is done, two keys, a cost or a time, how many of its bits are left out, and a policy.
type Step = (u8, u8, u8, u64, u8, Numbers);

fn policy((algorithm, limit, less, window): Numbers) -> Option<Policy> {
    let algorithms: Vec<AlgorithmSpec> = AlgorithmSpec::all().collect();
    let algorithm = algorithms[usize::from(algorithm) % algorithms.len()];
    // Small numbers are as frequent as large ones.
    let limit = limit >> (less % 64);
    let policy = if algorithm.limits_rate() {
        let window = Duration::from_nanos(window >> (less / 4));
        algorithm.policy(Quota::new(limit, window).ok()?).ok()?
    } else {
        algorithm.permits(limit).ok()?
    };
    // Longer states take memory and show nothing more.
    (policy.words() < 2_000).then_some(policy)
}

fuzz_target!(|input: (Numbers, Vec<Step>)| {
    let (first, steps) = input;
    let Some(first) = policy(first) else { return };
    let Ok(limiter) = KeyedLimiter::builder(first).max_keys(8).build() else {
        return;
    };
    let mut now = Nanos::from_secs(1_000);
    for (step, key, other, number, less, numbers) in steps {
        let (key, cost) = ([key % 16], number >> (less % 64));
        let decision = match (step % 16, policy(numbers)) {
            (0, _) => limiter.at(now).acquire(key, cost),
            (1, Some(policy)) => limiter.at(now).acquire_with(&policy, key, cost),
            (2, policy) => {
                let other = [other % 16];
                let both = [
                    Request::keyed(&limiter, &key, cost),
                    Request::keyed(&limiter, &other, cost / 2).with_policy(policy.as_ref()),
                ];
                let _ = acquire_all_at(&both, now);
                continue;
            }
            (3, _) => limiter.at(now).charge(key, cost),
            (4, Some(policy)) => limiter.at(now).charge_with(&policy, key, cost),
            (5, _) => {
                let (decision, estimate) = limiter.at(now).acquire_estimate(key, cost);
                if decision.is_allowed() {
                    limiter.at(now).settle(key, estimate, cost >> (other % 64));
                }
                decision
            }
            (6, _) => {
                limiter.at(now).refund(key, cost);
                continue;
            }
            (7, Some(policy)) => {
                let _ = limiter.at(now).set_override(key, policy);
                continue;
            }
            (8, _) => {
                limiter.at(now).remove_override(key);
                continue;
            }
            (9, _) => {
                let _ = limiter.at(now).block(key, Until(now.saturating_add(Nanos::new(cost))));
                continue;
            }
            (10, _) => {
                limiter.at(now).unblock(key);
                continue;
            }
            (11, _) => {
                limiter.at(now).reset(key);
                continue;
            }
            (12, Some(policy)) => {
                let _ = limiter.at(now).set_policy(policy);
                continue;
            }
            (13, _) => {
                let _ = limiter.at(now).set_max_keys(usize::from(other % 32) + 1);
                continue;
            }
            (14, _) => limiter.at(now).peek(key, cost),
            _ => {
                now = now.saturating_add(Nanos::new(cost));
                continue;
            }
        };
        assert!(decision.remaining() <= decision.limit(), "{decision:?}");
    }
});
