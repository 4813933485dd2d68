//! The deadlines of a store's limits, and the time limit of its heartbeat, which is independent of
//! them: a limit with a short deadline must not make a distant store look down to the others.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate_core::Nanos;

use super::Monitor;
use crate::sync::lock;

/// The longest time limit.
const LONGEST: Duration = Duration::from_secs(1);

/// The time limit of a heartbeat after `misses` heartbeats without a reply. It doubles with each,
/// so that a store whose distance has grown is measured before it counts as down.
pub fn heartbeat_time(allowed: Option<Nanos>, misses: u8) -> Duration {
    let time = if allowed.is_some() {
        auto(allowed)
    } else {
        LONGEST
    };
    time.saturating_mul(1 << misses.min(10)).min(LONGEST)
}

/// How many limits have each deadline.
#[derive(Clone, Default)]
pub struct Patience(Arc<Mutex<BTreeMap<Duration, usize>>>);

impl Patience {
    /// The shortest deadline.
    pub fn shortest(&self) -> Option<Duration> {
        lock(&self.0)
            .first_key_value()
            .map(|(&deadline, _)| deadline)
    }

    /// Adds a deadline that counts while the claim is kept.
    pub fn claim(&self, deadline: Duration) -> Claim {
        *lock(&self.0).entry(deadline).or_default() += 1;
        Claim {
            patience: self.clone(),
            deadline,
        }
    }
}

/// The deadline of one limit.
pub struct Claim {
    patience: Patience,
    deadline: Duration,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut deadlines = lock(&self.patience.0);
        if let Some(count) = deadlines.get_mut(&self.deadline) {
            *count -= 1;
            if *count == 0 {
                deadlines.remove(&self.deadline);
            }
        }
    }
}

/// The timeout of a limit's decisions.
pub enum Wait {
    Set(Claim),
    Auto,
}

impl Wait {
    pub fn get(&self, monitor: &Monitor) -> Duration {
        match self {
            Self::Set(claim) => claim.deadline,
            Self::Auto => auto(monitor.distance.allowed()),
        }
    }
}

/// The timeout of [`Timeout::Auto`](crate::Timeout::Auto) for a round trip.
fn auto(round_trip: Option<Nanos>) -> Duration {
    let Some(round_trip) = round_trip else {
        return Duration::from_millis(250);
    };
    let wait = Duration::from(round_trip)
        .saturating_mul(3)
        .saturating_add(Duration::from_millis(20));
    wait.clamp(Duration::from_millis(50), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_automatic_deadline_is_three_round_trips_plus_20_ms_within_bounds() {
        let millis = |millis: u64| auto(Some(Nanos::from_millis(millis))).as_millis();
        assert_eq!(
            (millis(0), millis(10), millis(11), millis(40)),
            (50, 50, 53, 140)
        );
        assert_eq!((millis(327), millis(5_000)), (1_000, 1_000));
        assert_eq!(auto(None).as_millis(), 250);
    }

    #[test]
    fn a_heartbeat_allows_for_the_distance_and_for_one_that_has_grown() {
        let of = |millis: u64, misses| {
            heartbeat_time(Some(Nanos::from_millis(millis)), misses).as_millis()
        };
        assert_eq!((of(0, 0), of(0, 1), of(0, 2)), (50, 100, 200));
        assert_eq!((of(80, 0), of(80, 9), of(5_000, 0)), (260, 1_000, 1_000));
        assert_eq!(heartbeat_time(None, 0), LONGEST);
    }
}
