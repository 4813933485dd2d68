//! Statistics of one stream of traffic: a resource, its part from one origin or within one context, or all inbound
//! traffic.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use tidegate_core::{
    Nanos,
    stats::{Counts, Event, Headroom, Layout, Ring, Slot, View, Window},
};

use crate::{
    borrowed::{Borrowed, Usage},
    bounds::Bounds,
    rules::breaker::Stripe,
    stripes::{Admitted, Place, Stripes, Striping, merged},
    sync::{Ordering, fence},
};

/// A node looks whether it is busy whenever its count passes a multiple of this many units.
const LOOK_EVERY: u64 = 4_096;

/// The statistics of one stream of traffic.
///
/// A busy node counts in several windows, so that its threads do not wait for each other. `max_in_flight` is then the sum of
/// the windows' maxima, which is too high if they were reached at different times. All other figures stay exact.
pub struct Node {
    window: Window,
    /// Set once the node is busy.
    stripes: OnceLock<Box<Stripes>>,
    borrowed: Borrowed,
    watched: Mutex<Vec<Weak<Ring<1, 0>>>>,
}

impl Node {
    pub(crate) fn new(layout: Layout) -> Self {
        // The layout was checked when the gate was built.
        let window = Window::with_minute(layout).unwrap_or_else(|_| Window::new(layout));
        Self { window, stripes: OnceLock::new(), borrowed: Borrowed::default(), watched: Mutex::default() }
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

    pub(crate) const fn layout(&self) -> Layout {
        self.window.layout()
    }

    #[inline]
    pub(crate) fn stripes(&self) -> Option<&Stripes> {
        self.stripes.get().map(|stripes| &**stripes)
    }

    fn windows(&self) -> impl Iterator<Item = &Window> {
        std::iter::once(&self.window).chain(self.stripes().into_iter().flat_map(Stripes::windows))
    }

    #[cfg(test)]
    pub(crate) fn set_stripes(&self, stripes: Stripes) {
        assert!(self.stripes.set(Box::new(stripes)).is_ok(), "it had none");
    }

    #[cold]
    fn stripe_if_busy(&self, now: Nanos, striping: &Striping) {
        let Some(stripes) = striping.stripes_for(&self.window, now) else { return };
        if self.stripes.set(Box::new(stripes)).is_err() {
            striping.give_back(); // Another thread was faster.
        }
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

    /// Ensures that the seconds before `now` are complete: a call that counts later counts in the second of `now`.
    pub(crate) fn turn(&self, now: Nanos) {
        self.settle(now);
        for window in self.windows() {
            window.turn(now);
        }
    }

    /// Admits `n` units in one atomic step if `check` agrees, as [`Window::pass_if`] does.
    #[inline]
    pub(crate) fn pass_if<E>(
        &self,
        now: Nanos,
        n: u32,
        mut check: impl FnMut(Usage<'_>) -> Result<(), E>,
    ) -> Result<Admitted, E> {
        self.settle(now);
        let passed = self.window.pass_if(now, n, |look| {
            // Looked up after the count, which those change who make stripes and open them.
            let stripes = self.stripes();
            if stripes.is_some_and(|stripes| !stripes.yield_to(look, n)) {
                return Ok(()); // The window has turned: the addition fails.
            }
            self.borrowed.with(Usage::new(look, stripes, true), &mut check)
        })?;
        Ok(Admitted { passed, place: Place::MAIN })
    }

    /// Admits `n` units without a check.
    #[inline]
    pub(crate) fn pass(&self, now: Nanos, n: u32, striping: &Striping) -> Place {
        if self.stripes().is_none() {
            let passed = self.window.pass(now, n);
            // Acquire: as in `pass_far`.
            fence(Ordering::Acquire);
            if self.stripes().is_none() {
                if is_time_to_look(passed.before(), n) {
                    self.stripe_if_busy(now, striping);
                }
                return Place::MAIN;
            }
            self.take_back(n, Admitted { passed, place: Place::MAIN });
        }
        self.pass_striped(now, n)
    }

    #[inline(never)]
    fn pass_striped(&self, now: Nanos, n: u32) -> Place {
        let now = self.window.turn(now);
        if let Some(stripes) = self.stripes()
            && Bounds::NONE.are_far(n)
        {
            if let Some(admitted) = stripes.pass(now, n, Bounds::NONE) {
                return admitted.place;
            }
            self.prepare(stripes, now, Bounds::NONE);
        }
        self.pass_now(now, n)
    }

    /// Prepares the stripes for calls with these bounds: see [`Stripes::prepare`].
    pub(crate) fn prepare(&self, stripes: &Stripes, now: Nanos, bounds: Bounds) {
        stripes.prepare(&self.window, || self.borrowed.is_any(), now, bounds);
    }

    /// Admits `n` units in the main window without a check.
    #[cold]
    pub(crate) fn pass_now(&self, now: Nanos, n: u32) -> Place {
        let Ok(admitted) = self.pass_if(now, n, |_| Ok::<(), std::convert::Infallible>(()));
        admitted.place
    }

    /// Admits `n` units with one addition while the bounds are far away, and nothing is borrowed. `None` says nothing about the
    /// bounds: call [`pass_if`](Self::pass_if) instead. `headroom` must be this node's own.
    #[inline]
    pub(crate) fn pass_far(
        &self,
        now: Nanos,
        n: u32,
        bounds: Bounds,
        headroom: &Headroom,
        striping: &Striping,
    ) -> Option<Admitted> {
        if !bounds.are_far(n) {
            return None;
        }
        if let Some(stripes) = self.stripes() {
            return self.pass_far_striped(stripes, now, n, bounds, headroom);
        }
        let passed = self.window.pass_far(now, n, bounds.passed, bounds.in_flight, headroom)?;
        // Acquire: read after the addition. A reservation marks the count that the addition changes, and so does the opening of
        // stripes. What came before a mark is visible here. A later mark sees the addition.
        fence(Ordering::Acquire);
        if self.borrowed.is_any() || self.stripes().is_some() {
            // An addition alone does not see borrowed units, nor those of stripes.
            self.take_back(n, Admitted { passed, place: Place::MAIN });
            return None;
        }
        if is_time_to_look(passed.before(), n) {
            self.stripe_if_busy(now, striping);
        }
        Some(Admitted { passed, place: Place::MAIN })
    }

    /// [`pass_far`](Self::pass_far) of a busy node. It is not inlined, so that quiet nodes do not pay for it.
    #[inline(never)]
    fn pass_far_striped(
        &self,
        stripes: &Stripes,
        now: Nanos,
        n: u32,
        bounds: Bounds,
        headroom: &Headroom,
    ) -> Option<Admitted> {
        let now = self.window.turn(now);
        if let Some(admitted) = stripes.pass(now, n, bounds) {
            return Some(admitted);
        }
        self.prepare(stripes, now, bounds);
        // The other half belongs to the stripes.
        let passed = self.window.pass_far(now, n, bounds.half(), bounds.in_flight, headroom)?;
        // Acquire: as in `pass_far`.
        fence(Ordering::Acquire);
        if self.borrowed.is_any() || !stripes.are_for(bounds) {
            self.window.take_back(n, passed);
            return None;
        }
        Some(Admitted { passed, place: Place::MAIN })
    }

    /// Takes back what was admitted, because another limit refused the same call: see [`Window::take_back`].
    #[cold]
    pub(crate) fn take_back(&self, n: u32, Admitted { passed, place }: Admitted) {
        self.at(place).take_back(n, passed);
    }

    /// Returns the window of a place.
    fn at(&self, place: Place) -> &Window {
        self.stripes().and_then(|stripes| stripes.at(place)).unwrap_or(&self.window)
    }

    /// Returns the stripe of a place.
    #[inline]
    pub(crate) fn stripe(&self, place: Place) -> Option<Stripe> {
        let at = place.index()?;
        self.stripes().map(|stripes| Stripe { at, of: stripes.count() })
    }

    /// Ends a call of `n` units in the window in which it entered: see [`Window::complete`].
    #[inline]
    pub(crate) fn complete(&self, place: Place, now: Nanos, n: u32, rt: Nanos, failed: bool) {
        if place == Place::MAIN {
            self.window.complete(now, n, rt, failed);
        } else {
            self.complete_in_stripe(place, now, n, rt, failed);
        }
    }

    #[inline(never)]
    fn complete_in_stripe(&self, place: Place, now: Nanos, n: u32, rt: Nanos, failed: bool) {
        // The main window knows the newest slot of all windows.
        self.at(place).complete(self.window.turn(now), n, rt, failed);
    }

    /// Ends a call of `n` units that was abandoned: see [`Window::abandon`].
    #[cold]
    pub(crate) fn abandon(&self, place: Place, now: Nanos, n: u32, rt: Nanos) {
        self.at(place).abandon(self.window.turn(now), n, rt);
    }

    /// Counts `n` of an event that is not a pass.
    pub(crate) fn note(&self, now: Nanos, event: Event, n: u64) {
        self.window.add(now, event, n);
    }

    /// Runs `look` on the usage that the check of [`pass_if`](Self::pass_if) would see. `may_borrow` skips rules from
    /// whose later slots a call may borrow.
    #[inline]
    pub(crate) fn look<T>(&self, now: Nanos, may_borrow: bool, look: impl Fn(Usage<'_>) -> T) -> T {
        self.settle(now);
        self.window.look(now, |seen| {
            let usage = Usage::new(seen, self.stripes(), false);
            self.borrowed.with(if may_borrow { usage.that_may_borrow() } else { usage }, &look)
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
        self.borrowed.reserve(&self.window, || self.stripes(), now, slot, n, check)
    }

    /// Returns the sums over the last interval of the gate's layout (one second by default) at `now`.
    #[must_use]
    pub fn counts(&self, now: Nanos) -> Counts {
        self.slots(now).into_iter().fold(Counts::default(), |sum, slot| sum.and(slot.counts))
    }

    /// Returns the sum of one event over the last interval at `now`.
    #[must_use]
    pub fn sum(&self, now: Nanos, event: Event) -> u64 {
        self.settle(now);
        self.sum_in(now, event, self.layout().whole())
    }

    /// Returns the sum of one event over the slots of `view` at `now`.
    pub(crate) fn sum_in(&self, now: Nanos, event: Event, view: View) -> u64 {
        let now = self.newest(now);
        self.windows().map(|window| window.sum(now, event, view)).sum()
    }

    /// Returns the slots of the last interval at `now`, oldest first. Slots without traffic are left out, except for
    /// the current one.
    #[must_use]
    pub fn slots(&self, now: Nanos) -> Vec<Slot> {
        self.settle(now);
        self.slots_in(now, self.layout().whole())
    }

    /// Returns the slots of `view` as [`slots`](Self::slots) does.
    pub(crate) fn slots_in(&self, now: Nanos, view: View) -> Vec<Slot> {
        self.merge(|window| window.slots(self.newest(now), view))
    }

    /// Returns the seconds with traffic in the last minute at `now`, oldest first, including the current one.
    #[must_use]
    pub fn seconds(&self, now: Nanos) -> Vec<Slot> {
        self.settle(now);
        self.merge(|window| window.seconds(self.newest(now)))
    }

    fn merge(&self, slots: impl Fn(&Window) -> Vec<Slot>) -> Vec<Slot> {
        if self.stripes().is_none() {
            return slots(&self.window);
        }
        merged(&self.windows().map(|window| (slots(window), window.in_flight())).collect::<Vec<_>>())
    }

    /// Returns the time for all windows of a striped node: that of the newest slot, if `now` is older.
    fn newest(&self, now: Nanos) -> Nanos {
        if self.stripes().is_some() { self.window.turn(now) } else { now }
    }

    /// Returns how many units passed in the last whole second before the one that contains `now`, if the node keeps a minute.
    pub(crate) fn passed_last_second(&self, now: Nanos) -> Option<u64> {
        self.windows().map(|window| window.passed_last_second(now)).sum()
    }

    /// Returns the units in flight, including those that wait for their start.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // Read the borrowed units first: units that pass in between are counted twice but never missed.
        let borrowed = self.borrowed.total();
        self.windows().map(Window::in_flight).sum::<u64>() + borrowed
    }

    /// Returns the shortest response time in the last interval at `now`.
    #[must_use]
    pub fn min_rt(&self, now: Nanos) -> Option<Duration> {
        let now = self.newest(now);
        self.windows().filter_map(|window| window.min_rt(now, self.layout().whole())).min()
    }
}

/// Whether `n` units after `before` bring the count to a multiple of [`LOOK_EVERY`] or beyond.
#[inline]
const fn is_time_to_look(before: u64, n: u32) -> bool {
    (before ^ (before + n as u64)) >= LOOK_EVERY
}
