//! Units that prioritized calls have borrowed from slots to come.
//!
//! The window of a node counts what has passed; what is borrowed is kept beside it, by slot, until the slot comes. Every
//! admission looks at both:
//!
//! - An admission reads `total` after it has read the count of what passed, and adds by compare-and-swap on that count.
//! - A reservation raises `total` and then marks the count: each admission that has read the count before fails its
//!   compare-and-swap, and reads `total` anew.
//! - When a slot comes, its units are added to the count before `total` falls: whoever reads too early sees them twice,
//!   never not at all.

use std::collections::BTreeMap;

use tidegate_core::{
    Nanos,
    stats::{Event, Look, Trailing, View, Window},
};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// What is borrowed of one node.
#[derive(Debug, Default)]
pub(crate) struct Borrowed {
    /// The sum of `slots`: read without the mutex, and 0 nearly always.
    total: AtomicU64,
    slots: Mutex<Slots>,
}

/// Units by the number of the slot in which they pass.
#[derive(Debug, Default)]
pub(crate) struct Slots(BTreeMap<u64, u64>);

/// What a node has let pass and lent, at the moment of an admission.
#[derive(Clone, Copy)]
pub(crate) struct Usage<'a> {
    look: Look<'a>,
    lent: Option<&'a Slots>,
    /// The slot in which the units would pass.
    slot: u64,
    /// Rules from whose later slots a call may borrow are not asked now.
    may_borrow: bool,
}

impl Borrowed {
    /// The units that are borrowed and have not passed.
    #[inline]
    pub(crate) fn total(&self) -> u64 {
        // Acquire: who has read a marked count, or one to which borrowed units were added, sees the total of then.
        self.total.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.total() > 0
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // Changed in single steps: what a panic elsewhere left behind is whole.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `then` on a look at the window with what is borrowed.
    #[inline]
    pub(crate) fn with<T>(&self, look: Look<'_>, may_borrow: bool, then: impl FnOnce(Usage<'_>) -> T) -> T {
        let slot = look.slot();
        if !self.is_any() {
            return then(Usage { look, lent: None, slot, may_borrow });
        }
        let lent = self.lock();
        then(Usage { look, lent: Some(&lent), slot, may_borrow })
    }

    /// Reserves `n` units in `slot`, or in the window's newest slot if that is later, if `check` agrees, in one step.
    /// Returns the slot.
    ///
    /// # Errors
    /// What `check` refused with.
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
            check(Usage { look, lent: Some(&slots), slot, may_borrow: false })?;
            slots.add(slot, n.into());
            // Relaxed: published by the mark.
            self.total.fetch_add(n.into(), Ordering::Relaxed);
            if window.mark(look) {
                return Ok(slot);
            }
            slots.take(slot, n.into());
            self.total.fetch_sub(n.into(), Ordering::Relaxed);
        }
    }

    /// Gives units back whose slot has not come yet; false if they have been counted as passed.
    pub(crate) fn give_back(&self, slot: u64, n: u32) -> bool {
        let is_there = self.lock().take(slot, n.into());
        if is_there {
            // Relaxed: less is borrowed; who still sees more is too strict for a moment.
            self.total.fetch_sub(n.into(), Ordering::Relaxed);
        }
        is_there
    }

    /// Counts the units of the slots that have come as passed, each in its slot.
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
            // Release: who sees the total without these sees the count with them.
            self.total.fetch_sub(n, Ordering::Release);
        }
    }
}

impl Slots {
    fn add(&mut self, slot: u64, n: u64) {
        *self.0.entry(slot).or_default() += n;
    }

    fn take(&mut self, slot: u64, n: u64) -> bool {
        let Some(units) = self.0.get_mut(&slot) else { return false };
        let Some(left) = units.checked_sub(n) else { return false };
        *units = left;
        if left == 0 {
            self.0.remove(&slot);
        }
        true
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Whether `n` units more that pass in slot `at` are within `limit` in every view that they fall in. `None` when the
    /// window has turned on meanwhile.
    fn fits(&self, look: Look<'_>, view: View, limit: u64, n: u64, at: u64) -> Option<bool> {
        let span = u64::from(view.slots());
        let later = self.0.range(at + 1..at.saturating_add(span)).map(|(&slot, _)| slot);
        for newest in std::iter::once(at).chain(later) {
            let oldest = (newest + 1).saturating_sub(span);
            let borrowed: u64 = self.0.range(oldest..=newest).map(|(_, units)| units).sum();
            if look.passed_from(oldest)? + borrowed + n > limit {
                return Some(false);
            }
        }
        Some(true)
    }
}

impl Usage<'_> {
    /// Whether the call may borrow from later slots where there is no room now.
    #[inline]
    pub(crate) const fn may_borrow(&self) -> bool {
        self.may_borrow
    }

    /// The units in flight, and those that will be when their slot comes.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        self.look.in_flight() + self.lent.map_or(0, Slots::total)
    }

    /// Whether `n` units more are within `limit`; `each` says that the place kept in `trailing` may be another node's.
    ///
    /// # Errors
    /// With the time from `now` until they are, where one can be named.
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
        if let Some(lent) = self.lent {
            // The window has turned on: this look decides nothing, the next one will.
            if lent.fits(self.look, view, limit, n, self.slot).unwrap_or(true) {
                return Ok(());
            }
            let last = self.slot.saturating_add(2 * u64::from(view.slots()));
            let fits = |at: &u64| lent.fits(self.look, view, limit, n, *at).unwrap_or(false);
            let first = (self.slot + 1..=last).find(fits);
            return Err(first.map(|slot| Nanos::new(slot * slot_nanos).saturating_since(now).into()));
        }
        let used = if each { self.look.passed_in(view) } else { self.look.passed(trailing) };
        match used {
            None => Ok(()),
            Some(used) if used + n <= limit => Ok(()),
            Some(_) => Err(limit.checked_sub(n).map(|goal| self.look.fits_after(now, view, goal))),
        }
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
        /// Of two slots, in the first of which `passed` of the two units that it has in a second have passed.
        fn new(passed: u32) -> Arc<Self> {
            let layout = Layout::new(2, Duration::from_secs(1)).unwrap();
            let trailing = Trailing::new(layout.whole());
            let node = Self { window: Window::new(layout), borrowed: Borrowed::default(), trailing };
            node.window.pass(Nanos::new(LENGTH), passed);
            Arc::new(node)
        }

        fn fits(&self, usage: Usage<'_>, now: Nanos) -> Result<(), ()> {
            usage.fits(&self.trailing, 2, 1, false, (now, LENGTH)).map_err(drop)
        }

        fn pass(&self, now: Nanos) -> bool {
            self.borrowed.settle(&self.window, now);
            let check = |look: Look<'_>| self.borrowed.with(look, false, |usage| self.fits(usage, now));
            self.window.pass_if(now, 1, check).is_ok()
        }

        fn reserve(&self, now: Nanos, slot: u64) -> bool {
            self.borrowed.reserve(&self.window, now, slot, 1, |usage| self.fits(usage, now)).is_ok()
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
            // One is in the second slot; one more may pass there, or in the third, where that one still counts.
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
    fn units_whose_slot_comes_are_never_out_of_sight() {
        model(|| {
            let node = Node::new(1);
            assert!(node.reserve(Nanos::new(LENGTH), 2));
            let later = Nanos::new(2 * LENGTH);
            let other = {
                let node = node.clone();
                thread::spawn(move || node.borrowed.settle(&node.window, later))
            };
            assert!(!node.pass(later), "one passed in the slot before, and one was borrowed");
            other.join().unwrap();
        });
    }
}
