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

    /// Decides on `cost` and takes it when admitted. `policy` must be the one that the cell is for.
    #[inline(always)]
    #[allow(clippy::inline_always)] // In the caller most of a decision is never looked at, and falls away.
    pub fn decide(&self, policy: &Policy, now: Nanos, cost: u32) -> Decision {
        self.decide_when(policy, || now, cost)
    }

    /// [`decide`](Self::decide) at the time that `now` tells, which is asked once.
    ///
    /// The state is read before the time. Where the clock takes long, whoever comes between is then noticed, and this
    /// thread steps back for long enough that the other one keeps the cache line for many decisions: half the time on a
    /// contended cell, against two threads that pull the line back and forth and never fail.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn decide_when(&self, policy: &Policy, now: impl FnOnce() -> Nanos, cost: u32) -> Decision {
        let Some(bucket) = policy.plain_bucket(cost) else {
            return self.decide_any(policy, now(), cost);
        };
        // A loop of its own: a trip of the decision through memory would be a third of the time.
        let mut seen = self.head.read();
        let now = now();
        let mut backoff = Backoff::new();
        loop {
            if let Some(tat) = seen {
                match bucket.step(tat, now, cost) {
                    Ok((next, after)) if self.head.replace(tat, next) => return bucket.allow(after),
                    Ok(_) => {}
                    Err(denied) => return denied,
                }
            }
            backoff.wait();
            seen = self.head.read();
        }
    }

    #[inline(never)]
    fn decide_any(&self, policy: &Policy, now: Nanos, cost: u32) -> Decision {
        if self.wide {
            return policy.decide(self.lock().words(), now, cost);
        }
        self.apply(|state| policy.decide(state, now, cost))
    }

    /// One atomic step on the state. The closure may run more than once and must have no effect but on the words.
    #[inline]
    pub fn apply<R>(&self, mut step: impl FnMut(&mut [u64]) -> R) -> R {
        if self.wide {
            return step(self.lock().words());
        }
        self.head.update(|word| {
            let mut state = [word];
            let result = step(&mut state);
            ((state[0] != word).then_some(state[0]), result)
        })
    }

    /// Holds the state, for a decision over several. Whoever locks several cells must do so in one order everywhere.
    pub fn lock(&self) -> StateGuard<'_> {
        let word = self.head.lock();
        StateGuard { cell: self, word: [word] }
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
}

impl Drop for StateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cell.head.unlock(self.word[0]);
    }
}
