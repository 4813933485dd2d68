//! What is counted, and what the counts of some slots come to.

use core::time::Duration;

use crate::Nanos;

/// The highest value that a gauge keeps.
pub(super) const COMPLEMENT: u64 = (1 << 48) - 2;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Units that were let through.
    Pass = 0,
    /// Units whose call has ended, well or not.
    Success = 1,
    /// The sum of response times in microseconds, each times the units of its call.
    Rt = 2,
    /// Units whose call ended with an error (they are in `Success` too, as Sentinel counts).
    Exception = 3,
    /// Units that were turned away.
    Block = 4,
    /// Units let through on the account of a later slot.
    OccupiedPass = 5,
}

/// The sums of some slots, or of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Units let through.
    pub pass: u64,
    /// Units turned away.
    pub block: u64,
    /// Units whose call has ended, well or not.
    pub success: u64,
    /// Units whose call ended with an error.
    pub exception: u64,
    /// Units let through on the account of a later slot.
    pub occupied: u64,
    /// The sum of the response times, in whole microseconds a call.
    pub rt: Duration,
    /// The shortest response time, in whole microseconds; `None` where no call ended.
    pub min_rt: Option<Duration>,
    /// The most units in flight at once.
    pub max_in_flight: u64,
}

impl Counts {
    /// The mean response time; zero where no call ended.
    #[must_use]
    pub fn mean_rt(&self) -> Duration {
        self.rt.checked_div(u32::try_from(self.success).unwrap_or(u32::MAX)).unwrap_or_default()
    }

    pub(super) fn of(events: [u64; 6], min_rt: Option<u64>, max_in_flight: u64) -> Self {
        let [pass, success, rt, exception, block, occupied] = events;
        let (rt, min_rt) = (Duration::from_micros(rt), min_rt.map(Duration::from_micros));
        Self { pass, block, success, exception, occupied, rt, min_rt, max_in_flight }
    }

    pub(super) fn and(self, other: Self) -> Self {
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
    /// What happened in it.
    pub counts: Counts,
}

/// The highest is kept as the lowest of complements.
pub(super) const fn to_low(value: u64) -> u64 {
    COMPLEMENT.saturating_sub(value)
}

pub(super) const fn from_low(low: u64) -> u64 {
    COMPLEMENT.saturating_sub(low)
}

pub(super) fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}
