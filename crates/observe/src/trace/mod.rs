//! A trace of live traffic: every decided request of a sample of the keys, in a bounded ring. A
//! hash chooses the keys.
//!
//! ```text
//! decision ─► Tap: is the key chosen? (a hash) ─► one of the rings ─► Recording ─► GET /v1/trace, what_if
//! ```
//!
//! A key is in the trace with all its requests, or not at all. So a
//! [replay](crate::what_if) of the trace decides on its requests like a server that has
//! nothing but these keys. The hash is keyed with random numbers that no answer shows: a reader of
//! the trace cannot find a key by trying names.
//!
//! The order of a key's requests is that in which they were counted. Where several threads decide
//! on one key at the same moment, that may differ from the order of the decisions.

mod recording;
mod ring;

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tidegate_core::{Decision, DenialReason, Nanos};
use tidegate_limiter::HashKeys;

pub use self::recording::{RecordedLimit, Recording, RecordingError, is_recording};
use self::ring::{CHUNK_BYTES, Ring};

/// The default bound of a trace, in bytes.
pub const TRACE_BYTES: u64 = 64 << 20;
/// The least: each ring needs two chunks.
pub const LEAST_TRACE_BYTES: u64 = 2 * RINGS as u64 * CHUNK_BYTES;
/// A key is always in the same ring; threads that decide on different keys seldom meet in one.
const RINGS: usize = 16;
/// Names of limits that are remembered.
const MAX_LIMITS: usize = u16::MAX as usize;

/// Which part of all keys is traced: from one in a million to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyShare {
    millionths: u32,
}

impl KeyShare {
    /// Every key.
    pub const ALL: Self = Self {
        millionths: 1_000_000,
    };

    /// As a number from 0 to 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.millionths) / 1e6
    }

    /// The largest of the hashes (of 63 bits) that are chosen.
    fn threshold(self) -> u64 {
        ((u128::from(self.millionths) << 63) / 1_000_000) as u64
    }
}

impl FromStr for KeyShare {
    type Err = ParseKeyShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = text
            .strip_suffix('%')
            .and_then(|number| number.trim_end().parse::<f64>().ok());
        #[allow(clippy::cast_sign_loss, reason = "the range is checked")]
        match percent.map(|percent| (percent * 1e4).round()) {
            Some(millionths) if (1.0..=1e6).contains(&millionths) => Ok(Self {
                millionths: millionths as u32,
            }),
            _ => Err(ParseKeyShareError),
        }
    }
}

/// A text is not a share of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a percentage from 0.0001% to 100%, as in 10%")]
pub struct ParseKeyShareError;

impl fmt::Display for KeyShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.millionths) / 1e4)
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Verdict {
    /// Admitted at once.
    Admitted,
    /// Admitted after a delay.
    Delayed,
    /// Denied.
    Denied,
    /// Let through by a shadow limit that would have denied.
    ShadowDenied,
    /// Not a request: a refund of `cost`.
    Refunded,
    /// `cost` was charged after the work, whether it fitted or not. The question before it had a
    /// cost of 0, and is not in the trace.
    Charged,
}

impl Verdict {
    fn of(decision: &Decision, is_shadow: bool) -> Self {
        match (decision.is_denied(), is_shadow) {
            (true, true) => Self::ShadowDenied,
            (true, false) => Self::Denied,
            (false, _) if decision.delay().is_zero() => Self::Admitted,
            (false, _) => Self::Delayed,
        }
    }

    /// Whether the limit denied, or would have.
    pub const fn is_denied(self) -> bool {
        matches!(self, Self::Denied | Self::ShadowDenied)
    }
}

/// One request of a chosen key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time that the decision was given, in nanoseconds since the epoch.
    pub time: u64,
    /// The hash of the key.
    pub key: u64,
    /// The requested, charged or refunded cost.
    pub cost: u64,
    /// The number of its limit.
    pub limit: u16,
    /// The result.
    pub verdict: Verdict,
    /// Why the limit denied, or would have; `None` also in a trace that an earlier version wrote.
    pub reason: Option<DenialReason>,
}

/// The trace of a server.
pub struct Trace {
    share: KeyShare,
    hash: HashKeys,
    threshold: u64,
    max_bytes: u64,
    /// Whether all states were fresh when it began.
    fresh: bool,
    rings: [Mutex<Ring>; RINGS],
    /// By their numbers.
    limits: Mutex<Vec<Arc<str>>>,
}

/// The requests of one key that a trace has. Times are in nanoseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The time of the first one; `None` without any.
    pub first: Option<u64>,
    /// How many there are.
    pub requests: u64,
    /// How many were denied, by the names of the reasons.
    pub denied: BTreeMap<&'static str, u64>,
    /// The time of the first denial.
    pub first_denied: Option<u64>,
    /// The time of the last denial.
    pub last_denied: Option<u64>,
}

impl Requests {
    /// How many were denied.
    pub fn denials(&self) -> u64 {
        self.denied.values().sum()
    }

    /// Denials per second between the first and the last; `None` for fewer than two.
    pub fn denial_rate(&self) -> Option<f64> {
        let span = self.last_denied?.checked_sub(self.first_denied?)?;
        (span > 0).then(|| (self.denials() - 1) as f64 * 1e9 / span as f64)
    }
}

/// The content of a trace at one moment, in order of time. It is complete for the chosen keys from
/// `from` on.
pub struct TraceCopy {
    pub from: u64,
    pub fresh: bool,
    pub events: Vec<Event>,
    pub limits: Vec<Arc<str>>,
}

impl Trace {
    /// A trace of this share of all keys, in at most `max_bytes` (or the least that it needs).
    /// `fresh` means that all limits begin with it, so that a replay may do the same.
    pub fn new(share: KeyShare, max_bytes: u64, fresh: bool) -> Self {
        let max_bytes = max_bytes.max(LEAST_TRACE_BYTES);
        let chunks = usize::try_from(max_bytes / RINGS as u64 / CHUNK_BYTES).unwrap_or(usize::MAX);
        Self {
            share,
            hash: HashKeys::random(),
            threshold: share.threshold(),
            max_bytes,
            fresh,
            rings: std::array::from_fn(|_| Mutex::new(Ring::new(chunks))),
            limits: Mutex::default(),
        }
    }

    /// Which part of all keys is traced.
    pub fn share(&self) -> KeyShare {
        self.share
    }

    /// The bytes that the trace takes now, and those that it may.
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.rings.iter().map(|ring| lock(ring).bytes()).sum(),
            self.max_bytes,
        )
    }

    /// The hash of a key, if it is chosen.
    #[inline]
    pub fn chosen(&self, key: &[u8]) -> Option<u64> {
        let hash = self.hash.tag(key);
        (hash < self.threshold).then_some(hash)
    }

    /// The recorder of a limit's decisions. `None` for a global limit when only a sample of the
    /// keys is traced: its one key would fill the trace, or be missing from it by chance.
    pub fn tap(self: &Arc<Self>, name: &str, is_global: bool) -> Option<Tap> {
        if is_global && self.share != KeyShare::ALL {
            return None;
        }
        let mut limits = lock(&self.limits);
        let number = match limits.iter().position(|known| **known == *name) {
            Some(number) => number,
            // Only rules that change their names without end come here.
            None if limits.len() >= MAX_LIMITS => return None,
            None => {
                limits.push(name.into());
                limits.len() - 1
            }
        };
        Some(Tap {
            trace: Arc::clone(self),
            limit: number as u16,
        })
    }

    /// The last requests of a key at a limit, the newest first; `None` if the key is not chosen.
    pub fn last(&self, limit: &str, key: &[u8], most: usize) -> Option<Vec<Event>> {
        self.found(limit, key, 0, most)
    }

    /// The requests of a key at a limit since a time, the newest first; `None` if the key is not
    /// chosen.
    pub fn since(&self, limit: &str, key: &[u8], from: u64) -> Option<Vec<Event>> {
        self.found(limit, key, from, usize::MAX)
    }

    fn found(&self, limit: &str, key: &[u8], from: u64, most: usize) -> Option<Vec<Event>> {
        let hash = self.chosen(key)?;
        let number = lock(&self.limits)
            .iter()
            .position(|known| **known == *limit)
            .map(|at| at as u16);
        let ring = lock(&self.rings[hash as usize % RINGS]);
        let newest = ring
            .chunks
            .iter()
            .rev()
            .flat_map(|chunk| chunk.iter().rev());
        let same = newest
            .filter(|event| event.key == hash && Some(event.limit) == number && event.time >= from);
        Some(same.take(most).copied().collect())
    }

    /// A summary of the requests of a key at a limit; `None` if the key is not chosen.
    pub fn summary(&self, limit: &str, key: &[u8]) -> Option<Requests> {
        let events = self.last(limit, key, usize::MAX)?;
        let mut seen = Requests::default();
        // The newest is first.
        for event in events.iter().rev() {
            let is_request = !matches!(event.verdict, Verdict::Refunded | Verdict::Charged);
            if !is_request && !event.verdict.is_denied() {
                continue;
            }
            seen.first.get_or_insert(event.time);
            seen.requests += 1;
            if event.verdict.is_denied() {
                seen.first_denied.get_or_insert(event.time);
                seen.last_denied = Some(event.time);
                let reason = event.reason.map_or("", DenialReason::name);
                *seen.denied.entry(reason).or_default() += 1;
            }
        }
        Some(seen)
    }

    /// All that is there.
    pub fn take(&self) -> TraceCopy {
        let (mut events, mut forgotten) = (Vec::new(), None);
        for ring in &self.rings {
            let ring = lock(ring);
            forgotten = forgotten.max(ring.forgotten);
            events.reserve(ring.chunks.iter().map(Vec::len).sum());
            ring.chunks
                .iter()
                .for_each(|chunk| events.extend_from_slice(chunk));
        }
        // Events that one ring has forgotten are dropped from all rings: each key is complete from
        // the same time on.
        if let Some(forgotten) = forgotten {
            events.retain(|event| event.time > forgotten);
        }
        // Stable: a key's requests of the same time stay in their order.
        events.sort_by_key(|event| event.time);
        let first = events.first().map_or(0, |event| event.time);
        TraceCopy {
            from: forgotten.map_or(first, |forgotten| forgotten + 1),
            fresh: self.fresh && forgotten.is_none(),
            events,
            limits: lock(&self.limits).clone(),
        }
    }
}

/// A test may have panicked with the lock: names of limits and chosen hashes are valid at each
/// step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

/// Where a limit reports what it decided.
#[derive(Clone, Debug)]
pub struct Tap {
    trace: Arc<Trace>,
    limit: u16,
}

impl Tap {
    /// Adds a decided request, if its key is chosen.
    #[cold]
    pub fn see(&self, key: &[u8], cost: u64, decision: &Decision, is_shadow: bool, now: Nanos) {
        self.add(
            key,
            cost,
            Verdict::of(decision, is_shadow),
            decision.reason(),
            now,
        );
    }

    /// Adds anything about a key, if it is chosen.
    #[cold]
    pub fn add(
        &self,
        key: &[u8],
        cost: u64,
        verdict: Verdict,
        reason: Option<DenialReason>,
        now: Nanos,
    ) {
        if let Some(hash) = self.trace.chosen(key) {
            let event = Event {
                time: now.get(),
                key: hash,
                cost,
                limit: self.limit,
                verdict,
                reason,
            };
            lock(&self.trace.rings[hash as usize % RINGS]).push(event);
        }
    }
}
