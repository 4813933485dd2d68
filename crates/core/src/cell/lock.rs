//! A lock in the top bit of a word, held for the length of one decision.

use super::Backoff;
use crate::{
    algorithm::FREE_BIT,
    sync::{AtomicU64, Ordering},
};

/// The bit that marks the word as locked.
pub const LOCKED: u64 = FREE_BIT;

/// Locked, with a value that no state can have.
const RETIRED: u64 = u64::MAX;

/// A 63-bit value with a lock: all zero means unlocked and 0.
///
/// Taking the lock is one locked instruction, and releasing it a plain store. That is half the cost
/// of a mutex that can put threads to sleep; a decision takes a few nanoseconds, so no thread waits
/// long enough to sleep.
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

    /// Takes the lock, waiting for its holder if there is one; returns the value.
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

    /// Takes the lock if it is free; returns the value.
    #[inline]
    pub fn try_lock(&self) -> Option<u64> {
        // Relaxed: a hint; the exchange below decides.
        let value = self.0.load(Ordering::Relaxed);
        if value & LOCKED != 0 {
            return None;
        }
        // Acquire: what the last holder wrote under the lock is visible. A failure uses nothing
        // that it read.
        let taken = self.0.compare_exchange_weak(
            value,
            value | LOCKED,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        taken.ok()
    }

    /// Releases the lock and leaves `value`, whose top bit must be clear. Only the holder may call
    /// this.
    #[inline]
    pub fn unlock(&self, value: u64) {
        debug_assert_eq!(value & LOCKED, 0);
        // Release: what was written under the lock comes before.
        self.0.store(value, Ordering::Release);
    }

    /// Replaces the value by the result of `step` without ever holding the lock; if `step` returns
    /// `None`, the value stays. The closure runs again if another thread was faster, so it must
    /// have no effects. `None` if the lock is held.
    #[inline]
    pub fn try_update<R>(&self, mut step: impl FnMut(u64) -> (Option<u64>, R)) -> Option<R> {
        let mut backoff = Backoff::new();
        loop {
            let value = self.read()?;
            let (next, result) = step(value);
            let Some(next) = next else {
                return Some(result);
            };
            if self.replace(value, next) {
                return Some(result);
            }
            backoff.wait();
        }
    }

    /// Leaves the lock held, by no thread, until a thread [resumes](Self::resume) it. Only the
    /// holder may call this.
    pub fn retire(&self) {
        // Release: what was done under the lock comes before its next use.
        self.0.store(RETIRED, Ordering::Release);
    }

    /// Takes a lock that was [retired](Self::retire); the value is then 0. Returns whether it was
    /// retired.
    pub fn resume(&self) -> bool {
        // Acquire: as in `try_lock`. A failure uses nothing that it read.
        self.0
            .compare_exchange(RETIRED, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// The value, unless the lock is held.
    #[inline]
    pub fn read(&self) -> Option<u64> {
        // Acquire, and Release below: a thread that reads a value also sees what its writer did
        // before. A decision needs only the word itself.
        let value = self.0.load(Ordering::Acquire);
        (value & LOCKED == 0).then_some(value)
    }

    /// Replaces `value`, as [`read`](Self::read) returned it, unless it has changed since (or the
    /// exchange fails spuriously).
    #[inline]
    pub fn replace(&self, value: u64, next: u64) -> bool {
        debug_assert_eq!((value | next) & LOCKED, 0);
        self.0
            .compare_exchange_weak(value, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}
