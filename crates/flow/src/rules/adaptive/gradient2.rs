//! Gradient: the response time of now against that of long, as Netflix's concurrency-limits does it.

use super::{CallSample, ConcurrencyLimit};

/// Lowers the limit when response times rise above their long-term mean, and else probes for more by a small queue.
///
/// The mean must now and then see the resource unhurried: under traffic that never ebbs it follows the response times
/// upwards, and the limit drifts to its upper bound. Set that bound, or take another algorithm there.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient2 {
    /// The limit to begin with. Default: 20.
    pub initial: u32,
    /// How far response times may rise above their mean before the limit falls, at least 1. Default: 1.5.
    pub tolerance: f64,
    /// How much of a new limit is taken at once, above 0 and at most 1. Default: 0.2.
    pub smoothing: f64,
    /// How many units more than the gradient says are tried, so that the limit can grow. Default: 4.
    pub queue: u32,
    /// Over how many calls the long-term mean forgets. Default: 600.
    pub memory: u32,
    /// The long-term mean in seconds; 0 before the first call.
    mean: f64,
    /// Calls seen, up to a tenth of the memory: until then the mean is a plain one.
    seen: u32,
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self { initial: 20, tolerance: 1.5, smoothing: 0.2, queue: 4, memory: 600, mean: 0.0, seen: 0 }
    }
}

impl Gradient2 {
    /// The same algorithm beginning with another limit.
    #[must_use]
    pub fn initial(self, initial: u32) -> Self {
        Self { initial, ..self }
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if !(1.0..=100.0).contains(&self.tolerance) {
            return Err(format!("the tolerance is {}; it must be from 1 to 100", self.tolerance));
        }
        if !(self.smoothing > 0.0 && self.smoothing <= 1.0) {
            return Err(format!("the smoothing is {}; it must be above 0 and at most 1", self.smoothing));
        }
        Ok(())
    }

    fn learn(&mut self, rt: f64) {
        let warm = (self.memory / 10).max(1);
        self.seen = (self.seen + 1).min(warm);
        let share =
            if self.seen < warm { 1.0 / f64::from(self.seen) } else { 2.0 / (f64::from(self.memory) + 1.0) };
        self.mean += (rt - self.mean) * share;
        // After a time of overload the mean has risen with it: let it fall faster than it rose.
        if self.mean > rt * 2.0 {
            self.mean *= 0.95;
        }
    }
}

impl ConcurrencyLimit for Gradient2 {
    fn start(&self) -> f64 {
        self.initial.into()
    }

    fn next(&mut self, limit: f64, call: &CallSample) -> f64 {
        if call.failed {
            return limit * 0.9;
        }
        let rt = call.rt.as_secs_f64().max(1e-9);
        self.learn(rt);
        if (call.in_flight as f64) < limit / 2.0 {
            return limit; // Not used up: nothing is known about more.
        }
        let gradient = (self.tolerance * self.mean / rt).clamp(0.5, 1.0);
        let next = limit * gradient + f64::from(self.queue);
        limit * (1.0 - self.smoothing) + next * self.smoothing
    }
}
