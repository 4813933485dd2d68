//! Admission by one addition, while a limit is far away.

use super::{Head, Ring, Tally, View, ring::NO_TURN};
use crate::sync::{AtomicU64, Ordering};

/// In a word of `Headroom`: the limit is near in this turn.
const NEAR: u64 = 1 << 16;

/// What is known of a limit on one count of one ring, in a view: in which turn it was far away, and where the view
/// began then.
///
/// An admission that must see the count before it changes it fetches the count's cache line twice when several threads
/// meet, and starts again when another was faster. Far from the limit it can be the other way round: add, and look at
/// what the addition brought back. That it was too much is then possible only when others have used up half of the
/// limit in between; what was added is taken back, and whoever looks at the count just then sees too much, never too
/// little. So a limit is never passed.
pub struct Headroom {
    view: View,
    /// Where the count stood when the view began, perhaps [`NEAR`], and the turn for which that holds.
    word: AtomicU64,
    /// The head for which `word` was looked up last; written after it (see [`Trailing`](super::Trailing)).
    head: AtomicU64,
}

impl Headroom {
    /// About the slots of `view`.
    #[must_use]
    pub fn new(view: View) -> Self {
        Self { view, word: AtomicU64::new(NO_TURN), head: AtomicU64::new(NO_TURN) }
    }

    /// The slots that count.
    #[must_use]
    pub const fn view(&self) -> View {
        self.view
    }

    /// Adds `n` to count `at` if that is surely at most `limit` in view, and far from it. `None` says nothing about the
    /// limit: ask by [`Ring::add_if`]. `head` is what the ring was turned to.
    ///
    /// `withdraw` is called with what was added and must not stay.
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
        // Acquire: who sees the head sees its word, or one of later.
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
            // Only this word: another is of a later turn, and right.
            let _ = self.word.compare_exchange(word, word | NEAR, Ordering::AcqRel, Ordering::Relaxed);
            if used > limit || !is_same_slot {
                withdraw(before);
                return None;
            }
        }
        Some(before)
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
        let near = if tally.since(base) > limit / 2 { NEAR } else { 0 };
        let word = base.kept_for(head) & !NEAR | near;
        self.word.compare_exchange(known, word, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        self.head.store(head.word(), Ordering::Release);
        Some(word)
    }
}
