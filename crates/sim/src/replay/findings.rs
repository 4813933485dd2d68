//! What a replay finds out.

use std::time::Duration;

use tidegate_core::Quota;

use super::{estimate::Estimate, ranking::DeniedKey, timeline::Timeline, trial::Candidate};
use crate::fleet::{Fleet, Shared};

/// What came out of one trial.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The quota that was tried.
    pub quota: Quota,
    /// The nodes that share it; `None` for one place that decides everything.
    pub fleet: Option<Fleet>,
    /// All requests.
    pub requests: u64,
    /// Keys that made at least one.
    pub keys: u64,
    /// When the first request came and when the last, or bounds around them; in nanoseconds.
    pub span: (u64, u64),
    /// The stretches that the counts over time are for.
    pub timeline: Timeline,
    /// Requests in each stretch.
    pub requests_over_time: Vec<u64>,
    /// One for each algorithm, in the order in which they were given.
    pub rows: Vec<Row>,
    /// The keys that are denied most (by whichever algorithm denies them most), at most 20, the first most.
    pub most_denied: Vec<DeniedKey>,
}

/// What one algorithm did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its name, with its options if any.
    pub algorithm: String,
    /// Requests admitted, delayed ones included.
    pub admitted: u64,
    /// Requests denied.
    pub denied: u64,
    /// Keys denied at least once.
    pub denied_keys: u64,
    /// Requests it admitted and the exact log denied.
    pub wrongly_admitted: u64,
    /// Requests it denied and the exact log admitted.
    pub wrongly_denied: u64,
    /// The most requests of one key admitted in any half-open window.
    pub worst_window: u64,
    /// Denials in each stretch of the timeline.
    pub denied_over_time: Vec<u64>,
    /// For the leaky bucket: how long what it admits has to wait.
    pub delays: Option<Delays>,
    /// For the sliding counter: how close its estimate of the rate is.
    pub estimate: Option<Estimate>,
    /// For a fleet: what sharing the limit costs.
    pub shared: Option<Shared>,
}

impl Row {
    /// Of a candidate that has not begun, with a timeline of so many stretches.
    pub(crate) fn of(candidate: &Candidate, stretches: usize) -> Self {
        Self {
            algorithm: candidate.spec.label().to_owned(),
            denied_over_time: vec![0; stretches],
            delays: candidate.spec.delays().then(Delays::default),
            ..Self::default()
        }
    }

    /// Adds what another thread counted for other keys.
    pub(crate) fn absorb(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.denied += other.denied;
        self.denied_keys += other.denied_keys;
        self.wrongly_admitted += other.wrongly_admitted;
        self.wrongly_denied += other.wrongly_denied;
        self.worst_window = self.worst_window.max(other.worst_window);
        for (sum, count) in self.denied_over_time.iter_mut().zip(&other.denied_over_time) {
            *sum += count;
        }
        if let (Some(delays), Some(others)) = (&mut self.delays, &other.delays) {
            delays.absorb(others);
        }
    }
}

/// How long admitted requests wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// How many wait at all.
    pub delayed: u64,
    /// The longest wait.
    pub longest: Duration,
    total: u128,
}

impl Delays {
    pub(crate) fn add(&mut self, delay: Duration) {
        if !delay.is_zero() {
            self.absorb(&Self { delayed: 1, longest: delay, total: delay.as_nanos() });
        }
    }

    fn absorb(&mut self, other: &Self) {
        self.delayed += other.delayed;
        self.longest = self.longest.max(other.longest);
        self.total += other.total;
    }

    /// The mean wait of those that wait; zero when none does.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let mean = self.total / u128::from(self.delayed.max(1));
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }
}
