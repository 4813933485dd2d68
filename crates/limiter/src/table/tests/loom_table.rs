//! Every interleaving of two threads on a tiny table. Run with `RUSTFLAGS="--cfg loom"`.

use crate::table::{
    HashKeys, Table,
    record::Spot,
    records::{Put, Records},
};
use loom::{sync::Arc, thread};
use tidegate_core::{Algorithm, Debt, Lasts, Nanos, Policy, Share};

fn table(policy: &Policy, max_keys: usize) -> Table {
    Table::new(policy.words(), max_keys).unwrap()
}

fn ask(table: &Table, policy: &Policy, key: &str) -> bool {
    let now = Nanos::from_secs(9);
    table
        .apply(policy, HashKeys::from_seeds(1, 2).tag_of(key.as_bytes()), now, |state, _| {
            policy.decide(state, now, 1)
        })
        .is_ok_and(|decision| decision.is_allowed())
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
        assert_eq!(table.stats().keys + table.stats().records, 2, "one place for each key");
        assert!(!ask(&table, &policy, "a") && !ask(&table, &policy, "b"));
    });
}

#[test]
fn two_keys_that_evict_each_other_keep_one_entry_each() {
    let policy = Policy::fixed_window("1/1s".parse().unwrap());
    loom::model(move || {
        let table = Arc::new(table(&policy, 1));
        // One is a record, the other in the only cell.
        assert!(ask(&table, &policy, "a") && ask(&table, &policy, "b"));
        let other = {
            let table = table.clone();
            thread::spawn(move || ask(&table, &policy, "a"))
        };
        assert!(!ask(&table, &policy, "b"));
        assert!(!other.join().unwrap());
        assert_eq!(table.stats().keys + table.stats().records, 2, "one place for each key");
    });
}

#[test]
fn a_record_that_moves_is_never_missed() {
    let debt = |share| Debt { share: Share::new(share).unwrap(), lasts: Lasts::Until(Nanos::from_secs(60)) };
    let now = Nanos::from_secs(9);
    loom::model(move || {
        let records = Arc::new(Records::new(4).unwrap());
        let half = records.half();
        // Two prints that share the bucket of the first half, and not that of the second.
        let spot = |print: u32| Spot { first: 0, print: print << 26 | print };
        let same = |spot: Spot| spot.second(half) == Spot { first: 0, print: 0 }.second(half);
        let (mine, others): (Vec<Spot>, Vec<Spot>) = (0..4).map(spot).partition(|&spot| same(spot));
        let (filled, moved) = (mine[0], others[0]);
        assert!(!same(moved));
        // Both buckets of `filled` are full; one of the records could go to its other bucket.
        let own = |at: u32| Spot { first: 0, print: at + 1 };
        for at in 0..13 {
            assert!(same(own(at)));
            assert_eq!(records.put(own(at), debt(9), now, None, false), Put::Kept);
            if at == 6 {
                assert_eq!(records.put(moved, debt(8), now, None, false), Put::Kept);
            }
        }
        let putting = {
            let records = records.clone();
            thread::spawn(move || records.put(filled, debt(7), now, None, false))
        };
        let found = records.take(moved, now);
        assert_eq!(found.map(|debt| debt.share), Share::new(8));
        assert_eq!(putting.join().unwrap(), Put::Kept);
        assert_eq!(records.take(moved, now), None);
        assert_eq!(records.take(filled, now).map(|debt| debt.share), Share::new(7));
    });
}

#[test]
fn a_closed_table_lists_every_inserted_key() {
    let policy = Policy::fixed_window("1/1s".parse().unwrap());
    loom::model(move || {
        let table = Arc::new(table(&policy, 2));
        let other = {
            let table = table.clone();
            thread::spawn(move || ask(&table, &policy, "a"))
        };
        table.close();
        let mut seen = 0;
        table.for_each(|_, _| seen += 1);
        assert_eq!(other.join().unwrap(), seen == 1, "in and seen, or not in");
        assert!(!ask(&table, &policy, "b"));
    });
}
