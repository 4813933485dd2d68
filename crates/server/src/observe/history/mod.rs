//! The history: the decisions of each limit per second, and the latency of answers. It is in memory, bounded, and costs
//! decisions nothing beyond counting: once a second the counters are read and their growth is stored.

mod series;

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tidegate_core::Nanos;

use self::series::Series;
pub use self::series::{Points, Step};
use crate::{
    decide::{counts::CountsRead, limits::Limits},
    observe::latency,
};

/// How often the counters are read.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// The default size of all histories together, in bytes.
pub const HISTORY_BYTES: u64 = 64 << 20;

/// The outcomes of a limit: admitted without delay, admitted after a delay, denied, admitted by a shadow limit that would have
/// denied, and decided without the store because it did not reply.
pub const OUTCOMES: [&str; 5] = ["allowed", "delayed", "denied", "shadow_denied", "errors"];
type Outcomes = [u64; OUTCOMES.len()];

/// The latencies of a limit's decisions. A sample has at most 4,096 decisions a second, so small numbers suffice.
type Sample = Series<{ latency::BUCKETS }, u16>;

/// The size of one limit's history.
const LIMIT_BYTES: u64 = Series::<{ OUTCOMES.len() }>::BYTES + Sample::BYTES;
const LATENCY_BYTES: u64 = Series::<{ latency::BUCKETS }>::BYTES;

/// The history of all limits.
#[derive(Debug)]
pub struct History {
    max_bytes: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    limits: HashMap<String, OfLimit>,
    latency: Option<OfLatency>,
    /// The number of limits without room for a history.
    left_out: usize,
}

#[derive(Debug)]
struct OfLimit {
    before: Outcomes,
    series: Series<{ OUTCOMES.len() }>,
    sample_before: [u64; latency::BUCKETS],
    sample: Sample,
}

impl OfLimit {
    fn new(begin: u64) -> Self {
        Self {
            before: Outcomes::default(),
            series: Series::new(begin),
            sample_before: [0; latency::BUCKETS],
            sample: Series::new(begin),
        }
    }
}

#[derive(Debug)]
struct OfLatency {
    before: [u64; latency::BUCKETS],
    series: Series<{ latency::BUCKETS }>,
}

/// The memory of histories, and what did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The bytes in use.
    pub bytes: u64,
    /// The bound.
    pub max_bytes: u64,
    /// Limits without a history, because of the bound.
    pub left_out: usize,
}

impl Default for History {
    fn default() -> Self {
        Self::new(HISTORY_BYTES)
    }
}

impl History {
    /// Histories of at most `max_bytes`; 0 keeps none.
    pub fn new(max_bytes: u64) -> Self {
        Self { max_bytes, kept: Mutex::default() }
    }

    /// Reads the counters. Call this every second, with the answers counted by latency.
    pub fn look(&self, limits: &Limits, answers: [u64; latency::BUCKETS], now: Nanos) {
        let end = now.get() / 1_000_000_000;
        let mut kept = self.lock();
        let Kept { limits: of, latency, left_out } = &mut *kept;
        // Limits that no longer exist make room first.
        of.retain(|name, _| limits.limit(name.as_bytes()).is_some());
        let begin = end.saturating_sub(1);
        if latency.is_none() && LATENCY_BYTES <= self.max_bytes {
            let before = [0; latency::BUCKETS];
            *latency = Some(OfLatency { before, series: Series::new(begin) });
        }
        if let Some(latency) = latency {
            latency.series.push(end, growth(&mut latency.before, answers));
        }
        let room = self.max_bytes.saturating_sub(LATENCY_BYTES) / LIMIT_BYTES;
        let mut without = 0;
        for limit in limits.limits() {
            let name = &limit.spec().name;
            if !of.contains_key(name) {
                if of.len() as u64 >= room {
                    without += 1;
                    continue;
                }
                of.insert(name.clone(), OfLimit::new(begin));
            }
            if let Some(of) = of.get_mut(name) {
                of.series.push(end, growth(&mut of.before, outcomes(&limit.counts())));
                of.sample.push(end, growth(&mut of.sample_before, limit.latency()));
            }
        }
        if without > *left_out && self.max_bytes > 0 {
            tracing::warn!(
                limits = without,
                max_bytes = self.max_bytes,
                "some limits have no history for lack of memory; raise --history-memory",
            );
        }
        *left_out = without;
    }

    /// The decisions of a limit; `None` if it has no history.
    pub fn of(&self, limit: &str, step: Step, most: usize) -> Option<Points<{ OUTCOMES.len() }>> {
        Some(self.lock().limits.get(limit)?.series.read(step, most))
    }

    /// The latencies of a sample of a limit's decisions, in the buckets of [`latency_bounds`], counted from when the server read
    /// the request.
    pub fn latency_of(&self, limit: &str, step: Step, most: usize) -> Option<Points<{ latency::BUCKETS }>> {
        Some(self.lock().limits.get(limit)?.sample.read(step, most))
    }

    /// The latencies of answers, in the buckets of [`latency_bounds`]; `None` if no history is kept.
    pub fn latency(&self, step: Step, most: usize) -> Option<Points<{ latency::BUCKETS }>> {
        Some(self.lock().latency.as_ref()?.series.read(step, most))
    }

    /// The memory in use.
    pub fn size(&self) -> Size {
        let kept = self.lock();
        let latency = if kept.latency.is_some() { LATENCY_BYTES } else { 0 };
        let bytes = latency + kept.limits.len() as u64 * LIMIT_BYTES;
        Size { bytes, max_bytes: self.max_bytes, left_out: kept.left_out }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The upper bounds of the latency buckets in seconds; the last bucket has none.
pub fn latency_bounds() -> impl Iterator<Item = f64> {
    latency::BOUNDS.iter().map(|nanos| Nanos::new(*nanos).get() as f64 / 1e9)
}

fn outcomes(counts: &CountsRead) -> Outcomes {
    let CountsRead { allowed, delayed, denied, shadow_denied, errors, denied_by: _ } = *counts;
    [allowed, delayed, denied, shadow_denied, errors]
}

/// The growth of counters. If one is smaller than before, all were reset along with their limit.
fn growth<const N: usize>(before: &mut [u64; N], now: [u64; N]) -> [u64; N] {
    if now.iter().zip(&*before).any(|(now, before)| now < before) {
        *before = [0; N];
    }
    let grown = std::array::from_fn(|at| now[at] - before[at]);
    *before = now;
    grown
}
