//! Finds the stretches of time in which a limit, or any higher one, could deny at all, without a
//! look at single requests.
//!
//! A [`Meter`](super::busy::Meter) finds the same to the request, but looks at all of them. Here
//! requests are counted in *bins*, a sixteenth of a window each, once for all algorithms and
//! limits. The counts bound the weight of a bin's last request. If that bound fits under the limit,
//! the limit admits the whole bin. The other bins are *busy*. A *stretch* has busy bins and the
//! time before them: every request that can still count in a busy bin. A meter that sees only a
//! stretch, from a fresh beginning, finds the same busy requests in it as one that sees everything.
//! (Before the first busy bin it may know too little, but no request there is busy.)

use std::ops::Range;

use tidegate_core::{Policy, Quota};

use super::busy::Weight;

/// Bins in a window.
const BINS: u64 = 16;
/// Bins are kept if a key has at least this number of requests for each.
const WORTH: usize = 8;

/// Requests in a part of a window, aligned to the clock; no bin reaches into two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bin {
    start: u64,
    count: u64,
}

/// Counts the requests of one key in bins.
#[derive(Debug)]
pub(super) struct Binning {
    window: u64,
    length: u64,
    bins: Vec<Bin>,
    end: u64,
}

impl Binning {
    pub fn new(window: u64) -> Self {
        Self {
            window,
            length: window.div_ceil(BINS),
            bins: Vec::new(),
            end: 0,
        }
    }

    /// Counts a request; times do not decrease.
    #[inline]
    pub fn request(&mut self, time: u64) {
        if time >= self.end || self.bins.is_empty() {
            let into = time % self.window;
            let start = time - into % self.length;
            self.end = start
                .saturating_add(self.length)
                .min((time - into).saturating_add(self.window));
            self.bins.push(Bin { start, count: 0 });
        }
        if let Some(last) = self.bins.last_mut() {
            last.count += 1;
        }
    }

    /// The bins of a key with `requests`, if they are few enough to be worth it.
    pub fn finish(self, requests: u64) -> Option<Box<[Bin]>> {
        (self.bins.len().saturating_mul(WORTH) as u64 <= requests)
            .then(|| self.bins.into_boxed_slice())
    }
}

/// The stretches in which this quota could deny, in order and apart; `None` if this module does not
/// know the algorithm.
pub(super) fn stretches(bins: &[Bin], policy: &Policy, quota: Quota) -> Option<Vec<Range<u64>>> {
    let (window, limit) = (quota.window_nanos(), quota.limit());
    let length = window.div_ceil(BINS);
    Some(match Weight::of(policy, quota)? {
        Weight::Window { lifetime } => sliding(bins, lifetime, length, limit),
        Weight::Fixed {
            is_aligned: true, ..
        } => aligned(bins, window, length, limit),
        // Where a window begins depends on all requests before it.
        Weight::Fixed {
            is_aligned: false, ..
        } => return None,
        Weight::Counter { .. } => counter(bins, window, length, limit),
        Weight::Bucket { room, .. } => bucket(bins, window, length, limit, room),
    })
}

/// Adds a stretch that begins no earlier than the ones before it.
fn add(stretches: &mut Vec<Range<u64>>, from: u64, to: u64) {
    match stretches.last_mut() {
        Some(last) if from <= last.end => last.end = last.end.max(to),
        _ => stretches.push(from..to),
    }
}

/// Every request counts for `lifetime`.
fn sliding(bins: &[Bin], lifetime: u64, length: u64, limit: u64) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let (mut oldest, mut sum) = (0, 0);
    for bin in bins {
        sum += bin.count;
        // A bin that ends just then may hold a request that is exactly as old.
        while bins[oldest]
            .start
            .saturating_add(length)
            .saturating_add(lifetime)
            < bin.start
        {
            sum -= bins[oldest].count;
            oldest += 1;
        }
        if sum > limit {
            add(
                &mut found,
                bin.start.saturating_sub(lifetime),
                bin.start.saturating_add(length),
            );
        }
    }
    found
}

/// Every request counts until the window ends.
fn aligned(bins: &[Bin], window: u64, length: u64, limit: u64) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let (mut began, mut sum) = (0, 0);
    for bin in bins {
        let start = bin.start - bin.start % window;
        if start != began {
            (began, sum) = (start, 0);
        }
        sum += bin.count;
        if sum > limit {
            add(&mut found, began, bin.start.saturating_add(length));
        }
    }
    found
}

/// The weight of the previous window decreases from bin to bin.
fn counter(bins: &[Bin], window: u64, length: u64, limit: u64) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let (mut began, mut before, mut sum) = (0, 0, 0);
    for bin in bins {
        let start = bin.start - bin.start % window;
        if start != began {
            before = if start - began == window { sum } else { 0 };
            (began, sum) = (start, 0);
        }
        sum += bin.count;
        let left = u128::from(before) * u128::from(window - (bin.start - began));
        if left + u128::from(sum) * u128::from(window) > u128::from(limit) * u128::from(window) {
            add(
                &mut found,
                began.saturating_sub(window),
                bin.start.saturating_add(length),
            );
        }
    }
    found
}

/// Requests that have arrived and not leaked yet count.
///
/// Once the bucket is empty, all earlier requests are forgotten. The counts do not show when it is
/// empty, but they may show that it is within some bins: if the most that was owed when they began,
/// and all that they add, leaks before they end. A meter that begins with the first of these bins
/// owes no more than is owed, so it is empty at that moment, too, and exact from there on.
fn bucket(bins: &[Bin], window: u64, length: u64, limit: u64, room: u128) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let leak = |time: u64| u128::from(time) * u128::from(limit);
    // Owed at most when a bin began.
    let mut owed = 0_u128;
    // The last bin that began a run of bins with such a moment before this bin; the one that began
    // the bins since then, and what these owe at most if there was no such moment among them.
    let (mut from, mut candidate, mut without) = (0, 0, 0_u128);
    for (at, bin) in bins.iter().enumerate() {
        let arrived = u128::from(bin.count) * u128::from(window);
        // The bin's last request finds what is owed without itself. It may come before anything
        // leaks.
        if owed + arrived - u128::from(window) > room {
            add(&mut found, from, bin.start.saturating_add(length));
        }
        let Some(next) = bins.get(at + 1) else { break };
        let end = bin.start.saturating_add(length).min(next.start);
        // All of the bin may come just before it ends.
        let at_end = owed.saturating_sub(leak(end - bin.start)) + arrived;
        owed = at_end.saturating_sub(leak(next.start - end));
        if let Some(left) = (without + arrived).checked_sub(leak(next.start - bin.start)) {
            without = left;
        } else {
            (from, candidate, without) = (candidate, next.start, owed);
        }
    }
    found
}
