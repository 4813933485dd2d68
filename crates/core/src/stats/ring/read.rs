//! Reading a ring: sums over views, slots one by one, and the values that a fold needs.

use core::time::Duration;

use super::{Head, Ring, Tally, UNSET, word::TURN_MASK};
use crate::{Nanos, stats::View, sync::Ordering};

impl<const C: usize, const G: usize> Ring<C, G> {
    /// The current value of a count, with the newest slot it belongs to.
    #[must_use]
    #[inline]
    pub fn standing(&self, at: usize) -> (Tally, Head) {
        loop {
            let tally = self.tally(at);
            if let Some(head) = self.head_of(tally) {
                return (tally, head);
            }
            #[cfg(loom)]
            crate::sync::yield_now();
        }
    }

    /// The head of the slot in which a tally was read; `None` if the ring has turned since.
    #[inline]
    pub(super) fn head_of(&self, tally: Tally) -> Option<Head> {
        let head = Head(self.head.load(Ordering::Acquire));
        if head.turn() == tally.turn() {
            return Some(head);
        }
        // Between the move of a word and the publication of the new head, the announcement shows
        // the word's slot.
        let next = Head(self.next.load(Ordering::Acquire));
        (next.turn() == tally.turn()).then_some(next)
    }

    /// The value of count `at` when the slots of `view` began, if `head` is the newest: `None` if
    /// the ring has turned since. Fixed for one head.
    #[inline]
    pub fn base(&self, at: usize, head: Head, view: View) -> Option<Tally> {
        self.note_from(
            at,
            head,
            (head.slot() + 1).saturating_sub(view.slots().into()),
        )
    }

    /// The note of count `at` at the start of the first slot whose number is `oldest` (at most the
    /// head's) or above.
    #[inline]
    pub(in crate::stats) fn note_from(&self, at: usize, head: Head, oldest: u64) -> Option<Tally> {
        // The entry of `d` turns ago has a slot at least `d` before the head's: nothing older can
        // be in view.
        let mut back = (head.slot() - oldest).min(self.depth - 2);
        loop {
            let turn = self.before(head.turn(), back);
            let entry = self.entry(turn);
            if back == 0 || self.past[entry].load(Ordering::Acquire) >= oldest {
                let note = self.past[entry + 1 + at].load(Ordering::Acquire);
                // Entries before the first turn are zero, turn included: nothing was counted then.
                return (note & TURN_MASK == turn || note == 0).then_some(Tally(note));
            }
            back -= 1;
        }
    }

    /// How much count `at` has grown in the slots of `view`, seen at `now` (or at the newest slot,
    /// if `now` is older).
    #[inline]
    pub fn sum(&self, at: usize, now: Nanos, view: View) -> u64 {
        self.read(|head| {
            let newest = self.slot_at(head, now);
            let oldest = (newest + 1).saturating_sub(view.slots().into());
            if oldest > head.slot() {
                return Some(0);
            }
            Some(
                self.tally_within(at, head)?
                    .since(self.note_from(at, head, oldest)?),
            )
        })
    }

    /// The time from `now` until at most `goal` of what counts in `view` at `tally` is left there,
    /// with no other traffic: the slots leave the view one by one, the oldest first.
    #[must_use]
    pub fn fits_after(
        &self,
        at: usize,
        tally: Tally,
        head: Head,
        now: Nanos,
        view: View,
        goal: u64,
    ) -> Duration {
        let slots = u64::from(view.slots());
        let left = (1..slots).find(|gone| {
            let oldest = (head.slot() + 1 + gone).saturating_sub(slots);
            self.note_from(at, head, oldest)
                .is_some_and(|began| tally.since(began) <= goal)
        });
        let at = (head.slot() + left.unwrap_or(slots)) * self.layout.slot_nanos();
        Duration::from_nanos(at.saturating_sub(now.get()))
    }

    /// The number of the slot that contains `now`, or the head's if that is newer.
    #[inline]
    fn slot_at(&self, head: Head, now: Nanos) -> u64 {
        if now.get() < (head.slot() + 1) * self.layout.slot_nanos() {
            head.slot()
        } else {
            now.get() / self.layout.slot_nanos()
        }
    }

    /// The value of count `at`, or its value at the end of the head's slot if its word has already
    /// moved to a later turn.
    #[inline]
    fn tally_within(&self, at: usize, head: Head) -> Option<Tally> {
        let tally = self.tally(at);
        if tally.turn() == head.turn() {
            return Some(tally);
        }
        let next = self.after(head.turn());
        let note = self.past[self.entry(next) + 1 + at].load(Ordering::Acquire);
        (tally.turn() == next && note & TURN_MASK == next).then_some(Tally(note))
    }

    /// Runs `look` on the head, and repeats it if the head has changed, so that the values seen
    /// belong together.
    #[inline]
    pub(in crate::stats) fn read<T>(&self, mut look: impl FnMut(Head) -> Option<T>) -> T {
        loop {
            let head = Head(self.head.load(Ordering::Acquire));
            let seen = look(head);
            // An entry is overwritten only after a later head was published, and `look` reads
            // entries with Acquire: if it had seen an overwritten entry, this load would see that
            // head.
            if let Some(seen) = seen
                && self.head.load(Ordering::Acquire) == head.0
            {
                return seen;
            }
            #[cfg(loom)]
            crate::sync::yield_now();
        }
    }

    /// The lowest value of a gauge in the slots of `view`, seen at `now` as in [`sum`](Self::sum).
    #[must_use]
    pub fn lowest(&self, at: usize, now: Nanos, view: View) -> Option<u64> {
        self.read(|head| {
            let oldest = (self.slot_at(head, now) + 1).saturating_sub(view.slots().into());
            let ended = self.lowest_until(at, head, oldest);
            let live = self.gauges[at].load(Ordering::Acquire);
            // If a word has already moved, the slot's lowest value is in the entry.
            let live =
                (live & TURN_MASK == head.turn() && live >> 16 != UNSET).then_some(live >> 16);
            let live = live.filter(|_| oldest <= head.slot());
            Some(ended.into_iter().chain(live).min())
        })
    }

    /// Calls `each` for every slot from number `oldest` on in which the ring turned, oldest first,
    /// with the slot's number, its counts, the counts at its start, and its gauges (`None` if
    /// nothing was noted). All slots belong to one instant of the ring. `fresh` creates the state
    /// before the first slot, and again if a turn came in between and the walk starts over.
    pub(in crate::stats) fn slots_from<S>(
        &self,
        oldest: u64,
        fresh: impl Fn() -> S,
        each: impl Fn(&mut S, u64, [u64; C], [Tally; C], [Option<u64>; G]),
    ) -> S {
        self.read(|head| {
            let mut state = fresh();
            for back in (0..self.depth - 1).rev() {
                let turn = self.before(head.turn(), back);
                let entry = self.entry(turn);
                let slot = self.past[entry].load(Ordering::Acquire);
                let known =
                    back == 0 || self.past[entry + 1].load(Ordering::Acquire) & TURN_MASK == turn;
                if slot < oldest || !known {
                    continue;
                }
                let mut counts = [0; C];
                let mut began = [Tally(0); C];
                for (at, count) in counts.iter_mut().enumerate() {
                    began[at] = Tally(self.past[entry + 1 + at].load(Ordering::Acquire));
                    let ended = if back == 0 {
                        self.tally_within(at, head)?
                    } else {
                        let after = self.entry(self.after(turn));
                        Tally(self.past[after + 1 + at].load(Ordering::Acquire))
                    };
                    *count = ended.since(began[at]);
                }
                let mut gauges = [None; G];
                for (at, gauge) in gauges.iter_mut().enumerate() {
                    let mut word = self.gauges[at].load(Ordering::Acquire);
                    if back > 0 || word & TURN_MASK != turn {
                        word = self.past[entry + 1 + C + at].load(Ordering::Acquire);
                    }
                    *gauge = (word >> 16 != UNSET).then_some(word >> 16);
                }
                each(&mut state, slot, counts, began, gauges);
            }
            Some(state)
        })
    }

    /// The value of count `at` when `head` began, for a fold, while the entry is stored.
    pub(in crate::stats) fn began(&self, at: usize, head: Head) -> u64 {
        self.past[self.entry(head.turn()) + 1 + at].load(Ordering::Acquire) >> 24
    }

    /// The value of count `at` when the first slot from number `oldest` on began. `None` if the
    /// ring has turned since.
    pub(in crate::stats) fn began_from(&self, at: usize, head: Head, oldest: u64) -> Option<u64> {
        self.note_from(at, head, oldest).map(|note| note.0 >> 24)
    }

    /// The value of count `at`, or its value at the end of the head's slot.
    pub(in crate::stats) fn count_within(&self, at: usize, head: Head) -> Option<u64> {
        self.tally_within(at, head).map(|tally| tally.0 >> 24)
    }

    /// The turn that has been announced, or the head's.
    pub(in crate::stats) fn announced(&self) -> Head {
        Head(self.next.load(Ordering::Acquire))
    }

    /// The lowest gauge value in the ended slots from number `oldest` to the head's.
    pub(in crate::stats) fn lowest_until(&self, at: usize, head: Head, oldest: u64) -> Option<u64> {
        (0..self.depth - 1)
            .filter_map(|back| {
                let turn = self.before(head.turn(), back);
                let entry = self.entry(turn);
                let word = self.past[entry + 1 + C + at].load(Ordering::Acquire);
                let inside = self.past[entry].load(Ordering::Acquire) >= oldest;
                // Until the head's own slot ends, its note is that of an older slot.
                let of_it = word & TURN_MASK == self.after(turn);
                (inside && of_it && word >> 16 != UNSET).then_some(word >> 16)
            })
            .min()
    }
}
