//! Statistics of one traffic: a resource's, an origin's or a context's part of it, or all that comes in.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tidegate_core::{
    Nanos,
    stats::{Counts, Event, Layout, Ring, Slot, Window},
};

/// The statistics of one traffic.
pub struct Node {
    window: Window,
    watched: Mutex<Vec<Weak<Ring<1, 0>>>>,
}

impl Node {
    pub(crate) fn new(layout: Layout) -> Self {
        // The gate's layout was checked when the gate was built.
        let window = Window::with_minute(layout).unwrap_or_else(|_| Window::new(layout));
        Self { window, watched: Mutex::default() }
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

    /// The sums of the last interval of the gate's layout (a second, by default) at `now`.
    #[must_use]
    pub fn counts(&self, now: Nanos) -> Counts {
        self.window.counts(now, self.window.layout().whole())
    }

    /// How much of one event there was in the last interval at `now`.
    #[must_use]
    pub fn sum(&self, now: Nanos, event: Event) -> u64 {
        self.window.sum(now, event, self.window.layout().whole())
    }

    /// The slots of the last interval at `now`, oldest first; those without traffic are left out, but for the current.
    #[must_use]
    pub fn slots(&self, now: Nanos) -> Vec<Slot> {
        self.window.slots(now, self.window.layout().whole())
    }

    /// The seconds of the last minute at `now` that saw traffic, oldest first, the current one included.
    #[must_use]
    pub fn seconds(&self, now: Nanos) -> Vec<Slot> {
        self.window.seconds(now)
    }

    /// The units in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.window.in_flight()
    }

    /// The shortest response time of the last interval at `now`.
    #[must_use]
    pub fn min_rt(&self, now: Nanos) -> Option<Duration> {
        self.window.min_rt(now, self.window.layout().whole())
    }
}
