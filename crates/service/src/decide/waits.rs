//! Callers that wait in line: by which clock, how many there may be, and how they are counted.

use std::{
    collections::HashMap,
    fmt, mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
};

use parking_lot::{Mutex, MutexGuard};
use slab::Slab;
use tidegate_core::{Clock, Nanos, clock::Timer};

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
    has_ended: AtomicBool,
    /// How often callers were asked to look whether they may still wait.
    changes: AtomicU64,
    /// Those who have a place.
    callers: Mutex<Slab<Waker>>,
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
            has_ended: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            callers: Mutex::default(),
        }
    }

    fn callers(&self) -> MutexGuard<'_, Slab<Waker>> {
        // Nothing panics with the lock held.
        self.callers.lock()
    }

    /// A number that changes when callers must look whether they may still wait. One that has a
    /// place is woken then.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Has all callers look whether they may still wait.
    pub fn look_again(&self) {
        // Before the callers are read: one that enters later sees the change.
        self.changes.fetch_add(1, Ordering::AcqRel);
        let wakers: Vec<Waker> = self
            .callers()
            .iter()
            .map(|(_, waker)| waker.clone())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends all waits, and refuses new ones.
    pub fn end(&self) {
        // Before the signal: a caller that looks after it sees the end.
        self.has_ended.store(true, Ordering::Release);
        self.look_again();
    }

    /// Whether all waits have [ended](Self::end).
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// A place for a caller that waits for these keys of limits, each with the limit's name and the
    /// key's tag: its number, for [`leave`](Self::leave).
    ///
    /// # Errors
    /// [`Refusal::TooManyWaiting`]
    pub fn enter<'a>(
        &self,
        keys: impl Iterator<Item = (&'a LimitWaits, &'a str, u64)> + Clone,
        waker: &Waker,
    ) -> Result<usize, Refusal> {
        let place = {
            let mut callers = self.callers();
            (callers.len() < self.most).then(|| callers.insert(waker.clone()))
        };
        let refuse = |from: usize| {
            for (limit, ..) in keys.clone().skip(from) {
                limit.refused.fetch_add(1, Ordering::Relaxed);
            }
        };
        let Some(place) = place else {
            refuse(0);
            return Err(Refusal::TooManyWaiting {
                most: self.most,
                limit: None,
            });
        };
        let has_room = |(limit, _, tag): (&LimitWaits, _, _)| limit.enter(tag, self.most_per_key);
        let Some(full) = keys.clone().position(|key| !has_room(key)) else {
            return Ok(place);
        };
        refuse(full);
        let limit = keys.clone().nth(full).map(|(_, name, _)| name.to_owned());
        let entered = keys.take(full).map(|(limit, _, tag)| (limit, tag));
        self.leave(place, entered, WaitOutcome::NotBegun);
        Err(Refusal::TooManyWaiting {
            most: self.most_per_key,
            limit,
        })
    }

    /// Has a caller with a place be woken by this from now on.
    pub fn wake_by(&self, place: usize, waker: &Waker) {
        let mut callers = self.callers();
        let before = callers
            .get_mut(place)
            .map(|before| mem::replace(before, waker.clone()));
        drop(callers);
        // Outside the lock, as it may run any code.
        drop(before);
    }

    /// Gives up a place for these keys of limits.
    pub fn leave<'a>(
        &self,
        place: usize,
        keys: impl Iterator<Item = (&'a LimitWaits, u64)>,
        outcome: WaitOutcome,
    ) {
        for (limit, tag) in keys {
            limit.leave(tag, outcome);
        }
        let waker = self.callers().remove(place);
        drop(waker);
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
        self.keys.lock()
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
