//! Additive increase, multiplicative decrease, as in TCP.

use super::super::InvalidRule;
use std::time::Duration;

use super::{
    CallWindow, ConcurrencyLimit, Pace,
    baseline::{Baseline, Seen, kept},
    failures::Failures,
};

/// Raises the limit by one after each good window, and lowers it by a tenth after each window in which calls failed or were slow.
/// The limit grows faster while no call queues.
#[derive(Clone, Debug, PartialEq)]
pub struct Aimd {
    /// The initial limit. Default: 20.
    pub initial: u32,
    /// A mean response time above this value counts like failures. Default: `None`, which derives the bound from the
    /// response time without a queue and from the queue that keeps the service busy.
    pub slow: Option<Duration>,
    /// The factor that lowers the limit after a bad window, from 0.5 to below 1. Default: 0.9.
    pub backoff: f64,
}

impl Default for Aimd {
    fn default() -> Self {
        Self { initial: 20, slow: None, backoff: 0.9 }
    }
}

impl Aimd {
    pub(super) fn validate(&self) -> Result<(), InvalidRule> {
        if (0.5..1.0).contains(&self.backoff) {
            return Ok(());
        }
        Err(format!("the backoff is {}; it must be at least 0.5 and less than 1", self.backoff).into())
    }
}

pub(super) struct Learning {
    settings: Aimd,
    baseline: Baseline,
    failures: Failures,
}

impl Learning {
    pub(super) fn new(settings: &Aimd) -> Self {
        Self { settings: settings.clone(), baseline: Baseline::new(), failures: Failures::default() }
    }
}

impl ConcurrencyLimit for Learning {
    fn start(&self) -> f64 {
        self.settings.initial.into()
    }

    fn next(&mut self, limit: f64, window: &CallWindow) -> f64 {
        let less = limit * self.settings.backoff;
        if let Some(next) = self.failures.learn(limit, window, self.settings.backoff) {
            return next;
        }
        if let Some(slow) = self.settings.slow {
            // The limit was not used up, so nothing is known about a higher one.
            let more = if window.blocked > 0 { limit + 1.0 } else { limit };
            return if window.mean_rt > slow { less } else { more };
        }
        match self.baseline.learn(limit, window) {
            Seen::Take(limit) => limit,
            Seen::Idle => limit,
            // A tenth less each time would be too much where nothing shows that a lower limit is better.
            Seen::Normal { .. } if window.blocked == 0 => limit,
            // The queue is too long. Do not go below what the service works on.
            Seen::Normal { slower, room, .. } if limit - limit / slower > room => less.max(limit / slower),
            Seen::Normal { may_grow, .. } => kept(limit, limit + 1.0, may_grow),
        }
    }

    fn pace(&self) -> Pace {
        self.baseline.pace()
    }
}
