//! Every interleaving of two threads on a tiny table. Run with `RUSTFLAGS="--cfg loom"`.

use crate::table::{HashKeys, Table};
use loom::{sync::Arc, thread};
use tidegate_core::{Algorithm, Nanos, Policy};

fn table(policy: &Policy, max_keys: usize) -> Table {
    Table::new(policy.words(), max_keys).unwrap()
}

fn ask(table: &Table, policy: &Policy, key: &str) -> bool {
    let now = Nanos::from_secs(9);
    table
        .apply(policy, HashKeys::from_seeds(1, 2).tag(key.as_bytes()), now, |state, _| {
            policy.decide(state, now, 1)
        })
        .is_allowed()
}

#[test]
fn two_threads_that_add_the_same_key_share_one_state() {
    let policy = Policy::fixed_window("1/1s".parse().unwrap());
    loom::model(move || {
        let table = Arc::new(table(&policy, 8));
        let other = {
            let table = table.clone();
            thread::spawn(move || ask(&table, &policy, "a"))
        };
        let mine = ask(&table, &policy, "a");
        assert!(mine != other.join().unwrap(), "the one unit went to exactly one of them");
    });
}

#[test]
fn a_key_that_is_evicted_meanwhile_gets_no_second_allowance() {
    let policy = Policy::fixed_window("1/1s".parse().unwrap());
    loom::model(move || {
        // Room for one key: the other thread's key pushes the first one out.
        let table = Arc::new(table(&policy, 1));
        let before = ask(&table, &policy, "a");
        let other = {
            let table = table.clone();
            thread::spawn(move || ask(&table, &policy, "b"))
        };
        let again = ask(&table, &policy, "a");
        let _ = other.join().unwrap();
        assert!(before && !again);
        assert!(table.stats().keys <= 1);
    });
}
