//! Estimates: units that are taken before the work, and corrected when the true cost is known.

use crate::{Nanos, policy::Rule};

use super::{Algorithm, Policy};

/// Units that were taken for work whose cost was not yet known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The units that were taken.
    pub cost: u32,
    /// The time that was passed to the state then.
    pub taken: Nanos,
}

impl Policy {
    /// Corrects an estimate at `now` to the `actual` cost.
    ///
    /// If less was used, the rest goes back to where the estimate counts (see [`give_back`](Self::give_back)): to its window, its slot or its
    /// log entries, if they still count; to a token bucket less what has been refilled since. A leaky bucket keeps the start times
    /// that it gave out, so nothing goes back. If more was used, the difference is [charged](Algorithm::charge) at `now`.
    ///
    /// Permits in flight are returned, all of the estimate: the work is over.
    ///
    /// Callers settle an estimate once.
    pub fn settle(&self, state: &mut [u64], now: Nanos, estimate: Estimate, actual: u32) {
        let Estimate { cost, taken } = estimate;
        if matches!(self.rule, Rule::Concurrency(_)) {
            self.refund(state, now, cost);
        } else if actual < cost {
            self.give_back(state, now, taken, cost - actual);
        } else {
            self.charge(state, now, actual - cost);
        }
    }
}
