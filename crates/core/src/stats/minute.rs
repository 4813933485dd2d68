//! The last 60 seconds of a window, each folded from its slots when it ends.
//!
//! As in the ring, a record holds the counts at the start of a second. Here each count has 32 bits, so that
//! a second takes 40 bytes:
//!
//! ```text
//!   word 0  [ second 34 │ occupied 30 ]      word 3  [ rt 40 ]
//!   word 1  [ pass 32 │ block 32 ]           word 4  [ min rt 26 │ max in flight 26 │ second 12 ]
//!   word 2  [ success 32 │ exception 32 ]            (the gauges plus one; 0 for none)
//! ```
//!
//! A second's counts are the next second's words minus its own; differences up to 2³² − 1 (occupied: 2³⁰ − 1) are
//! exact. Every thread that turns the ring past the end of a second writes the same words, word 0 last. It replaces each by
//! compare-and-swap from the value that it had while word 0 named an older second. A thread that comes too late therefore
//! finds another word than it expects, or one that never changed because nothing was counted meanwhile.

extern crate alloc;

use alloc::{boxed::Box, vec::Vec};

use super::{Counts, Event, Head, Layout, Ring, Slot, counts::from_low};
use crate::{
    Nanos,
    sync::{AtomicU64, Ordering},
};

/// How many seconds are shown, including the current one. Loom's models test the turns, for which three seconds suffice.
const SECONDS: u64 = if cfg!(loom) { 3 } else { 60 };
/// The shown seconds, the start of the next one, and one that is being written.
const KEPT: u64 = SECONDS + 2;
const SECOND: u64 = 1_000_000_000;
const OCCUPIED_BITS: u32 = 30;
const GAUGE: u64 = (1 << 26) - 1;
/// The bits that are kept of each count, in the order of [`Event`].
const KEPT_BITS: [u64; 6] = [LOW, LOW, (1 << 40) - 1, LOW, LOW, (1 << OCCUPIED_BITS) - 1];
const LOW: u64 = 0xFFFF_FFFF;

type Record = [AtomicU64; 5];

pub(super) struct Minute {
    slot: u64,
    records: Box<[Record]>,
}

/// The counts at the start of a second.
struct Began {
    second: u64,
    /// In the order of [`Event`].
    counts: [u64; 6],
    gauges: u64,
}

impl Minute {
    pub(super) fn new(layout: Layout) -> Self {
        let record = |_| core::array::from_fn(|_| AtomicU64::new(0));
        Self { slot: layout.slot_nanos(), records: (0..KEPT).map(record).collect::<Vec<_>>().into() }
    }

    fn record(&self, second: u64) -> &Record {
        &self.records[(second % KEPT) as usize]
    }

    fn second(&self, head: Head) -> u64 {
        head.slot() * self.slot / SECOND
    }

    /// Called at each turn of the ring, before the new head is published.
    pub(super) fn fold(&self, ring: &Ring<6, 2>, old: Head, new: Head) {
        let (ended, begins) = (self.second(old), self.second(new));
        if ended == begins {
            return;
        }
        let first = (ended * SECOND).div_ceil(self.slot);
        let low = |at| ring.lowest_until(at, old, first);
        let gauges = gauge(low(0)) << 38 | gauge(low(1).map(from_low)) << 12;
        let record = self.record(ended);
        write(&record[4], gauges | ended & 0xFFF, || second_of(&record[0]) == ended);

        let record = self.record(begins);
        let older = || second_of(&record[0]) < begins;
        let count = |event: Event| ring.began(event as usize, new) & KEPT_BITS[event as usize];
        write(&record[1], count(Event::Pass) << 32 | count(Event::Block), older);
        write(&record[2], count(Event::Success) << 32 | count(Event::Exception), older);
        write(&record[3], count(Event::Rt), older);
        write(&record[0], begins << OCCUPIED_BITS | count(Event::OccupiedPass), older);
    }

    /// The start of a second, if it is still stored.
    fn began(&self, second: u64) -> Option<Began> {
        let words = self.record(second).each_ref().map(|word| word.load(Ordering::Acquire));
        let [first, pass, success, rt, gauges] = words;
        let occupied = first & KEPT_BITS[Event::OccupiedPass as usize];
        let counts = [pass >> 32, success >> 32, rt, success & LOW, pass & LOW, occupied];
        (first >> OCCUPIED_BITS == second).then_some(Began { second, counts, gauges })
    }

    /// The stored seconds of the minute up to `now`, oldest first; the gauges of the newest are not included yet.
    pub(super) fn seconds(&self, ring: &Ring<6, 2>, now: Nanos) -> Vec<Slot> {
        ring.read(|head| {
            let current = self.second(head).max(now.get() / SECOND);
            let kept = current.saturating_sub(SECONDS - 1)..=self.second(head);
            let began: Vec<Began> = kept.clone().filter_map(|second| self.began(second)).collect();
            // A turn that goes far ahead may be overwriting the oldest of these.
            if self.second(ring.announced()) >= kept.start() + KEPT {
                return None;
            }
            let live = core::array::from_fn(|at| ring.count_within(at, head));
            let mut slots: Vec<Slot> = Vec::with_capacity(began.len());
            for (at, this) in began.iter().enumerate() {
                let next = began.get(at + 1).map_or(live, |next| next.counts.map(Some));
                let mut counts = [0; 6];
                for (event, count) in counts.iter_mut().enumerate() {
                    *count = next[event]?.wrapping_sub(this.counts[event]) & KEPT_BITS[event];
                }
                let noted = this.gauges & 0xFFF == this.second & 0xFFF;
                let gauges = if noted { this.gauges } else { 0 };
                let (min_rt, most) =
                    ((gauges >> 38).checked_sub(1), (gauges >> 12 & GAUGE).saturating_sub(1));
                let start = Nanos::from_secs(this.second);
                slots.push(Slot { start, counts: Counts::of(counts, min_rt, most) });
            }
            Some(slots)
        })
    }
}

fn gauge(value: Option<u64>) -> u64 {
    value.map_or(0, |value| (value + 1).min(GAUGE))
}

fn second_of(first: &AtomicU64) -> u64 {
    first.load(Ordering::Acquire) >> OCCUPIED_BITS
}

/// Sets a word to `value`, if the record is `still` the one to write to; see the module's documentation.
fn write(word: &AtomicU64, value: u64, still: impl Fn() -> bool) {
    loop {
        // Before `still` checks the record, so that a word of a later record is not mistaken for this one.
        let seen = word.load(Ordering::Acquire);
        if seen == value || !still() {
            return;
        }
        // AcqRel: word 0 publishes the others.
        if word.compare_exchange(seen, value, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
    }
}
