//! Every interleaving of a few threads on one cell. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use loom::{sync::Arc, thread};
use tidegate_core::{Algorithm, Nanos, Policy, cell::StateCell};

/// Asks for one, as often as the cell is held.
fn ask(cell: &StateCell, policy: &Policy) -> bool {
    loop {
        if let Some(decision) = cell.try_decide(policy, || Nanos::from_secs(9), 1) {
            return decision.is_allowed();
        }
        thread::yield_now();
    }
}

/// `threads` ask for one each of a limit of one less: one is denied, in every interleaving.
fn never_over(policy: Policy, threads: u32) {
    loom::model(move || {
        let cell = Arc::new(StateCell::new(policy.words()));
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let cell = cell.clone();
                thread::spawn(move || ask(&cell, &policy))
            })
            .collect();
        let mut admitted = u32::from(ask(&cell, &policy));
        for other in others {
            admitted += u32::from(other.join().unwrap());
        }
        assert_eq!(admitted, threads - 1);
    });
}

#[test]
fn a_one_word_state_is_never_over() {
    never_over(Policy::token_bucket("2/1s".parse().unwrap()), 3);
}

#[test]
fn a_wide_state_is_never_over() {
    never_over(Policy::sliding_log("1/1s".parse().unwrap()).unwrap(), 2);
}

/// One thread takes from two cells or from neither while another takes from each alone.
#[test]
fn a_joint_decision_takes_from_both_or_neither() {
    let one = Policy::token_bucket("1/1s".parse().unwrap());
    let two = Policy::fixed_window("1/1s".parse().unwrap());
    loom::model(move || {
        let cells = Arc::new((StateCell::new(one.words()), StateCell::new(two.words())));
        let now = Nanos::from_secs(9);
        let single = {
            let cells = cells.clone();
            thread::spawn(move || ask(&cells.0, &one))
        };
        let (mut a, mut b) = (cells.0.lock(), cells.1.lock());
        let both =
            one.peek(a.words(), now, 1).is_allowed() && two.peek(b.words(), now, 1).is_allowed();
        if both {
            one.record(a.words(), now, 1);
            two.record(b.words(), now, 1);
        }
        drop((a, b));
        let single = single.join().unwrap();
        assert!(
            single != both,
            "the one unit went to exactly one of the two"
        );
        assert_eq!(ask(&cells.1, &two), !both, "and the second cell agrees");
    });
}

/// The state moves from one cell to another and back while a thread asks for the only unit wherever
/// it is.
#[test]
fn a_state_that_moves_between_cells_is_never_over() {
    for policy in [
        Policy::token_bucket("1/1s".parse().unwrap()),
        Policy::sliding_log("1/1s".parse().unwrap()).unwrap(),
    ] {
        loom::model(move || {
            let words = policy.words();
            let cells = Arc::new((StateCell::new(words), StateCell::new(words)));
            cells.1.lock().retire();
            let asking = {
                let cells = cells.clone();
                thread::spawn(move || {
                    // Whoever asks may hold the address of either.
                    [&cells.0, &cells.1, &cells.0].iter().any(|cell| {
                        let decision = cell.try_decide(&policy, || Nanos::from_secs(9), 1);
                        decision.is_some_and(|decision| decision.is_allowed())
                    })
                })
            };
            let carry = |from: &StateCell, to: &StateCell| {
                let mut old = from.lock();
                let mut new = to.resume(words).expect("retired");
                new.words().copy_from_slice(old.words());
                drop(new);
                old.retire();
            };
            carry(&cells.0, &cells.1);
            carry(&cells.1, &cells.0);
            let mine = ask(&cells.0, &policy);
            assert_eq!(u32::from(mine) + u32::from(asking.join().unwrap()), 1);
        });
    }
}
