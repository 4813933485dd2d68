//! One state, shared by threads.
//!
//! ```text
//! one word:    │ L │ state (63 bits) │                       compare-and-swap; L is set by joint decisions alone
//! more words:  │ L │        0        │  │ word 0 │ word 1 │ …   read and written by whoever holds L
//! ```

#![allow(unsafe_code)] // The words of a wide state are reached through an `UnsafeCell`, guarded by the lock.

use alloc::{boxed::Box, vec};

use super::{Backoff, Lock};
use crate::{Algorithm, Decision, Nanos, Policy, sync::UnsafeCell};

/// The state of one limiter.
///
/// Every method is one atomic step: no interleaving of threads admits more than one thread would.
#[derive(Debug)]
// A cache line of its own: neighbours must not slow it down. Two lines, as processors fetch them in pairs.
#[repr(align(128))]
pub struct StateCell {
    head: Lock,
    /// Empty where the head holds the state.
    words: UnsafeCell<Box<[u64]>>,
    wide: bool,
}

// SAFETY: `words` is read and written only between `head.lock()` and `head.unlock()`, which order the accesses of
// different threads (acquire, release); the loom test holds them to it.
unsafe impl Sync for StateCell {}

impl StateCell {
    /// A fresh state of `words` words.
    #[must_use]
    pub fn new(words: usize) -> Self {
        let wide = words > 1;
        let body = vec![0; if wide { words } else { 0 }].into_boxed_slice();
        Self { head: Lock::new(0), words: UnsafeCell::new(body), wide }
    }

    /// Decides on `cost` at the time that `now` tells, which is asked once, and takes it when admitted. `policy` must be the
    /// one that the cell is for. `None` when the cell is held or [retired](StateGuard::retire); then nothing was done.
    ///
    /// The state is read before the time. Where the clock takes long, whoever comes between is then noticed, and this
    /// thread steps back for long enough that the other one keeps the cache line for many decisions: half the time on a
    /// contended cell, against two threads that pull the line back and forth and never fail.
    #[inline(always)]
    #[allow(clippy::inline_always)] // In the caller most of a decision is never looked at, and falls away.
    pub fn try_decide(&self, policy: &Policy, now: impl FnOnce() -> Nanos, cost: u32) -> Option<Decision> {
        let Some(bucket) = policy.plain_bucket(cost) else {
            return self.try_decide_any(policy, now(), cost);
        };
        // A loop of its own: a trip of the decision through memory would be a third of the time.
        let mut seen = self.head.read()?;
        let now = now();
        let mut backoff = Backoff::new();
        loop {
            match bucket.step(seen, now, cost) {
                Ok((next, after)) if self.head.replace(seen, next) => return Some(bucket.allow(after)),
                Ok(_) => {}
                Err(denied) => return Some(denied),
            }
            backoff.wait();
            seen = self.head.read()?;
        }
    }

    #[inline(never)]
    fn try_decide_any(&self, policy: &Policy, now: Nanos, cost: u32) -> Option<Decision> {
        if self.wide {
            return Some(policy.decide(self.try_lock()?.words(), now, cost));
        }
        self.try_apply(|state| policy.decide(state, now, cost))
    }

    /// One atomic step on the state. The closure may run more than once and must have no effect but on the words. `None`
    /// when the cell is held or [retired](StateGuard::retire); then nothing was done.
    #[inline]
    pub fn try_apply<R>(&self, mut step: impl FnMut(&mut [u64]) -> R) -> Option<R> {
        if self.wide {
            return Some(step(self.try_lock()?.words()));
        }
        self.head.try_update(|word| {
            let mut state = [word];
            let result = step(&mut state);
            ((state[0] != word).then_some(state[0]), result)
        })
    }

    /// Holds the state, for a decision over several. Whoever locks several cells must do so in one order everywhere.
    /// Waits for ever where the cell is [retired](StateGuard::retire).
    pub fn lock(&self) -> StateGuard<'_> {
        let word = self.head.lock();
        StateGuard { cell: self, word: [word] }
    }

    /// Holds the state if nobody else does, and the cell is not [retired](StateGuard::retire).
    #[inline]
    pub fn try_lock(&self) -> Option<StateGuard<'_>> {
        let word = self.head.try_lock()?;
        Some(StateGuard { cell: self, word: [word] })
    }

    /// Takes a [retired](StateGuard::retire) cell back into use, with a fresh state of `words` words: as many as it had.
    /// `None` when it is not retired.
    pub fn resume(&self, words: usize) -> Option<StateGuard<'_>> {
        if !self.head.resume() {
            return None;
        }
        if self.wide {
            // SAFETY: this thread holds the lock, and nobody else has a reference to the words.
            unsafe { *self.words.get_mut_ptr() = vec![0; words].into_boxed_slice() };
        }
        Some(StateGuard { cell: self, word: [0] })
    }
}

/// The state, locked; dropped, it is written back and unlocked.
#[derive(Debug)]
pub struct StateGuard<'a> {
    cell: &'a StateCell,
    /// The state where it is one word; 0 otherwise.
    word: [u64; 1],
}

impl StateGuard<'_> {
    /// The words of the state.
    #[inline]
    pub fn words(&mut self) -> &mut [u64] {
        if self.cell.wide {
            // SAFETY: this guard holds the lock, and the borrow of the guard keeps a second reference from being made.
            unsafe { &mut *self.cell.words.get_mut_ptr() }
        } else {
            &mut self.word
        }
    }

    /// Forgets the state and leaves the cell locked: whoever comes to it from now on is told that it is held, until somebody
    /// [resumes](StateCell::resume) it.
    pub fn retire(self) {
        if self.cell.wide {
            // SAFETY: this guard holds the lock, and no reference to the words is alive.
            unsafe { *self.cell.words.get_mut_ptr() = Box::default() };
        }
        self.cell.head.retire();
        core::mem::forget(self);
    }
}

impl Drop for StateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cell.head.unlock(self.word[0]);
    }
}
