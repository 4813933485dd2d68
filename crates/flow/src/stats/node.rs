//! Statistics of one stream of traffic: a resource, its part from one origin or within one context,
//! or all inbound traffic.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tidegate_core::{
    Nanos,
    stats::{Counts, Event, Headroom, Layout, Passed, Ring, Slot, View, Window},
};

use crate::{
    stats::{
        borrowed::{Borrowed, Usage},
        bounds::Bounds,
    },
    sync::{Ordering, fence},
};

/// The statistics of one stream of traffic.
pub struct Node {
    window: Window,
    borrowed: Borrowed,
    watched: Mutex<Vec<Weak<Ring<1, 0>>>>,
}

impl Node {
    pub(crate) fn new(layout: Layout) -> Self {
        // The layout was checked when the gate was built.
        let window = Window::with_minute(layout).unwrap_or_else(|_| Window::new(layout));
        Self {
            window,
            borrowed: Borrowed::default(),
            watched: Mutex::default(),
        }
    }

    /// Returns a ring that counts passed units in slots of `layout` for as long as a rule of
    /// another resource holds it.
    pub(crate) fn watched(&self, layout: Layout) -> Arc<Ring<1, 0>> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|ring| ring.strong_count() > 0);
        let known = watched
            .iter()
            .filter_map(Weak::upgrade)
            .find(|ring| ring.layout() == layout);
        known.unwrap_or_else(|| {
            let ring = Arc::new(Ring::new(layout));
            watched.push(Arc::downgrade(&ring));
            ring
        })
    }

    pub(crate) const fn layout(&self) -> Layout {
        self.window.layout()
    }

    /// Returns the units borrowed from the window's future slots.
    #[inline]
    pub(crate) const fn borrowed(&self) -> &Borrowed {
        &self.borrowed
    }

    /// Counts the borrowed units whose slot has begun as passed.
    #[inline]
    pub(crate) fn settle(&self, now: Nanos) {
        self.borrowed.settle(&self.window, now);
    }

    /// Ensures that the seconds before `now` are complete: a call that counts later counts in the
    /// second of `now`.
    pub(crate) fn turn(&self, now: Nanos) {
        self.settle(now);
        self.window.turn(now);
    }

    /// Admits `n` units in one atomic step if `check` agrees, as [`Window::pass_if`] does.
    #[inline]
    pub(crate) fn pass_if<E>(
        &self,
        now: Nanos,
        n: u32,
        mut check: impl FnMut(Usage<'_>) -> Result<(), E>,
    ) -> Result<Passed, E> {
        self.settle(now);
        self.window.pass_if(now, n, |look| {
            self.borrowed.with(Usage::new(look), &mut check)
        })
    }

    /// Admits `n` units without a check.
    #[inline]
    pub(crate) fn pass(&self, now: Nanos, n: u32) {
        self.window.pass(now, n);
    }

    /// Admits `n` units with one addition while the bounds are far away, and nothing is borrowed.
    /// `None` says nothing about the bounds: call [`pass_if`](Self::pass_if) instead. `headroom`
    /// must be this node's own.
    #[inline]
    pub(crate) fn pass_far(
        &self,
        now: Nanos,
        n: u32,
        bounds: Bounds,
        headroom: &Headroom,
    ) -> Option<Passed> {
        if !bounds.are_far(n) {
            return None;
        }
        let passed = self
            .window
            .pass_far(now, n, bounds.passed, bounds.in_flight, headroom)?;
        // Acquire: read after the addition. A reservation marks the count that the addition
        // changes. Reservations before a mark are visible here. A later mark sees the addition.
        fence(Ordering::Acquire);
        if self.borrowed.is_any() {
            // An addition alone does not see borrowed units.
            self.take_back(n, passed);
            return None;
        }
        Some(passed)
    }

    /// Takes back what was admitted, because another limit refused the same call: see
    /// [`Window::take_back`].
    #[cold]
    pub(crate) fn take_back(&self, n: u32, passed: Passed) {
        self.window.take_back(n, passed);
    }

    /// Ends a call of `n` units: see [`Window::complete`].
    #[inline]
    pub(crate) fn complete(&self, now: Nanos, n: u32, rt: Nanos, failed: bool) {
        self.window.complete(now, n, rt, failed);
    }

    /// Ends a call of `n` units that was abandoned: see [`Window::abandon`].
    #[cold]
    pub(crate) fn abandon(&self, now: Nanos, n: u32, rt: Nanos) {
        self.window.abandon(now, n, rt);
    }

    /// Counts `n` of an event that is not a pass.
    pub(crate) fn note(&self, now: Nanos, event: Event, n: u64) {
        self.window.add(now, event, n);
    }

    /// Runs `look` on the usage that the check of [`pass_if`](Self::pass_if) would see.
    /// `may_borrow` skips rules from whose later slots a call may borrow.
    #[inline]
    pub(crate) fn look<T>(&self, now: Nanos, may_borrow: bool, look: impl Fn(Usage<'_>) -> T) -> T {
        self.settle(now);
        self.window.look(now, |seen| {
            let usage = Usage::new(seen);
            self.borrowed.with(
                if may_borrow {
                    usage.with_borrowing()
                } else {
                    usage
                },
                &look,
            )
        })
    }

    /// Reserves `n` units in a future slot if `check` agrees: see [`Borrowed::reserve`].
    pub(crate) fn reserve<E>(
        &self,
        now: Nanos,
        slot: u64,
        n: u32,
        check: impl Fn(Usage<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.settle(now);
        self.borrowed.reserve(&self.window, now, slot, n, check)
    }

    /// Returns the sums over the last interval of the gate's layout (one second by default) at
    /// `now`.
    #[must_use]
    pub fn counts(&self, now: Nanos) -> Counts {
        self.slots(now)
            .into_iter()
            .fold(Counts::default(), |sum, slot| sum.and(slot.counts))
    }

    /// Returns the sum of one event over the last interval at `now`.
    #[must_use]
    pub fn sum(&self, now: Nanos, event: Event) -> u64 {
        self.settle(now);
        self.sum_in(now, event, self.layout().whole())
    }

    /// Returns the sum of one event over the slots of `view` at `now`.
    pub(crate) fn sum_in(&self, now: Nanos, event: Event, view: View) -> u64 {
        self.window.sum(now, event, view)
    }

    /// Returns the slots of the last interval at `now`, oldest first. Slots without traffic are
    /// left out, except for the current one.
    #[must_use]
    pub fn slots(&self, now: Nanos) -> Vec<Slot> {
        self.settle(now);
        self.slots_in(now, self.layout().whole())
    }

    /// Returns the slots of `view` as [`slots`](Self::slots) does.
    pub(crate) fn slots_in(&self, now: Nanos, view: View) -> Vec<Slot> {
        self.window.slots(now, view)
    }

    /// Returns the seconds with traffic in the last minute at `now`, oldest first, including the
    /// current one.
    #[must_use]
    pub fn seconds(&self, now: Nanos) -> Vec<Slot> {
        self.settle(now);
        self.window.seconds(now)
    }

    /// Returns the seconds with traffic in the last minute that ended before `now`, oldest first. They
    /// are complete: a call that counts later counts in a later second.
    #[must_use]
    pub fn ended(&self, now: Nanos) -> Vec<Slot> {
        const SECOND: u64 = 1_000_000_000;
        self.turn(now);
        let mut seconds = self.seconds(now);
        seconds.retain(|second| second.start.get() / SECOND < now.get() / SECOND);
        seconds
    }

    /// Returns how many units passed in the last whole second before the one that contains `now`,
    /// if the node keeps a minute.
    pub(crate) fn passed_last_second(&self, now: Nanos) -> Option<u64> {
        self.window.passed_last_second(now)
    }

    /// Returns the units in flight, including those that wait for their start.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // Read the borrowed units first: units that pass in between are counted twice but never
        // missed.
        let borrowed = self.borrowed.total();
        self.window.in_flight() + borrowed
    }

    /// Returns the shortest response time in the last interval at `now`.
    #[must_use]
    pub fn min_rt(&self, now: Nanos) -> Option<Duration> {
        self.window.min_rt(now, self.layout().whole())
    }
}
