//! Every interleaving of two threads on one keyed limiter. Run with `RUSTFLAGS="--cfg loom"`.

use std::task::{Context, Waker};

use loom::{sync::Arc, thread};
use tidegate_core::{Nanos, Policy, clock::ManualTimer};

use super::KeyedLimiter;
use crate::HashKeys;

const NOW: Nanos = Nanos::from_secs(9);

fn limiter(policy: Policy) -> Arc<KeyedLimiter<ManualTimer>> {
    // The same buckets in every run.
    let hash = HashKeys::from_seeds(1, 2);
    let builder = KeyedLimiter::builder(policy).max_keys(2).hash_keys(hash).clock(ManualTimer::new(NOW));
    Arc::new(builder.build().unwrap())
}

fn one_an_hour() -> Policy {
    Policy::fixed_window("1/1h".parse().unwrap())
}

/// Waits for one unit of `key`, and gives up where it is not there.
fn tries_to_wait(limiter: &KeyedLimiter<ManualTimer>, key: &str) -> bool {
    let mut waiting = Box::pin(limiter.wait(key, 1, None));
    waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_unit_goes_to_the_waiter_or_to_the_caller_and_never_to_both() {
    loom::model(|| {
        let limiter = limiter(one_an_hour());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || tries_to_wait(&limiter, "a"))
        };
        let mine = limiter.acquire_at("a", 1, NOW).is_allowed();
        assert!(mine != other.join().unwrap());
        // Nobody waits any more, and no mark was left.
        assert!(!limiter.marks.any());
    });
}

#[test]
fn a_unit_given_back_reaches_whoever_waits_for_it() {
    loom::model(|| {
        let limiter = limiter(one_an_hour());
        assert!(limiter.acquire_at("a", 1, NOW).is_allowed());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.refund_at("a", 1, NOW))
        };
        let mut waiting = Box::pin(limiter.wait("a", 1, None));
        let mut cx = Context::from_waker(Waker::noop());
        let at_once = waiting.as_mut().poll(&mut cx).is_ready();
        other.join().unwrap();
        // By the refund itself, before the future is polled again.
        assert!(limiter.acquire_at("a", 1, NOW).is_denied());
        assert!(at_once || waiting.as_mut().poll(&mut cx).is_ready());
    });
}
