//! Which keys need a second look: somebody waits for them, they are blocked, or have a policy of their own.
//!
//! A mark is a count in a slot that the key's tag names. While no key is marked a decision reads one word; afterwards the
//! keys of a marked slot take the longer way, about one in sixty-five thousand for each marked key, and all others pay for
//! reading their slot.

use std::sync::OnceLock;

use crate::{
    sync::{AtomicU32, AtomicUsize, Ordering},
    table::Tag,
};

const MOST_SLOTS: usize = 1 << 16;

pub(crate) struct Marks {
    /// Marks in all slots.
    any: AtomicUsize,
    /// Made with the first mark; their number is a power of two.
    slots: OnceLock<Box<[AtomicU32]>>,
    wanted: usize,
}

impl Marks {
    /// Marks for up to `max_keys` keys.
    pub fn new(max_keys: usize) -> Self {
        let wanted = max_keys.saturating_mul(4).clamp(64, MOST_SLOTS).next_power_of_two();
        let marks = Self { any: AtomicUsize::new(0), slots: OnceLock::new(), wanted };
        if cfg!(loom) {
            marks.make_slots(); // Loom does not see that a `OnceLock` orders anything.
        }
        marks
    }

    fn make_slots(&self) {
        self.slots.get_or_init(|| (0..self.wanted).map(|_| AtomicU32::new(0)).collect());
    }

    /// Whether any key at all is marked.
    #[inline]
    pub fn any(&self) -> bool {
        // Relaxed, as all in here: a mark is set before the key's lock is taken for what it announces, and looked at under
        // the key's lock by whoever must not miss that.
        self.any.load(Ordering::Relaxed) > 0
    }

    /// Whether this key may be marked. Asked under the key's lock the answer no is certain.
    #[inline]
    pub fn has(&self, tag: Tag) -> bool {
        self.any() && self.in_slot(tag)
    }

    #[inline(never)]
    fn in_slot(&self, tag: Tag) -> bool {
        self.slot(tag).is_some_and(|slot| slot.load(Ordering::Relaxed) > 0)
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
