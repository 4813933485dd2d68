//! The leases that threads keep asking, each thread with a few places of its own: two that ask for one hot key meet at its
//! allotment alone, not also at the map's lock and counts, whose cache lines their cores would hand to and fro.

use std::{
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::Held;

/// Threads beyond so many share places.
const STRIPES: usize = 16;
/// Of each thread.
const PLACES: usize = 8;
/// A place goes to another key after so many requests that did not find theirs.
const MISSES: u32 = 8;

thread_local! {
    /// Only its address matters: no two threads have the same.
    static HERE: u8 = const { 0 };
}

/// On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Slot(Mutex<Recent>);

#[derive(Default)]
pub struct Recent {
    /// With the hash of its key.
    pub held: Option<(u64, Arc<Held>)>,
    misses: u32,
    pub counts: Counts,
}

/// Decisions made from allotments, and denials remembered with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub decided: u64,
    pub remembered: u64,
}

impl Counts {
    /// The sum.
    pub const fn and(self, other: Self) -> Self {
        Self { decided: self.decided + other.decided, remembered: self.remembered + other.remembered }
    }
}

impl Recent {
    /// Whether the key that was not found here should take the place.
    pub fn missed(&mut self) -> bool {
        self.misses += 1;
        let yes = self.held.is_none() || self.misses >= MISSES;
        if yes {
            self.misses = 0;
        }
        yes
    }
}

pub struct Hot(Vec<Slot>);

impl Hot {
    pub fn new() -> Self {
        Self((0..STRIPES * PLACES).map(|_| Slot::default()).collect())
    }

    /// This thread's place for a key; nothing while another thread is there.
    #[inline]
    pub fn slot(&self, hash: u64) -> Option<MutexGuard<'_, Recent>> {
        // Fibonacci hashing: addresses of threads differ in few bits.
        let thread = HERE.with(|here| ptr::from_ref(here).addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let stripe = (thread >> 32) as usize % STRIPES;
        self.0[stripe * PLACES + (hash >> 32) as usize % PLACES].0.try_lock().ok()
    }

    /// What `take` makes of all counts, summed.
    pub fn counts(&self, mut take: impl FnMut(&mut Counts) -> Counts) -> Counts {
        let mut sum = Counts::default();
        for place in &self.0 {
            sum = sum.and(take(&mut place.0.lock().unwrap_or_else(PoisonError::into_inner).counts));
        }
        sum
    }
}
