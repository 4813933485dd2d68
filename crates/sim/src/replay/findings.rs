//! The findings of a replay.

use std::time::Duration;

use serde_json::json;
use tidegate_core::Quota;

use super::{estimate::Estimate, ranking::DeniedKey, timeline::Timeline, trial::Candidate};
use crate::fleet::{Fleet, Sharing};

/// The findings of one trial.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The quota that was tried.
    pub quota: Quota,
    /// The nodes that share the quota; `None` if one place makes every decision.
    pub fleet: Option<Fleet>,
    /// The number of requests.
    pub requests: u64,
    /// The number of keys with at least one request.
    pub keys: u64,
    /// The times of the first and the last request, or bounds around them, in nanoseconds.
    pub span: (u64, u64),
    /// Whether costs were charged after the answers, so that windows count units.
    pub is_charged: bool,
    /// The intervals of the counts over time.
    pub timeline: Timeline,
    /// The number of requests in each interval.
    pub requests_over_time: Vec<u64>,
    /// One row for each algorithm, in their order.
    pub rows: Vec<Row>,
    /// The most denied keys (each by the algorithm that denies it most), at most 20, the most
    /// denied first.
    pub most_denied: Vec<DeniedKey>,
}

/// The results of one algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Row {
    /// The algorithm's name, with its options if there are any.
    pub algorithm: String,
    /// Admitted requests, including delayed ones.
    pub admitted: u64,
    /// Denied requests.
    pub denied: u64,
    /// Keys that were denied at least once.
    pub denied_keys: u64,
    /// Requests that the algorithm admitted and the exact log denied.
    pub wrongly_admitted: u64,
    /// Requests that the algorithm denied and the exact log admitted.
    pub wrongly_denied: u64,
    /// The most requests of one key that were admitted in any half-open window.
    pub worst_window: u64,
    /// Denials in each interval of the timeline.
    pub denied_over_time: Vec<u64>,
    /// For the leaky bucket: how long admitted requests wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays: Option<Delays>,
    /// For the sliding counter: how close its estimate of the rate is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// For a fleet: what sharing the limit costs.
    #[serde(skip)]
    pub shared: Option<Sharing>,
}

impl Row {
    /// The row of a candidate that has not started, with a timeline of `stretches` intervals.
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
        for (sum, count) in self
            .denied_over_time
            .iter_mut()
            .zip(&other.denied_over_time)
        {
            *sum += count;
        }
        if let (Some(delays), Some(others)) = (&mut self.delays, &other.delays) {
            delays.absorb(others);
        }
    }
}

/// How long admitted requests wait. As JSON, `delayed`, `mean_ms` and `longest_ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// The number of requests that wait.
    pub delayed: u64,
    /// The longest wait.
    pub longest: Duration,
    total: u128,
}

impl Delays {
    pub(crate) fn add(&mut self, delay: Duration) {
        if !delay.is_zero() {
            self.absorb(&Self {
                delayed: 1,
                longest: delay,
                total: delay.as_nanos(),
            });
        }
    }

    fn absorb(&mut self, other: &Self) {
        self.delayed += other.delayed;
        self.longest = self.longest.max(other.longest);
        self.total += other.total;
    }

    /// The mean wait of the requests that wait; zero if none does.
    pub fn mean(&self) -> Duration {
        let mean = self.total / u128::from(self.delayed.max(1));
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }
}

impl serde::Serialize for Delays {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = |span: Duration| span.as_secs_f64() * 1e3;
        let delays = json!({"delayed": self.delayed, "mean_ms": ms(self.mean()), "longest_ms": ms(self.longest)});
        delays.serialize(serializer)
    }
}
