//! Statistics of one traffic: a resource's, an origin's or a context's part of it, or all that comes in.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tidegate_core::{
    Nanos,
    stats::{Counts, Event, Layout, Passed, Ring, Slot, Window},
};

use crate::borrowed::{Borrowed, Usage};

/// The statistics of one traffic.
pub struct Node {
    window: Window,
    borrowed: Borrowed,
    watched: Mutex<Vec<Weak<Ring<1, 0>>>>,
}

impl Node {
    pub(crate) fn new(layout: Layout) -> Self {
        // The gate's layout was checked when the gate was built.
        let window = Window::with_minute(layout).unwrap_or_else(|_| Window::new(layout));
        Self { window, borrowed: Borrowed::default(), watched: Mutex::default() }
    }

    /// What passes in slots of `layout`, counted for as long as a rule of another resource wants to know.
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

    /// What is borrowed from the window's slots to come.
    #[inline]
    pub(crate) const fn borrowed(&self) -> &Borrowed {
        &self.borrowed
    }

    /// Counts the borrowed units whose slot has come as passed.
    #[inline]
    pub(crate) fn settle(&self, now: Nanos) {
        self.borrowed.settle(&self.window, now);
    }

    /// Lets `n` units through if `check` agrees, in one step, as [`Window::pass_if`].
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

    /// What [`pass_if`](Self::pass_if) would let its check see; `may_borrow` passes over rules from whose later slots a
    /// call may borrow.
    #[inline]
    pub(crate) fn look<T>(&self, now: Nanos, may_borrow: bool, look: impl Fn(Usage<'_>) -> T) -> T {
        self.settle(now);
        self.window.look(now, |seen| self.borrowed.with(seen, may_borrow, &look))
    }

    /// Reserves `n` units in a slot to come if `check` agrees: see [`Borrowed::reserve`].
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

    /// The sums of the last interval of the gate's layout (a second, by default) at `now`.
    #[must_use]
    pub fn counts(&self, now: Nanos) -> Counts {
        self.settle(now);
        self.window.counts(now, self.window.layout().whole())
    }

    /// How much of one event there was in the last interval at `now`.
    #[must_use]
    pub fn sum(&self, now: Nanos, event: Event) -> u64 {
        self.settle(now);
        self.window.sum(now, event, self.window.layout().whole())
    }

    /// The slots of the last interval at `now`, oldest first; those without traffic are left out, but for the current.
    #[must_use]
    pub fn slots(&self, now: Nanos) -> Vec<Slot> {
        self.settle(now);
        self.window.slots(now, self.window.layout().whole())
    }

    /// The seconds of the last minute at `now` that saw traffic, oldest first, the current one included.
    #[must_use]
    pub fn seconds(&self, now: Nanos) -> Vec<Slot> {
        self.settle(now);
        self.window.seconds(now)
    }

    /// The units in flight, those that wait for their start included.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // The borrowed ones first: those that pass in between are seen twice, never not at all.
        let borrowed = self.borrowed.total();
        self.window.in_flight() + borrowed
    }

    /// The shortest response time of the last interval at `now`.
    #[must_use]
    pub fn min_rt(&self, now: Nanos) -> Option<Duration> {
        self.window.min_rt(now, self.window.layout().whole())
    }
}
