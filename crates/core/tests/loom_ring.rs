//! The ring under every interleaving of a few threads:
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom_ring`.
#![cfg(loom)]

use std::time::Duration;

use loom::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
};
use tidegate_core::{
    Nanos,
    stats::{Headroom, Layout, Ring, Trailing, View, Window},
};

const SLOT: u64 = 100;

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn layout(slots: u32) -> Layout {
    Layout::new(slots, Duration::from_millis(SLOT * u64::from(slots))).unwrap()
}

fn whole(slots: u32) -> View {
    layout(slots).whole()
}

/// Explores every interleaving with at most this many preemptions.
fn is_long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some()
}

fn model(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(check);
}

#[test]
fn adds_that_race_with_a_turn_are_counted_once_in_their_slot_or_the_newest() {
    // Without the second look of a count's move it takes four preemptions to go wrong, which take
    // minutes.
    model(if is_long() { 4 } else { 3 }, || {
        let ring = Arc::new(Ring::<1, 0>::new(layout(2)));
        ring.turn_to(ms(0));
        ring.add(0, 1);
        let add = |at| {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.turn_to(ms(at));
                ring.add(0, 1)
            })
        };
        // One late for the slot that the other two begin.
        let (late, other) = (add(0), add(SLOT));
        ring.turn_to(ms(SLOT));
        let mine = ring.add(0, 1);
        let (late, other) = (late.join().unwrap(), other.join().unwrap());
        assert!(mine.is_same_slot(other));
        assert_eq!(ring.sum(0, ms(SLOT), whole(2)), 4);
        assert_eq!(
            ring.sum(0, ms(SLOT), whole(1)),
            2 + u64::from(late.is_same_slot(mine))
        );
    });
}

#[test]
fn adds_lose_nothing_while_slots_are_skipped_and_used_again() {
    model(if is_long() { 3 } else { 2 }, || {
        let ring = Arc::new(Ring::<1, 0>::new(layout(1)));
        let other = {
            let ring = ring.clone();
            thread::spawn(move || {
                for at in [SLOT, 4 * SLOT] {
                    ring.turn_to(ms(at));
                    ring.add(0, 1);
                }
            })
        };
        let mut before = ring.tally(0);
        for at in [2 * SLOT, 3 * SLOT] {
            ring.turn_to(ms(at));
            ring.add(0, 1);
            let now = ring.tally(0);
            assert!(now.since(before) >= 1);
            before = now;
        }
        other.join().unwrap();
        let newest = ring.sum(0, ms(4 * SLOT), whole(1));
        assert!((1..=3).contains(&newest));
    });
}

#[test]
fn a_reader_sees_each_add_in_one_slot() {
    model(3, || {
        let ring = Arc::new(Ring::<1, 0>::new(layout(2)));
        ring.turn_to(ms(0));
        ring.add(0, 5);
        // The reader is the spawned one: loom knows of a word's last access alone, so a reader that
        // has finished before the writer begins, and the writer's own loads, would hide each other,
        // and one order be all that is tried.
        let reader = {
            let ring = ring.clone();
            thread::spawn(move || {
                (
                    ring.sum(0, ms(SLOT), whole(2)),
                    ring.sum(0, ms(SLOT), whole(1)),
                )
            })
        };
        ring.turn_to(ms(SLOT));
        ring.add(0, 3);
        let (both, newest) = reader.join().unwrap();
        // Both slots in view: five before the writer's three, never less, never half.
        assert!(both == 5 || both == 8, "{both}");
        assert!(newest == 0 || newest == 3, "{newest}");
        assert_eq!(ring.sum(0, ms(2 * SLOT), whole(2)), 3);
    });
}

/// One of two places in two slots is taken, two ask for the other in the slot that follows.
fn one_place_for_two(admit: impl Fn(&Ring<1, 0>, u64) -> bool + Send + Sync + Clone + 'static) {
    let ring = Arc::new(Ring::<1, 0>::new(layout(2)));
    assert!(admit(&ring, 0));
    let others: Vec<_> = [SLOT, SLOT]
        .into_iter()
        .map(|at| {
            let (ring, admit) = (ring.clone(), admit.clone());
            thread::spawn(move || admit(&ring, at))
        })
        .collect();
    let admitted = others
        .into_iter()
        .map(|other| other.join().unwrap())
        .filter(|&admitted| admitted)
        .count();
    assert_eq!(admitted, 1, "one place was left for two");
    assert_eq!(ring.sum(0, ms(SLOT), whole(2)), 2);
    // The first slot leaves, with its one place.
    assert!(admit(&ring, 2 * SLOT));
    assert!(!admit(&ring, 2 * SLOT));
}

fn at_most_two(ring: &Ring<1, 0>, view: &Trailing) -> bool {
    let fits = |tally, head| match view.used(ring, 0, tally, head) {
        Some(used) if used + 1 > 2 => Err(()),
        _ => Ok(()),
    };
    ring.add_if(0, 1, fits).is_ok()
}

#[test]
fn admissions_never_exceed_a_limit_across_a_turn_and_all_of_it_is_used() {
    model(3, || {
        let trailing = Arc::new(Trailing::new(whole(2)));
        one_place_for_two(move |ring, at| {
            ring.turn_to(ms(at));
            at_most_two(ring, &trailing)
        });
    });
}

#[test]
fn additions_first_never_exceed_a_limit_across_a_turn_either() {
    model(3, || {
        let views = Arc::new((Headroom::new(whole(2)), Trailing::new(whole(2))));
        one_place_for_two(move |ring, at| {
            let head = ring.turn_to(ms(at));
            let (headroom, trailing) = &*views;
            let withdraw = |added| {
                ring.undo(0, 1, added);
            };
            headroom.add(ring, 0, 1, 2, head, withdraw).is_some() || at_most_two(ring, trailing)
        });
    });
}

#[test]
fn calls_that_are_only_added_never_exceed_half_of_the_bound_in_flight() {
    model(3, || {
        let window = Arc::new((Window::new(layout(1)), Headroom::new(whole(1))));
        let out = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let call = |(window, headroom): &(Window, Headroom),
                    out: &loom::sync::atomic::AtomicUsize| {
            if window.pass_far(ms(0), 1, 100, 2, headroom).is_some() {
                assert_eq!(out.fetch_add(1, Relaxed), 0, "one of two");
                out.fetch_sub(1, Relaxed);
                window.abandon(ms(0), 1, ms(0));
            }
        };
        let other = {
            let (window, out) = (window.clone(), out.clone());
            thread::spawn(move || {
                call(&window, &out);
                call(&window, &out);
            })
        };
        call(&window, &out);
        other.join().unwrap();
        assert_eq!(window.0.in_flight(), 0);
    });
}

#[test]
fn a_place_taken_back_is_there_again_or_stays_in_its_ended_slot() {
    model(3, || {
        let ring = Arc::new(Ring::<1, 0>::new(layout(2)));
        ring.turn_to(ms(0));
        let other = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.turn_to(ms(SLOT));
                ring.add(0, 1);
            })
        };
        let taken = ring.add_if(0, 4, |_, _| Ok::<_, ()>(())).unwrap();
        let undone = ring.undo(0, 4, taken);
        other.join().unwrap();
        let left = if undone { 1 } else { 5 };
        assert_eq!(ring.sum(0, ms(SLOT), whole(2)), left);
    });
}

#[test]
fn calls_in_flight_never_exceed_a_limit_while_others_leave() {
    model(3, || {
        // Count 0 entered, count 1 left.
        let ring = Arc::new(Ring::<2, 0>::new(layout(1)));
        let out = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        ring.turn_to(ms(0));
        let call = |ring: &Ring<2, 0>, out: &loom::sync::atomic::AtomicUsize| {
            let entered = ring.add_if(0, 1, |entered, _| {
                if entered.since(ring.tally(1)) + 1 > 1 {
                    Err(())
                } else {
                    Ok(())
                }
            });
            if entered.is_ok() {
                assert_eq!(
                    out.fetch_add(1, loom::sync::atomic::Ordering::Relaxed),
                    0,
                    "two at once"
                );
                out.fetch_sub(1, loom::sync::atomic::Ordering::Relaxed);
                ring.add(1, 1);
            }
            entered.is_ok()
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (ring, out) = (ring.clone(), out.clone());
                thread::spawn(move || call(&ring, &out))
            })
            .collect();
        let entered = others
            .into_iter()
            .map(|other| other.join().unwrap())
            .filter(|&ok| ok)
            .count();
        assert!(entered >= 1, "nobody was refused without somebody inside");
        assert!(call(&ring, &out), "all have left");
    });
}

#[test]
fn a_gauge_keeps_the_true_minimum_of_each_slot() {
    model(3, || {
        let ring = Arc::new(Ring::<1, 1>::new(layout(2)));
        ring.turn_to(ms(0));
        ring.note_low(0, 9);
        let others: Vec<_> = [(0, 7), (SLOT, 8)]
            .into_iter()
            .map(|(at, value)| {
                let ring = ring.clone();
                thread::spawn(move || {
                    ring.turn_to(ms(at));
                    ring.note_low(0, value);
                })
            })
            .collect();
        for other in others {
            other.join().unwrap();
        }
        let (old, new) = (
            ring.lowest(0, ms(0), whole(1)),
            ring.lowest(0, ms(SLOT), whole(1)),
        );
        assert_eq!(
            ring.lowest(0, ms(SLOT), whole(2)),
            Some(7),
            "the lowest is in one of the slots"
        );
        assert!(new == Some(8) || new == Some(7), "{old:?} {new:?}");
    });
}

#[test]
fn a_read_that_began_earlier_does_not_restore_a_forgotten_value() {
    model(3, || {
        let ring = Arc::new(Ring::<1, 0>::new(layout(2)));
        let trailing = Arc::new(Trailing::new(whole(2)));
        ring.turn_to(ms(0));
        ring.add(0, 5);
        let used = |ring: &Ring<1, 0>, trailing: &Trailing| {
            let (tally, head) = ring.standing(0);
            trailing.used(ring, 0, tally, head)
        };
        let other = {
            let (ring, trailing) = (ring.clone(), trailing.clone());
            thread::spawn(move || used(&ring, &trailing))
        };
        trailing.forget(ring.tally(0));
        ring.add(0, 1);
        let seen = other.join().unwrap().unwrap();
        assert!([0, 1, 5, 6].contains(&seen), "{seen}");
        assert_eq!(used(&ring, &trailing), Some(1));
        ring.turn_to(ms(SLOT));
        assert_eq!(used(&ring, &trailing), Some(1), "in the next slot, too");
        ring.turn_to(ms(2 * SLOT));
        assert_eq!(used(&ring, &trailing), Some(0));
    });
}
