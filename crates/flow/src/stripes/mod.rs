//! The stripes of a busy node: windows in which threads count without waiting for each other's cache line.
//!
//! A node has its main window and, once it is busy, a few stripes. Each stripe is a whole window. A thread counts in its own
//! stripe, and a call ends in the window in which it entered. Every count of the node is the sum over all its windows.
//!
//! # How the bounds hold
//!
//! Half of each bound belongs to the main window. The other half is divided among the stripes. So a call that keeps to the
//! share of its window needs no look at the other windows. A call may use more than its share only after it has *closed* the
//! stripes and added up all windows:
//!
//! ```text
//!            an entry needs more than the main window's half
//!   OPEN ──────────────────────────────────────────────────────→ CLOSING, then CLOSED in that slot
//!    ↑                                                                            │
//!    └── in a later slot, if the main window keeps to its half and nothing is lent ──┘
//! ```
//!
//! - An entry in a stripe adds first and then checks that the stripes are open as before. Otherwise it withdraws the addition.
//! - Closing sets the state and then changes each stripe's count (without adding to it). So of an addition and a closing, at
//!   least one sees the other: either the entry withdraws, or the sum contains it. After that, sums of stripes only fall.
//! - An entry that relies on a sum adds to the main window by compare-and-swap, in the slot in which it closed the stripes.
//!   Opening first turns the main window to a later slot, so such a compare-and-swap comes before the opening, which sees its
//!   units, or fails.
//! - The state's word only grows. A closing in the same slot therefore outlives an opening.
//!
//! The division is made for given bounds. When the rules change, the first call with other bounds closes the stripes, checks
//! that each keeps to its new share, and then sets the new bounds. Until then all calls check the sums.

mod merge;
mod thread_number;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{num::NonZeroU8, sync::atomic::AtomicUsize};

use tidegate_core::{
    Nanos,
    stats::{Event, Headroom, Layout, Look, Passed, Trailing, View, Window},
};

pub(crate) use merge::merged;
#[cfg(all(test, not(loom)))]
pub(crate) use thread_number::set_thread_number;
use thread_number::thread_number;

use crate::{
    bounds::{Bounds, second},
    sync::{AtomicU64, Mutex, Ordering, fence},
};

/// The most stripes of a node.
const MOST: usize = 8;
/// Units a second from which a node is busy. Two threads that meet on a count wait about 60 ns for its cache line, and an entry
/// changes about five such lines: at 100,000 units a second that is 3 % of a processor's time.
const BUSY: u64 = 100_000;
/// How many nodes of a gate may have stripes. Each takes up to 32 KiB.
const STRIPED_NODES: usize = 1_000;

const OPEN: u64 = 0;
const CLOSING: u64 = 1;
const CLOSED: u64 = 2;
const STATE: u64 = 3;
const SHIFT: u32 = 2;

/// When nodes get stripes, and how many.
pub(crate) struct Striping {
    /// A power of two, or 1 for none.
    stripes: usize,
    busy: u64,
    left: AtomicUsize,
}

impl Default for Striping {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors, BUSY)
    }
}

impl Striping {
    /// Nodes with more than `busy` units a second get a stripe for each of this many processors.
    pub(crate) fn new(processors: usize, busy: u64) -> Self {
        let stripes = processors.min(MOST).next_power_of_two();
        Self { stripes, busy, left: AtomicUsize::new(STRIPED_NODES) }
    }

    /// Returns new stripes for a node with this window, if it is busy at `now`.
    pub(crate) fn stripes_for(&self, window: &Window, now: Nanos) -> Option<Stripes> {
        let layout = window.layout();
        if self.stripes < 2 || window.sum(now, Event::Pass, second(layout)) <= self.busy {
            return None;
        }
        // Relaxed: the nodes are only counted.
        let one_less = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).ok()?;
        Some(Stripes::new(layout, self.stripes))
    }

    /// Gives back the place of stripes that are not used.
    pub(crate) fn give_back(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

/// The window of a node in which a call counts: the main window, or a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(NonZeroU8);

impl Place {
    pub(crate) const MAIN: Self = Self(NonZeroU8::MIN);

    const fn stripe(at: usize) -> Self {
        Self(NonZeroU8::MIN.saturating_add(1 + at as u8))
    }

    #[inline]
    pub(crate) const fn index(self) -> Option<usize> {
        (self.0.get() as usize).checked_sub(2)
    }
}

/// What was admitted, and where.
#[derive(Clone, Copy)]
pub(crate) struct Admitted {
    pub(crate) passed: Passed,
    pub(crate) place: Place,
}

/// The stripes of one node.
pub(crate) struct Stripes {
    each: Box<[Stripe]>,
    /// A slot's number and the state since then.
    word: AtomicU64,
    /// The bounds that are divided. They change only while the stripes are closed, under `changing`.
    passed: AtomicU64,
    in_flight: AtomicU64,
    changing: Mutex<()>,
    /// The last second of the main window.
    second: Trailing,
    slot: u64,
}

/// Aligned to two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Stripe {
    window: Window,
    second: Headroom,
}

impl Stripes {
    /// Closed stripes; `count` is a power of two.
    pub(crate) fn new(layout: Layout, count: usize) -> Self {
        let view = second(layout);
        let window = || Window::with_minute(layout).unwrap_or_else(|_| Window::new(layout));
        Self {
            each: (0..count).map(|_| Stripe { window: window(), second: Headroom::new(view) }).collect(),
            word: AtomicU64::new(CLOSED),
            passed: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            changing: Mutex::new(()),
            second: Trailing::new(view),
            slot: layout.slot_nanos(),
        }
    }

    pub(crate) fn windows(&self) -> impl Iterator<Item = &Window> {
        self.each.iter().map(|stripe| &stripe.window)
    }

    #[inline]
    pub(crate) const fn count(&self) -> usize {
        self.each.len()
    }

    /// Returns the stripe of a place; `None` for the main window.
    #[inline]
    pub(crate) fn at(&self, place: Place) -> Option<&Window> {
        self.each.get(place.index()?).map(|stripe| &stripe.window)
    }

    /// Whether the stripes are divided for these bounds. The main window's half is then its own.
    #[inline]
    pub(crate) fn are_for(&self, bounds: Bounds) -> bool {
        // Acquire: a thread that sees new bounds sees that the stripes were closed before.
        self.passed.load(Ordering::Acquire) == bounds.passed
            && self.in_flight.load(Ordering::Acquire) == bounds.in_flight
    }

    #[inline]
    fn shift(&self) -> u32 {
        self.each.len().trailing_zeros()
    }

    /// Admits `n` units in the stripe of this thread, if they keep to its share. `now` is not before the main window's newest
    /// slot.
    #[inline]
    pub(crate) fn pass(&self, now: Nanos, n: u32, bounds: Bounds) -> Option<Admitted> {
        self.pass_in(thread_number() & (self.each.len() - 1), now, n, bounds)
    }

    /// As [`pass`](Self::pass), in a stripe by its number.
    #[inline]
    fn pass_in(&self, at: usize, now: Nanos, n: u32, bounds: Bounds) -> Option<Admitted> {
        // Acquire: an opening set these bounds, or came after they were set.
        let word = self.word.load(Ordering::Acquire);
        if word & STATE != OPEN || !self.are_for(bounds) {
            return None;
        }
        let (stripe, shift) = (&self.each[at], self.shift());
        // `pass_far` admits half of its bound in flight.
        let passed = stripe.window.pass_far(
            now,
            n,
            bounds.half() >> shift,
            bounds.in_flight >> shift,
            &stripe.second,
        )?;
        // Acquire: if a closing changed the count before this addition, its state is visible now.
        fence(Ordering::Acquire);
        if self.word.load(Ordering::Relaxed) != word {
            stripe.window.take_back(n, passed);
            return None;
        }
        Some(Admitted { passed, place: Place::stripe(at) })
    }

    /// Closes the stripes in `slot`, the newest slot of the main window. False if the main window has a later slot by now: then
    /// an admission that has looked at it fails.
    pub(crate) fn close(&self, slot: u64) -> bool {
        let closed = slot << SHIFT | CLOSED;
        // AcqRel: publishes the closing with the change of each count, and a thread that sees it closed by another sees all units
        // that do not withdraw.
        let seen = self.word.load(Ordering::Acquire);
        let seen = if seen == closed {
            closed
        } else {
            self.word.fetch_max(closed - CLOSED + CLOSING, Ordering::AcqRel)
        };
        if seen >= closed {
            return seen == closed;
        }
        self.windows().for_each(Window::part_passes);
        self.word.fetch_max(closed, Ordering::AcqRel);
        true
    }

    /// Ensures that `n` more units in the main window keep to its half, or closes the stripes. False as in
    /// [`close`](Self::close).
    #[inline]
    pub(crate) fn yield_to(&self, look: Look<'_>, n: u32) -> bool {
        let n = u64::from(n);
        let Some(used) = look.passed(&self.second) else { return false };
        let keeps = used + n <= self.passed.load(Ordering::Acquire) / 2
            && look.in_flight() + n <= self.in_flight.load(Ordering::Acquire) / 2;
        keeps || self.close(look.slot())
    }

    /// Returns the most units that may be in `view` of all stripes, if that is known.
    #[inline]
    pub(crate) fn share_of(&self, view: View) -> Option<u64> {
        (view == self.second.view()).then(|| self.passed.load(Ordering::Acquire) / 2)
    }

    /// Returns the most units that may be in flight in all stripes.
    #[inline]
    pub(crate) fn share_in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire) / 2
    }

    /// Returns the units that passed in all stripes in the slots from number `oldest` to number `newest`. `None` if there is a
    /// later slot.
    pub(crate) fn passed_within(&self, oldest: u64, newest: u64) -> Option<u64> {
        self.windows().map(|window| window.passed_within(oldest, newest)).sum()
    }

    /// Returns the units in flight in all stripes.
    pub(crate) fn in_flight(&self) -> u64 {
        self.windows().map(Window::in_flight).sum()
    }

    /// Prepares the stripes for calls with these bounds: opens them, unless units of future slots `is_lent`, or divides these
    /// bounds. It does one of both, once a slot at most.
    #[cold]
    pub(crate) fn prepare(&self, main: &Window, is_lent: impl FnOnce() -> bool, now: Nanos, bounds: Bounds) {
        let word = self.word.load(Ordering::Acquire);
        let is_ready =
            if word & STATE == OPEN { self.are_for(bounds) } else { word >> SHIFT >= now.get() / self.slot };
        if is_ready {
            return;
        }
        // Another thread is at it.
        let Ok(_changing) = self.changing.try_lock() else { return };
        let (word, look) = (self.word.load(Ordering::Acquire), main.look_now(now));
        let slot = look.slot();
        if !self.are_for(bounds) {
            let keeps = |stripe: &Stripe| {
                let share = bounds.half() >> self.shift();
                stripe.window.sum(now, Event::Pass, self.second.view()) <= share
                    && stripe.window.in_flight() <= (bounds.in_flight >> self.shift()) / 2
            };
            if self.close(slot) && self.each.iter().all(keeps) {
                self.passed.store(bounds.passed, Ordering::Release);
                self.in_flight.store(bounds.in_flight, Ordering::Release);
            }
            return;
        }
        // Read after the count, which a reservation marks.
        if word & STATE == OPEN || word >> SHIFT >= slot || is_lent() {
            return;
        }
        let Some(used) = look.passed(&self.second) else { return };
        if used > bounds.half() || main.in_flight() > bounds.in_flight / 2 {
            self.close(slot);
            return;
        }
        // A call that comes late then counts in this slot, too.
        for window in self.windows() {
            window.turn(now);
        }
        // The mark makes those look again who have looked at the main window with other bounds in mind.
        if main.mark(look) {
            // AcqRel: as in `close`. If the word has changed, another thread has closed the stripes again.
            let open = slot << SHIFT | OPEN;
            let _ = self.word.compare_exchange(word, open, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
