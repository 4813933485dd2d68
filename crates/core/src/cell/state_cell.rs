//! One state, shared by threads.
//!
//! ```text
//! one word:    │ L │ state (63 bits) │                       compare-and-swap; L is set by joint decisions alone
//! more words:  │ L │        0        │  │ word 0 │ word 1 │ …   read and written by the holder of L
//! ```

#![allow(unsafe_code)] // The words of a wide state are reached through an `UnsafeCell`, guarded by the lock.

use alloc::{boxed::Box, vec};

use super::{Backoff, Lock};
use crate::{Algorithm, Decision, Nanos, Policy, sync::UnsafeCell};

/// The state of one limiter.
///
/// Every method is one atomic step: no interleaving of threads admits more than one thread would.
#[derive(Debug)]
// A separate cache line, so that neighbours do not slow it down. Two lines, because processors
// fetch them in pairs.
#[repr(align(128))]
pub struct StateCell {
    head: Lock,
    /// Empty if the head holds the state.
    words: UnsafeCell<Box<[u64]>>,
    wide: bool,
}

// SAFETY: `words` is read and written only between `head.lock()` and `head.unlock()`, which order
// the accesses of different threads (acquire, release); the loom test checks it.
unsafe impl Sync for StateCell {}

impl StateCell {
    /// A fresh state of `words` words.
    #[must_use]
    pub fn new(words: usize) -> Self {
        let wide = words > 1;
        let body = vec![0; if wide { words } else { 0 }].into_boxed_slice();
        Self {
            head: Lock::new(0),
            words: UnsafeCell::new(body),
            wide,
        }
    }

    /// Decides on `cost` at the time that `now` returns, and takes it if it is admitted. `now` is
    /// called once. `policy` must be the policy of this cell. `None` if the cell is held or
    /// [retired](StateGuard::retire); then nothing was done.
    ///
    /// The state is read before the time. If reading the clock is slow, the exchange then detects a
    /// thread that came in between, and this thread backs off for long enough that the other one
    /// keeps the cache line for many decisions. On a contended cell this takes half the time of two
    /// threads that pull the line back and forth and never fail.
    #[inline(always)]
    #[allow(clippy::inline_always)] // In the caller most of a decision is never looked at, and falls away.
    pub fn try_decide(
        &self,
        policy: &Policy,
        now: impl FnOnce() -> Nanos,
        cost: u64,
    ) -> Option<Decision> {
        let Some(bucket) = policy.plain_bucket(cost) else {
            return self.try_decide_any(policy, now(), cost);
        };
        // A separate loop: passing the decision through memory would take a third of the time.
        let mut seen = self.head.read()?;
        let now = now();
        let mut backoff = Backoff::new();
        loop {
            match bucket.step(seen, now, cost) {
                Ok((next, after)) if self.head.replace(seen, next) => {
                    return Some(bucket.allow(after));
                }
                Ok(_) => {}
                Err(denied) => return Some(denied),
            }
            backoff.wait();
            seen = self.head.read()?;
        }
    }

    /// Like [`try_decide`](Self::try_decide) in one attempt: `None` also if another thread was
    /// faster. For callers that inline it and read little of a decision: without a loop, the rest
    /// falls away.
    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    pub fn try_decide_once(
        &self,
        policy: &Policy,
        now: impl FnOnce() -> Nanos,
        cost: u64,
    ) -> Option<Decision> {
        let Some(bucket) = policy.plain_bucket(cost) else {
            return self.try_decide_now(policy, now, cost);
        };
        let seen = self.head.read()?;
        match bucket.step(seen, now(), cost) {
            Ok((next, after)) if self.head.replace(seen, next) => Some(bucket.allow(after)),
            Ok(_) => {
                Backoff::new().wait();
                None
            }
            Err(denied) => Some(denied),
        }
    }

    /// Reads the clock, too: once in a caller's code is enough.
    #[inline(never)]
    fn try_decide_now(
        &self,
        policy: &Policy,
        now: impl FnOnce() -> Nanos,
        cost: u64,
    ) -> Option<Decision> {
        self.try_decide_any(policy, now(), cost)
    }

    #[inline(never)]
    fn try_decide_any(&self, policy: &Policy, now: Nanos, cost: u64) -> Option<Decision> {
        if !self.wide {
            return self.try_apply(|state| policy.decide(state, now, cost));
        }
        let mut held = self.try_lock()?;
        // Most decisions of a window, without the calls of the others.
        let admitted = policy
            .plain_window()
            .and_then(|window| window.take_in_slot(held.words(), now, cost));
        admitted.or_else(|| Some(policy.decide(held.words(), now, cost)))
    }

    /// One atomic step on the state. The closure may run more than once and must change nothing but
    /// the words. `None` if the cell is held or [retired](StateGuard::retire); then nothing was
    /// done.
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

    /// Locks the state, for a decision over several. Callers that lock several cells must always do
    /// so in the same order. Waits for ever if the cell is [retired](StateGuard::retire).
    pub fn lock(&self) -> StateGuard<'_> {
        let word = self.head.lock();
        StateGuard {
            cell: self,
            word: [word],
        }
    }

    /// Locks the state if no other thread holds it and the cell is not
    /// [retired](StateGuard::retire).
    #[inline]
    pub fn try_lock(&self) -> Option<StateGuard<'_>> {
        let word = self.head.try_lock()?;
        Some(StateGuard {
            cell: self,
            word: [word],
        })
    }

    /// Puts a [retired](StateGuard::retire) cell back into use, with a fresh state of `words`
    /// words: as many as before. `None` if the cell is not retired.
    pub fn resume(&self, words: usize) -> Option<StateGuard<'_>> {
        if !self.head.resume() {
            return None;
        }
        if self.wide {
            // SAFETY: this thread holds the lock, and no other reference to the words exists.
            unsafe { *self.words.get_mut_ptr() = vec![0; words].into_boxed_slice() };
        }
        Some(StateGuard {
            cell: self,
            word: [0],
        })
    }
}

/// The locked state. Dropping it writes the state back and unlocks the cell.
#[derive(Debug)]
pub struct StateGuard<'a> {
    cell: &'a StateCell,
    /// The state if it is one word; 0 otherwise.
    word: [u64; 1],
}

impl StateGuard<'_> {
    /// The words of the state.
    #[inline]
    pub fn words(&mut self) -> &mut [u64] {
        if self.cell.wide {
            // SAFETY: this guard holds the lock, and the borrow of the guard prevents a second
            // reference.
            unsafe { &mut *self.cell.words.get_mut_ptr() }
        } else {
            &mut self.word
        }
    }

    /// Drops the state and leaves the cell locked: to other threads it looks held until one of them
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
