//! How much of one count falls in a view, remembered for as long as the newest slot lasts.

use super::{Head, Ring, Tally, View};
use crate::sync::{AtomicU64, Ordering};

/// A view of one ring's count with the place where it begins kept at hand, for a rule that asks on every call.
///
/// Where the view begins is fixed while the newest slot is, so it is looked up once a slot. Give each `Trailing` to one
/// count of one ring.
pub struct Trailing {
    view: View,
    /// The tally at the start of the view, in its low 16 bits the turn for which that holds. Starts as no turn.
    base: AtomicU64,
}

impl Trailing {
    /// Asks about the slots of `view`.
    #[must_use]
    pub fn new(view: View) -> Self {
        Self { view, base: AtomicU64::new(u64::MAX) }
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
        // Relaxed: the word is complete in itself, and who finds another turn in it looks the base up.
        let base = self.base.load(Ordering::Relaxed);
        if let Some(base) = Tally::known_in(base, head) {
            return Some(tally.since(base));
        }
        let base = ring.base(at, head, self.view)?;
        self.base.store(base.kept_for(head), Ordering::Relaxed);
        Some(tally.since(base))
    }
}
