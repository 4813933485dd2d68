//! Every interleaving of two threads on one keyed limiter. Run with `RUSTFLAGS="--cfg loom"`.

use std::task::{Context, Waker};

use loom::{sync::Arc, thread};
use tidegate_core::{Nanos, Policy, clock::ManualTimer};

use super::KeyedLimiter;
use crate::{HashKeys, Request, acquire_all_at};

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

/// Every interleaving with up to two switches in the middle of things.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

/// Waits for one unit of `key`, and gives up where it is not there.
fn tries_to_wait(limiter: &KeyedLimiter<ManualTimer>, key: &str) -> bool {
    let mut waiting = Box::pin(limiter.wait(key, 1, None));
    waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_unit_goes_to_the_waiter_or_the_caller_never_to_both() {
    model(|| {
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
fn a_refunded_unit_reaches_the_waiter() {
    model(|| {
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

#[test]
fn a_state_that_moves_to_a_new_policy_is_neither_lost_nor_doubled() {
    model(|| {
        let limiter = limiter(one_an_hour());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.acquire_at("a", 1, NOW).is_allowed())
        };
        let next = Policy::sliding_counter("1/1h".parse().unwrap());
        limiter.set_policy_at(next, NOW).unwrap().finish_at(NOW);
        let mine = limiter.acquire_at("a", 1, NOW).is_allowed();
        assert!(mine != other.join().unwrap());
    });
}

#[test]
fn a_thread_in_a_replaced_generation_does_not_decide_without_what_a_newer_one_took() {
    model(|| {
        let limiter = limiter(one_an_hour());
        assert!(limiter.acquire_at("a", 1, NOW).is_allowed());
        let _ = limiter.set_max_keys_at(3, NOW).unwrap();
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.acquire_at("a", 1, NOW).is_allowed())
        };
        let _ = limiter.set_max_keys_at(4, NOW).unwrap();
        assert!(limiter.acquire_at("a", 1, NOW).is_denied());
        assert!(!other.join().unwrap());
    });
}

#[test]
fn a_state_that_two_changes_move_at_once_is_neither_lost_nor_doubled() {
    for finish in [false, true] {
        model(move || {
            let limiter = limiter(one_an_hour());
            let other = {
                let limiter = limiter.clone();
                thread::spawn(move || limiter.acquire_at("a", 1, NOW).is_allowed())
            };
            let next = Policy::sliding_counter("1/1h".parse().unwrap());
            limiter.set_policy_at(next, NOW).unwrap();
            let change = limiter.set_policy_at(one_an_hour(), NOW).unwrap();
            if finish {
                change.finish_at(NOW);
            }
            let mine = limiter.acquire_at("a", 1, NOW).is_allowed();
            assert!(mine != other.join().unwrap());
        });
    }
}

#[test]
fn a_sweep_that_a_new_change_overtakes_leaves_nothing_behind() {
    model(|| {
        let limiter = limiter(one_an_hour());
        assert!(limiter.acquire_at("a", 1, NOW).is_allowed());
        let next = Policy::sliding_counter("1/1h".parse().unwrap());
        limiter.set_policy_at(next, NOW).unwrap();
        let sweeping = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.generations.sweep_all(NOW).count_older())
        };
        limiter.set_policy_at(one_an_hour(), NOW).unwrap();
        assert!(limiter.acquire_at("a", 1, NOW).is_denied());
        assert!(sweeping.join().unwrap() <= 1);
        limiter.generations.sweep_all(NOW);
        assert!(limiter.acquire_at("a", 1, NOW).is_denied());
    });
}

#[test]
fn a_joint_decision_and_a_change_of_policy_do_not_deadlock() {
    model(|| {
        let limiter = limiter(one_an_hour());
        assert!(limiter.acquire_at("a", 1, NOW).is_allowed());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let both = [Request::keyed(&*limiter, b"a", 1), Request::keyed(&*limiter, b"b", 1)];
                acquire_all_at(&both, NOW).unwrap().is_allowed()
            })
        };
        let next = Policy::sliding_counter("1/1h".parse().unwrap());
        limiter.set_policy_at(next, NOW).unwrap().finish_at(NOW);
        assert!(!other.join().unwrap() && limiter.acquire_at("a", 1, NOW).is_denied());
    });
}

#[test]
fn a_late_decision_finds_its_generation_retired_or_reused() {
    model(|| {
        let limiter = limiter(one_an_hour());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.acquire_at("a", 1, NOW).is_allowed())
        };
        // The third change uses the first change's table again.
        for limit in ["1/2h", "1/3h", "1/4h"] {
            let next = Policy::fixed_window(limit.parse().unwrap());
            limiter.set_policy_at(next, NOW).unwrap().finish_at(NOW);
        }
        let mine = limiter.acquire_at("a", 1, NOW).is_allowed();
        assert!(mine != other.join().unwrap());
        assert!(limiter.generations.count() <= 3);
    });
}
