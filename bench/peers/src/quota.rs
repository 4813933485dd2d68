//! The quotas of the works.

use std::time::Duration;

/// `limit` per `per`, with a burst of `limit` where there is one to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub limit: u32,
    pub per: Duration,
}

impl Quota {
    /// A quota that no limiter here reaches: every decision admits. A whole number of nanoseconds a
    /// permit, which every rival can express.
    pub const ENDLESS: Self = Self {
        limit: 1_000_000_000,
        per: Duration::from_secs(1),
    };
    /// The same for one of many keys: the hottest of a million is asked for less than this.
    pub const ENDLESS_FOR_A_KEY: Self = Self {
        limit: 10_000_000,
        per: Duration::from_secs(1),
    };
    /// So little that all but the first decision deny.
    pub const SPENT: Self = Self {
        limit: 1,
        per: Duration::from_hours(1),
    };
    /// A usual quota of a service for a user: under Zipf's law the popular keys are soon denied,
    /// the others never.
    pub const ORDINARY: Self = Self {
        limit: 100,
        per: Duration::from_mins(1),
    };
    /// For the memory: nothing recovers, and so may be forgotten, while a store is filled.
    pub const LASTING: Self = Self {
        limit: 100,
        per: Duration::from_hours(1),
    };
    /// For the flood: what a real key has to go round with.
    pub const FLOOD: Self = Self {
        limit: 10,
        per: Duration::from_hours(1),
    };

    /// How much of it comes back in `elapsed`, rounded down.
    pub fn refilled(self, elapsed: Duration) -> u64 {
        (elapsed.as_nanos() * u128::from(self.limit) / self.per.as_nanos()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_an_hour_refill_one_in_six_minutes() {
        assert_eq!(Quota::FLOOD.refilled(Duration::from_secs(359)), 0);
        assert_eq!(Quota::FLOOD.refilled(Duration::from_mins(6)), 1);
        assert_eq!(Quota::FLOOD.refilled(Duration::from_secs(721)), 2);
    }
}
