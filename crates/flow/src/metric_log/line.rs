//! One line of the metric log.

use std::{fmt, num::ParseIntError, str::FromStr};

use tidegate_core::stats::Slot;

/// The statistics of one resource in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
pub struct MetricLine {
    /// When the second began, in milliseconds since 1970.
    pub at_ms: u64,
    /// The resource. A `|` or a line break in its name is written as `_`.
    pub resource: String,
    /// Units that passed.
    pub pass: u64,
    /// Units that were blocked.
    pub block: u64,
    /// Units whose call ended, successfully or not.
    pub success: u64,
    /// Units whose call failed.
    pub exception: u64,
    /// The mean response time in milliseconds, rounded down.
    pub rt_ms: u64,
    /// Units of [prioritized](crate::Entry::prioritized) calls that borrowed from a later slot. 0
    /// in lines of fewer than nine fields.
    pub occupied: u64,
    /// The most units in flight at once. 0 in lines of fewer than ten fields.
    pub concurrency: u64,
    /// The class of the resource; 0 if it has none.
    pub class: u32,
}

impl MetricLine {
    /// Returns the line of a resource in one second.
    #[must_use]
    pub fn new(resource: &str, second: &Slot) -> Self {
        let counts = &second.counts;
        Self {
            at_ms: second.start.get() / 1_000_000,
            resource: resource.replace(['|', '\n', '\r'], "_"),
            pass: counts.pass,
            block: counts.block,
            success: counts.success,
            exception: counts.exception,
            rt_ms: u64::try_from(counts.mean_rt().as_millis()).unwrap_or(u64::MAX),
            occupied: counts.occupied,
            concurrency: counts.max_in_flight,
            class: 0,
        }
    }
}

impl fmt::Display for MetricLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at_ms,
            resource,
            pass,
            block,
            success,
            exception,
            rt_ms,
            occupied,
            concurrency,
            class,
        } = self;
        let second = at_ms / 1_000;
        let (h, m, s) = (second / 3_600 % 24, second / 60 % 60, second % 60);
        let date = Date::of(second);
        write!(
            f,
            "{at_ms}|{date} {h:02}:{m:02}:{s:02}|{resource}|{pass}|{block}|{success}|{exception}|"
        )?;
        write!(f, "{rt_ms}|{occupied}|{concurrency}|{class}")
    }
}

/// Why a text is not a line of a metric log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseLineError {
    /// The line does not have eight to eleven fields.
    #[error("a metric line has 8 to 11 fields separated by `|`, but this one has {0}")]
    Fields(usize),
    /// A field is not a number.
    #[error("a count is not a number: {0}")]
    Number(#[source] ParseIntError),
}

impl FromStr for MetricLine {
    type Err = ParseLineError;

    fn from_str(line: &str) -> Result<Self, ParseLineError> {
        let fields: Vec<&str> = line.trim_end().split('|').collect();
        let [
            at,
            _date,
            resource,
            pass,
            block,
            success,
            exception,
            rt,
            ref newer @ ..,
        ] = fields[..]
        else {
            return Err(ParseLineError::Fields(fields.len()));
        };
        if newer.len() > 3 {
            return Err(ParseLineError::Fields(fields.len()));
        }
        let number = |field: &str| field.parse().map_err(ParseLineError::Number);
        // Older writers leave out the last one, two or three fields.
        let newer = |at: usize| newer.get(at).map_or(Ok(0), |field| number(field));
        Ok(Self {
            at_ms: number(at)?,
            resource: resource.into(),
            pass: number(pass)?,
            block: number(block)?,
            success: number(success)?,
            exception: number(exception)?,
            rt_ms: number(rt)?,
            occupied: newer(0)?,
            concurrency: newer(1)?,
            class: fields
                .get(10)
                .map_or(Ok(0), |class| class.parse().map_err(ParseLineError::Number))?,
        })
    }
}

/// A calendar day in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    year: u64,
    month: u64,
    day: u64,
}

impl Date {
    /// Returns the day of a second since 1970.
    pub(super) fn of(second: u64) -> Self {
        // Count years from March, so that the leap day is the last day of a year. All eras of 400
        // years are the same.
        let days = second / 86_400 + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Self {
            year,
            month,
            day: day_of_year - (153 * from_march + 2) / 5 + 1,
        }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}
