//! The leap array: event counts over the newest slots of time, turned without locks.
//!
//! # Nothing is ever reset
//!
//! The known implementations keep one set of counts a slot and reset a slot when time comes round to it again; an add
//! that races with the reset is lost. Here a count only ever grows. What a slot remembers is where the counts stood
//! when it began, so a sum over slots is one subtraction, and there is nothing to lose:
//!
//! ```text
//!   counts   ┌─────────────────────────┐      a count word: [ count 40 │ undone 8 │ turn 16 ]
//!            │ pass 57 · turn 4        │ ←── fetch_add: which turn it fell in comes back with it
//!            └─────────────────────────┘
//!   past     ┌ 1 ──────┬ 2 ──────┬ 3 ──────┬ 4 ──────┬ 0 ──────┐
//!            │ slot 70 │ slot 71 │ slot 74 │ slot 75 │         │   one entry for each turn: the slot it
//!            │ pass 10 │ pass 31 │ pass 40 │ pass 52 │         │   began, the counts as they stood then
//!            └─────────┴─────────┴─────────┴─────────┴─────────┘
//!   head       slot 75 · turn 4                  pass in slots 71..=75: 57 − 31 = 26
//! ```
//!
//! # Turning
//!
//! Whoever comes with a time beyond the head's slot turns the ring: announces the target in `next`, moves each count
//! word to the new turn, and publishes the new head. Anybody who comes meanwhile does the same steps, whichever of
//! them is undone, so nobody waits for a thread that sleeps. A count word moves in two steps:
//!
//! 1. its entry in `past` is set to what the word says;
//! 2. compare-and-swap on the word from (that count, old turn) to (that count, new turn). It fails when the count has
//!    grown meanwhile, and step 1 is done again.
//!
//! So at the moment of step 2, entry and word agree; an add falls before it (old slot) or after (new slot), and the
//! word it lands on says which. After step 2 no entry is written again: to do so a thread must have seen the old turn
//! with another count, and the count moved on from neither to the other without a change (an `undo` counts in its own
//! bits, so that within one turn a count returns to an
//! old word only by exactly 256 of them).
//!
//! Turn numbers wrap after about 65,000 turns. Only a thread that sleeps between two adjacent steps through a whole
//! multiple of them, while its count stands still, could mistake one for the other.
//!
//! # Consistency
//!
//! Each count is exact: every add is in one slot, once; a late one (its time is older than the head's slot) in the
//! newest. A read of one count over some slots is what it was at one instant. Two counts are read one after the other.

extern crate alloc;

use alloc::{boxed::Box, vec::Vec};

mod read;
mod word;

pub(super) use word::NO_TURN;
pub use word::{Head, Tally};

use super::Layout;
use crate::{
    Nanos,
    sync::{AtomicU64, Ordering},
};
use word::{COUNT_MASK, TURN_MASK, UNDO, UNIT, UNSET};

/// `C` counts and `G` gauges over the slots of a layout.
///
/// A gauge keeps the lowest value noted in each slot (a maximum is the lowest of the complements).
// Up to six counts, which every add writes, fill one cache line with what only a turn needs; what every add reads is on
// the next. So threads that meet pass one line around, and take it once for an add.
#[repr(C, align(64))]
pub struct Ring<const C: usize, const G: usize> {
    counts: [AtomicU64; C],
    next: AtomicU64,
    /// Turn numbers stay below this multiple of `depth`.
    turns: u64,
    head: AtomicU64,
    gauges: [AtomicU64; G],
    layout: Layout,
    /// Entries in `past`: the layout's slots, one more for a strict view, one that is being written.
    depth: u64,
    /// `depth` entries of `[ slot, counts.., gauges.. ]`; the gauges are those of the slot that the entry began.
    past: Box<[AtomicU64]>,
}

impl<const C: usize, const G: usize> Ring<C, G> {
    const STRIDE: usize = 1 + C + G;

    /// An empty ring.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        let depth = u64::from(layout.slots()) + 2;
        let entries = 0..depth as usize * Self::STRIDE;
        let fresh = |at| if at % Self::STRIDE <= C { 0 } else { UNSET << 16 };
        let past = entries.map(|at| AtomicU64::new(fresh(at))).collect::<Vec<_>>();
        Self {
            head: AtomicU64::new(0),
            counts: core::array::from_fn(|_| AtomicU64::new(0)),
            gauges: core::array::from_fn(|_| AtomicU64::new(UNSET << 16)),
            next: AtomicU64::new(0),
            layout,
            depth,
            turns: TURN_MASK / depth * depth,
            past: past.into_boxed_slice(),
        }
    }

    /// The layout that the ring was made with.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Makes sure that the newest slot is the one `now` falls in, or a newer one.
    #[inline]
    pub fn turn_to(&self, now: Nanos) -> Head {
        self.turn_with(now, &|_, _| ())
    }

    /// As [`turn_to`](Self::turn_to); whoever turns calls `fold` with the old and the new head while the entries of
    /// both stand. Several threads may call it for one turn, at once or after each other: it must write the same each
    /// time, and never what is older over what is newer.
    #[inline]
    pub(in crate::stats) fn turn_with(&self, now: Nanos, fold: &impl Fn(Head, Head)) -> Head {
        // Acquire: who sees the head sees the entries that its turn wrote.
        let head = Head(self.head.load(Ordering::Acquire));
        if now.get() < (head.slot() + 1) * self.layout.slot_nanos() {
            return head;
        }
        self.turn(now.get() / self.layout.slot_nanos(), fold)
    }

    #[cold]
    fn turn(&self, slot: u64, fold: &impl Fn(Head, Head)) -> Head {
        loop {
            let head = Head(self.head.load(Ordering::Acquire));
            if head.slot() >= slot {
                return head;
            }
            let turn = self.after(head.turn());
            let mut next = Head(self.next.load(Ordering::Acquire));
            if next == head {
                let target = Head::new(slot, turn);
                // Release/Acquire: the announcement comes after the head it follows. A failure means that somebody
                // else has announced; slots only grow, so the old value never comes back.
                match self.next.compare_exchange(head.0, target.0, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => next = target,
                    Err(announced) => next = Head(announced),
                }
            }
            if next.turn() != turn || next.slot() <= head.slot() {
                continue; // The head has moved on since it was read.
            }
            let entry = self.entry(turn);
            // Slots only grow, so a thread that comes too late writes nothing.
            self.past[entry].fetch_max(next.slot(), Ordering::AcqRel);
            for (at, word) in self.counts.iter().enumerate() {
                Self::move_word(word, &self.past[entry + 1 + at], head.turn(), turn, |word| word);
            }
            let ended = self.entry(head.turn());
            for (at, word) in self.gauges.iter().enumerate() {
                let past = &self.past[ended + 1 + C + at];
                Self::move_word(word, past, head.turn(), turn, |_| UNSET << 16);
            }
            fold(head, next);
            // Release: publishes the entries. A failure means that another thread has published the same.
            let _ = self.head.compare_exchange(head.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Moves one word from turn `from` to turn `to`, leaving what it said in `past`; see the module's page.
    fn move_word(word: &AtomicU64, past: &AtomicU64, from: u64, to: u64, fresh: impl Fn(u64) -> u64) {
        loop {
            // Before the word: what is in `past` must be older than what the word says. Acquire keeps that order.
            let noted = past.load(Ordering::Acquire);
            let seen = word.load(Ordering::Acquire);
            if seen & TURN_MASK != from {
                return; // Moved by another thread.
            }
            let note = seen & !TURN_MASK | to;
            if noted != note {
                // AcqRel: whoever sees the word moved sees this note. Lost or won, look again.
                let _ = past.compare_exchange(noted, note, Ordering::AcqRel, Ordering::Relaxed);
                continue;
            }
            let moved = fresh(seen) & !TURN_MASK | to;
            // AcqRel: adds that follow read from here and so from the note.
            if word.compare_exchange(seen, moved, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    #[inline]
    const fn after(&self, turn: u64) -> u64 {
        if turn + 1 == self.turns { 0 } else { turn + 1 }
    }

    #[inline]
    const fn before(&self, turn: u64, back: u64) -> u64 {
        if turn >= back { turn - back } else { turn + self.turns - back }
    }

    /// Where the entry of `turn` begins in `past`.
    #[inline]
    const fn entry(&self, turn: u64) -> usize {
        (turn as u32 % self.depth as u32) as usize * Self::STRIDE
    }

    /// Adds `n` to a count; returns the count before. The ring must have been turned to the caller's time.
    ///
    /// # Panics
    /// When there is no count `at`, as everywhere below.
    #[inline]
    pub fn add(&self, at: usize, n: u32) -> Tally {
        // Release: who reads the count also sees what its counter did before, so that a call's end is never seen
        // without its beginning. What overflows leaves at the top.
        Tally(self.counts[at].fetch_add(u64::from(n) * UNIT, Ordering::Release))
    }

    /// As [`add`](Self::add) for amounts up to 2⁴⁰ − 1; more counts as that.
    #[inline]
    pub fn add_long(&self, at: usize, n: u64) -> Tally {
        Tally(self.counts[at].fetch_add(n.min(COUNT_MASK) * UNIT, Ordering::Release))
    }

    /// A count as it stands.
    #[inline]
    pub fn tally(&self, at: usize) -> Tally {
        // Acquire: pairs with the Release of `add`, and with the note of the turn that the word is in.
        Tally(self.counts[at].load(Ordering::Acquire))
    }

    /// Adds `n` to a count if `check` agrees, in one step: `check` sees the count and the head of its slot, and what
    /// it decided on is what is added to. It runs again when another thread was faster.
    ///
    /// # Errors
    /// What `check` refused with.
    #[inline]
    pub fn add_if<E>(
        &self,
        at: usize,
        n: u32,
        mut check: impl FnMut(Tally, Head) -> Result<(), E>,
    ) -> Result<Tally, E> {
        loop {
            let seen = self.tally(at);
            let Some(head) = self.head_of(seen) else {
                #[cfg(loom)]
                crate::sync::yield_now();
                continue;
            };
            check(seen, head)?;
            let more = seen.0.wrapping_add(u64::from(n) * UNIT);
            // AcqRel as in `add`; the Acquire orders a later read of another count after this one.
            let swap =
                self.counts[at].compare_exchange_weak(seen.0, more, Ordering::AcqRel, Ordering::Relaxed);
            if swap.is_ok() {
                return Ok(seen);
            }
        }
    }

    /// Takes back `n` that [`add_if`](Self::add_if) added to `taken`, if its slot is still the newest. Otherwise the
    /// count stays as it is, and the answer is false: a slot that has ended is not changed any more.
    pub fn undo(&self, at: usize, n: u32, taken: Tally) -> bool {
        loop {
            let seen = self.tally(at);
            if !seen.is_same_slot(taken) {
                return false;
            }
            let count = seen.0.wrapping_sub(u64::from(n) * UNIT) & !(UNIT - 1);
            let undone = (seen.0 + UNDO) & (UNIT - 1) & !TURN_MASK;
            let less = count | undone | seen.turn();
            if self.counts[at].compare_exchange(seen.0, less, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return true;
            }
        }
    }

    /// Changes the word of a count, but not the count, if it still is `seen`: every [`add_if`](Self::add_if) that has looked
    /// at it looks again.
    pub fn mark(&self, at: usize, seen: Tally) -> bool {
        let undone = (seen.0 + UNDO) & (UNIT - 1) & !TURN_MASK;
        let marked = seen.0 & !(UNIT - 1) | undone | seen.turn();
        // AcqRel: who sees the mark sees what was changed before it.
        self.counts[at].compare_exchange(seen.0, marked, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Notes `value` in a gauge: its slot keeps the lowest. Values from 2⁴⁸ − 1 on are not kept.
    #[inline]
    pub fn note_low(&self, at: usize, value: u64) {
        let mut seen = self.gauges[at].load(Ordering::Acquire);
        while value < seen >> 16 {
            let lower = value << 16 | seen & TURN_MASK;
            // AcqRel: keeps the turn's note visible to whoever reads this word.
            match self.gauges[at].compare_exchange_weak(seen, lower, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}
