//! Zeroed memory that becomes resident when it is used.
#![allow(unsafe_code)] // Advice to the system about a range of our own.

use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::MmapRaw;

use super::BuildError;

/// Memory below this size comes from the heap: a mapping would be wasteful for a table of a few
/// keys.
const SMALL: usize = 64 << 10;

/// The size of a huge page. In a table of more than a few of them, with small pages nearly every
/// key misses in the processor's page tables.
const HUGE: usize = 2 << 20;

/// A cache line, for its alignment.
#[derive(Clone)]
#[repr(align(64))]
struct CacheLine(#[allow(dead_code)] [u64; 8]);

enum Backing {
    Heap(#[allow(dead_code)] Box<[CacheLine]>),
    Mapped(MmapRaw),
}

pub(crate) struct Pages {
    start: *mut u64,
    /// The number of huge pages requested so far, from the first boundary of one.
    enlarged: AtomicUsize,
    backing: Backing,
}

impl Pages {
    pub fn zeroed(bytes: usize) -> Result<Self, BuildError> {
        let (backing, start) = if bytes < SMALL {
            let mut lines = vec![CacheLine([0; 8]); bytes.div_ceil(64)].into_boxed_slice();
            let start = lines.as_mut_ptr().cast();
            (Backing::Heap(lines), start)
        } else {
            let options = memmap2::MmapOptions::new().len(bytes).to_owned();
            let map = options
                .map_anon()
                .map_err(|_| BuildError::OutOfMemory { bytes })?;
            let map = MmapRaw::from(map);
            let start = map.as_mut_ptr().cast();
            (Backing::Mapped(map), start)
        };
        Ok(Self {
            start,
            enlarged: AtomicUsize::new(0),
            backing,
        })
    }

    #[inline]
    pub const fn start(&self) -> *mut u64 {
        self.start
    }

    /// Turns one more huge page's worth of small pages into a huge page if the system can (Linux):
    /// a little work at a time, for a table that is filling. Earlier, huge pages would only make
    /// the memory resident.
    #[cold]
    pub fn enlarge_next(&self) {
        let Backing::Mapped(map) = &self.backing else {
            return;
        };
        let begin = (map.as_mut_ptr() as usize).next_multiple_of(HUGE);
        let end = map.as_mut_ptr() as usize + map.len();
        // Relaxed: each caller gets another page, and no other data depends on it.
        let at = begin + self.enlarged.fetch_add(1, Ordering::Relaxed) * HUGE;
        if at + HUGE <= end {
            advise_huge(at);
        }
    }

    /// Whether [`enlarge_next`](Self::enlarge_next) has anything left to do.
    pub fn may_enlarge(&self) -> bool {
        match &self.backing {
            Backing::Heap(_) => false,
            Backing::Mapped(map) => self.enlarged.load(Ordering::Relaxed) * HUGE < map.len(),
        }
    }

    /// Returns the pages to the system; they read as zero from then on. Returns whether that was
    /// possible.
    ///
    /// # Safety
    /// No other thread may read or write the words of these pages during the call, except for
    /// atomic locks.
    pub unsafe fn release(&self) -> bool {
        match &self.backing {
            Backing::Heap(_) => false,
            Backing::Mapped(map) => drop_pages(map.as_mut_ptr() as usize, map.len()),
        }
    }
}

/// `libc` has it for glibc only.
#[cfg(target_os = "linux")]
const MADV_COLLAPSE: libc::c_int = 25;

#[cfg(target_os = "linux")]
fn advise_huge(at: usize) {
    // SAFETY: the range is in a mapping that the caller owns; neither advice changes its content.
    // If the system refuses (an older kernel, huge pages switched off), nothing changes.
    unsafe {
        libc::madvise(at as *mut _, HUGE, libc::MADV_HUGEPAGE);
        libc::madvise(at as *mut _, HUGE, MADV_COLLAPSE);
    }
}

#[cfg(target_os = "linux")]
fn drop_pages(at: usize, len: usize) -> bool {
    // SAFETY: the range is a private anonymous mapping that the caller owns, and no other thread
    // reads or writes it during the call; its pages read as zero afterwards, which is an empty
    // table with open locks.
    unsafe { libc::madvise(at as *mut _, len, libc::MADV_DONTNEED) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_at: usize) {}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_at: usize, _len: usize) -> bool {
    false
}
