//! The counted events, and the sums of their counts over some slots.

use core::time::Duration;

use crate::Nanos;

/// The highest value of a gauge.
pub(super) const COMPLEMENT: u64 = (1 << 48) - 2;

/// The counted events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Admitted units.
    Pass = 0,
    /// Units whose call has ended, with or without an error.
    Success = 1,
    /// The sum of response times in microseconds, each multiplied by the units of its call.
    Rt = 2,
    /// Units whose call ended with an error (`Success` counts them too, as in Sentinel).
    Exception = 3,
    /// Denied units.
    Block = 4,
    /// Units admitted in advance, on the account of a later slot.
    OccupiedPass = 5,
}

/// The sums of one or more slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Admitted units.
    pub pass: u64,
    /// Denied units.
    pub block: u64,
    /// Units whose call has ended, with or without an error.
    pub success: u64,
    /// Units whose call ended with an error.
    pub exception: u64,
    /// Units admitted in advance, on the account of a later slot.
    pub occupied: u64,
    /// The sum of the response times, in whole microseconds per call.
    pub rt: Duration,
    /// The shortest response time, in whole microseconds; `None` if no call ended.
    pub min_rt: Option<Duration>,
    /// The maximum number of units in flight.
    pub max_in_flight: u64,
}

impl Counts {
    /// The mean response time; zero if no call ended.
    #[must_use]
    pub fn mean_rt(&self) -> Duration {
        self.rt
            .checked_div(u32::try_from(self.success).unwrap_or(u32::MAX))
            .unwrap_or_default()
    }

    pub(super) fn of(events: [u64; 6], min_rt: Option<u64>, max_in_flight: u64) -> Self {
        let [pass, success, rt, exception, block, occupied] = events;
        let (rt, min_rt) = (Duration::from_micros(rt), min_rt.map(Duration::from_micros));
        Self {
            pass,
            block,
            success,
            exception,
            occupied,
            rt,
            min_rt,
            max_in_flight,
        }
    }

    /// The sums of both, with the shorter of the shortest response times, and the higher maximum in
    /// flight.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            pass: self.pass + other.pass,
            block: self.block + other.block,
            success: self.success + other.success,
            exception: self.exception + other.exception,
            occupied: self.occupied + other.occupied,
            rt: self.rt.saturating_add(other.rt),
            min_rt: shorter(self.min_rt, other.min_rt),
            max_in_flight: self.max_in_flight.max(other.max_in_flight),
        }
    }
}

/// One slot of a window, or one second of its minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// When the slot began.
    pub start: Nanos,
    /// The counts of the slot.
    pub counts: Counts,
}

/// A maximum is stored as the minimum of complements.
pub(super) const fn to_low(value: u64) -> u64 {
    COMPLEMENT.saturating_sub(value)
}

pub(super) const fn from_low(low: u64) -> u64 {
    COMPLEMENT.saturating_sub(low)
}

pub(super) fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}
