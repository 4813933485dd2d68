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

    /// Reads the counters. Call this [every second](EVERY), with the answers counted by latency.
    pub(crate) fn look(&self, limits: &Limits, answers: [u64; latency::BUCKETS], now: Nanos) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::{Clock, ManualClock};

    use super::*;
    use crate::{
        decide::{limits::Act, service::Service, throttle::Throttle},
        rules,
    };

    struct Watched {
        clock: Arc<ManualClock>,
        service: Service,
        history: History,
    }

    const NONE: [u64; latency::BUCKETS] = [0; latency::BUCKETS];

    impl Watched {
        fn new(text: &str, max_bytes: u64) -> Self {
            let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_000)));
            let limits = Limits::new(rules::parse(text).unwrap(), 8, |_| None, clock.now()).unwrap();
            let service = Service::new(limits, Throttle::new(8, None).unwrap(), Arc::clone(&clock) as _);
            Self { clock, service, history: History::new(max_bytes) }
        }

        fn ask(&self, limit: &str, times: usize) {
            let limits = self.service.limits();
            let limit = limits.limit(limit.as_bytes()).unwrap();
            for _ in 0..times {
                let _ = limit.decide_in_memory(Act::Take, b"key", 1, self.service.now());
            }
        }

        fn second(&self) {
            self.clock.advance(EVERY);
            self.history.look(&self.service.limits(), NONE, self.service.now());
        }

        fn change(&self, text: &str) {
            let next = self.service.limits().follow(rules::parse(text).unwrap(), self.service.now()).unwrap();
            self.service.set_limits(next);
        }

        fn told(&self, limit: &str) -> Vec<[u32; 5]> {
            self.history.of(limit, Step::Second, 100).unwrap().points
        }
    }

    const TWO: &str =
        "limits: [{name: a, limit: 2/1h, algorithm: sliding-log}, {name: b, limit: 1/1h, shadow: true}]";

    #[test]
    fn each_second_has_its_decisions() {
        let watched = Watched::new(TWO, HISTORY_BYTES);
        watched.ask("a", 1);
        watched.second();
        watched.second();
        watched.ask("a", 3);
        watched.ask("b", 3);
        watched.second();
        assert_eq!(watched.told("a"), [[1, 0, 0, 0, 0], [0; 5], [1, 0, 2, 0, 0]]);
        assert_eq!(watched.told("b"), [[0; 5], [0; 5], [1, 0, 0, 2, 0]]);
        assert_eq!(watched.history.of("a", Step::Second, 1).unwrap().end, 1_003);
        assert_eq!(watched.history.of("c", Step::Second, 1), None);
    }

    #[test]
    fn a_change_of_rules_keeps_the_history_even_of_a_limit_that_is_reset() {
        let watched = Watched::new(TWO, HISTORY_BYTES);
        watched.ask("a", 3);
        watched.second();
        // The quota changes, and `b` becomes another limit: its counters start at zero again.
        watched.ask("b", 3);
        watched.second();
        watched.change("limits: [{name: a, limit: 9/1h}, {name: b, limit: 5/1h, global: true}]");
        watched.ask("a", 1);
        watched.ask("b", 1);
        watched.second();
        assert_eq!(watched.told("a"), [[2, 0, 1, 0, 0], [0; 5], [1, 0, 0, 0, 0]]);
        assert_eq!(watched.told("b"), [[0; 5], [1, 0, 0, 2, 0], [1, 0, 0, 0, 0]]);
        watched.change("limits: [{name: a, limit: 9/1h}]");
        watched.second();
        assert_eq!(watched.history.of("b", Step::Second, 1), None);
    }

    #[test]
    fn limits_without_room_are_left_out_and_reported() {
        // The help of --history-memory and the book say these.
        assert_eq!([LIMIT_BYTES, LATENCY_BYTES].map(|bytes| bytes.div_ceil(1024)), [138, 156]);
        let watched = Watched::new(TWO, LATENCY_BYTES + LIMIT_BYTES);
        watched.second();
        assert_eq!(
            watched.history.size(),
            Size { bytes: LATENCY_BYTES + LIMIT_BYTES, max_bytes: LATENCY_BYTES + LIMIT_BYTES, left_out: 1 }
        );
        assert!(
            watched.history.of("a", Step::Second, 1).is_some()
                && watched.history.of("b", Step::Second, 1).is_none()
        );
        // Freed memory is used.
        watched.change("limits: [{name: b, limit: 1/1h}]");
        watched.second();
        assert!(watched.history.of("b", Step::Second, 1).is_some());
        assert_eq!(watched.history.size().left_out, 0);
        let off = Watched::new(TWO, 0);
        off.second();
        assert_eq!((off.history.size().bytes, off.history.latency(Step::Second, 1)), (0, None));
    }

    #[test]
    fn answers_are_counted_by_latency() {
        let watched = Watched::new(TWO, HISTORY_BYTES);
        let mut answers = NONE;
        for second in 1..=3 {
            answers[2] += second;
            watched.clock.advance(EVERY);
            watched.history.look(&watched.service.limits(), answers, watched.service.now());
        }
        let told = watched.history.latency(Step::Second, 2).unwrap();
        assert_eq!(
            told.points.iter().map(|buckets| (buckets[1], buckets[2])).collect::<Vec<_>>(),
            [(0, 2), (0, 3)]
        );
        assert_eq!(latency_bounds().count(), latency::BUCKETS - 1);
    }
}
