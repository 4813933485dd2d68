//! How much of one count falls in a view, remembered for as long as the newest slot lasts.

use super::{Head, Ring, Tally, View, ring::NO_TURN};
use crate::sync::{AtomicU64, Ordering};

/// A view of one ring's count with the place where it begins kept at hand, for a rule that asks on every call.
///
/// Where the view begins is fixed while the newest slot is, so it is looked up once a slot. Give each `Trailing` to one
/// count of one ring.
pub struct Trailing {
    view: View,
    /// The tally at the start of the view, in its low 16 bits the turn for which that holds.
    base: AtomicU64,
    /// The head for which `base` was looked up last; written after it. Turn numbers come round again, so without this a
    /// view that nobody asked about for 65,532 turns might take an old base for a new one.
    head: AtomicU64,
    /// The tally at the last [`forget`](Self::forget), or the base of a slot since; `NO_TURN` before the first.
    floor: AtomicU64,
}

impl Trailing {
    /// Asks about the slots of `view`.
    #[must_use]
    pub fn new(view: View) -> Self {
        Self {
            view,
            base: AtomicU64::new(NO_TURN),
            head: AtomicU64::new(NO_TURN),
            floor: AtomicU64::new(NO_TURN),
        }
    }

    /// The slots asked about.
    #[must_use]
    pub const fn view(&self) -> View {
        self.view
    }

    /// How much count `at` grew in view, up to `tally`, in the slot of `head`. `None` when the ring has turned on
    /// meanwhile: look again.
    #[inline]
    pub fn used<const C: usize, const G: usize>(
        &self,
        ring: &Ring<C, G>,
        at: usize,
        tally: Tally,
        head: Head,
    ) -> Option<u64> {
        // Acquire: who sees the head sees the base that was looked up for it, or one of later.
        let is_known = self.head.load(Ordering::Acquire) == head.word();
        // Acquire: who sees the mark of a `forget` sees its floor.
        let known = self.base.load(Ordering::Acquire);
        if is_known && let Some(base) = Tally::known_in(known, head) {
            return Some(tally.since(base));
        }
        Some(self.look_up(known, ring.base(at, head, self.view)?, tally, head))
    }

    #[cold]
    fn look_up(&self, known: u64, began: Tally, tally: Tally, head: Head) -> u64 {
        let floor = self.floor.load(Ordering::Acquire);
        let base = Tally::from_word(floor);
        let base = if floor == NO_TURN {
            began
        } else if tally.since(base) < tally.since(began) {
            base
        } else {
            // The floor has left the view. Moved along, it stays comparable however far the count goes on.
            let moved = began.kept_for(head);
            let _ = self.floor.compare_exchange(floor, moved, Ordering::AcqRel, Ordering::Relaxed);
            began
        };
        // From what was known: a `forget` in between leaves another word, and then this base is not kept.
        let kept =
            self.base.compare_exchange(known, base.kept_for(head), Ordering::AcqRel, Ordering::Relaxed);
        if kept.is_ok() {
            self.head.store(head.word(), Ordering::Release);
        }
        tally.since(base)
    }

    /// Counts only what comes after `tally` from now on.
    pub fn forget(&self, tally: Tally) {
        self.floor.store(tally.word(), Ordering::Release);
        // Release: see `used`. The mark tells one `forget` from another, so that no older base replaces it; swapped in,
        // it and the exchange of a look have one order for everybody.
        self.base.swap(tally.word() | NO_TURN, Ordering::AcqRel);
    }
}
