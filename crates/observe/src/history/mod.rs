//! The history: the decisions of each limit per second, and the latency of answers. It is in
//! memory, bounded, and costs decisions nothing beyond counting: once a second the counters are
//! read and their growth is stored.

mod series;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::Nanos;

use self::series::{Number, Series};
pub use self::series::{Points, Step};
use crate::latency;

/// How often the counters are read.
pub const EVERY: Duration = Duration::from_secs(1);
/// The default size of all histories together, in bytes.
pub const HISTORY_BYTES: u64 = 64 << 20;

/// The outcomes of a limit: admitted without delay, admitted after a delay, denied, admitted by a
/// shadow limit that would have denied, and decided without the store because it did not reply. Of
/// the denied ones: those of blocked keys or keys on a deny list, those for which the table had no
/// room, and those for which the store did not reply. The others were above the limit.
pub const OUTCOMES: [&str; 8] = [
    "allowed",
    "delayed",
    "denied",
    "shadow_denied",
    "errors",
    "denied_blocked",
    "denied_table_full",
    "denied_store_down",
];

/// The counters of a limit at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Counters<'l> {
    pub limit: &'l str,
    /// By [`OUTCOMES`].
    pub outcomes: [u64; OUTCOMES.len()],
    /// By [`latency_bounds`].
    pub latency: [u64; latency::BUCKETS],
}

/// The latencies of a limit's decisions. A sample has at most 4,096 decisions a second, so small
/// numbers suffice.
type Sample = Series<{ latency::BUCKETS }, u16>;

/// The size of one limit's history.
const LIMIT_BYTES: u64 = Series::<{ OUTCOMES.len() }>::BYTES + Sample::BYTES;
/// The size of what is kept of all limits and answers together.
const TOGETHER_BYTES: u64 =
    Series::<{ latency::BUCKETS }>::BYTES + Series::<{ OUTCOMES.len() }>::BYTES;

/// The history of all limits.
#[derive(Debug)]
pub struct History {
    max_bytes: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    limits: HashMap<String, OfLimit>,
    /// Of all limits that have a history.
    total: Option<Series<{ OUTCOMES.len() }>>,
    latency: Option<Growth<{ latency::BUCKETS }>>,
    /// The number of limits without room for a history.
    left_out: usize,
}

#[derive(Debug)]
struct OfLimit {
    outcomes: Growth<{ OUTCOMES.len() }>,
    sample: Growth<{ latency::BUCKETS }, u16>,
}

/// How much counters grew in each second.
#[derive(Debug)]
struct Growth<const N: usize, T = u32> {
    /// The counters when they were last read.
    before: [u64; N],
    series: Series<N, T>,
}

impl<const N: usize, T: Number> Growth<N, T> {
    fn new(begin: u64) -> Self {
        Self {
            before: [0; N],
            series: Series::new(begin),
        }
    }

    /// Takes what the counters are at the end of a second, and returns by how much they grew.
    /// Counters that went back have begun again.
    fn see(&mut self, end: u64, now: [u64; N]) -> [u64; N] {
        if now
            .iter()
            .zip(&self.before)
            .any(|(now, before)| now < before)
        {
            self.before = [0; N];
        }
        let growth = std::array::from_fn(|at| now[at] - self.before[at]);
        self.series.push(end, growth);
        self.before = now;
        growth
    }
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
        Self {
            max_bytes,
            kept: Mutex::default(),
        }
    }

    /// Takes the counters of all limits, and the answers counted by latency. Call this every
    /// second.
    pub fn take(&self, limits: &[Counters<'_>], answers: [u64; latency::BUCKETS], now: Nanos) {
        let end = now.get() / 1_000_000_000;
        let mut kept = self.lock();
        let Kept {
            limits: of,
            total,
            latency,
            left_out,
        } = &mut *kept;
        // Limits that no longer exist make room first.
        let names: HashSet<&str> = limits.iter().map(|counters| counters.limit).collect();
        of.retain(|name, _| names.contains(&**name));
        let begin = end.saturating_sub(1);
        if latency.is_none() && TOGETHER_BYTES <= self.max_bytes {
            *latency = Some(Growth::new(begin));
            *total = Some(Series::new(begin));
        }
        if let Some(latency) = latency {
            latency.see(end, answers);
        }
        let room = self.max_bytes.saturating_sub(TOGETHER_BYTES) / LIMIT_BYTES;
        let (mut without, mut sums) = (0, [0_u64; OUTCOMES.len()]);
        for counters in limits {
            let name = counters.limit;
            if !of.contains_key(name) {
                if of.len() as u64 >= room {
                    without += 1;
                    continue;
                }
                of.insert(
                    name.to_owned(),
                    OfLimit {
                        outcomes: Growth::new(begin),
                        sample: Growth::new(begin),
                    },
                );
            }
            if let Some(of) = of.get_mut(name) {
                let growth = of.outcomes.see(end, counters.outcomes);
                sums.iter_mut()
                    .zip(growth)
                    .for_each(|(sum, more)| *sum = sum.saturating_add(more));
                of.sample.see(end, counters.latency);
            }
        }
        if let Some(total) = total {
            total.push(end, sums);
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
        Some(
            self.lock()
                .limits
                .get(limit)?
                .outcomes
                .series
                .read(step, most),
        )
    }

    /// The decisions of all limits that have a history; `None` if no history is kept.
    pub fn total(&self, step: Step, most: usize) -> Option<Points<{ OUTCOMES.len() }>> {
        Some(self.lock().total.as_ref()?.read(step, most))
    }

    /// The latencies of a sample of a limit's decisions, in the buckets of [`latency_bounds`],
    /// counted from when the server read the request.
    pub fn latency_of(
        &self,
        limit: &str,
        step: Step,
        most: usize,
    ) -> Option<Points<{ latency::BUCKETS }>> {
        Some(
            self.lock()
                .limits
                .get(limit)?
                .sample
                .series
                .read(step, most),
        )
    }

    /// The latencies of answers, in the buckets of [`latency_bounds`]; `None` if no history is
    /// kept.
    pub fn latency(&self, step: Step, most: usize) -> Option<Points<{ latency::BUCKETS }>> {
        Some(self.lock().latency.as_ref()?.series.read(step, most))
    }

    /// The memory in use.
    pub fn size(&self) -> Size {
        let kept = self.lock();
        let latency = if kept.latency.is_some() {
            TOGETHER_BYTES
        } else {
            0
        };
        let bytes = latency + kept.limits.len() as u64 * LIMIT_BYTES;
        Size {
            bytes,
            max_bytes: self.max_bytes,
            left_out: kept.left_out,
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Kept> {
        self.kept.lock()
    }
}

/// The upper bounds of the latency buckets in seconds; the last bucket has none.
pub fn latency_bounds() -> impl Iterator<Item = f64> {
    latency::BOUNDS
        .iter()
        .map(|nanos| Nanos::new(*nanos).get() as f64 / 1e9)
}
