use std::time::Duration;

use loom::{sync::Arc, thread};
use tidegate_core::stats::Trailing;

use super::*;
use crate::node::Node;

/// Two slots of half a second. With two stripes, each has 16 of 64 units.
const BOUNDS: Bounds = Bounds { passed: 64, in_flight: u64::MAX };
const FIRST: Nanos = Nanos::from_millis(1_000);
const SECOND: Nanos = Nanos::from_millis(1_500);

struct Striped {
    node: Node,
    striping: Striping,
    headroom: Headroom,
    limit: Trailing,
}

impl Striped {
    /// A node whose stripes are for `BOUNDS`, with `passed` units in the first slot of the main window.
    fn new(passed: u32) -> Self {
        let layout = Layout::new(2, Duration::from_secs(1)).unwrap();
        let node = Node::new(layout);
        node.set_stripes(Stripes::new(layout, 2));
        let headroom = Headroom::new(layout.whole());
        let striped =
            Self { node, striping: Striping::new(2, 0), headroom, limit: Trailing::new(layout.whole()) };
        // The first call divides the bounds.
        assert!(!striped.is_striped(striped.far(FIRST)));
        striped.node.pass_now(FIRST, passed - 1);
        striped
    }

    /// The same with open stripes, and in the second slot.
    fn open(passed: u32) -> Self {
        let striped = Self::closed(passed);
        striped.open_stripes(SECOND);
        striped
    }

    /// The same with stripes that were closed in the first slot.
    fn closed(passed: u32) -> Self {
        let striped = Self::new(passed);
        striped.node.turn(SECOND);
        striped
    }

    fn open_stripes(&self, now: Nanos) {
        self.node.prepare(self.node.stripes().unwrap(), now, BOUNDS);
    }

    fn far(&self, now: Nanos) -> Option<Admitted> {
        self.node.pass_far(now, 1, BOUNDS, &self.headroom, &self.striping)
    }

    fn is_striped(&self, admitted: Option<Admitted>) -> bool {
        admitted.is_some_and(|admitted| admitted.place != Place::MAIN)
    }

    fn exactly(&self, now: Nanos, n: u32) -> bool {
        let admitted = self.node.pass_if(now, n, |usage| {
            usage.fits(&self.limit, BOUNDS.passed, n, false, (now, 500_000_000)).map_err(drop)
        });
        admitted.is_ok()
    }

    fn passed(&self) -> u64 {
        self.node.sum(SECOND, Event::Pass)
    }
}

fn model(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(check);
}

#[test]
fn an_entry_in_a_stripe_and_an_exact_one_never_pass_the_limit_together() {
    model(2, || {
        let striped = Arc::new(Striped::open(30));
        let other = {
            let striped = striped.clone();
            thread::spawn(move || striped.is_striped(striped.far(SECOND)))
        };
        // There is room for 34 units if no other call enters.
        let exactly = striped.exactly(SECOND, 34);
        let in_stripe = other.join().unwrap();
        assert!(!(exactly && in_stripe));
        assert_eq!(striped.passed(), 30 + if exactly { 34 } else { 0 } + u64::from(in_stripe));
    });
}

#[test]
fn stripes_that_open_in_a_new_slot_and_an_exact_entry_never_pass_the_limit_together() {
    model(2, || opens_beside_an_exact_entry(Striped::closed(30), SECOND));
}

#[test]
fn stripes_that_open_and_an_exact_entry_of_the_slot_before_never_pass_the_limit_together() {
    // Turning takes many steps.
    model(1, || opens_beside_an_exact_entry(Striped::new(30), FIRST));
}

fn opens_beside_an_exact_entry(striped: Striped, late: Nanos) {
    let striped = Arc::new(striped);
    let other = {
        let striped = striped.clone();
        thread::spawn(move || {
            striped.node.turn(SECOND);
            striped.open_stripes(SECOND);
            striped.is_striped(striped.far(SECOND))
        })
    };
    // There is room for 34 units if no other call enters.
    let exactly = striped.exactly(late, 34);
    let in_stripe = other.join().unwrap();
    assert!(!(exactly && in_stripe));
    assert_eq!(striped.passed(), 30 + if exactly { 34 } else { 0 } + u64::from(in_stripe));
}

#[test]
fn an_entry_in_a_stripe_and_a_reservation_never_pass_the_limit_together() {
    model(2, || {
        let striped = Arc::new(Striped::open(30));
        let other = {
            let striped = striped.clone();
            thread::spawn(move || striped.far(SECOND).is_some())
        };
        // The units of the first slot are out of view in the slot after the second one.
        let limit = 36;
        let reserved = striped.node.reserve(SECOND, 4, 36, |usage| {
            usage.fits(&striped.limit, limit, 36, false, (SECOND, 500_000_000)).map_err(drop)
        });
        let far = other.join().unwrap();
        assert!(!(reserved.is_ok() && far), "one unit of the second slot is in view");
        assert_eq!(striped.node.in_flight(), 30 + u64::from(far) + if reserved.is_ok() { 36 } else { 0 });
    });
}

#[test]
fn new_bounds_hold_for_entries_that_kept_to_the_old_ones_meanwhile() {
    model(2, || {
        let striped = Arc::new(Striped::open(2));
        let other = {
            let striped = striped.clone();
            thread::spawn(move || striped.is_striped(striped.far(SECOND)))
        };
        // Half a unit for each stripe, so they cannot be divided as long as one has a unit.
        let few = Bounds { passed: 2, in_flight: u64::MAX };
        let stripes = striped.node.stripes().unwrap();
        striped.node.prepare(stripes, SECOND, few);
        let in_stripe = other.join().unwrap();
        assert!(!(in_stripe && stripes.are_for(few)));
    });
}
