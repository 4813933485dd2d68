//! The buckets' memory: one zeroed allocation, each bucket behind its own lock.
//!
//! A bucket's first word contains the tag of its first cell, and in its top bit the lock. A
//! decision on a known key accesses only its own bucket, and a bucket of small states is exactly
//! one cache line.
#![allow(unsafe_code)] // Buckets are reached by index into one allocation; their locks guard them.

use super::{BuildError, layout::TableLayout};

/// A locked bucket: its tags, then its states. Dropping it unlocks the bucket.
pub(crate) struct Bucket<'a> {
    line: BucketLine<'a>,
    layout: &'a TableLayout,
    index: usize,
    /// The first cell's tag, which is written back to the lock's word at the end.
    first_tag: u64,
}

/// Starts fetching the line of an address into the cache. Only a hint, for any address.
#[inline]
pub(crate) fn prefetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads and writes nothing that a program can see, and no address faults.
    unsafe {
        let line = std::ptr::without_provenance(address);
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(not(loom))]
mod imp {
    use std::marker::PhantomData;

    use tidegate_core::cell::Lock;

    use super::super::{layout::LINE, pages::Pages};
    use super::{BuildError, TableLayout};

    pub(crate) struct Memory {
        pages: Pages,
        pub layout: TableLayout,
    }

    // SAFETY: the memory is plain words; a bucket's words are touched only by the holder of its
    // lock.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub fn new(layout: TableLayout) -> Result<Self, BuildError> {
            Ok(Self {
                pages: Pages::zeroed(layout.bytes())?,
                layout,
            })
        }

        /// See [`Pages::may_enlarge`].
        pub fn may_enlarge_pages(&self) -> bool {
            self.pages.may_enlarge()
        }

        /// See [`Pages::enlarge_next`].
        pub fn enlarge_next_pages(&self) {
            self.pages.enlarge_next();
        }

        /// Empties the buckets that were ever `touched`, and returns the memory to the system if
        /// possible. Waits for threads in these buckets: none may be there while its words become
        /// zero. All others are zero before and after; a thread that looks into one finds and
        /// leaves zeros.
        ///
        /// # Safety
        /// No thread may write to a bucket that is not `touched`.
        pub unsafe fn release(&self, touched: impl Iterator<Item = usize> + Clone) {
            for index in touched.clone() {
                self.line(index).lock().lock();
            }
            // SAFETY: the touched buckets are locked, and no thread writes to the others.
            if unsafe { self.pages.release() } {
                return;
            }
            for index in touched {
                // SAFETY: locked above, and no other reference exists; the range is the rest of the
                // stride.
                unsafe { self.line(index).words(1, self.layout.stride - 1) }.fill(0);
                self.line(index).lock().unlock(0);
            }
        }

        /// Starts fetching a bucket's first line, or its first two, into the cache. Only a hint.
        #[inline]
        pub fn prefetch(&self, index: usize) {
            let line = self.line(index).start.addr();
            super::prefetch_line(line);
            if self.layout.stride > LINE {
                super::prefetch_line(line + 8 * LINE);
            }
        }

        #[inline]
        pub fn line(&self, index: usize) -> BucketLine<'_> {
            assert!(index < self.layout.buckets);
            // SAFETY: in bounds by the line above.
            let start = unsafe { self.pages.start().add(index * self.layout.stride) };
            BucketLine {
                start,
                memory: PhantomData,
            }
        }
    }

    /// The start of a bucket.
    #[derive(Clone, Copy)]
    pub(crate) struct BucketLine<'a> {
        start: *mut u64,
        memory: PhantomData<&'a Memory>,
    }

    impl<'a> BucketLine<'a> {
        #[inline]
        pub fn lock(self) -> &'a Lock {
            // SAFETY: within the memory, which outlives 'a, aligned to 8, and an all-zero `Lock` is
            // valid; the first word of a bucket is only ever reached as a `Lock`.
            unsafe { &*self.start.cast::<Lock>() }
        }

        /// The words from `at` on, counted from the start of the bucket.
        ///
        /// # Safety
        /// The caller holds the bucket's lock and lets no two references live at once; the range
        /// lies in the bucket's stride, without its first word.
        #[inline]
        pub unsafe fn words<'b>(self, at: usize, len: usize) -> &'b mut [u64] {
            debug_assert!(at > 0);
            // SAFETY: in bounds, initialised (zeroed), and exclusive by this function's contract.
            unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
        }
    }
}

#[cfg(loom)]
mod imp {
    use loom::cell::UnsafeCell;
    use tidegate_core::cell::Lock;

    use super::{BuildError, TableLayout};

    /// The same buckets in loom's cells, so that each access is checked against the locks.
    pub(crate) struct Memory {
        buckets: Vec<(Lock, UnsafeCell<Vec<u64>>)>,
        pub layout: TableLayout,
    }

    // SAFETY: a bucket's words are touched only by the holder of its lock, which is what loom
    // checks.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub fn new(layout: TableLayout) -> Result<Self, BuildError> {
            let bucket = || (Lock::new(0), UnsafeCell::new(vec![0; layout.stride - 1]));
            Ok(Self {
                buckets: (0..layout.buckets).map(|_| bucket()).collect(),
                layout,
            })
        }

        pub fn may_enlarge_pages(&self) -> bool {
            false
        }

        pub fn enlarge_next_pages(&self) {}

        pub unsafe fn release(&self, _touched: impl Iterator<Item = usize>) {}

        pub fn prefetch(&self, _index: usize) {}

        pub fn line(&self, index: usize) -> BucketLine<'_> {
            BucketLine(&self.buckets[index])
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct BucketLine<'a>(&'a (Lock, UnsafeCell<Vec<u64>>));

    impl<'a> BucketLine<'a> {
        pub fn lock(self) -> &'a Lock {
            &self.0.0
        }

        /// # Safety
        /// The caller holds the bucket's lock, and lets no two references live at once.
        pub unsafe fn words<'b>(self, at: usize, len: usize) -> &'b mut [u64] {
            // SAFETY: exclusive by this function's contract; the vector lives as long as the
            // memory, and never grows.
            self.0.1.with_mut(|words| unsafe {
                let words: *mut Vec<u64> = words;
                &mut (&mut *words)[at - 1..at - 1 + len]
            })
        }
    }
}

pub(crate) use imp::{BucketLine, Memory};

impl Memory {
    /// Locks a bucket, waiting for its holder if there is one.
    #[inline]
    pub fn lock(&self, index: usize) -> Bucket<'_> {
        let line = self.line(index);
        let first_tag = line.lock().lock();
        Bucket {
            line,
            layout: &self.layout,
            index,
            first_tag,
        }
    }

    /// Locks a bucket if it is free.
    #[inline]
    pub fn try_lock(&self, index: usize) -> Option<Bucket<'_>> {
        let line = self.line(index);
        let first_tag = line.lock().try_lock()?;
        Some(Bucket {
            line,
            layout: &self.layout,
            index,
            first_tag,
        })
    }
}

impl Bucket<'_> {
    pub const fn index(&self) -> usize {
        self.index
    }

    pub const fn cells(&self) -> usize {
        self.layout.cells
    }

    /// The tag of another cell than the first, whose tag is in the lock.
    #[inline]
    fn further(&mut self, cell: usize) -> &mut u64 {
        assert!(cell < self.layout.cells);
        // SAFETY: this bucket holds the lock and is borrowed for the reference's lifetime; a
        // layout's tags lie in its stride, and the first cell has been dealt with.
        unsafe { &mut self.line.words(cell, 1)[0] }
    }

    /// The tag of a cell; 0 for an empty one.
    #[inline]
    pub fn tag(&mut self, cell: usize) -> u64 {
        if cell == 0 {
            self.first_tag
        } else {
            *self.further(cell)
        }
    }

    pub fn set_tag(&mut self, cell: usize, tag: u64) {
        if cell == 0 {
            self.first_tag = tag;
        } else {
            *self.further(cell) = tag;
        }
    }

    /// The cell with this tag.
    #[inline]
    pub fn find(&mut self, tag: u64) -> Option<usize> {
        if self.first_tag == tag {
            return Some(0);
        }
        (1..self.layout.cells).find(|&cell| *self.further(cell) == tag)
    }

    #[inline]
    pub fn state(&mut self, cell: usize) -> &mut [u64] {
        let layout = self.layout;
        assert!(cell < layout.cells);
        // SAFETY: this bucket holds the lock and is borrowed for the reference's lifetime; a
        // layout's states lie in its stride, and overlap with no tag.
        unsafe { self.line.words(layout.state(cell), layout.words) }
    }
}

impl Drop for Bucket<'_> {
    #[inline]
    fn drop(&mut self) {
        self.line.lock().unlock(self.first_tag);
    }
}
