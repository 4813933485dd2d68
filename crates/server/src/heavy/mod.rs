//! The heavy keys of a limit: which keys ask most, and which are denied most, in bounded memory and at a bounded cost.
//!
//! ```text
//! decision ─► Counts says whether it is sampled ─► HeavyKeys ─┬─► Summary of who asks
//!             (two multiplications)               (a lock)    └─► Summary of who is denied
//! ```
//!
//! Up to a budget of decisions in a second every decision is counted, and the counts are exact. Above
//! it one in 2, 4, 8 … is, and weighs as many, so that the cost stays the same however busy the limit is. A hash of the
//! decision's number says which ones, so no rhythm in the traffic hides a key.
//!
//! Counts are kept for [`PERIOD`]s. A [`Top`] covers the period under way and the one before.

mod summary;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_core::Nanos;

use self::summary::Summary;

/// How many keys of each limit are remembered by name, unless told otherwise.
pub const TOP_KEYS: usize = 1_000;
/// How long counts are gathered before a new count begins. The last complete period is shown, too.
pub const PERIOD: Nanos = Nanos::from_secs(300);
/// Decisions of one limit that are counted in a second at most, all limits together sharing [`BUDGET_OF_ALL`].
const BUDGET: u32 = 4_096;
/// Decisions of all limits that are counted in a second.
const BUDGET_OF_ALL: u32 = 32_768;
/// The least that a limit has of it.
const LEAST_BUDGET: u32 = 32;
/// The multipliers of `SplitMix64`.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const SPREAD: u64 = 0xBF58_476D_1CE4_E5B9;
/// At most one decision in so many is sampled, as a power of two.
const SPARSEST: u32 = 24;

/// Which decisions are sampled. Read by every decision, and so beside the counters that every decision changes.
#[derive(Debug)]
pub(crate) struct Sampling {
    /// A decision is sampled when the hash of its number is at most this. Relaxed: a decision that sees an old value is
    /// sampled by the old rate, and weighed by the new one, for as long as a store takes to be seen.
    threshold: AtomicU64,
    /// Begins the hash: unknown to clients, so none can count its requests past it.
    seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self { threshold: AtomicU64::new(0), seed: RandomState::new().hash_one(0) }
    }
}

impl Sampling {
    /// Whether the decision of this number is one of the sample.
    #[inline]
    pub fn takes(&self, number: u64) -> bool {
        let mixed = number.wrapping_mul(GOLDEN).wrapping_add(self.seed);
        (mixed ^ (mixed >> 32)).wrapping_mul(SPREAD) <= self.threshold.load(Ordering::Relaxed)
    }

    /// Samples one decision in 2ⁿ.
    fn set(&self, power: u32) {
        self.threshold.store(u64::MAX >> power, Ordering::Relaxed);
    }
}

/// The heavy keys of one limit.
#[derive(Debug)]
pub(crate) struct HeavyKeys {
    capacity: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    current: Period,
    before: Period,
    /// Where the limit was first looked at or asked; nothing was counted earlier.
    since: Option<Nanos>,
    budget: u32,
    /// One decision in 2ⁿ is sampled.
    power: u32,
    /// The second under way, and how many were sampled in it.
    second: u64,
    samples: u32,
}

#[derive(Debug, Default)]
struct Period {
    /// Its number since the epoch.
    number: u64,
    asked: Summary,
    denied: Summary,
    /// The sparsest sampling in it.
    power: u32,
}

impl Period {
    fn new(number: u64, capacity: usize, power: u32) -> Self {
        Self { number, asked: Summary::new(capacity), denied: Summary::new(capacity), power }
    }
}

impl HeavyKeys {
    /// Remembers up to `capacity` keys by name in each of its counts; with 0 it only says which decisions are sampled.
    pub fn new(capacity: usize, sampling: &Sampling) -> Self {
        sampling.set(0);
        Self {
            capacity,
            kept: Mutex::new(Kept {
                current: Period::new(0, capacity, 0),
                before: Period::new(0, capacity, 0),
                since: None,
                budget: BUDGET,
                power: 0,
                second: 0,
                samples: 0,
            }),
        }
    }

    /// Divides what all limits may cost among so many of them.
    pub fn share_among(&self, limits: usize) {
        let share = BUDGET_OF_ALL / u32::try_from(limits.max(1)).unwrap_or(u32::MAX);
        self.set_budget(share.clamp(LEAST_BUDGET, BUDGET));
    }

    /// How many decisions are counted in a second at most.
    fn set_budget(&self, budget: u32) {
        self.lock().budget = budget;
    }

    /// Counts a decision that the sampling takes.
    #[cold]
    pub fn record(&self, key: &[u8], denied: bool, sampling: &Sampling, now: Nanos) {
        let mut kept = self.lock();
        kept.roll(self.capacity, now);
        kept.pace(sampling, now);
        let weight = 1 << kept.power;
        // A summary without room for a name adds nothing.
        kept.current.asked.add(key, weight);
        if denied {
            kept.current.denied.add(key, weight);
        }
    }

    /// The `most` keys that asked most and that were denied most; `None` where heavy keys are off.
    pub fn top(&self, most: usize, now: Nanos) -> Option<Top> {
        if self.capacity == 0 {
            return None;
        }
        let mut kept = self.lock();
        let since = kept.roll(self.capacity, now);
        let power = kept.current.power.max(kept.before.power);
        let from = Nanos::new(kept.before.number.saturating_mul(PERIOD.get())).max(since);
        let halves = |of: fn(&Period) -> &Summary| [of(&kept.current), of(&kept.before)].map(Half::of);
        let (asked, denied) = (halves(|period| &period.asked), halves(|period| &period.denied));
        // Only references were copied; decisions need not wait for what follows.
        drop(kept);
        let total = |halves: &[Half; 2]| halves.iter().map(|half| half.total).sum();
        Some(Top {
            span: now.saturating_since(from),
            one_in: 1 << power,
            capacity: self.capacity,
            requests: total(&asked),
            denials: total(&denied),
            asked: merged(&asked, power, most),
            denied: merged(&denied, power, most),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Begins a new period when its time has come. Since when there are counts.
    fn roll(&mut self, capacity: usize, now: Nanos) -> Nanos {
        let since = *self.since.get_or_insert(now);
        let number = now.get() / PERIOD.get();
        if number > self.current.number {
            let ended = std::mem::replace(&mut self.current, Period::new(number, capacity, self.power));
            self.before = if ended.number + 1 == number {
                ended
            } else {
                Period::new(number.saturating_sub(1), capacity, 0)
            };
        }
        since
    }

    /// Follows the limit's traffic: samples sparser in a second that had its budget, and denser after one that used less
    /// than half of it.
    fn pace(&mut self, sampling: &Sampling, now: Nanos) {
        let second = now.get() / 1_000_000_000;
        let power = self.power;
        if second > self.second {
            let idle = u32::try_from(second - self.second - 1).unwrap_or(u32::MAX);
            let used_little = self.samples < self.budget / 2;
            self.power = self.power.saturating_sub(idle.saturating_add(u32::from(used_little)));
            (self.second, self.samples) = (second, 0);
        } else if self.samples >= self.budget && self.power < SPARSEST {
            self.power += 1;
            self.samples /= 2;
        }
        self.samples = self.samples.saturating_add(1);
        if self.power != power {
            sampling.set(self.power);
        }
        self.current.power = self.current.power.max(self.power);
    }
}

/// A summary as it was read.
struct Half {
    slots: Vec<summary::Slot>,
    least: u64,
    total: u64,
}

impl Half {
    fn of(summary: &Summary) -> Self {
        Self { slots: summary.slots().to_vec(), least: summary.least(), total: summary.total() }
    }
}

/// A key's count and error in each half that has it.
type Sums = [Option<(u64, u64)>; 2];

/// The heaviest keys of both halves. A key that is in one of them may have weighed the least of the other there.
fn merged(halves: &[Half; 2], power: u32, most: usize) -> Vec<TopKey> {
    let mut sums: HashMap<&Arc<[u8]>, Sums> = HashMap::new();
    for (at, half) in halves.iter().enumerate() {
        for slot in &half.slots {
            sums.entry(&slot.key).or_default()[at] = Some((slot.count, slot.error));
        }
    }
    let sum = |(key, found): (&Arc<[u8]>, Sums)| {
        let parts = [0, 1].map(|at| found[at].unwrap_or((halves[at].least, halves[at].least)));
        let (count, error) = (parts[0].0 + parts[1].0, parts[0].1 + parts[1].1);
        TopKey::new(Arc::clone(key), count, error, power)
    };
    let mut keys: Vec<_> = sums.into_iter().map(sum).collect();
    keys.sort_unstable_by(|one, other| {
        (other.count, other.at_least, &one.key).cmp(&(one.count, one.at_least, &other.key))
    });
    keys.truncate(most);
    keys
}

/// The keys of a limit that asked most, and those that were denied most.
#[derive(Clone, Debug, PartialEq)]
pub struct Top {
    /// How long they have been counted.
    pub span: Nanos,
    /// One decision in so many was counted, where that was fewest: 1 if all were.
    pub one_in: u64,
    /// How many keys each count remembers.
    pub capacity: usize,
    /// About how many decisions there were.
    pub requests: u64,
    /// About how many of them were denials.
    pub denials: u64,
    /// Those that asked most, the first the most.
    pub asked: Vec<TopKey>,
    /// Those that were denied most.
    pub denied: Vec<TopKey>,
}

/// How often a key came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// The key.
    pub key: Arc<[u8]>,
    /// The estimate.
    pub count: u64,
    /// The true number is no smaller: always where all decisions are counted, else in 997 of 1,000 cases.
    pub at_least: u64,
    /// The true number is no larger, likewise.
    pub at_most: u64,
}

impl TopKey {
    /// `count` may be too large by `error`, and was sampled. The margin is three standard deviations of a binomial sample
    /// of one in 2ⁿ; whoever was sampled came at least as often as that.
    fn new(key: Arc<[u8]>, count: u64, error: u64, power: u32) -> Self {
        #[allow(clippy::cast_sign_loss, reason = "roots are not negative")]
        let margin = (3.0 * (count as f64 * ((1_u64 << power) - 1) as f64).sqrt()).ceil() as u64;
        let sampled = (count - error) >> power;
        Self {
            key,
            count,
            at_least: (count - error).saturating_sub(margin).max(sampled),
            at_most: count.saturating_add(margin),
        }
    }
}
