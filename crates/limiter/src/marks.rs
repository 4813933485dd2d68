//! The keys that need a closer look: they have waiters, are blocked, or have their own policy.
//!
//! A mark is a count in a slot that is chosen by the key's tag. While no key is marked, a decision
//! reads one word. After that, the keys of a marked slot take the longer path (about one key in
//! sixty-five thousand for each marked key), and all other decisions also read their slot.

use std::{hash::Hasher, sync::OnceLock};

use crate::{
    sync::{AtomicU32, AtomicUsize, Ordering},
    table::Tag,
};

/// Tags are hashes already.
#[derive(Default)]
pub(crate) struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, tag: u64) {
        self.0 = tag;
    }
}

const MOST_SLOTS: usize = 1 << 16;

pub(crate) struct Marks {
    /// The number of marks in all slots.
    any: AtomicUsize,
    /// Created with the first mark; the number of slots is a power of two.
    slots: OnceLock<Box<[AtomicU32]>>,
    wanted: usize,
}

impl Marks {
    /// Marks for up to `max_keys` keys.
    pub fn new(max_keys: usize) -> Self {
        let wanted = max_keys
            .saturating_mul(4)
            .clamp(64, MOST_SLOTS)
            .next_power_of_two();
        let marks = Self {
            any: AtomicUsize::new(0),
            slots: OnceLock::new(),
            wanted,
        };
        if cfg!(loom) {
            marks.make_slots(); // Loom does not see that a `OnceLock` orders anything.
        }
        marks
    }

    fn make_slots(&self) {
        self.slots
            .get_or_init(|| (0..self.wanted).map(|_| AtomicU32::new(0)).collect());
    }

    /// Whether any key is marked.
    #[inline]
    pub fn any(&self) -> bool {
        // Relaxed, as all accesses here: a mark is set before the key's lock is taken for what it
        // announces, and checked under the key's lock by threads that must not miss that.
        self.any.load(Ordering::Relaxed) > 0
    }

    /// Whether this key may be marked. Under the key's lock, a false result is certain.
    #[inline]
    pub fn has(&self, tag: Tag) -> bool {
        self.any() && self.in_slot(tag)
    }

    #[inline(never)]
    fn in_slot(&self, tag: Tag) -> bool {
        self.slot(tag)
            .is_some_and(|slot| slot.load(Ordering::Relaxed) > 0)
    }

    fn slot(&self, tag: Tag) -> Option<&AtomicU32> {
        let slots = self.slots.get()?;
        slots.get(tag.get() as usize & (slots.len() - 1))
    }

    pub fn add(&self, tag: Tag) {
        self.make_slots();
        if let Some(slot) = self.slot(tag) {
            slot.fetch_add(1, Ordering::Relaxed);
            self.any.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn remove(&self, tag: Tag) {
        if let Some(slot) = self.slot(tag) {
            slot.fetch_sub(1, Ordering::Relaxed);
            self.any.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
