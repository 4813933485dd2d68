//! Which parts of a table were ever used, and how many keys are in each. So a walk costs only what
//! is in the table, and memory that was never used stays unused.

use std::sync::atomic::{AtomicU16, Ordering};

use super::layout::TableLayout;

/// The size of a system page, in words.
const PAGE: usize = 4_096 / 8;

/// A key was looked up here, or is here.
const TOUCHED: u16 = 1 << 15;

/// For each page's worth of buckets (a stretch), how many keys it holds (at most 256), and whether
/// it was ever used.
///
/// All accesses are relaxed. A count changes under the lock of a bucket of its stretch, so a thread
/// that has had that lock since sees it. [`Table::close`](super::Table::close) explains how it sees
/// the marks of threads that add a key.
pub(crate) struct Stretches {
    counts: Box<[AtomicU16]>,
    buckets_each: usize,
    buckets: usize,
}

impl Stretches {
    pub fn new(layout: &TableLayout) -> Self {
        let buckets_each = (PAGE / layout.stride).max(1);
        let count = layout.buckets.div_ceil(buckets_each);
        let counts = (0..count).map(|_| AtomicU16::new(0)).collect();
        Self {
            counts,
            buckets_each,
            buckets: layout.buckets,
        }
    }

    #[inline]
    fn of(&self, bucket: usize) -> &AtomicU16 {
        &self.counts[bucket / self.buckets_each]
    }

    /// Marks a bucket's memory as used.
    #[inline]
    pub fn touch(&self, bucket: usize) {
        let count = self.of(bucket);
        if count.load(Ordering::Relaxed) & TOUCHED == 0 {
            count.fetch_or(TOUCHED, Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn is_touched(&self, bucket: usize) -> bool {
        self.of(bucket).load(Ordering::Relaxed) & TOUCHED != 0
    }

    /// Counts one more key in a bucket, which was marked.
    #[inline]
    pub fn add(&self, bucket: usize) {
        self.of(bucket).fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub fn sub(&self, bucket: usize) {
        self.of(bucket).fetch_sub(1, Ordering::Relaxed);
    }

    /// The buckets of the next stretch with keys from this one on, and the number of the stretch
    /// after it.
    pub fn next_occupied(&self, from: usize) -> Option<(std::ops::Range<usize>, usize)> {
        self.next(from, |count| count & !TOUCHED != 0)
    }

    /// The buckets of the next stretch from this one on that was ever used.
    pub fn next_touched(&self, from: usize) -> Option<(std::ops::Range<usize>, usize)> {
        self.next(from, |count| count & TOUCHED != 0)
    }

    fn next(
        &self,
        from: usize,
        is_it: impl Fn(u16) -> bool,
    ) -> Option<(std::ops::Range<usize>, usize)> {
        let rest = self.counts.get(from..)?;
        let at = from
            + rest
                .iter()
                .position(|count| is_it(count.load(Ordering::Relaxed)))?;
        let begin = at * self.buckets_each;
        Some((begin..(begin + self.buckets_each).min(self.buckets), at + 1))
    }

    /// All buckets that were ever used.
    pub fn touched(&self) -> impl Iterator<Item = usize> + Clone {
        let next = |from: &usize| self.next_touched(*from).map(|(_, next)| next);
        let starts = std::iter::successors(Some(0), next);
        starts
            .filter_map(|from| self.next_touched(from))
            .flat_map(|(buckets, _)| buckets)
    }
}
