//! Latency histograms, cheap enough for a busy listener: two additions for all commands that were
//! answered together.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Nanos;

/// The buckets' upper bounds in nanoseconds, from the fastest answers to suspiciously slow ones.
pub const BOUNDS: [u64; 12] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
    50_000_000,
    250_000_000,
    1_000_000_000,
];

/// One bucket for each bound, and one for slower answers.
pub const BUCKETS: usize = BOUNDS.len() + 1;

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Latency {
    /// One bucket for each bound, and one for slower answers. Relaxed throughout: counters order
    /// nothing.
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

/// A histogram, read at about one time.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyRead {
    /// The sum in seconds.
    pub sum: f64,
    pub count: u64,
    /// The upper bound of each bucket in seconds, and its count. The last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
}

impl Latency {
    /// Counts `count` answers with this latency.
    #[inline]
    pub fn observe(&self, took: Nanos, count: u64) {
        let bucket = BOUNDS.partition_point(|bound| *bound < took.get());
        self.buckets[bucket].fetch_add(count, Ordering::Relaxed);
        self.nanos
            .fetch_add(took.get().saturating_mul(count), Ordering::Relaxed);
    }

    /// The count of each bucket.
    pub fn counts(&self) -> [u64; BUCKETS] {
        self.buckets
            .each_ref()
            .map(|bucket| bucket.load(Ordering::Relaxed))
    }

    pub fn read(&self) -> LatencyRead {
        let bounds = BOUNDS
            .iter()
            .map(|bound| *bound as f64 / 1e9)
            .chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.counts()).collect();
        LatencyRead {
            sum: self.nanos.load(Ordering::Relaxed) as f64 / 1e9,
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_counts_in_the_bucket_of_its_latency() {
        let latency = Latency::default();
        latency.observe(Nanos::new(0), 2);
        latency.observe(Nanos::new(10_000), 1);
        latency.observe(Nanos::new(10_001), 4);
        latency.observe(Nanos::from_secs(2), 1);
        let read = latency.read();
        assert_eq!(read.count, 8);
        let filled: Vec<_> = read
            .buckets
            .iter()
            .filter(|(_, count)| *count > 0)
            .copied()
            .collect();
        assert_eq!(filled, [(0.000_01, 3), (0.000_025, 4), (f64::INFINITY, 1)]);
        assert!((read.sum - 2.000_050_004).abs() < 1e-9, "{}", read.sum);
    }
}
