//! Vegas: estimates the queue from how much longer calls take than without one.

use super::{CallWindow, baseline::Queueing, learner::Step};

/// Keeps a small queue that is just long enough to keep the service busy.
///
/// The calls in flight are those that the service works on plus those in the queue. Without the
/// queue, response times would be shorter in the same proportion as the number of calls in flight.
/// The algorithm therefore derives the queue from the response times with and without one, and
/// moves the limit to the calls that the service works on plus a useful queue.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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

impl Step for Vegas {
    fn initial(&self) -> u32 {
        self.initial
    }

    fn next(&self, limit: f64, _window: &CallWindow, queueing: &Queueing) -> f64 {
        queueing.kept(
            limit,
            (limit + limit / queueing.slower + queueing.room) / 2.0,
        )
    }
}
