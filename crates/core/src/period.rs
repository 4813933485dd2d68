//! The periods of a calendar.

pub(crate) const SECOND: u64 = 1_000_000_000;

/// A calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// A day, from its first moment.
    Day,
    /// A week, from Monday.
    Week,
    /// A month, from its first day, or from the day on which a billing month starts.
    Month,
    /// A year.
    Year,
}

impl Period {
    pub(crate) const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Year];

    /// The period's name in a quota: `1000/month`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The mean length in nanoseconds: 24 hours, 7 days, 30d10h29m6s and 365d5h49m12s.
    #[must_use]
    pub const fn mean(self) -> u64 {
        SECOND
            * match self {
                Self::Day => 86_400,
                Self::Week => 604_800,
                Self::Month => 2_629_746,
                Self::Year => 31_556_952,
            }
    }

    /// Whether its length is its own, so that a window of this length means the period.
    pub(crate) const fn is_uneven(self) -> bool {
        matches!(self, Self::Month | Self::Year)
    }

    /// The period that a window of this length stands for. Envoy's months have 30 days and its
    /// years 365.
    #[cfg(feature = "calendar")]
    pub(crate) fn of(window: u64) -> Option<Self> {
        let day = Self::Day.mean();
        Self::ALL.into_iter().find(|period| {
            window == period.mean()
                || matches!(period, Self::Month) && window == 30 * day
                || matches!(period, Self::Year) && window == 365 * day
        })
    }
}
