//! The buckets' memory: one zeroed allocation, each bucket behind its own lock.
//!
//! A bucket's first word is the tag of its first cell, and in its top bit the lock: a decision on a known key touches
//! no word but its own bucket's, and a bucket of small states is one cache line to the last byte.
#![allow(unsafe_code)] // Buckets are reached by index into one allocation; their locks guard them.

use crate::{TableError, layout::Layout};

/// A locked bucket: its tags, then its states. Dropped, it is unlocked.
pub(crate) struct Bucket<'a> {
    memory: &'a Memory,
    index: usize,
    /// The first cell's tag, which the lock's word gets back at the end.
    first_tag: u64,
}

#[cfg(not(loom))]
mod imp {
    use tidegate_core::cell::Lock;

    use super::{Layout, TableError};
    use crate::pages::Pages;

    pub(crate) struct Memory {
        pages: Pages,
        pub layout: Layout,
    }

    // SAFETY: the memory is plain words; a bucket's words are touched only by the holder of its lock.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub fn new(layout: Layout) -> Result<Self, TableError> {
            Ok(Self { pages: Pages::zeroed(layout.bytes())?, layout })
        }

        /// See [`Pages::may_enlarge`].
        pub fn may_enlarge_pages(&self) -> bool {
            self.pages.may_enlarge()
        }

        /// See [`Pages::enlarge_next`].
        pub fn enlarge_next_pages(&self) {
            self.pages.enlarge_next();
        }

        /// Gives the memory back to the system where that is possible; every bucket is empty and open afterwards, or as it
        /// was. Waits for whoever is in a bucket: nobody may be while its words turn to zero.
        pub fn release(&self) {
            for index in 0..self.layout.buckets {
                self.lock_of(index).lock();
            }
            if !self.pages.release() {
                for index in 0..self.layout.buckets {
                    self.lock_of(index).unlock(0);
                }
            }
        }

        #[inline]
        pub fn lock_of(&self, index: usize) -> &Lock {
            assert!(index < self.layout.buckets);
            // SAFETY: in bounds by the line above, aligned to 8, and an all-zero `Lock` is valid; the first word of a
            // bucket is only ever reached as a `Lock`.
            unsafe { &*self.pages.start().add(index * self.layout.stride).cast::<Lock>() }
        }

        /// # Safety
        /// The caller holds the bucket's lock, and lets no two references live at once.
        #[inline]
        #[allow(clippy::mut_from_ref)]
        pub unsafe fn words(&self, index: usize) -> &mut [u64] {
            debug_assert!(index < self.layout.buckets);
            let stride = self.layout.stride;
            // SAFETY: in bounds (whoever holds the lock has passed `lock_of`), initialised (zeroed), and exclusive by
            // this function's contract.
            unsafe { std::slice::from_raw_parts_mut(self.pages.start().add(index * stride + 1), stride - 1) }
        }
    }
}

#[cfg(loom)]
mod imp {
    use loom::cell::UnsafeCell;
    use tidegate_core::cell::Lock;

    use super::{Layout, TableError};

    /// The same buckets in loom's cells, so that each access is checked against the locks.
    pub(crate) struct Memory {
        buckets: Vec<(Lock, UnsafeCell<Vec<u64>>)>,
        pub layout: Layout,
    }

    // SAFETY: a bucket's words are touched only by the holder of its lock, which is what loom checks.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub fn new(layout: Layout) -> Result<Self, TableError> {
            let bucket = || (Lock::new(0), UnsafeCell::new(vec![0; layout.stride - 1]));
            Ok(Self { buckets: (0..layout.buckets).map(|_| bucket()).collect(), layout })
        }

        pub fn may_enlarge_pages(&self) -> bool {
            false
        }

        pub fn enlarge_next_pages(&self) {}

        pub fn release(&self) {}

        pub fn lock_of(&self, index: usize) -> &Lock {
            &self.buckets[index].0
        }

        /// # Safety
        /// The caller holds the bucket's lock, and lets no two references live at once.
        #[allow(clippy::mut_from_ref)]
        pub unsafe fn words(&self, index: usize) -> &mut [u64] {
            // SAFETY: exclusive by this function's contract.
            self.buckets[index].1.with_mut(|words| unsafe { &mut **words })
        }
    }
}

pub(crate) use imp::Memory;

impl Memory {
    /// Locks a bucket, waiting for whoever decides in it.
    #[inline]
    pub fn lock(&self, index: usize) -> Bucket<'_> {
        let first_tag = self.lock_of(index).lock();
        Bucket { memory: self, index, first_tag }
    }

    /// Locks a bucket if nobody decides in it.
    #[inline]
    pub fn try_lock(&self, index: usize) -> Option<Bucket<'_>> {
        let first_tag = self.lock_of(index).try_lock()?;
        Some(Bucket { memory: self, index, first_tag })
    }
}

impl Bucket<'_> {
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Everything but the first tag.
    #[inline]
    fn words(&mut self) -> &mut [u64] {
        // SAFETY: this bucket holds the lock, and borrows itself for as long as the words are in use.
        unsafe { self.memory.words(self.index) }
    }

    pub const fn cells(&self) -> usize {
        self.memory.layout.cells
    }

    /// The tag of a cell; 0 for an empty one.
    #[inline]
    pub fn tag(&mut self, cell: usize) -> u64 {
        if cell == 0 { self.first_tag } else { self.words()[cell - 1] }
    }

    pub fn set_tag(&mut self, cell: usize, tag: u64) {
        if cell == 0 {
            self.first_tag = tag;
        } else {
            self.words()[cell - 1] = tag;
        }
    }

    /// The cell with this tag.
    #[inline]
    pub fn find(&mut self, tag: u64) -> Option<usize> {
        if self.first_tag == tag {
            return Some(0);
        }
        let further = self.cells() - 1;
        self.words()[..further].iter().position(|&at| at == tag).map(|at| at + 1)
    }

    #[inline]
    pub fn state(&mut self, cell: usize) -> &mut [u64] {
        let Layout { words, cells, .. } = self.memory.layout;
        let at = cells - 1 + cell * words;
        &mut self.words()[at..at + words]
    }
}

impl Drop for Bucket<'_> {
    #[inline]
    fn drop(&mut self) {
        self.memory.lock_of(self.index).unlock(self.first_tag);
    }
}
