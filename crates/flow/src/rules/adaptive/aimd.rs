//! Additive increase, multiplicative decrease: as TCP does it.

use super::super::InvalidRule;
use std::time::Duration;

use super::{
    CallWindow, ConcurrencyLimit, Pace,
    baseline::{Baseline, Seen, kept},
};

/// One more in flight after each good window, a tenth less after each in which calls failed or were slow. It grows faster
/// while no queue is seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Aimd {
    /// The limit to begin with. Default: 20.
    pub initial: u32,
    /// A longer mean response time is as bad as failures. Default: `None`, which finds the bound out: what calls take
    /// without a queue, and the queue that keeps the service busy.
    pub slow: Option<Duration>,
    /// What is left of the limit after a bad window, from 0.5 to below 1. Default: 0.9.
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
}

impl Learning {
    pub(super) fn new(settings: &Aimd) -> Self {
        Self { settings: settings.clone(), baseline: Baseline::new() }
    }
}

impl ConcurrencyLimit for Learning {
    fn start(&self) -> f64 {
        self.settings.initial.into()
    }

    fn next(&mut self, limit: f64, window: &CallWindow) -> f64 {
        let less = limit * self.settings.backoff;
        if window.fails() {
            return less;
        }
        if let Some(slow) = self.settings.slow {
            // Not used up: nothing is known about more.
            let more = if window.blocked > 0 { limit + 1.0 } else { limit };
            return if window.mean_rt > slow { less } else { more };
        }
        match self.baseline.learn(limit, window) {
            Seen::Take(limit) => limit,
            Seen::Idle => limit,
            // A queue that is too long; what the service works on stays.
            Seen::Normal { slower, room, .. } if limit - limit / slower > room => less.max(limit / slower),
            Seen::Normal { may_grow, .. } => kept(limit, limit + 1.0, may_grow),
        }
    }

    fn pace(&self) -> Pace {
        self.baseline.pace()
    }
}
