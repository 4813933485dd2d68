//! Additive increase, multiplicative decrease: as TCP does it.

use std::time::Duration;

use super::{CallSample, ConcurrencyLimit};

/// One more in flight after each good call, a tenth less after each that failed or was slow.
#[derive(Clone, Debug, PartialEq)]
pub struct Aimd {
    /// The limit to begin with. Default: 20.
    pub initial: u32,
    /// Longer response times are as bad as failures. Default: 5 s.
    pub slow: Duration,
    /// What is left of the limit after a bad call, from 0.5 to below 1. Default: 0.9.
    pub backoff: f64,
}

impl Default for Aimd {
    fn default() -> Self {
        Self { initial: 20, slow: Duration::from_secs(5), backoff: 0.9 }
    }
}

impl Aimd {
    pub(super) fn validate(&self) -> Result<(), String> {
        if (0.5..1.0).contains(&self.backoff) {
            return Ok(());
        }
        Err(format!("the backoff is {}; it must be from 0.5 to below 1", self.backoff))
    }
}

impl ConcurrencyLimit for Aimd {
    fn start(&self) -> f64 {
        self.initial.into()
    }

    fn next(&mut self, limit: f64, call: &CallSample) -> f64 {
        if call.failed || call.rt > self.slow {
            limit * self.backoff
        } else if call.in_flight as f64 * 2.0 >= limit {
            limit + 1.0
        } else {
            limit // Not used up: nothing is known about more.
        }
    }
}
