//! The heavy keys of a limit: the keys with the most requests and the most denials, in bounded
//! memory and at a bounded cost.
//!
//! ```text
//! decision ─► Counts says whether it is sampled ─► HeavyKeys ─┬─► Summary of requests
//!             (two multiplications)               (a lock)    └─► Summary of denials
//! ```
//!
//! Up to a budget per second, every decision is counted, and the counts are exact. Above it, one in
//! 2, 4, 8 … is counted with that weight, so the cost does not grow with the load. A hash of the
//! decision's number selects which ones, so that no rhythm in the traffic hides a key.
//!
//! Counts are kept per [`PERIOD`]. A [`Top`] covers the current period and the previous one.

mod summary;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_limiter::HashKeys;

use self::summary::{HashedKey, Summary};

/// The default number of keys of each limit that are tracked by name.
pub const TOP_KEYS: usize = 1_000;
/// The length of a counting period. The last complete period is shown, too.
pub const PERIOD: Nanos = Nanos::from_secs(300);
/// The maximum number of counted decisions of one limit per second. All limits together share
/// [`BUDGET_OF_ALL`].
const BUDGET: u32 = 4_096;
/// The maximum number of counted decisions of all limits per second.
const BUDGET_OF_ALL: u32 = 32_768;
/// The minimum part of it for each limit.
const LEAST_BUDGET: u32 = 32;
/// The multipliers of `SplitMix64`.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const SPREAD: u64 = 0xBF58_476D_1CE4_E5B9;
/// The sparsest sampling, as a power of two.
const SPARSEST: u32 = 24;

/// Selects the sampled decisions. Every decision reads it, so it is next to the counters that every
/// decision changes.
#[derive(Debug)]
pub struct Sampling {
    /// A decision is sampled if the hash of its number is at most this. Relaxed: a decision that
    /// sees an old value is sampled at the old rate and weighed at the new one, for as long as a
    /// store takes to become visible.
    threshold: AtomicU64,
    /// The seed of the hash. Clients do not know it, so they cannot predict which requests are
    /// sampled.
    seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self {
            threshold: AtomicU64::new(0),
            seed: RandomState::new().hash_one(0),
        }
    }
}

impl Sampling {
    /// Whether the decision with this number is sampled.
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
pub struct HeavyKeys {
    capacity: usize,
    /// The hash of keys is random, because clients choose them.
    hash: HashKeys,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    current: Period,
    before: Period,
    /// When counting began.
    since: Option<Nanos>,
    budget: u32,
    /// One decision in 2ⁿ is sampled.
    power: u32,
    /// The current second, and how many decisions were sampled in it.
    second: u64,
    samples: u32,
}

#[derive(Debug, Default)]
struct Period {
    /// Its number since the epoch.
    number: u64,
    asked: Summary,
    denied: Summary,
    /// The sparsest sampling in the period.
    power: u32,
}

impl Period {
    fn new(number: u64, capacity: usize, power: u32) -> Self {
        Self {
            number,
            asked: Summary::new(capacity),
            denied: Summary::new(capacity),
            power,
        }
    }
}

impl HeavyKeys {
    /// Tracks up to `capacity` keys by name in each of its counts; with 0 it only paces the
    /// sampling.
    pub fn new(capacity: usize, sampling: &Sampling) -> Self {
        sampling.set(0);
        Self {
            capacity,
            hash: HashKeys::random(),
            kept: Mutex::new(Kept {
                current: Period::new(0, capacity, 0),
                before: Period::new(0, capacity, 0),
                budget: BUDGET,
                ..Kept::default()
            }),
        }
    }

    /// Divides the budget of all limits among `limits`.
    pub fn share_among(&self, limits: usize) {
        let share = BUDGET_OF_ALL / u32::try_from(limits.max(1)).unwrap_or(u32::MAX);
        self.lock().budget = share.clamp(LEAST_BUDGET, BUDGET);
    }

    /// Counts a sampled decision.
    #[cold]
    pub fn record(&self, key: &[u8], denied: bool, sampling: &Sampling, now: Nanos) {
        let key = HashedKey {
            key,
            hash: self.hash.tag(key),
        };
        let mut kept = self.lock();
        kept.roll(self.capacity, now);
        kept.pace(sampling, now);
        let weight = 1 << kept.power;
        let Kept {
            current, before, ..
        } = &mut *kept;
        // A summary without room for a name adds nothing.
        let since = |before: &Summary| before.since(key).unwrap_or(now);
        (current.asked).add(key, weight, || since(&before.asked));
        if denied {
            (current.denied).add(key, weight, || since(&before.denied));
        }
    }

    /// Whether a denial was counted in the last minutes.
    pub fn has_denials(&self, now: Nanos) -> bool {
        let mut kept = self.lock();
        kept.roll(self.capacity, now);
        kept.current.denied.total > 0 || kept.before.denied.total > 0
    }

    /// The `most` keys with the most requests and the most denials; `None` if heavy keys are off.
    pub fn top(&self, most: usize, now: Nanos) -> Option<Top> {
        if self.capacity == 0 {
            return None;
        }
        let mut kept = self.lock();
        let since = kept.roll(self.capacity, now);
        let power = kept.current.power.max(kept.before.power);
        let from = Nanos::new(kept.before.number.saturating_mul(PERIOD.get())).max(since);
        let halves =
            |of: fn(&Period) -> &Summary| [of(&kept.current), of(&kept.before)].map(Half::of);
        let (asked, denied) = (
            halves(|period| &period.asked),
            halves(|period| &period.denied),
        );
        // Only references were copied, so decisions need not wait for the rest.
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

    fn lock(&self) -> parking_lot::MutexGuard<'_, Kept> {
        self.kept.lock()
    }
}

impl Kept {
    /// Starts a new period if it is time. Returns when the counts began.
    fn roll(&mut self, capacity: usize, now: Nanos) -> Nanos {
        let since = *self.since.get_or_insert(now);
        let number = now.get() / PERIOD.get();
        if number > self.current.number {
            let ended =
                std::mem::replace(&mut self.current, Period::new(number, capacity, self.power));
            self.before = if ended.number + 1 == number {
                ended
            } else {
                Period::new(number.saturating_sub(1), capacity, 0)
            };
        }
        since
    }

    /// Adapts the sampling to the traffic: sparser in a second that has used its budget, and denser
    /// after one that used less than half of it.
    fn pace(&mut self, sampling: &Sampling, now: Nanos) {
        let second = now.get() / 1_000_000_000;
        let power = self.power;
        if second > self.second {
            let idle = u32::try_from(second - self.second - 1).unwrap_or(u32::MAX);
            let used_little = self.samples < self.budget / 2;
            self.power = self
                .power
                .saturating_sub(idle.saturating_add(u32::from(used_little)));
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
    slots: Vec<summary::CountedKey>,
    least: u64,
    total: u64,
}

impl Half {
    fn of(summary: &Summary) -> Self {
        Self {
            slots: summary.slots.clone(),
            least: summary.least(),
            total: summary.total,
        }
    }
}

/// A key's slot in each half that contains it.
type Found<'a> = [Option<&'a summary::CountedKey>; 2];

/// The heaviest keys of both halves. A key that is in only one of them may have had up to the least
/// weight of the other.
fn merged(halves: &[Half; 2], power: u32, most: usize) -> Vec<TopKey> {
    let mut keys: HashMap<&Arc<[u8]>, Found<'_>> = HashMap::new();
    for (at, half) in halves.iter().enumerate() {
        for slot in &half.slots {
            keys.entry(&slot.key).or_default()[at] = Some(slot);
        }
    }
    let sum = |(key, found): (&Arc<[u8]>, Found<'_>)| {
        let parts = [0, 1].map(|at| {
            let least = halves[at].least;
            found[at].map_or((least, least), |slot| (slot.count, slot.error))
        });
        let (count, error) = (parts[0].0 + parts[1].0, parts[0].1 + parts[1].1);
        let since = found.iter().flatten().map(|slot| slot.since).min();
        TopKey::new(
            Arc::clone(key),
            since.unwrap_or_default(),
            (count, error),
            power,
        )
    };
    let mut keys: Vec<_> = keys.into_iter().map(sum).collect();
    keys.sort_unstable_by(|one, other| {
        (other.count, other.at_least, &one.key).cmp(&(one.count, one.at_least, &other.key))
    });
    keys.truncate(most);
    keys
}

/// The keys of a limit with the most requests, and those with the most denials.
#[derive(Clone, Debug, PartialEq)]
pub struct Top {
    /// How long the keys have been counted.
    pub span: Nanos,
    /// The lowest sampling rate: one decision in `one_in` was counted; 1 if all were.
    pub one_in: u64,
    /// The number of keys that each count tracks.
    pub capacity: usize,
    /// The approximate number of decisions.
    pub requests: u64,
    /// The approximate number of denials.
    pub denials: u64,
    /// The keys with the most requests, in descending order.
    pub asked: Vec<TopKey>,
    /// The keys with the most denials.
    pub denied: Vec<TopKey>,
}

/// The count of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// The key.
    pub key: Arc<[u8]>,
    /// Since when it was counted in each [`PERIOD`], or a little later if not all decisions are
    /// counted.
    pub since: Nanos,
    /// The estimate.
    pub count: u64,
    /// A lower bound of the true number: always if all decisions are counted, otherwise in 997 of
    /// 1,000 cases.
    pub at_least: u64,
    /// An upper bound of the true number, likewise.
    pub at_most: u64,
}

impl TopKey {
    /// `count` was sampled and may be too large by `error`. The margin is three standard deviations
    /// of a binomial sample of one in 2ⁿ. The true number is at least the number of samples.
    fn new(key: Arc<[u8]>, since: Nanos, (count, error): (u64, u64), power: u32) -> Self {
        #[allow(clippy::cast_sign_loss, reason = "roots are not negative")]
        let margin = (3.0 * (count as f64 * ((1_u64 << power) - 1) as f64).sqrt()).ceil() as u64;
        let sampled = (count - error) >> power;
        Self {
            key,
            since,
            count,
            at_least: (count - error).saturating_sub(margin).max(sampled),
            at_most: count.saturating_add(margin),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the rhythm of the traffic, a sample contains about its share of each beat.
        #[test]
        fn no_rhythm_hides_from_the_sample(beats in 2_u64..64, power in 1_u32..7, seed: u64) {
            let sampling = Sampling { seed, ..Sampling::default() };
            sampling.set(power);
            let mut found = vec![0_u64; beats as usize];
            for number in (0..beats << (power + 8)).filter(|number| sampling.takes(*number)) {
                found[(number % beats) as usize] += 1;
            }
            prop_assert!(found.iter().all(|count| (128..=384).contains(count)), "{:?}, 256 each are expected", found);
        }
    }
}
