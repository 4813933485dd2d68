//! The units of time of rate limits.

use std::time::Duration;

/// The unit of a rate limit, shortest first. Windows are aligned to multiples of the unit since
/// 1970, so weeks begin on Thursday.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 1 second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All units, shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// The name in a configuration file.
    pub fn name(self) -> &'static str {
        ["second", "minute", "hour", "day", "week", "month", "year"][self as usize]
    }

    /// Finds a unit by name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The length of the unit.
    pub fn span(self) -> Duration {
        const DAY: u64 = 24 * 60 * 60;
        Duration::from_secs([1, 60, 60 * 60, DAY, 7 * DAY, 30 * DAY, 365 * DAY][self as usize])
    }
}
