//! What the algorithms have in common: failing calls and measurements of the time without a queue
//! decide first.

use super::{
    CallWindow, ConcurrencyLimit, Pace,
    baseline::{Baseline, Queueing, Seen},
    failures::Failures,
};

/// What an algorithm adds.
pub(super) trait Step: Send {
    /// The initial limit.
    fn initial(&self) -> u32;

    /// The factor that lowers the limit after a window in which calls failed.
    fn backoff(&self) -> f64 {
        0.9
    }

    /// The next limit if it does not depend on the time without a queue.
    fn without_baseline(&self, _limit: f64, _window: &CallWindow) -> Option<f64> {
        None
    }

    /// The next limit after an ordinary window.
    fn next(&self, limit: f64, window: &CallWindow, queueing: &Queueing) -> f64;
}

pub(super) struct Learner<S> {
    step: S,
    baseline: Baseline,
    failures: Failures,
}

impl<S: Step> Learner<S> {
    pub(super) fn new(step: S) -> Self {
        Self {
            step,
            baseline: Baseline::new(),
            failures: Failures::default(),
        }
    }
}

impl<S: Step> ConcurrencyLimit for Learner<S> {
    fn start(&self) -> f64 {
        self.step.initial().into()
    }

    fn next(&mut self, limit: f64, window: &CallWindow) -> f64 {
        let failed = self.failures.learn(limit, window, self.step.backoff());
        if let Some(next) = failed.or_else(|| self.step.without_baseline(limit, window)) {
            return next;
        }
        match self.baseline.learn(limit, window) {
            Seen::Take(limit) => limit,
            Seen::Normal(queueing) => self.step.next(limit, window, &queueing),
        }
    }

    fn pace(&self) -> Pace {
        self.baseline.pace()
    }
}
