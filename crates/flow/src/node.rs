//! Statistics of one stream of traffic: a resource, its part from one origin or within one context, or all inbound
//! traffic.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{Ordering, fence},
    },
    time::Duration,
};

use tidegate_core::{
    Nanos,
    stats::{Counts, Event, Headroom, Layout, Passed, Ring, Slot, Window},
};

use crate::borrowed::{Borrowed, Usage};

/// [`Node::pass_far`] admits only calls of at most this fraction of a bound. A call that it admits has to be withdrawn only if
/// dozens of others come in between.
const FAR: u64 = 64;

/// The units that may pass in a second, and that may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) passed: u64,
    pub(crate) in_flight: u64,
}

impl Bounds {
    pub(crate) const NONE: Self = Self { passed: u64::MAX, in_flight: u64::MAX };

    /// Bounds that are at least as strict as both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { passed: self.passed.min(other.passed), in_flight: self.in_flight.min(other.in_flight) }
    }

    /// Whether a call of `n` units is small beside the bounds. An entry of zero units is not a call.
    #[inline]
    const fn are_far(self, n: u32) -> bool {
        n > 0 && n as u64 <= self.passed / FAR && n as u64 <= self.in_flight / FAR
    }
}

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
        Self { window, borrowed: Borrowed::default(), watched: Mutex::default() }
    }

    /// Returns a ring that counts passed units in slots of `layout` for as long as a rule of another resource holds it.
    pub(crate) fn watched(&self, layout: Layout) -> Arc<Ring<1, 0>> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|ring| ring.strong_count() > 0);
        let known = watched.iter().filter_map(Weak::upgrade).find(|ring| ring.layout() == layout);
        known.unwrap_or_else(|| {
            let ring = Arc::new(Ring::new(layout));
            watched.push(Arc::downgrade(&ring));
            ring
        })
    }

    #[inline]
    pub(crate) const fn window(&self) -> &Window {
        &self.window
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

    /// Admits `n` units in one atomic step if `check` agrees, as [`Window::pass_if`] does.
    #[inline]
    pub(crate) fn pass_if<E>(
        &self,
        now: Nanos,
        n: u32,
        mut check: impl FnMut(Usage<'_>) -> Result<(), E>,
    ) -> Result<Passed, E> {
        self.settle(now);
        self.window.pass_if(now, n, |look| self.borrowed.with(look, false, &mut check))
    }

    /// Admits `n` units with one addition while the bounds are far away, and nothing is borrowed. `None` says nothing about the
    /// bounds: call [`pass_if`](Self::pass_if) instead. `headroom` must be this node's own.
    #[inline]
    pub(crate) fn pass_far(&self, now: Nanos, n: u32, bounds: Bounds, headroom: &Headroom) -> Option<Passed> {
        if !bounds.are_far(n) {
            return None;
        }
        let passed = self.window.pass_far(now, n, bounds.passed, bounds.in_flight, headroom)?;
        // Acquire: read after the addition. A reservation marks the count that the addition changes. A reservation that
        // marked it before is visible here, and a later one sees the addition.
        fence(Ordering::Acquire);
        if self.borrowed.is_any() {
            // An addition alone does not see borrowed units.
            self.window.take_back(n, passed);
            return None;
        }
        Some(passed)
    }

    /// Runs `look` on the usage that the check of [`pass_if`](Self::pass_if) would see. `may_borrow` skips rules from
    /// whose later slots a call may borrow.
    #[inline]
    pub(crate) fn look<T>(&self, now: Nanos, may_borrow: bool, look: impl Fn(Usage<'_>) -> T) -> T {
        self.settle(now);
        self.window.look(now, |seen| self.borrowed.with(seen, may_borrow, &look))
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

    /// Returns the sums over the last interval of the gate's layout (one second by default) at `now`.
    #[must_use]
    pub fn counts(&self, now: Nanos) -> Counts {
        self.settle(now);
        self.window.counts(now, self.window.layout().whole())
    }

    /// Returns the sum of one event over the last interval at `now`.
    #[must_use]
    pub fn sum(&self, now: Nanos, event: Event) -> u64 {
        self.settle(now);
        self.window.sum(now, event, self.window.layout().whole())
    }

    /// Returns the slots of the last interval at `now`, oldest first. Slots without traffic are left out, except for
    /// the current one.
    #[must_use]
    pub fn slots(&self, now: Nanos) -> Vec<Slot> {
        self.settle(now);
        self.window.slots(now, self.window.layout().whole())
    }

    /// Returns the seconds with traffic in the last minute at `now`, oldest first, including the current one.
    #[must_use]
    pub fn seconds(&self, now: Nanos) -> Vec<Slot> {
        self.settle(now);
        self.window.seconds(now)
    }

    /// Returns the units in flight, including those that wait for their start.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // Read the borrowed units first: units that pass in between are counted twice but never missed.
        let borrowed = self.borrowed.total();
        self.window.in_flight() + borrowed
    }

    /// Returns the shortest response time in the last interval at `now`.
    #[must_use]
    pub fn min_rt(&self, now: Nanos) -> Option<Duration> {
        self.window.min_rt(now, self.window.layout().whole())
    }
}
