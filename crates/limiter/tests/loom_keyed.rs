//! Every interleaving of two threads on one limiter. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use std::task::{Context, Waker};

use loom::{sync::Arc, thread};
use tidegate_limiter::{
    FairLimiter, HashKeys, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Request,
    SnapshotEntry, acquire_all_at, wait_all,
};

const NOW: Nanos = Nanos::from_secs(9);

fn of_keys(policy: Policy, max_keys: usize) -> Arc<KeyedLimiter<ManualTimer>> {
    // The same buckets in every run.
    let hash = HashKeys::from_seeds(1, 2);
    let builder = KeyedLimiter::builder(policy)
        .max_keys(max_keys)
        .hash_keys(hash)
        .clock(ManualTimer::new(NOW));
    Arc::new(builder.build().unwrap())
}

fn limiter(policy: Policy) -> Arc<KeyedLimiter<ManualTimer>> {
    of_keys(policy, 2)
}

fn ask(limiter: &KeyedLimiter<ManualTimer>, key: &str) -> bool {
    limiter.at(NOW).acquire(key, 1).is_allowed()
}

fn snapshot(limiter: &KeyedLimiter<ManualTimer>) -> Vec<SnapshotEntry> {
    let mut entries = Vec::new();
    limiter.at(NOW).snapshot(|entry| entries.push(entry));
    entries
}

fn one_an_hour() -> Policy {
    Policy::fixed_window("1/1h".parse().unwrap())
}

/// Every interleaving with up to two switches in the middle of things.
fn model(run: impl Fn() + Send + Sync + 'static) {
    model_with(2, run);
}

/// The same for what takes a minute: with one switch, unless the run is a long one.
fn large_model(run: impl Fn() + Send + Sync + 'static) {
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some();
    model_with(if is_long { 2 } else { 1 }, run);
}

fn model_with(switches: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(run);
}

/// Waits for one unit of `key`, and gives up where it is not there.
fn tries_to_wait(limiter: &KeyedLimiter<ManualTimer>, key: &str) -> bool {
    let mut waiting = Box::pin(limiter.wait(key, 1, None));
    waiting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

#[test]
fn a_unit_goes_to_the_waiter_or_the_caller_never_to_both() {
    model(|| {
        let limiter = limiter(one_an_hour());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || tries_to_wait(&limiter, "a"))
        };
        let mine = ask(&limiter, "a");
        assert!(mine != other.join().unwrap());
        // Nobody waits any more: what comes back is for the next caller.
        limiter.at(NOW).refund("a", 1);
        assert!(ask(&limiter, "a"));
    });
}

#[test]
fn a_refunded_unit_reaches_the_waiter() {
    model(|| {
        let limiter = limiter(one_an_hour());
        assert!(ask(&limiter, "a"));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.at(NOW).refund("a", 1))
        };
        let mut waiting = Box::pin(limiter.wait("a", 1, None));
        let mut cx = Context::from_waker(Waker::noop());
        let at_once = waiting.as_mut().poll(&mut cx).is_ready();
        other.join().unwrap();
        // By the refund itself, before the future is polled again.
        assert!(!ask(&limiter, "a"));
        assert!(at_once || waiting.as_mut().poll(&mut cx).is_ready());
    });
}

#[test]
fn a_state_that_moves_to_a_new_policy_is_neither_lost_nor_doubled() {
    model(|| {
        let limiter = limiter(one_an_hour());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || ask(&limiter, "a"))
        };
        let next = Policy::sliding_counter("1/1h".parse().unwrap());
        limiter.at(NOW).set_policy(next).unwrap().finish_at(NOW);
        let mine = ask(&limiter, "a");
        assert!(mine != other.join().unwrap());
    });
}

#[test]
fn a_thread_in_a_replaced_generation_does_not_decide_without_what_a_newer_one_took() {
    model(|| {
        let limiter = limiter(one_an_hour());
        assert!(ask(&limiter, "a"));
        let _ = limiter.at(NOW).set_max_keys(3).unwrap();
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || ask(&limiter, "a"))
        };
        let _ = limiter.at(NOW).set_max_keys(4).unwrap();
        assert!(!ask(&limiter, "a"));
        assert!(!other.join().unwrap());
    });
}

#[test]
fn a_state_that_two_changes_move_at_once_is_neither_lost_nor_doubled() {
    for finish in [false, true] {
        large_model(move || {
            let limiter = limiter(one_an_hour());
            let other = {
                let limiter = limiter.clone();
                thread::spawn(move || ask(&limiter, "a"))
            };
            let next = Policy::sliding_counter("1/1h".parse().unwrap());
            limiter.at(NOW).set_policy(next).unwrap();
            let change = limiter.at(NOW).set_policy(one_an_hour()).unwrap();
            if finish {
                change.finish_at(NOW);
            }
            let mine = ask(&limiter, "a");
            assert!(mine != other.join().unwrap());
        });
    }
}

#[test]
fn a_sweep_that_a_new_change_overtakes_leaves_nothing_behind() {
    model(|| {
        let limiter = limiter(one_an_hour());
        assert!(ask(&limiter, "a"));
        let next = Policy::sliding_counter("1/1h".parse().unwrap());
        limiter.at(NOW).set_policy(next).unwrap();
        let sweeping = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.at(NOW).snapshot(|_| ()))
        };
        limiter.at(NOW).set_policy(one_an_hour()).unwrap();
        assert!(!ask(&limiter, "a"));
        sweeping.join().unwrap();
        assert_eq!(snapshot(&limiter).len(), 1, "one place for the key");
        assert!(!ask(&limiter, "a"));
    });
}

#[test]
fn a_joint_decision_and_a_change_of_policy_do_not_deadlock() {
    large_model(|| {
        let limiter = limiter(one_an_hour());
        assert!(ask(&limiter, "a"));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let both = [
                    Request::keyed(&*limiter, b"a", 1),
                    Request::keyed(&*limiter, b"b", 1),
                ];
                acquire_all_at(&both, NOW).unwrap().is_allowed()
            })
        };
        let next = Policy::sliding_counter("1/1h".parse().unwrap());
        limiter.at(NOW).set_policy(next).unwrap().finish_at(NOW);
        assert!(!other.join().unwrap() && !ask(&limiter, "a"));
    });
}

#[test]
fn a_late_decision_finds_its_generation_retired_or_reused() {
    large_model(|| {
        let limiter = limiter(one_an_hour());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || ask(&limiter, "a"))
        };
        // The third change uses the first change's table again.
        for limit in ["1/2h", "1/3h", "1/4h"] {
            let next = Policy::fixed_window(limit.parse().unwrap());
            limiter.at(NOW).set_policy(next).unwrap().finish_at(NOW);
        }
        let mine = ask(&limiter, "a");
        assert!(mine != other.join().unwrap());
    });
}

#[test]
fn two_threads_that_add_the_same_key_share_one_state() {
    model(|| {
        let limiter = of_keys(one_an_hour(), 8);
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || ask(&limiter, "a"))
        };
        let mine = ask(&limiter, "a");
        assert!(
            mine != other.join().unwrap(),
            "the one unit went to exactly one of them"
        );
    });
}

#[test]
fn two_callers_of_a_limiter_without_keys_share_its_one_unit() {
    for policy in [one_an_hour(), Policy::token_bucket("1/1h".parse().unwrap())] {
        model(move || {
            let limiter = Arc::new(Limiter::with_clock(policy, ManualTimer::new(NOW)));
            let other = {
                let limiter = limiter.clone();
                thread::spawn(move || limiter.acquire(1).is_allowed())
            };
            let mine = limiter.acquire(1).is_allowed();
            assert!(mine != other.join().unwrap());
        });
    }
}

#[test]
fn a_key_that_is_evicted_meanwhile_gets_no_second_allowance() {
    model(|| {
        // Room for one key: the other thread's key pushes the first one out.
        let limiter = of_keys(one_an_hour(), 1);
        let before = ask(&limiter, "a");
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || ask(&limiter, "b"))
        };
        let again = ask(&limiter, "a");
        let _ = other.join().unwrap();
        assert!(before && !again);
        let stats = limiter.stats();
        assert!(stats.keys <= 1);
        assert_eq!(stats.keys + stats.records, 2, "one place for each key");
        assert!(!ask(&limiter, "a") && !ask(&limiter, "b"));
    });
}

#[test]
fn two_keys_that_evict_each_other_keep_one_entry_each() {
    model(|| {
        let limiter = of_keys(one_an_hour(), 1);
        // One is a record, the other in the only cell.
        assert!(ask(&limiter, "a") && ask(&limiter, "b"));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || ask(&limiter, "a"))
        };
        assert!(!ask(&limiter, "b"));
        assert!(!other.join().unwrap());
        let stats = limiter.stats();
        assert_eq!(stats.keys + stats.records, 2, "one place for each key");
    });
}

#[test]
fn the_number_of_changes_is_never_ahead_of_the_policy() {
    let policies =
        ["token-bucket 1/1h", "sliding-log 1/1h"].map(|text| text.parse::<Policy>().unwrap());
    loom::model(move || {
        let limiter = Arc::new(Limiter::with_clock(policies[0], ()));
        let before = limiter.policy_version();
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || (limiter.policy_version(), limiter.policy()))
        };
        limiter.at(NOW).set_policy(policies[1]);
        let (version, policy) = other.join().unwrap();
        assert!(version == before || policy == policies[1]);
    });
}

#[test]
fn a_unit_is_admitted_once_while_the_policy_changes_and_changes_back() {
    let policies =
        ["token-bucket 1/1h", "sliding-log 1/1h"].map(|text| text.parse::<Policy>().unwrap());
    model(move || {
        let limiter = Arc::new(Limiter::with_clock(policies[0], ()));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.at(NOW).acquire(1).is_allowed())
        };
        limiter.at(NOW).set_policy(policies[1]);
        limiter.at(NOW).set_policy(policies[0]);
        let mine = limiter.at(NOW).acquire(1).is_allowed();
        assert!(mine != other.join().unwrap());
    });
}

#[test]
fn a_unit_is_admitted_once_while_the_last_version_takes_over() {
    // The model keeps two versions, so the third policy goes to the last one, and the fourth, too.
    let policies = [
        "token-bucket 1/1h",
        "sliding-log 1/1h",
        "fixed-window 1/1h",
        "token-bucket 1/2h",
    ]
    .map(|text| text.parse::<Policy>().unwrap());
    model(move || {
        let limiter = Arc::new(Limiter::with_clock(policies[0], ()));
        limiter.at(NOW).set_policy(policies[1]);
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.at(NOW).acquire(1).is_allowed())
        };
        limiter.at(NOW).set_policy(policies[2]);
        limiter.at(NOW).set_policy(policies[3]);
        let mine = limiter.at(NOW).acquire(1).is_allowed();
        assert!(mine != other.join().unwrap());
        assert_eq!(limiter.policy(), policies[3]);
    });
}

#[test]
fn two_tenants_of_a_limit_take_no_more_than_the_total() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    // How often each thread got the unit: the model runs in more than one order.
    let wins = std::sync::Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = std::sync::Arc::clone(&wins);
    model(move || {
        // The same buckets in every run.
        let builder = FairLimiter::builder(one_an_hour()).max_tenants(2);
        let builder = builder.hash_keys(HashKeys::from_seeds(1, 2));
        let limiter = Arc::new(builder.clock(ManualTimer::new(NOW)).build().unwrap());
        let other = Arc::clone(&limiter);
        let thread = thread::spawn(move || other.at(NOW).acquire("a", 1).is_allowed());
        let mine = limiter.at(NOW).acquire("b", 1).is_allowed();
        assert!(thread.join().unwrap() ^ mine);
        assert!(limiter.total().at(NOW).peek(1).is_denied());
        counted[usize::from(mine)].fetch_add(1, Relaxed);
    });
    assert!(wins.iter().all(|count| count.load(Relaxed) > 0));
}

#[test]
fn what_a_settled_estimate_returns_is_taken_once() {
    model(|| {
        let limiter = limiter(Policy::fixed_window("2/1h".parse().unwrap()));
        let (decision, estimate) = limiter.at(NOW).acquire_estimate("a", 2);
        assert!(decision.is_allowed());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || ask(&limiter, "a"))
        };
        limiter.at(NOW).settle("a", estimate, 1);
        let mine = ask(&limiter, "a");
        assert!(mine != other.join().unwrap());
        assert_eq!(limiter.at(NOW).peek("a", 0).remaining(), 0);
    });
}

#[test]
fn an_estimate_that_a_reset_ended_returns_nothing() {
    model(|| {
        let limiter = limiter(Policy::fixed_window("2/1h".parse().unwrap()));
        let (_, estimate) = limiter.at(NOW).acquire_estimate("a", 1);
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.at(NOW).settle("a", estimate, 0))
        };
        limiter.at(NOW).reset("a");
        let taken = (0..3).filter(|_| ask(&limiter, "a")).count();
        other.join().unwrap();
        assert_eq!(taken, 2);
        assert_eq!(limiter.at(NOW).peek("a", 0).remaining(), 0);
    });
}

/// Waits for one unit of both keys, and gives up where they are not there.
fn tries_to_wait_for_both(limiter: &KeyedLimiter<ManualTimer>) -> bool {
    let both = [
        Request::keyed(limiter, b"a", 1),
        Request::keyed(limiter, b"b", 1),
    ];
    let mut waiting = Box::pin(wait_all(&both, None));
    let polled = waiting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    polled.is_ready()
}

#[test]
fn a_joint_wait_takes_both_units_or_none() {
    model(|| {
        let limiter = limiter(one_an_hour());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || ask(&limiter, "b"))
        };
        let both = tries_to_wait_for_both(&limiter);
        assert!(both != other.join().unwrap());
        // It left no place in a line: what it did not take is for the next caller.
        assert_eq!((ask(&limiter, "a"), ask(&limiter, "b")), (!both, false));
    });
}

#[test]
fn a_returned_unit_reaches_a_joint_wait_in_any_order() {
    model(|| {
        let limiter = limiter(one_an_hour());
        assert!(ask(&limiter, "b"));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.at(NOW).refund("b", 1))
        };
        let both = [
            Request::keyed(&*limiter, b"a", 1),
            Request::keyed(&*limiter, b"b", 1),
        ];
        let mut waiting = Box::pin(wait_all(&both, None));
        let mut cx = Context::from_waker(Waker::noop());
        let at_once = waiting.as_mut().poll(&mut cx).is_ready();
        other.join().unwrap();
        assert!(at_once || waiting.as_mut().poll(&mut cx).is_ready());
        assert!(!ask(&limiter, "a") && !ask(&limiter, "b"));
    });
}
