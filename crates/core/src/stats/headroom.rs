//! Admission by one addition, while a limit is far away.

use super::{Head, Ring, Tally, View, ring::NO_TURN};
use crate::sync::{AtomicU64, Ordering};

/// A flag in a word of `Headroom`: the limit is near in this turn.
const NEAR: u64 = 1 << 16;

/// The last look at a limit on one count of one ring, in a view: the turn in which the limit was
/// far away, and where the view began then.
///
/// An admission that must see the count before it changes it fetches the count's cache line twice
/// if several threads compete, and starts again if another was faster. Far from the limit the order
/// can be reversed: add first, and check the result of the addition. The result can exceed the
/// limit only if others have used up half of the limit in between. Then the addition is taken back,
/// and a thread that reads the count at that moment sees too much, never too little. So the limit
/// is never exceeded.
pub struct Headroom {
    view: View,
    /// The count at the start of the view, perhaps [`NEAR`], and the turn for which that holds.
    word: AtomicU64,
    /// The head for which `word` was looked up last; written after it (see
    /// [`Trailing`](super::Trailing)).
    head: AtomicU64,
}

impl Headroom {
    /// A headroom for the slots of `view`.
    #[must_use]
    pub fn new(view: View) -> Self {
        Self {
            view,
            word: AtomicU64::new(NO_TURN),
            head: AtomicU64::new(NO_TURN),
        }
    }

    /// The slots that count.
    #[must_use]
    pub const fn view(&self) -> View {
        self.view
    }

    /// Adds `n` to count `at` if the sum in view is then surely at most `limit`, and far from it.
    /// `None` says nothing about the limit: call [`Ring::add_if`] instead. `head` is the head to
    /// which the ring was turned.
    ///
    /// `withdraw` is called with an addition that must be taken back.
    #[inline]
    pub fn add<const C: usize, const G: usize>(
        &self,
        ring: &Ring<C, G>,
        at: usize,
        n: u32,
        limit: u64,
        head: Head,
        withdraw: impl FnOnce(Tally),
    ) -> Option<Tally> {
        // Acquire: a thread that sees the head sees its word, or a later one.
        let is_known = self.head.load(Ordering::Acquire) == head.word();
        let mut word = self.word.load(Ordering::Acquire);
        if !is_known || Tally::known_in(word, head).is_none() {
            word = self.look_up(ring, at, limit, word)?;
        }
        if word & NEAR != 0 {
            return None;
        }
        let base = Tally::from_word(word);
        let before = ring.add(at, n);
        let used = before.since(base).saturating_add(n.into());
        let is_same_slot = before.is_same_slot(base);
        if used > limit / 2 || !is_same_slot {
            // Only this word: another one is of a later turn, and right.
            let _ =
                self.word
                    .compare_exchange(word, word | NEAR, Ordering::AcqRel, Ordering::Relaxed);
            if used > limit || !is_same_slot {
                withdraw(before);
                return None;
            }
        }
        Some(before)
    }

    /// Makes [`add`](Self::add) return `None` until the slot of `head` has ended.
    #[cold]
    pub(super) fn set_near(&self, head: Head) {
        let word = self.word.load(Ordering::Acquire);
        if Tally::known_in(word, head).is_some() {
            // A failure means that the slot has ended, or that another thread has done the same.
            let _ =
                self.word
                    .compare_exchange(word, word | NEAR, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The word for the ring's newest slot.
    #[cold]
    fn look_up<const C: usize, const G: usize>(
        &self,
        ring: &Ring<C, G>,
        at: usize,
        limit: u64,
        known: u64,
    ) -> Option<u64> {
        let (tally, head) = ring.standing(at);
        let base = ring.base(at, head, self.view)?;
        let near = if tally.since(base) > limit / 2 {
            NEAR
        } else {
            0
        };
        let word = base.kept_for(head) & !NEAR | near;
        self.word
            .compare_exchange(known, word, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        self.head.store(head.word(), Ordering::Release);
        Some(word)
    }
}
