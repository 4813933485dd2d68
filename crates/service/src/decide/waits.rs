//! Callers that wait in line: by which clock, how many there may be, and how they are counted.

use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use tidegate_core::{Clock, Nanos, clock::Timer};
use tokio::sync::watch;

use super::refusal::Refusal;
use crate::shown;

/// The default maximum number of callers that wait.
pub const MOST_WAITING: usize = 5_000;

/// A future that completes at a given time.
type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A [`Timer`] behind a pointer.
pub trait ServiceClock: Clock {
    /// Completes when the clock has reached `at`.
    fn boxed_sleep(&self, at: Nanos) -> Sleep;
}

impl<T: Timer> ServiceClock for T {
    fn boxed_sleep(&self, at: Nanos) -> Sleep {
        Box::pin(self.sleep_until(at))
    }
}

/// The service's clock, for its lines.
#[derive(Clone)]
pub struct ServiceTimer(pub Arc<dyn ServiceClock>);

impl Clock for ServiceTimer {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn wall_ahead(&self) -> i64 {
        self.0.wall_ahead()
    }
}

impl Timer for ServiceTimer {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        self.0.boxed_sleep(at)
    }
}

impl fmt::Debug for ServiceTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceTimer").finish_non_exhaustive()
    }
}

/// The callers that wait, of all limits.
#[derive(Debug)]
pub struct Waits {
    most: usize,
    most_per_key: usize,
    waiting: AtomicUsize,
    has_ended: AtomicBool,
    /// Wakes all callers, so that they look whether they may still wait.
    changes: watch::Sender<()>,
}

impl Default for Waits {
    fn default() -> Self {
        Self::new(MOST_WAITING, None)
    }
}

impl Waits {
    /// Room for `most` callers, of which `most_per_key` may wait for one key: half of them if
    /// `None`.
    pub fn new(most: usize, most_per_key: Option<usize>) -> Self {
        Self {
            most,
            most_per_key: most_per_key.unwrap_or(most.div_ceil(2)),
            waiting: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            changes: watch::Sender::new(()),
        }
    }

    /// Signals that callers must look whether they may still wait.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Has all callers look whether they may still wait.
    pub fn look_again(&self) {
        self.changes.send_replace(());
    }

    /// Ends all waits, and refuses new ones.
    pub fn end(&self) {
        // Before the signal: a caller that subscribes after it sees the end.
        self.has_ended.store(true, Ordering::Release);
        self.look_again();
    }

    /// Whether all waits have [ended](Self::end).
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// A place for a caller that waits for these keys of limits, each with the limit's name and the
    /// key's tag. Dropping it gives up the place.
    ///
    /// # Errors
    /// [`Refusal::TooManyWaiting`]
    pub fn enter<'a>(
        &'a self,
        parts: impl Iterator<Item = (&'a LimitWaits, &'a str, u64)>,
    ) -> Result<Place<'a>, Refusal> {
        // Relaxed, here and below: the numbers order nothing.
        let room = |waiting: usize| (waiting < self.most).then_some(waiting + 1);
        let is_full = self
            .waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .is_err();
        let mut place = Place {
            waits: (!is_full).then_some(self),
            parts: Vec::new(),
            outcome: WaitOutcome::Left,
        };
        let mut refused = is_full.then_some(Refusal::TooManyWaiting {
            most: self.most,
            limit: None,
        });
        // As many as there are: a list that grows would have room for four.
        let parts: Vec<_> = parts.collect();
        place.parts.reserve_exact(parts.len());
        for (limit, name, tag) in parts {
            if refused.is_none() && !limit.enter(tag, self.most_per_key) {
                refused = Some(Refusal::TooManyWaiting {
                    most: self.most_per_key,
                    limit: Some(name.to_owned()),
                });
            }
            if refused.is_some() {
                limit.refused.fetch_add(1, Ordering::Relaxed);
            } else {
                place.parts.push((limit, tag));
            }
        }
        match refused {
            None => Ok(place),
            Some(refused) => {
                place.outcome = WaitOutcome::NotBegun;
                Err(refused)
            }
        }
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    Admitted,
    Denied,
    /// The server stopped, or the rules changed.
    Ended,
    /// The caller went away.
    Left,
    /// There was no room.
    NotBegun,
}

impl WaitOutcome {
    /// The outcomes that are counted, with their names.
    pub const COUNTED: [(Self, &'static str); 4] = [
        (Self::Admitted, "admitted"),
        (Self::Denied, "denied"),
        (Self::Ended, "ended"),
        (Self::Left, "left"),
    ];
}

/// The callers that wait for the keys of one limit.
#[derive(Debug, Default)]
pub struct LimitWaits {
    /// How many wait for each key, by its tag.
    keys: Mutex<HashMap<u64, u32>>,
    /// A joint request counts at each of its limits.
    waiting: AtomicU64,
    ended: [AtomicU64; WaitOutcome::COUNTED.len()],
    refused: AtomicU64,
}

/// The counters of a limit's waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// Callers that wait now.
    pub waiting: u64,
    /// Waits that have ended, by [`WaitOutcome::COUNTED`].
    pub ended: [u64; WaitOutcome::COUNTED.len()],
    /// Requests to wait that were refused because too many waited.
    pub refused: u64,
}

impl WaitCounts {
    /// Waits that ended with an admission.
    pub fn admitted(&self) -> u64 {
        self.ended_as(WaitOutcome::Admitted)
    }

    /// Waits that ended in this way.
    fn ended_as(&self, outcome: WaitOutcome) -> u64 {
        let of = |(at, _): &(WaitOutcome, _)| *at == outcome;
        let at = WaitOutcome::COUNTED.iter().position(of);
        at.map_or(0, |at| self.ended[at])
    }

    /// The waits in words; `None` if there have been none.
    pub fn in_words(&self) -> Option<String> {
        let Self { waiting, ended, .. } = self;
        let has_any = *waiting > 0 || self.refused > 0 || ended.iter().any(|count| *count > 0);
        let of = |outcome| shown::grouped(self.ended_as(outcome));
        has_any.then(|| {
            format!(
                "in line: {} now; {} were admitted, {} were too late, {} left, {} were refused a place",
                shown::grouped(*waiting),
                of(WaitOutcome::Admitted),
                of(WaitOutcome::Denied),
                of(WaitOutcome::Left),
                shown::grouped(self.refused),
            )
        })
    }
}

impl LimitWaits {
    fn keys(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        // Nothing panics with the lock held.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, tag: u64, most: usize) -> bool {
        let mut keys = self.keys();
        let waiting = keys.entry(tag).or_default();
        if *waiting as usize >= most {
            if *waiting == 0 {
                keys.remove(&tag);
            }
            return false;
        }
        *waiting += 1;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn leave(&self, tag: u64, outcome: WaitOutcome) {
        let mut keys = self.keys();
        if let Some(waiting) = keys.get_mut(&tag) {
            *waiting -= 1;
            if *waiting == 0 {
                keys.remove(&tag);
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        for ((counted, _), ended) in WaitOutcome::COUNTED.iter().zip(&self.ended) {
            if *counted == outcome {
                ended.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reads the counters.
    pub fn counts(&self) -> WaitCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WaitCounts {
            waiting: read(&self.waiting),
            ended: self.ended.each_ref().map(read),
            refused: read(&self.refused),
        }
    }

    /// How many callers wait for the key with this tag.
    pub fn of_key(&self, tag: u64) -> u32 {
        self.keys().get(&tag).copied().unwrap_or(0)
    }
}

/// The place of a caller that waits.
#[derive(Debug)]
pub struct Place<'a> {
    /// `None` if there was no room in all.
    waits: Option<&'a Waits>,
    parts: Vec<(&'a LimitWaits, u64)>,
    pub outcome: WaitOutcome,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        for (limit, tag) in &self.parts {
            limit.leave(*tag, self.outcome);
        }
        if let Some(waits) = self.waits {
            waits.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
