//! A number of units in a window: `100/1m`.

use core::{fmt, str::FromStr, time::Duration};

use crate::{Nanos, Period, time::UNITS, write_duration};

/// The longest window a quota may have: 366 days.
pub const MAX_WINDOW: Duration = Duration::from_hours(366 * 24);
/// The highest limit or burst, and the highest cost in a protocol: 2⁵³ − 1. Every number up to it
/// is exact as a double, so JSON and the store's scripts keep it.
pub const MAX_LIMIT: u64 = (1 << 53) - 1;
/// Where counts saturate, above every limit: this many units, or more.
pub(crate) const MOST_USED: u64 = MAX_LIMIT + 1;

/// At most `limit` units in each window.
///
/// The text form is `N/duration`; `_` may separate the digits of `N`. A duration is one or more
/// numbers, each with a unit of `ns`, `us`, `ms`, `s`, `m`, `h` or `d`; or it is a unit alone
/// (`100/m` is `100/1m`), `second`, `minute`, `hour`, `day`, `week` (`7d`), `month` (30d10h29m6s, the
/// mean) or `year` (365d5h49m12s). In the text form of a policy, a [fixed window](crate::algorithm::FixedWindow) of
/// a month or a year follows the calendar.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::Quota;
/// let quota: Quota = "100/1m30s".parse()?;
/// assert_eq!((quota.limit(), quota.window()), (100, Duration::from_secs(90)));
/// assert_eq!("100/m".parse(), "100/1m".parse::<Quota>());
/// assert_eq!("100/minute".parse(), "100/1m".parse::<Quota>());
/// assert_eq!(quota.to_string(), "100/1m30s");
/// assert_eq!("10_000_000_000/30d".parse::<Quota>()?.limit(), 10_000_000_000);
/// # Ok::<(), tidegate_core::ParseQuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    window: u64,
}

impl Quota {
    /// `limit` units in `window`. A limit of 0 denies everything.
    ///
    /// # Errors
    /// If the window is zero, or longer than [`MAX_WINDOW`], or if the limit is above
    /// [`MAX_LIMIT`].
    pub fn new(limit: u64, window: Duration) -> Result<Self, QuotaError> {
        if window.is_zero() {
            return Err(QuotaError::EmptyWindow);
        }
        if window > MAX_WINDOW {
            return Err(QuotaError::WindowTooLong);
        }
        if limit > MAX_LIMIT {
            return Err(QuotaError::LimitTooHigh);
        }
        Ok(Self {
            limit,
            window: Nanos::from(window).get(),
        })
    }

    /// Builds a quota from numbers that were a quota's before.
    pub(crate) const fn of(limit: u64, window: u64) -> Self {
        Self { limit, window }
    }

    /// `limit` units per second, at most [`MAX_LIMIT`].
    #[must_use]
    pub const fn per_second(limit: u64) -> Self {
        Self::of(
            if limit > MAX_LIMIT { MAX_LIMIT } else { limit },
            1_000_000_000,
        )
    }

    /// `limit` units per minute, at most [`MAX_LIMIT`].
    #[must_use]
    pub const fn per_minute(limit: u64) -> Self {
        Self::of(
            if limit > MAX_LIMIT { MAX_LIMIT } else { limit },
            60_000_000_000,
        )
    }

    /// `limit` units per hour, at most [`MAX_LIMIT`].
    #[must_use]
    pub const fn per_hour(limit: u64) -> Self {
        Self::of(
            if limit > MAX_LIMIT { MAX_LIMIT } else { limit },
            3_600_000_000_000,
        )
    }

    /// The number of units.
    #[must_use]
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// The window.
    #[must_use]
    pub const fn window(self) -> Duration {
        Duration::from_nanos(self.window)
    }

    /// The window in nanoseconds, at least 1.
    #[must_use]
    pub const fn window_nanos(self) -> u64 {
        self.window
    }
}

/// Why a limit and a window are not a valid quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The window is zero.
    #[error("the window is zero; give it a length, as in 100/1s")]
    EmptyWindow,
    /// The window is longer than [`MAX_WINDOW`].
    #[error("the window is longer than 366 days; choose a shorter one")]
    WindowTooLong,
    /// The limit or the burst is above [`MAX_LIMIT`].
    #[error("the limit or burst is above 9007199254740991; choose a larger unit to count in")]
    LimitTooHigh,
}

/// Why a text is not a quota or a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseQuotaError {
    /// The `/` between the limit and the window is missing.
    #[error("a quota is N/duration, as in 100/1m")]
    NoSlash,
    /// The limit is not a whole number from 0 to [`MAX_LIMIT`].
    #[error("the limit must be a whole number from 0 to {MAX_LIMIT}, as in 100/1m")]
    Limit,
    /// The duration does not have the form `90s`, `1m30s` or `500ms`.
    #[error(
        "a duration is a number with a unit of ns, us, ms, s, m, h or d, as in 500ms, 10s, 1m30s, 2h, 1d"
    )]
    Duration,
    /// The duration has no room in 64 bits of nanoseconds.
    #[error("a duration is at most 213503d, which is 584 years")]
    DurationTooLong,
    /// The parts are well formed but are not a valid quota together.
    #[error("{0}")]
    Quota(QuotaError),
}

impl FromStr for Quota {
    type Err = ParseQuotaError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (limit, window) = text.split_once('/').ok_or(ParseQuotaError::NoSlash)?;
        let limit = parse_units(limit.trim()).ok_or(ParseQuotaError::Limit)?;
        let window = window.trim();
        let unit = UNITS
            .iter()
            .chain(&NAMES)
            .find(|(name, _)| *name == window)
            .map(|(_, nanos)| *nanos);
        let period = Period::ALL
            .iter()
            .find(|period| period.name() == window)
            .map(|period| period.mean());
        let window = unit.or(period).map_or_else(
            || parse_duration(window),
            |nanos| Ok(Duration::from_nanos(nanos)),
        )?;
        Self::new(limit, window).map_err(ParseQuotaError::Quota)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.limit)?;
        match Period::ALL
            .iter()
            .find(|period| period.is_uneven() && period.mean() == self.window)
        {
            Some(period) => f.write_str(period.name()),
            None => write_duration(f, self.window()),
        }
    }
}

/// Windows with names, besides the calendar's periods.
const NAMES: [(&str, u64); 3] = [
    ("second", 1_000_000_000),
    ("minute", 60_000_000_000),
    ("hour", 3_600_000_000_000),
];

/// Parses a number of units, at most [`MAX_LIMIT`]: digits, between which `_` may stand.
#[must_use]
pub fn parse_units(text: &str) -> Option<u64> {
    let mut number = 0_u64;
    let mut before = b'_';
    for byte in text.bytes() {
        match byte {
            b'_' if before != b'_' => {}
            b'0'..=b'9' => {
                number = number
                    .checked_mul(10)?
                    .checked_add(u64::from(byte - b'0'))?;
            }
            _ => return None,
        }
        before = byte;
    }
    (before != b'_' && number <= MAX_LIMIT).then_some(number)
}

/// Parses a duration such as `500ms`, `10s`, `1m30s`, `2h` or `1d`.
///
/// # Errors
/// [`ParseQuotaError::Duration`] if the text has another form, and
/// [`ParseQuotaError::DurationTooLong`] if the duration is above 584 years.
pub fn parse_duration(text: &str) -> Result<Duration, ParseQuotaError> {
    let mut rest = text;
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(ParseQuotaError::Duration);
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let scale = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or(ParseQuotaError::Duration)?
            .1;
        if number.is_empty() {
            return Err(ParseQuotaError::Duration);
        }
        // Digits that have no room, alone or in their unit or together.
        let part = number.parse().ok().and_then(|n: u64| n.checked_mul(scale));
        let sum = part.and_then(|part| total.checked_add(part));
        total = sum.ok_or(ParseQuotaError::DurationTooLong)?;
        rest = tail;
    }
    Ok(Duration::from_nanos(total))
}
