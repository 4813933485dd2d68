//! The intervals of tasks in the background.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// The ticks of a task in the background.
pub fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
