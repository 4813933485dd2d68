//! Gradient: compares current response times with those without a queue, after Netflix's
//! concurrency-limits.

use super::super::InvalidRule;
use super::{CallWindow, baseline::Queueing, learner::Step};

/// Lowers the limit when response times exceed those without a queue by more than a tolerance.
/// Otherwise it leaves room for a small queue.
///
/// Netflix's algorithm compares with a long-term mean, which rises with the very overload that it
/// should detect. This one measures the service without a queue instead, so the limit does not
/// drift upwards under sustained traffic.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Gradient2 {
    /// The initial limit. Default: 20.
    pub initial: u32,
    /// The factor by which response times may exceed those without a queue before the limit falls,
    /// at least 1. Default: 1.
    pub tolerance: f64,
    /// The weight of a new limit against the previous one, above 0 and at most 1. Default: 0.3.
    pub smoothing: f64,
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self {
            initial: 20,
            tolerance: 1.0,
            smoothing: 0.3,
        }
    }
}

impl Gradient2 {
    /// Sets the factor by which response times may exceed those without a queue.
    #[must_use]
    pub fn tolerance(self, tolerance: f64) -> Self {
        Self { tolerance, ..self }
    }

    /// Sets the weight of a new limit against the previous one.
    #[must_use]
    pub fn smoothing(self, smoothing: f64) -> Self {
        Self { smoothing, ..self }
    }

    /// Sets the initial limit.
    #[must_use]
    pub fn initial(self, initial: u32) -> Self {
        Self { initial, ..self }
    }

    pub(super) fn validate(&self) -> Result<(), InvalidRule> {
        if !(1.0..=100.0).contains(&self.tolerance) {
            return Err(format!(
                "the tolerance is {}; it must be from 1 to 100",
                self.tolerance
            )
            .into());
        }
        if !(self.smoothing > 0.0 && self.smoothing <= 1.0) {
            return Err(format!(
                "the smoothing is {}; it must be greater than 0 and at most 1",
                self.smoothing
            )
            .into());
        }
        Ok(())
    }
}

impl Step for Gradient2 {
    fn initial(&self) -> u32 {
        self.initial
    }

    fn next(&self, limit: f64, _window: &CallWindow, queueing: &Queueing) -> f64 {
        let gradient = (self.tolerance / queueing.slower).clamp(0.5, 1.0);
        queueing.kept(
            limit,
            limit + (limit * gradient + queueing.room - limit) * self.smoothing,
        )
    }
}
