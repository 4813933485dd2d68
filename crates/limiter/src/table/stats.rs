//! A table's statistics.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Share;

/// A table's statistics, read without stopping it: each number is exact, and all are of about the
/// same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys in the table.
    pub keys: u64,
    /// The maximum number of keys.
    pub max_keys: u64,
    /// Bytes reserved for states and records; resident as far as they have been used.
    pub bytes: u64,
    /// Keys added in total.
    pub added: u64,
    /// States that were dropped because they had recovered completely.
    pub reclaimed: u64,
    /// Keys that were evicted while they still had a debt, and left a record.
    pub evicted: u64,
    /// Records in use, some of which may have ended.
    pub records: u64,
    /// Keys that returned and got their record back.
    pub returned: u64,
    /// Records that were forgotten, by the share of the limit that the key had used. Such a key
    /// gets at most that share a second time.
    pub forgotten: Forgotten,
    /// Requests of new keys that were refused, because an exhausted key's record would have been
    /// forgotten for them ([`WhenFull::Deny`](super::WhenFull::Deny)).
    pub refused: u64,
    /// Decisions on a record in place, because the key got no cell.
    pub untracked: u64,
}

/// Records that were forgotten, by the share of the limit that the key had used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forgotten {
    /// At most a quarter.
    pub quarter: u64,
    /// More than a quarter, at most a half.
    pub half: u64,
    /// More than a half, at most three quarters.
    pub three_quarters: u64,
    /// More than three quarters, but not all.
    pub most: u64,
    /// All: an exhausted key got a fresh allowance.
    pub exhausted: u64,
}

impl Forgotten {
    /// The sum of all.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.quarter + self.half + self.three_quarters + self.most + self.exhausted
    }
}

/// One counter. Relaxed throughout: counters order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Adds one, unless the result would exceed `most`.
    pub fn add_up_to(&self, most: u64) -> bool {
        if self.0.fetch_add(1, Ordering::Relaxed) < most {
            return true;
        }
        self.sub(1);
        false
    }

    /// Returns the old value and adds one.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The live counters behind [`Stats`]. They change when keys are added or removed, never on a known
/// key.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub keys: Counter,
    pub added: Counter,
    pub reclaimed: Counter,
    pub evicted: Counter,
    pub returned: Counter,
    /// By quarter of the limit, and last the exhausted ones.
    forgotten: [Counter; 5],
    pub refused: Counter,
    pub untracked: Counter,
}

impl Counters {
    /// Restarts the counters. Relaxed, as all counters: no key is added or removed during the call.
    pub fn reset(&self) {
        let plain = [
            &self.keys,
            &self.added,
            &self.reclaimed,
            &self.evicted,
            &self.returned,
            &self.refused,
            &self.untracked,
        ];
        for counter in plain.into_iter().chain(&self.forgotten) {
            counter.0.store(0, Ordering::Relaxed);
        }
    }

    pub fn forget(&self, share: Share) {
        let at = match share.get() {
            0..=31 => 0,
            32..=63 => 1,
            64..=94 => 2,
            95..=126 => 3,
            _ => 4,
        };
        self.forgotten[at].add(1);
    }

    pub fn forgotten(&self) -> Forgotten {
        let [quarter, half, three_quarters, most, exhausted] = &self.forgotten;
        Forgotten {
            quarter: quarter.get(),
            half: half.get(),
            three_quarters: three_quarters.get(),
            most: most.get(),
            exhausted: exhausted.get(),
        }
    }
}
