//! Vegas: the queue, estimated from how much longer calls take than the shortest one.

use super::{CallSample, ConcurrencyLimit};

/// Keeps a small queue: more in flight while there is hardly any, fewer when it grows.
#[derive(Clone, Debug, PartialEq)]
pub struct Vegas {
    /// The limit to begin with. Default: 20.
    pub initial: u32,
    /// After this many times the limit in calls, the shortest response time is measured anew, as it may have grown.
    /// Default: 30.
    pub probe_every: u32,
    /// The shortest response time in seconds; 0 before the first call.
    shortest: f64,
    /// Calls since it was measured.
    calls: f64,
}

impl Default for Vegas {
    fn default() -> Self {
        Self { initial: 20, probe_every: 30, shortest: 0.0, calls: 0.0 }
    }
}

impl Vegas {
    /// The same algorithm beginning with another limit.
    #[must_use]
    pub fn initial(self, initial: u32) -> Self {
        Self { initial, ..self }
    }
}

impl ConcurrencyLimit for Vegas {
    fn start(&self) -> f64 {
        self.initial.into()
    }

    fn next(&mut self, limit: f64, call: &CallSample) -> f64 {
        let step = limit.log10().max(1.0);
        if call.failed {
            return limit - step;
        }
        let rt = call.rt.as_secs_f64().max(1e-9);
        self.calls += 1.0;
        if self.shortest <= 0.0 || rt < self.shortest {
            self.shortest = rt;
            return limit;
        }
        if (call.in_flight as f64) * 2.0 < limit {
            return limit; // Not used up: nothing is known about more.
        }
        if self.calls >= f64::from(self.probe_every.max(1)) * limit {
            // With fewer in flight for a moment, the next calls show what a call takes without a queue.
            self.calls = 0.0;
            self.shortest = 0.0;
            return limit / 2.0;
        }
        let queue = (limit * (1.0 - self.shortest / rt)).ceil();
        let (few, many) = (3.0 * step, 6.0 * step);
        if queue <= step {
            limit + many
        } else if queue < few {
            limit + step
        } else if queue > many {
            limit - step
        } else {
            limit
        }
    }
}
