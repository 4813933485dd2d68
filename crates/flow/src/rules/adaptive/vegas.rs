//! Vegas: estimates the queue from how much longer calls take than without one.

use super::{
    CallWindow, ConcurrencyLimit, Pace,
    baseline::{Baseline, Seen, kept},
    failures::Failures,
};

/// Keeps a small queue that is just long enough to keep the service busy.
///
/// The calls in flight are those that the service works on plus those in the queue. Without the queue, response times
/// would be shorter in the same proportion as the number of calls in flight. The algorithm therefore derives the queue
/// from the response times with and without one, and moves the limit to the calls that the service works on plus a
/// useful queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Vegas {
    /// The initial limit. Default: 20.
    pub initial: u32,
}

impl Default for Vegas {
    fn default() -> Self {
        Self { initial: 20 }
    }
}

impl Vegas {
    /// Sets the initial limit.
    #[must_use]
    pub fn initial(self, initial: u32) -> Self {
        Self { initial }
    }
}

pub(super) struct Learning {
    initial: u32,
    baseline: Baseline,
    failures: Failures,
}

impl Learning {
    pub(super) fn new(vegas: &Vegas) -> Self {
        Self { initial: vegas.initial, baseline: Baseline::new(), failures: Failures::default() }
    }
}

impl ConcurrencyLimit for Learning {
    fn start(&self) -> f64 {
        self.initial.into()
    }

    fn next(&mut self, limit: f64, window: &CallWindow) -> f64 {
        if let Some(next) = self.failures.learn(limit, window, 0.9) {
            return next;
        }
        match self.baseline.learn(limit, window) {
            Seen::Take(limit) => limit,
            Seen::Idle => limit,
            Seen::Normal { slower, room, may_grow } => {
                kept(limit, (limit + limit / slower + room) / 2.0, may_grow)
            }
        }
    }

    fn pace(&self) -> Pace {
        self.baseline.pace()
    }
}
