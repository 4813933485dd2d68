//! A lock in the top bit of a word, held for the length of one decision.

use super::Backoff;
use crate::sync::{AtomicU64, Ordering};

/// The bit that says that the word is locked.
pub const LOCKED: u64 = 1 << 63;

/// Locked, and no value that a state can have.
const RETIRED: u64 = u64::MAX;

/// A 63-bit value with a lock on it: all zero is unlocked and 0.
///
/// It is one locked instruction to take and a plain store to release, half of what a mutex that can put threads to
/// sleep costs; a decision is a few nanoseconds, so nobody waits long enough to sleep.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Lock(AtomicU64);

impl Lock {
    /// Unlocked, with `value`, whose top bit must be clear.
    #[must_use]
    pub fn new(value: u64) -> Self {
        debug_assert_eq!(value & LOCKED, 0);
        Self(AtomicU64::new(value))
    }

    /// Takes the lock, waiting for whoever holds it; returns the value.
    #[inline]
    pub fn lock(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            if let Some(value) = self.try_lock() {
                return value;
            }
            backoff.wait();
        }
    }

    /// Takes the lock if nobody holds it; returns the value.
    #[inline]
    pub fn try_lock(&self) -> Option<u64> {
        // Relaxed: a hint; the exchange below decides.
        let value = self.0.load(Ordering::Relaxed);
        if value & LOCKED != 0 {
            return None;
        }
        // Acquire: what the last holder wrote under the lock is seen. A failure has read nothing that it uses.
        let taken = self.0.compare_exchange_weak(value, value | LOCKED, Ordering::Acquire, Ordering::Relaxed);
        taken.ok()
    }

    /// Releases the lock and leaves `value`, whose top bit must be clear. Only the holder may call this.
    #[inline]
    pub fn unlock(&self, value: u64) {
        debug_assert_eq!(value & LOCKED, 0);
        // Release: what was written under the lock comes before.
        self.0.store(value, Ordering::Release);
    }

    /// Replaces the value by what `step` makes of it, without ever holding the lock; `None` of `step` leaves it. The
    /// closure reruns when another thread was faster, so it must have no effects. `None` when somebody holds the lock.
    #[inline]
    pub fn try_update<R>(&self, mut step: impl FnMut(u64) -> (Option<u64>, R)) -> Option<R> {
        let mut backoff = Backoff::new();
        loop {
            let value = self.read()?;
            let (next, result) = step(value);
            let Some(next) = next else { return Some(result) };
            if self.replace(value, next) {
                return Some(result);
            }
            backoff.wait();
        }
    }

    /// Leaves the lock held by nobody and for everybody, until somebody [resumes](Self::resume) it. Only the holder may call
    /// this.
    pub fn retire(&self) {
        // Release: what was done under the lock comes before the next life.
        self.0.store(RETIRED, Ordering::Release);
    }

    /// Takes a lock that was [retired](Self::retire); the value is then 0. Returns whether it was retired.
    pub fn resume(&self) -> bool {
        // Acquire: as when it is taken. A failure has read nothing that it uses.
        self.0.compare_exchange(RETIRED, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The value, unless somebody holds the lock.
    #[inline]
    pub fn read(&self) -> Option<u64> {
        // Acquire, and release below: whoever reads a value also sees what its writer did before; the word itself is all
        // that a decision needs.
        let value = self.0.load(Ordering::Acquire);
        (value & LOCKED == 0).then_some(value)
    }

    /// Replaces `value`, as [`read`](Self::read) returned it, unless it has changed meanwhile (or seems to have).
    #[inline]
    pub fn replace(&self, value: u64, next: u64) -> bool {
        debug_assert_eq!((value | next) & LOCKED, 0);
        self.0.compare_exchange_weak(value, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
