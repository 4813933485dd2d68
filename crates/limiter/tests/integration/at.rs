//! A limiter at a given time does what the limiter does when its clock shows that time.

#![cfg(not(loom))]

use std::time::Duration;

use proptest::prelude::*;
use tidegate_limiter::{
    Clock, FairLimiter, KeyedLimiter, Limiter, ManualClock, Nanos, Penalty, Policy, Until,
};

const START: Nanos = Nanos::from_secs(100);
const SPAN: Duration = Duration::from_millis(900);

/// The operation, the key, the cost, and the milliseconds since the operation before.
type Step = (u8, u64, u64, u64);

fn steps(operations: u8) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..operations, 0..3_u64, 0..9_u64, 0..700_u64), 1..60)
}

fn policy(cost: u64) -> Policy {
    let text = format!("token-bucket:burst=5 {}/1s", cost + 1);
    let penalty = Penalty::new(&[SPAN]).unwrap();
    text.parse::<Policy>().unwrap().block_for(penalty)
}

proptest! {
    #[test]
    fn a_keyed_limiter_does_the_same_at_a_given_time(steps in steps(11)) {
        let build = || KeyedLimiter::builder(policy(3)).max_keys(4);
        let clocked = build().clock(ManualClock::new(START)).build().unwrap();
        let other = build().hash_keys(clocked.hash_keys()).clock(()).build().unwrap();
        for (operation, key, cost, pass) in steps {
            clocked.clock().advance(Duration::from_millis(pass));
            let at = other.at(clocked.clock().now());
            let until = Until(clocked.clock().now().saturating_add(SPAN.into()));
            match operation {
                0 | 1 => prop_assert_eq!(clocked.acquire(key, cost), at.acquire(key, cost)),
                2 => prop_assert_eq!(clocked.acquire_up_to(key, cost), at.acquire_up_to(key, cost)),
                3 => prop_assert_eq!(clocked.charge(key, cost), at.charge(key, cost)),
                4 => prop_assert_eq!(clocked.refund(key, cost), at.refund(key, cost)),
                5 => prop_assert_eq!(clocked.reset(key), at.reset(key)),
                6 => prop_assert_eq!(clocked.block_for(key, SPAN).is_ok(), at.block(key, until).is_ok()),
                7 => prop_assert_eq!(clocked.unblock(key), at.unblock(key)),
                8 => {
                    clocked.set_policy(policy(cost)).unwrap().finish();
                    at.set_policy(policy(cost)).unwrap().finish_at(clocked.clock().now());
                }
                9 => prop_assert_eq!(
                    clocked.set_override(key, policy(cost)).is_ok(),
                    at.set_override(key, policy(cost)).is_ok()
                ),
                _ => prop_assert_eq!(clocked.remove_override(key), at.remove_override(key)),
            }
            for key in 0..3_u64 {
                prop_assert_eq!(clocked.peek(key, 1), at.peek(key, 1));
            }
        }
        clocked.reset_all();
        other.at(clocked.clock().now()).reset_all();
        let both = [(0, 1), (1, 9)];
        prop_assert_eq!(
            clocked.acquire_many(&both),
            other.at(clocked.clock().now()).acquire_many(&both)
        );
    }

    #[test]
    fn a_limiter_does_the_same_at_a_given_time(steps in steps(8)) {
        let clocked = Limiter::with_clock(policy(3), ManualClock::new(START));
        let other = Limiter::with_clock(policy(3), ());
        for (operation, _, cost, pass) in steps {
            clocked.clock().advance(Duration::from_millis(pass));
            let at = other.at(clocked.clock().now());
            match operation {
                0 | 1 => prop_assert_eq!(clocked.acquire(cost), at.acquire(cost)),
                2 => prop_assert_eq!(clocked.acquire_up_to(cost), at.acquire_up_to(cost)),
                3 => prop_assert_eq!(clocked.charge(cost), at.charge(cost)),
                4 => prop_assert_eq!(clocked.refund(cost), at.refund(cost)),
                5 => prop_assert_eq!(clocked.reset(), at.reset()),
                6 => {
                    clocked.block_for(SPAN);
                    other.block(Until(clocked.clock().now().saturating_add(SPAN.into())));
                    if cost > 4 {
                        prop_assert_eq!(clocked.unblock(), at.unblock());
                    }
                }
                _ => {
                    clocked.set_policy(policy(cost));
                    at.set_policy(policy(cost));
                }
            }
            prop_assert_eq!(clocked.peek(1), at.peek(1));
        }
    }

    #[test]
    fn a_fair_limiter_does_the_same_at_a_given_time(steps in steps(5)) {
        let policy: Policy = "token-bucket:burst=5 4/1s".parse().unwrap();
        let build = || FairLimiter::builder(policy).weight(1_u64, 3).unwrap();
        let clocked = build().clock(ManualClock::new(START)).build().unwrap();
        let other = build().hash_keys(clocked.hash_keys()).clock(()).build().unwrap();
        let clock = clocked.total().clock();
        for (operation, tenant, cost, pass) in steps {
            clock.advance(Duration::from_millis(pass));
            let at = other.at(clock.now());
            match operation {
                0 | 1 => prop_assert_eq!(clocked.acquire(tenant, cost), at.acquire(tenant, cost)),
                2 => prop_assert_eq!(
                    clocked.acquire_up_to(tenant, cost),
                    at.acquire_up_to(tenant, cost)
                ),
                3 => prop_assert_eq!(clocked.charge(tenant, cost), at.charge(tenant, cost)),
                _ => prop_assert_eq!(clocked.refund(tenant, cost), at.refund(tenant, cost)),
            }
            for tenant in 0..3_u64 {
                prop_assert_eq!(clocked.peek(tenant, 1), at.peek(tenant, 1));
                let then = clocked.at(clock.now());
                prop_assert_eq!(then.used(tenant), at.used(tenant));
                prop_assert_eq!(then.share(tenant).to_bits(), at.share(tenant).to_bits());
            }
        }
    }
}
