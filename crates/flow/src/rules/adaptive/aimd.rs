//! Additive increase, multiplicative decrease, as in TCP.

use super::super::InvalidRule;
use std::time::Duration;

use super::{CallWindow, baseline::Queueing, learner::Step};

/// Raises the limit by one after each good window, and lowers it by a tenth after each window in
/// which calls failed or were slow. The limit grows faster while no call queues.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Aimd {
    /// The initial limit. Default: 20.
    pub initial: u32,
    /// A mean response time above this value counts like failures. Default: `None`, which derives
    /// the bound from the response time without a queue and from the queue that keeps the service
    /// busy.
    pub slow: Option<Duration>,
    /// The factor that lowers the limit after a bad window, from 0.5 to below 1. Default: 0.9.
    pub backoff: f64,
}

impl Default for Aimd {
    fn default() -> Self {
        Self {
            initial: 20,
            slow: None,
            backoff: 0.9,
        }
    }
}

impl Aimd {
    /// Sets the initial limit.
    #[must_use]
    pub fn initial(self, initial: u32) -> Self {
        Self { initial, ..self }
    }

    /// Sets the mean response time above which a window counts like failures.
    #[must_use]
    pub fn slow(self, slow: Duration) -> Self {
        Self {
            slow: Some(slow),
            ..self
        }
    }

    /// Sets the factor that lowers the limit after a bad window.
    #[must_use]
    pub fn backoff(self, backoff: f64) -> Self {
        Self { backoff, ..self }
    }

    pub(super) fn validate(&self) -> Result<(), InvalidRule> {
        if (0.5..1.0).contains(&self.backoff) {
            return Ok(());
        }
        Err(format!(
            "the backoff is {}; it must be at least 0.5 and less than 1",
            self.backoff
        )
        .into())
    }
}

impl Step for Aimd {
    fn initial(&self) -> u32 {
        self.initial
    }

    fn backoff(&self) -> f64 {
        self.backoff
    }

    fn without_baseline(&self, limit: f64, window: &CallWindow) -> Option<f64> {
        let slow = self.slow?;
        // The limit was not used up, so nothing is known about a higher one.
        let more = if window.blocked > 0 {
            limit + 1.0
        } else {
            limit
        };
        Some(if window.mean_rt > slow {
            limit * self.backoff
        } else {
            more
        })
    }

    fn next(&self, limit: f64, window: &CallWindow, queueing: &Queueing) -> f64 {
        let shortest = limit / queueing.slower;
        if window.blocked == 0 {
            // A tenth less each time would be too much where nothing shows that a lower limit is
            // better.
            limit
        } else if limit - shortest > queueing.room {
            // The queue is too long. Do not go below what the service works on.
            shortest.max(limit * self.backoff)
        } else {
            queueing.kept(limit, limit + 1.0)
        }
    }
}
