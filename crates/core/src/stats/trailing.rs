//! The growth of one count in a view, with the start of the view cached for as long as the newest
//! slot lasts.

use super::{Head, Ring, Tally, View, ring::NO_TURN};
use crate::sync::{AtomicU64, Ordering};

/// A view of one count of a ring with its start cached, for a rule that reads it on every call.
///
/// The start of the view is fixed while the newest slot is, so it is looked up once per slot. Use
/// each `Trailing` for one count of one ring.
pub struct Trailing {
    view: View,
    /// The tally at the start of the view; its low 16 bits hold the turn for which that is valid.
    base: AtomicU64,
    /// The head for which `base` was looked up last; written after it. Turn numbers wrap, so
    /// without this a view that was not read for 65,532 turns might take an old base for a new one.
    head: AtomicU64,
    /// The tally at the last [`forget`](Self::forget), or the base of a later slot; `NO_TURN`
    /// before the first.
    floor: AtomicU64,
}

impl Trailing {
    /// A trailing sum over the slots of `view`.
    #[must_use]
    pub fn new(view: View) -> Self {
        Self {
            view,
            base: AtomicU64::new(NO_TURN),
            head: AtomicU64::new(NO_TURN),
            floor: AtomicU64::new(NO_TURN),
        }
    }

    /// The slots in view.
    #[must_use]
    pub const fn view(&self) -> View {
        self.view
    }

    /// How much count `at` grew in view, up to `tally`, in the slot of `head`. `None` if another
    /// thread has turned the ring: try again.
    #[inline]
    pub fn used<const C: usize, const G: usize>(
        &self,
        ring: &Ring<C, G>,
        at: usize,
        tally: Tally,
        head: Head,
    ) -> Option<u64> {
        // Acquire: a thread that sees the head sees the base that was looked up for it, or a later
        // one.
        let is_known = self.head.load(Ordering::Acquire) == head.word();
        // Acquire: a thread that sees the mark of a `forget` sees its floor.
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
            // The floor has left the view. Moving it along keeps it comparable however far the
            // count grows.
            let moved = began.kept_for(head);
            let _ = self
                .floor
                .compare_exchange(floor, moved, Ordering::AcqRel, Ordering::Relaxed);
            began
        };
        // The exchange starts from the known value: if a `forget` came in between, the word differs
        // and this base is dropped.
        let kept = self.base.compare_exchange(
            known,
            base.kept_for(head),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if kept.is_ok() {
            self.head.store(head.word(), Ordering::Release);
        }
        tally.since(base)
    }

    /// Counts only what comes after `tally` from now on.
    pub fn forget(&self, tally: Tally) {
        self.floor.store(tally.word(), Ordering::Release);
        // Release: see `used`. The mark distinguishes one `forget` from another, so that no older
        // base replaces it. The swap and the exchange of a read have one order for all threads.
        self.base.swap(tally.word() | NO_TURN, Ordering::AcqRel);
    }
}
