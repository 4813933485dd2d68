//! The leap array: event counts over the newest slots of time, turned without locks.
//!
//! # Nothing is ever reset
//!
//! The known implementations keep one set of counts per slot and reset a slot when its turn comes
//! again; an add that races with the reset is lost. Here a count only ever grows. A slot remembers
//! the counts at its start, so a sum over slots is one subtraction, and nothing can be lost:
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
//! A thread whose time is beyond the head's slot turns the ring: it announces the target in `next`,
//! moves each count word to the new turn, and publishes the new head. Other threads that arrive
//! during a turn take the steps that are not done yet, so no thread waits for another that sleeps.
//! A count word moves in two steps:
//!
//! 1. The thread sets the word's entry in `past` to the value of the word.
//! 2. It exchanges the word from (that count, old turn) to (that count, new turn) by
//!    compare-and-swap. If the count has grown since, the exchange fails and the thread repeats
//!    step 1.
//!
//! At the moment of step 2, entry and word therefore agree. An add comes before it (old slot) or
//! after it (new slot), and the word to which it is added shows which. After step 2 no thread
//! writes the entry again: it would have to have seen the old turn with another count, and the
//! count did not change from either to the other (an `undo` counts in its own bits, so within one
//! turn a count returns to an old word only after exactly 256 of them).
//!
//! Turn numbers wrap after about 65,000 turns. A thread could confuse two turns only if it slept
//! between two adjacent steps for a whole multiple of that, while its count did not change.
//!
//! # Consistency
//!
//! Each count is exact: every add is in one slot, once. A late add (its time is older than the
//! head's slot) goes to the newest slot. A read of one count over some slots is its value at one
//! instant. Two counts are read one after the other.

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
/// A gauge keeps the lowest value noted in each slot (a maximum is stored as the lowest
/// complement).
// Up to six counts, which every add writes, fill one cache line together with the fields of a turn.
// The fields that every add reads are on the next line. Competing threads thus exchange one line,
// once per add.
#[repr(C, align(64))]
pub struct Ring<const C: usize, const G: usize> {
    counts: [AtomicU64; C],
    next: AtomicU64,
    /// Turn numbers stay below this multiple of `depth`.
    turns: u64,
    head: AtomicU64,
    gauges: [AtomicU64; G],
    layout: Layout,
    /// Entries in `past`: the layout's slots, one more for a strict view, and one that is being
    /// written.
    depth: u64,
    /// `depth` entries of `[ slot, counts.., gauges.. ]`; the gauges are those of the slot that the
    /// entry began.
    past: Box<[AtomicU64]>,
}

impl<const C: usize, const G: usize> Ring<C, G> {
    const STRIDE: usize = 1 + C + G;

    /// An empty ring.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        let depth = u64::from(layout.slots()) + 2;
        let entries = 0..depth as usize * Self::STRIDE;
        let fresh = |at| {
            if at % Self::STRIDE <= C {
                0
            } else {
                UNSET << 16
            }
        };
        let past = entries
            .map(|at| AtomicU64::new(fresh(at)))
            .collect::<Vec<_>>();
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

    /// The layout of the ring.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Ensures that the newest slot is the one that contains `now`, or a newer one.
    #[inline]
    pub fn turn_to(&self, now: Nanos) -> Head {
        self.turn_with(now, &|_, _| ())
    }

    /// Like [`turn_to`](Self::turn_to). A thread that turns the ring calls `fold` with the old and
    /// the new head while the entries of both are stored. Several threads may call it for one turn,
    /// at once or one after the other: it must write the same each time, and never replace newer
    /// values by older ones.
    #[inline]
    pub(in crate::stats) fn turn_with(&self, now: Nanos, fold: &impl Fn(Head, Head)) -> Head {
        // Acquire: a thread that sees the head sees the entries that its turn wrote.
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
                // Release/Acquire: the announcement comes after the head that it follows. A failure
                // means that another thread has announced; slots only grow, so the old value never
                // returns.
                match self.next.compare_exchange(
                    head.0,
                    target.0,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => next = target,
                    Err(announced) => next = Head(announced),
                }
            }
            if next.turn() != turn || next.slot() <= head.slot() {
                continue; // The head has moved on since it was read.
            }
            let entry = self.entry(turn);
            // Slots only grow, so a late thread writes nothing.
            self.past[entry].fetch_max(next.slot(), Ordering::AcqRel);
            for (at, word) in self.counts.iter().enumerate() {
                Self::move_word(
                    word,
                    &self.past[entry + 1 + at],
                    head.turn(),
                    turn,
                    |word| word,
                );
            }
            let ended = self.entry(head.turn());
            for (at, word) in self.gauges.iter().enumerate() {
                let past = &self.past[ended + 1 + C + at];
                Self::move_word(word, past, head.turn(), turn, |_| UNSET << 16);
            }
            fold(head, next);
            // Release: publishes the entries. A failure means that another thread has published the
            // same.
            let _ = self
                .head
                .compare_exchange(head.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Moves one word from turn `from` to turn `to`, and leaves its value in `past`; see the
    /// module's documentation.
    fn move_word(
        word: &AtomicU64,
        past: &AtomicU64,
        from: u64,
        to: u64,
        fresh: impl Fn(u64) -> u64,
    ) {
        loop {
            // Read before the word: the value in `past` must be older than the word. Acquire keeps
            // that order.
            let noted = past.load(Ordering::Acquire);
            let seen = word.load(Ordering::Acquire);
            if seen & TURN_MASK != from {
                return; // Moved by another thread.
            }
            let note = seen & !TURN_MASK | to;
            if noted != note {
                // AcqRel: a thread that sees the word moved sees this note. Won or lost, look
                // again.
                let _ = past.compare_exchange(noted, note, Ordering::AcqRel, Ordering::Relaxed);
                continue;
            }
            let moved = fresh(seen) & !TURN_MASK | to;
            // AcqRel: later adds read from this exchange and so see the note.
            if word
                .compare_exchange(seen, moved, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
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
        if turn >= back {
            turn - back
        } else {
            turn + self.turns - back
        }
    }

    /// The index in `past` of the entry of `turn`.
    #[inline]
    const fn entry(&self, turn: u64) -> usize {
        (turn as u32 % self.depth as u32) as usize * Self::STRIDE
    }

    /// Adds `n` to a count and returns the count before. The ring must have been turned to the
    /// caller's time.
    ///
    /// # Panics
    /// If the ring has no count `at`, here and in the methods below.
    #[inline]
    pub fn add(&self, at: usize, n: u32) -> Tally {
        // Release: a thread that reads the count also sees what the adding thread did before, so
        // the end of a call is never seen without its start. An overflow leaves at the top.
        Tally(self.counts[at].fetch_add(u64::from(n) * UNIT, Ordering::Release))
    }

    /// Like [`add`](Self::add) for amounts up to 2⁴⁰ − 1; a larger amount counts as that.
    #[inline]
    pub fn add_long(&self, at: usize, n: u64) -> Tally {
        Tally(self.counts[at].fetch_add(n.min(COUNT_MASK) * UNIT, Ordering::Release))
    }

    /// The current value of a count.
    #[inline]
    pub fn tally(&self, at: usize) -> Tally {
        // Acquire: pairs with the Release of `add`, and with the note of the turn that the word is
        // in.
        Tally(self.counts[at].load(Ordering::Acquire))
    }

    /// Adds `n` to a count if `check` agrees, in one atomic step: `check` sees the count and the
    /// head of its slot, and `n` is added to exactly that count. `check` runs again if another
    /// thread was faster.
    ///
    /// # Errors
    /// The error that `check` returned.
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
            let swap = self.counts[at].compare_exchange_weak(
                seen.0,
                more,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if swap.is_ok() {
                return Ok(seen);
            }
        }
    }

    /// Takes back `n` that [`add_if`](Self::add_if) added to `taken`, if its slot is still the
    /// newest. Otherwise the count stays as it is and the result is false: a slot that has ended
    /// does not change any more.
    pub fn undo(&self, at: usize, n: u32, taken: Tally) -> bool {
        loop {
            let seen = self.tally(at);
            if !seen.is_same_slot(taken) {
                return false;
            }
            let count = seen.0.wrapping_sub(u64::from(n) * UNIT) & !(UNIT - 1);
            let undone = (seen.0 + UNDO) & (UNIT - 1) & !TURN_MASK;
            let less = count | undone | seen.turn();
            if self.counts[at]
                .compare_exchange(seen.0, less, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return true;
            }
        }
    }

    /// Changes the word of a count, but not the count, if the word is still `seen`: every
    /// [`add_if`](Self::add_if) that has looked at it looks again.
    pub fn mark(&self, at: usize, seen: Tally) -> bool {
        let undone = (seen.0 + UNDO) & (UNIT - 1) & !TURN_MASK;
        let marked = seen.0 & !(UNIT - 1) | undone | seen.turn();
        // AcqRel: a thread that sees the mark sees what was changed before it.
        self.counts[at]
            .compare_exchange(seen.0, marked, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Notes `value` in a gauge: its slot keeps the lowest. Values of 2⁴⁸ − 1 and above are not
    /// kept.
    #[inline]
    pub fn note_low(&self, at: usize, value: u64) {
        let mut seen = self.gauges[at].load(Ordering::Acquire);
        while value < seen >> 16 {
            let lower = value << 16 | seen & TURN_MASK;
            // AcqRel: keeps the turn's note visible to readers of this word.
            match self.gauges[at].compare_exchange_weak(
                seen,
                lower,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}
