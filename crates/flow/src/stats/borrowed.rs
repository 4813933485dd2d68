//! Units that prioritized calls have borrowed from future slots.
//!
//! The window of a node counts the units that have passed. Borrowed units are kept separately, by
//! slot, until that slot begins. Every admission reads both:
//!
//! - An admission reads the count of passed units, then `total`, and adds its units by
//!   compare-and-swap on the count.
//! - A reservation raises `total` and then marks the count. An admission that read the count before
//!   the mark fails its compare-and-swap and reads `total` again.
//! - When a slot begins, its units are added to the count before `total` falls. A concurrent reader
//!   may see them twice but never misses them.

use std::collections::BTreeMap;

use tidegate_core::{
    Nanos,
    stats::{Event, Look, Trailing, View, Window},
};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// The units borrowed from one node.
#[derive(Debug, Default)]
pub(crate) struct Borrowed {
    /// The sum of `slots`. It is read without the mutex and is almost always 0.
    total: AtomicU64,
    slots: Mutex<Slots>,
}

/// The units by the number of the slot in which they pass.
#[derive(Debug, Default)]
pub(crate) struct Slots(BTreeMap<u64, u64>);

/// The units that a node has passed and lent at the time of an admission.
#[derive(Clone, Copy)]
pub(crate) struct Usage<'a> {
    look: Look<'a>,
    lent: Option<&'a Slots>,
    /// The slot in which the requested units would pass.
    slot: u64,
    /// Skips rules from whose later slots the call may borrow.
    may_borrow: bool,
}

impl Borrowed {
    /// Returns the borrowed units that have not passed yet.
    #[inline]
    pub(crate) fn total(&self) -> u64 {
        // Acquire: a thread that has read a marked count, or one that includes borrowed units, sees
        // the matching total.
        self.total.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.total() > 0
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // Ignore poisoning: each change is a single step, so a panic elsewhere leaves a consistent
        // state.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `then` on a usage of the window together with its borrowed units.
    #[inline]
    pub(crate) fn with<T>(&self, usage: Usage<'_>, then: impl FnOnce(Usage<'_>) -> T) -> T {
        if !self.is_any() {
            return then(usage);
        }
        let lent = self.lock();
        then(Usage {
            lent: Some(&lent),
            ..usage
        })
    }

    /// Reserves `n` units in one atomic step if `check` agrees: in `slot`, or in the window's
    /// newest slot if that is later. Returns the slot.
    ///
    /// # Errors
    /// The error of `check`.
    pub(crate) fn reserve<E>(
        &self,
        window: &Window,
        now: Nanos,
        slot: u64,
        n: u32,
        check: impl Fn(Usage<'_>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut slots = self.lock();
        loop {
            let look = window.look_now(now);
            let slot = slot.max(look.slot());
            let usage = Usage {
                lent: Some(&slots),
                slot,
                ..Usage::new(look)
            };
            check(usage)?;
            slots.add(slot, n.into());
            // Relaxed: the mark publishes it.
            self.total.fetch_add(n.into(), Ordering::Relaxed);
            if window.mark(look) {
                return Ok(slot);
            }
            slots.take(slot, n.into());
            self.total.fetch_sub(n.into(), Ordering::Relaxed);
        }
    }

    /// Gives back units whose slot has not begun. False if they are already counted as passed.
    pub(crate) fn give_back(&self, slot: u64, n: u32) -> bool {
        let is_there = self.lock().take(slot, n.into());
        if is_there {
            // Relaxed: the total falls; a thread that still sees the old total is only too strict
            // for a moment.
            self.total.fetch_sub(n.into(), Ordering::Relaxed);
        }
        is_there
    }

    /// Counts the borrowed units of every slot that has begun as passed in that slot.
    #[inline]
    pub(crate) fn settle(&self, window: &Window, now: Nanos) {
        if self.is_any() {
            self.settle_slots(window, now);
        }
    }

    #[cold]
    fn settle_slots(&self, window: &Window, now: Nanos) {
        let mut slots = self.lock();
        let length = window.layout().slot_nanos();
        while let Some(first) = slots.0.first_entry()
            && *first.key() <= now.get() / length
        {
            let (slot, n) = first.remove_entry();
            window.add(Nanos::new(slot * length), Event::Pass, n);
            // Release: a thread that sees the total without these units sees the count with them.
            self.total.fetch_sub(n, Ordering::Release);
        }
    }
}

impl Slots {
    fn add(&mut self, slot: u64, n: u64) {
        *self.0.entry(slot).or_default() += n;
    }

    fn take(&mut self, slot: u64, n: u64) -> bool {
        let Some(units) = self.0.get_mut(&slot) else {
            return false;
        };
        let Some(left) = units.checked_sub(n) else {
            return false;
        };
        *units = left;
        if left == 0 {
            self.0.remove(&slot);
        }
        true
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Whether `n` more units that pass in slot `at` stay within `limit` in every view that
    /// contains that slot. `None` if another thread has moved the window to a newer slot.
    fn fits(&self, usage: &Usage<'_>, view: View, limit: u64, n: u64, at: u64) -> Option<bool> {
        let span = u64::from(view.slots());
        let later = self
            .0
            .range(at + 1..at.saturating_add(span))
            .map(|(&slot, _)| slot);
        for newest in std::iter::once(at).chain(later) {
            let oldest = (newest + 1).saturating_sub(span);
            let borrowed: u64 = self.0.range(oldest..=newest).map(|(_, units)| units).sum();
            if usage.passed_from(oldest)? + borrowed + n > limit {
                return Some(false);
            }
        }
        Some(true)
    }
}

impl<'a> Usage<'a> {
    /// The usage of a window without borrowed units.
    #[inline]
    pub(crate) const fn new(look: Look<'a>) -> Self {
        Self {
            look,
            lent: None,
            slot: look.slot(),
            may_borrow: false,
        }
    }

    #[inline]
    pub(crate) const fn with_borrowing(self) -> Self {
        Self {
            may_borrow: true,
            ..self
        }
    }

    /// Whether the call may borrow from later slots if the current one is full.
    #[inline]
    pub(crate) const fn may_borrow(&self) -> bool {
        self.may_borrow
    }

    /// Returns the units that passed in the slots from number `oldest` on. `None` if the window has
    /// turned.
    fn passed_from(&self, oldest: u64) -> Option<u64> {
        self.look.passed_from(oldest)
    }

    /// Whether `n` more units in flight stay within `limit`, together with the borrowed units,
    /// which will be in flight when their slot begins.
    #[inline]
    pub(crate) fn in_flight_fits(&self, n: u32, limit: u64) -> bool {
        self.look.in_flight() + self.lent.map_or(0, Slots::total) + u64::from(n) <= limit
    }

    /// Checks that `n` more units stay within `limit`. `each` means that the position cached in
    /// `trailing` may belong to another node.
    ///
    /// # Errors
    /// The time from `now` until they fit, if it can be given.
    #[inline]
    pub(crate) fn fits(
        &self,
        trailing: &Trailing,
        limit: u64,
        n: u32,
        each: bool,
        (now, slot_nanos): (Nanos, u64),
    ) -> Result<(), Option<std::time::Duration>> {
        let (n, view) = (u64::from(n), trailing.view());
        let until = |slot: u64| Nanos::new(slot * slot_nanos).saturating_since(now).into();
        if let Some(lent) = self.lent {
            // The window has moved to a newer slot: this attempt fails its compare-and-swap, and
            // the retry decides.
            if lent.fits(self, view, limit, n, self.slot).unwrap_or(true) {
                return Ok(());
            }
            let last = self.slot.saturating_add(2 * u64::from(view.slots()));
            let fits = |at: &u64| lent.fits(self, view, limit, n, *at).unwrap_or(false);
            let first = (self.slot + 1..=last).find(fits);
            return Err(first.map(until));
        }
        let used = if each {
            self.look.passed_in(view)
        } else {
            self.look.passed(trailing)
        };
        let Some(used) = used else { return Ok(()) };
        if used + n <= limit {
            return Ok(());
        }
        Err(limit
            .checked_sub(n)
            .map(|goal| self.look.fits_after(now, view, goal)))
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::time::Duration;

    use loom::{sync::Arc, thread};
    use tidegate_core::stats::Layout;

    use super::*;

    const LENGTH: u64 = 500_000_000;

    struct Node {
        window: Window,
        borrowed: Borrowed,
        trailing: Trailing,
    }

    impl Node {
        /// A window of two slots with a limit of two units a second, of which `passed` units have
        /// passed in the first slot.
        fn new(passed: u32) -> Arc<Self> {
            let layout = Layout::new(2, Duration::from_secs(1)).unwrap();
            let trailing = Trailing::new(layout.whole());
            let node = Self {
                window: Window::new(layout),
                borrowed: Borrowed::default(),
                trailing,
            };
            node.window.pass(Nanos::new(LENGTH), passed);
            Arc::new(node)
        }

        fn fits(&self, usage: Usage<'_>, now: Nanos) -> Result<(), ()> {
            usage
                .fits(&self.trailing, 2, 1, false, (now, LENGTH))
                .map_err(drop)
        }

        fn pass(&self, now: Nanos) -> bool {
            self.borrowed.settle(&self.window, now);
            let check = |look: Look<'_>| {
                self.borrowed
                    .with(Usage::new(look), |usage| self.fits(usage, now))
            };
            self.window.pass_if(now, 1, check).is_ok()
        }

        fn reserve(&self, now: Nanos, slot: u64) -> bool {
            self.borrowed
                .reserve(&self.window, now, slot, 1, |usage| self.fits(usage, now))
                .is_ok()
        }
    }

    fn model(check: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(check);
    }

    #[test]
    fn a_reservation_and_an_admission_never_pass_the_threshold_together() {
        model(|| {
            // One unit is in the second slot. One more may pass there, or in the third slot,
            // because the first unit still counts then.
            let node = Node::new(1);
            let now = Nanos::new(LENGTH);
            let other = {
                let node = node.clone();
                thread::spawn(move || node.reserve(now, 2))
            };
            let passed = node.pass(now);
            let reserved = other.join().unwrap();
            assert_eq!(u32::from(passed) + u32::from(reserved), 1);
        });
    }

    #[test]
    fn reserved_units_are_counted_when_their_slot_begins() {
        model(|| {
            let node = Node::new(1);
            assert!(node.reserve(Nanos::new(LENGTH), 2));
            let later = Nanos::new(2 * LENGTH);
            let other = {
                let node = node.clone();
                thread::spawn(move || node.borrowed.settle(&node.window, later))
            };
            assert!(
                !node.pass(later),
                "one unit passed in the previous slot, and one was borrowed"
            );
            other.join().unwrap();
        });
    }
}
