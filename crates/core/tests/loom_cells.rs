//! Every interleaving of a few threads on one cell. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use loom::{sync::Arc, thread};
use tidegate_core::{Algorithm, Nanos, Policy, cell::StateCell};

/// `threads` ask for one each of a limit of one less: one is denied, in every interleaving.
fn never_over(policy: Policy, threads: u32) {
    loom::model(move || {
        let cell = Arc::new(StateCell::new(policy.words()));
        let ask = move |cell: &StateCell| cell.decide(&policy, Nanos::from_secs(9), 1).is_allowed();
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let cell = cell.clone();
                thread::spawn(move || ask(&cell))
            })
            .collect();
        let mut admitted = u32::from(ask(&cell));
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
            thread::spawn(move || cells.0.decide(&one, now, 1).is_allowed())
        };
        let (mut a, mut b) = (cells.0.lock(), cells.1.lock());
        let both = one.check(a.words(), now, 1).is_allowed() && two.check(b.words(), now, 1).is_allowed();
        if both {
            one.record(a.words(), now, 1);
            two.record(b.words(), now, 1);
        }
        drop((a, b));
        let single = single.join().unwrap();
        assert!(single != both, "the one unit went to exactly one of the two");
        assert_eq!(cells.1.decide(&two, now, 1).is_allowed(), !both, "and the second cell agrees");
    });
}
