//! Vegas: the queue, estimated from how much longer calls take than without one.

use super::{
    CallWindow, ConcurrencyLimit, Pace,
    baseline::{Baseline, Seen, kept},
};

/// Keeps a small queue: just as long as it takes to keep the service busy.
///
/// What is in flight is what the service works on and a queue; without a queue, calls would take as much less as there
/// would be fewer in flight. So the queue is known from the response times with and without one, and the limit is moved to
/// what the service works on plus the queue that is worth having.
#[derive(Clone, Debug, PartialEq)]
pub struct Vegas {
    /// The limit to begin with. Default: 20.
    pub initial: u32,
}

impl Default for Vegas {
    fn default() -> Self {
        Self { initial: 20 }
    }
}

impl Vegas {
    /// The same algorithm beginning with another limit.
    #[must_use]
    pub fn initial(self, initial: u32) -> Self {
        Self { initial }
    }
}

pub(super) struct Learning {
    initial: u32,
    baseline: Baseline,
}

impl Learning {
    pub(super) fn new(vegas: &Vegas) -> Self {
        Self { initial: vegas.initial, baseline: Baseline::new() }
    }
}

impl ConcurrencyLimit for Learning {
    fn start(&self) -> f64 {
        self.initial.into()
    }

    fn next(&mut self, limit: f64, window: &CallWindow) -> f64 {
        if window.fails() {
            return limit * 0.9;
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
