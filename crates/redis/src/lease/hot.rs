//! A small cache of the most used leases, with a few slots per thread. Two threads that use the
//! same hot key share only its allotment, and not the map's lock and counters, whose cache lines
//! would move between their CPUs.

use std::{
    ptr,
    sync::{Arc, Mutex, MutexGuard},
};

use super::Held;
use crate::sync::lock;

/// Beyond this number, threads share slots.
const STRIPES: usize = 16;
/// Slots per thread.
const PLACES: usize = 8;
/// The number of misses after which a slot goes to another key.
const MISSES: u32 = 8;

thread_local! {
    /// Only the address matters, which is different for each thread.
    static HERE: u8 = const { 0 };
}

/// Aligned so that it shares no cache line.
#[derive(Default)]
#[repr(align(128))]
struct HotSlot(Mutex<Recent>);

#[derive(Default)]
pub struct Recent {
    /// With the hash of the key.
    pub held: Option<(u64, Arc<Held>)>,
    misses: u32,
    pub counts: HotCounts,
}

/// Decisions from allotments, and remembered denials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotCounts {
    pub decided: u64,
    pub remembered: u64,
}

impl HotCounts {
    /// The sum.
    pub const fn and(self, other: Self) -> Self {
        Self {
            decided: self.decided + other.decided,
            remembered: self.remembered + other.remembered,
        }
    }
}

impl Recent {
    /// Records a miss. Returns whether the missing key should take the slot.
    pub fn missed(&mut self) -> bool {
        self.misses += 1;
        let yes = self.held.is_none() || self.misses >= MISSES;
        if yes {
            self.misses = 0;
        }
        yes
    }
}

pub struct Hot(Vec<HotSlot>);

impl Hot {
    pub fn new() -> Self {
        Self((0..STRIPES * PLACES).map(|_| HotSlot::default()).collect())
    }

    /// This thread's slot for a key, or `None` while another thread holds it.
    #[inline]
    pub fn slot(&self, hash: u64) -> Option<MutexGuard<'_, Recent>> {
        // Fibonacci hashing, because the addresses of threads differ in few bits.
        let thread = HERE
            .with(|here| ptr::from_ref(here).addr() as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let stripe = (thread >> 32) as usize % STRIPES;
        self.0[stripe * PLACES + (hash >> 32) as usize % PLACES]
            .0
            .try_lock()
            .ok()
    }

    /// Applies `take` to all counts and sums the results.
    pub fn counts(&self, mut take: impl FnMut(&mut HotCounts) -> HotCounts) -> HotCounts {
        let mut sum = HotCounts::default();
        for place in &self.0 {
            sum = sum.and(take(&mut lock(&place.0).counts));
        }
        sum
    }
}
