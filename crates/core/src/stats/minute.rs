//! The last 60 seconds of a window, each folded from its slots when it ends.
//!
//! As in the ring, a record holds the counts at the start of a second. Here each count has 32 bits,
//! so that a second takes 40 bytes:
//!
//! ```text
//!   word 0  [ second 34 │ occupied 30 ]      word 3  [ rt 40 ]
//!   word 1  [ pass 32 │ block 32 ]           word 4  [ min rt 26 │ max in flight 26 │ second 12 ]
//!   word 2  [ success 32 │ exception 32 ]            (the gauges plus one; 0 for none)
//! ```
//!
//! A second's counts are the next second's words minus its own; differences up to 2³² − 1
//! (occupied: 2³⁰ − 1) are exact. Every thread that turns the ring past the end of a second writes
//! the same words, word 0 last. It replaces each by compare-and-swap from the value that it had
//! while word 0 named an older second. A thread that comes too late therefore finds another word
//! than it expects, or one that never changed because no event was counted in between.
//!
//! # Memory comes when it is needed
//!
//! The records take 2.5 KB, more than the ring. As long as no two seconds with traffic lie within a
//! minute, the ring's newest second is the only one to show, and records are not allocated. The
//! turn that begins the second of two such seconds allocates them, and writes the first of the two
//! from the ring, which still has it: a ring holds at least a second.

#![allow(unsafe_code)] // The records are reached through a pointer that is set once.

extern crate alloc;

use alloc::{boxed::Box, vec, vec::Vec};
use core::ptr;

use super::{Counts, Event, Head, Layout, Ring, Slot, counts::from_low};
use crate::{
    Nanos,
    sync::{AtomicPtr, AtomicU64, Ordering},
};

/// How many seconds are shown, including the current one. Loom's models test the turns, for which
/// three seconds suffice.
const SECONDS: u64 = if cfg!(loom) { 3 } else { 60 };
/// The shown seconds, the start of the next one, and one that is being written.
const KEPT: u64 = SECONDS + 2;
const SECOND: u64 = 1_000_000_000;
const OCCUPIED_BITS: u32 = 30;
const GAUGE: u64 = (1 << 26) - 1;
/// The bits that are kept of each count, in the order of [`Event`].
const KEPT_BITS: [u64; 6] = [LOW, LOW, (1 << 40) - 1, LOW, LOW, (1 << OCCUPIED_BITS) - 1];
const LOW: u64 = 0xFFFF_FFFF;

type MinuteRecord = [AtomicU64; 5];
type MinuteRecords = [MinuteRecord; KEPT as usize];

pub(super) struct Minute {
    slot: u64,
    /// Null until two seconds of one minute have traffic. Then it never changes.
    records: AtomicPtr<MinuteRecords>,
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
        Self {
            slot: layout.slot_nanos(),
            records: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn records(&self) -> Option<&MinuteRecords> {
        // Acquire: pairs with the Release in `make`.
        let records = self.records.load(Ordering::Acquire);
        // SAFETY: it is null, or comes from the box in `make`, which is freed when the minute is
        // dropped and not before.
        unsafe { records.as_ref() }
    }

    /// Allocates the records and writes the start of the first second, unless another thread has
    /// done so. `None` if the counts are no longer known: then other threads have gone through this
    /// turn long ago.
    #[cold]
    fn make(&self, second: u64, count: impl Fn(usize) -> Option<u64>) -> Option<&MinuteRecords> {
        let empty = |_| core::array::from_fn(|_| AtomicU64::new(0));
        let made: Box<MinuteRecords> = Box::new(core::array::from_fn(empty));
        // Before the records can be seen, because a reader of the old head takes its second from
        // them.
        if !begin(record(&made, second), second, count) {
            return None;
        }
        let made = Box::into_raw(made);
        // AcqRel: a thread that reads the pointer sees the records.
        let first = self.records.compare_exchange(
            ptr::null_mut(),
            made,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let records = match first {
            Ok(_) => made,
            Err(others) => {
                // SAFETY: it comes from the box above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                others
            }
        };
        // SAFETY: as in `records`.
        unsafe { records.as_ref() }
    }

    fn second(&self, head: Head) -> u64 {
        head.slot() * self.slot / SECOND
    }

    fn first_slot(&self, second: u64) -> u64 {
        (second * SECOND).div_ceil(self.slot)
    }

    /// Called at each turn of the ring, before the new head is published.
    pub(super) fn fold(&self, ring: &Ring<6, 2>, old: Head, new: Head) {
        let (ended, begins) = (self.second(old), self.second(new));
        if ended == begins {
            return;
        }
        let first = self.first_slot(ended);
        let never = || (0..KEPT_BITS.len()).all(|event| ring.began(event, new) == 0);
        let records = match self.records() {
            Some(records) => Some(records),
            // The ended second is out of view already, or has no events.
            None if begins - ended >= SECONDS || never() => None,
            None => self.make(ended, |event| ring.began_from(event, old, first)),
        };
        let Some(records) = records else { return };
        let low = |at| ring.lowest_until(at, old, first);
        let gauges = gauge(low(0)) << 38 | gauge(low(1).map(from_low)) << 12;
        let last = record(records, ended);
        write(&last[4], gauges | ended & 0xFFF, || {
            second_of(&last[0]) == ended
        });
        begin(record(records, begins), begins, |event| {
            Some(ring.began(event, new))
        });
    }

    /// The stored seconds of the minute up to `now`, oldest first; the gauges of the newest are not
    /// included yet.
    pub(super) fn seconds(&self, ring: &Ring<6, 2>, now: Nanos) -> Vec<Slot> {
        ring.read(|head| {
            let newest = self.second(head);
            let current = newest.max(now.get() / SECOND);
            let kept = current.saturating_sub(SECONDS - 1)..=newest;
            let live = core::array::from_fn(|at| ring.count_within(at, head));
            // Load this after the head: a thread makes the records before it publishes the head
            // that needs them.
            let Some(records) = self.records() else {
                if kept.is_empty() {
                    return Some(Vec::new());
                }
                let first = self.first_slot(newest);
                let mut began = [0; 6];
                for (event, count) in began.iter_mut().enumerate() {
                    *count = ring.began_from(event, head, first)?;
                }
                return Some(vec![shown(newest, grown(began, live)?, 0)]);
            };
            let began: Vec<Began> = kept
                .clone()
                .filter_map(|second| began(records, second))
                .collect();
            // A turn that goes far ahead may be overwriting the oldest of these.
            if self.second(ring.announced()) >= kept.start() + KEPT {
                return None;
            }
            let mut slots: Vec<Slot> = Vec::with_capacity(began.len());
            for (at, this) in began.iter().enumerate() {
                let next = began.get(at + 1).map_or(live, |next| next.counts.map(Some));
                let noted = this.gauges & 0xFFF == this.second & 0xFFF;
                let gauges = if noted { this.gauges } else { 0 };
                slots.push(shown(this.second, grown(this.counts, next)?, gauges));
            }
            Some(slots)
        })
    }
}

impl Drop for Minute {
    fn drop(&mut self) {
        // Acquire, as in `records`.
        let records = self.records.load(Ordering::Acquire);
        if !records.is_null() {
            // SAFETY: the pointer comes from the box in `make`, and `&mut self` excludes other
            // users.
            drop(unsafe { Box::from_raw(records) });
        }
    }
}

fn record(records: &MinuteRecords, second: u64) -> &MinuteRecord {
    &records[(second % KEPT) as usize]
}

/// Notes the counts with which a second begins. Returns false, and notes nothing, if one of them is
/// no longer known.
fn begin(record: &MinuteRecord, second: u64, count: impl Fn(usize) -> Option<u64>) -> bool {
    let mut counts = [0; 6];
    for (event, kept) in counts.iter_mut().enumerate() {
        let Some(count) = count(event) else {
            return false;
        };
        *kept = count & KEPT_BITS[event];
    }
    let of = |event: Event| counts[event as usize];
    let older = || second_of(&record[0]) < second;
    write(&record[1], of(Event::Pass) << 32 | of(Event::Block), older);
    write(
        &record[2],
        of(Event::Success) << 32 | of(Event::Exception),
        older,
    );
    write(&record[3], of(Event::Rt), older);
    write(
        &record[0],
        second << OCCUPIED_BITS | of(Event::OccupiedPass),
        older,
    );
    true
}

/// The start of a second, if it is still stored.
fn began(records: &MinuteRecords, second: u64) -> Option<Began> {
    let words = record(records, second)
        .each_ref()
        .map(|word| word.load(Ordering::Acquire));
    let [first, pass, success, rt, gauges] = words;
    let occupied = first & KEPT_BITS[Event::OccupiedPass as usize];
    let counts = [
        pass >> 32,
        success >> 32,
        rt,
        success & LOW,
        pass & LOW,
        occupied,
    ];
    (first >> OCCUPIED_BITS == second).then_some(Began {
        second,
        counts,
        gauges,
    })
}

/// How much each count has grown since a second began.
fn grown(began: [u64; 6], next: [Option<u64>; 6]) -> Option<[u64; 6]> {
    let mut counts = [0; 6];
    for (event, count) in counts.iter_mut().enumerate() {
        *count = next[event]?.wrapping_sub(began[event]) & KEPT_BITS[event];
    }
    Some(counts)
}

fn shown(second: u64, counts: [u64; 6], gauges: u64) -> Slot {
    let (min_rt, most) = (
        (gauges >> 38).checked_sub(1),
        (gauges >> 12 & GAUGE).saturating_sub(1),
    );
    Slot {
        start: Nanos::from_secs(second),
        counts: Counts::of(counts, min_rt, most),
    }
}

fn gauge(value: Option<u64>) -> u64 {
    value.map_or(0, |value| (value + 1).min(GAUGE))
}

fn second_of(first: &AtomicU64) -> u64 {
    first.load(Ordering::Acquire) >> OCCUPIED_BITS
}

/// Sets a word to `value`, if the record is `still` the one to write to; see the module's
/// documentation.
fn write(word: &AtomicU64, value: u64, still: impl Fn() -> bool) {
    loop {
        // Before `still` checks the record, so that a word of a later record is not mistaken for
        // this one.
        let seen = word.load(Ordering::Acquire);
        if seen == value || !still() {
            return;
        }
        // AcqRel: word 0 publishes the others.
        if word
            .compare_exchange(seen, value, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            return;
        }
    }
}
