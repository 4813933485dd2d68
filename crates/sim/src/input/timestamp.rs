//! Times in the forms that logs use, as nanoseconds since 1970-01-01 UTC.

use std::ops::Range;

use jiff::{Timestamp, civil::Date};
use tidegate_core::Nanos;

const SECOND: i128 = 1_000_000_000;
pub(super) const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Parses `17/May/2015:10:05:03 +0000`, the form of access logs. A fraction of a second may follow
/// the seconds, and without an offset the time is UTC.
///
/// `None` for any other form, for days that do not exist, and for times before 1970 or above
/// [`Nanos::MAX`] (2116).
pub fn parse_access_log_time(text: &[u8]) -> Option<u64> {
    let mut text = Scanner(text);
    let day = text.digits(2)?;
    text.expect(b"/")?;
    let name = text.take(3)?;
    let month = MONTHS
        .iter()
        .position(|month| month.eq_ignore_ascii_case(name))? as u32
        + 1;
    text.expect(b"/")?;
    let year = text.digits(4)?;
    text.expect(b":")?;
    let clock = text.clock()?;
    let offset = if text.0.is_empty() {
        0
    } else {
        text.expect(b" ")?;
        text.offset()?
    };
    text.ends()?;
    at(year, month, day, clock, offset)
}

/// Parses an RFC 3339 time such as `2015-05-17T10:05:03.25Z` or `2015-05-17 10:05:03+02:00`;
/// without an offset the time is UTC.
///
/// `None` in the same cases as for [`parse_access_log_time`].
pub fn parse_rfc3339(text: &[u8]) -> Option<u64> {
    let mut text = Scanner(text);
    let year = text.digits(4)?;
    text.expect(b"-")?;
    let month = text.digits(2)?;
    text.expect(b"-")?;
    let day = text.digits(2)?;
    text.expect(b"Tt ")?;
    let clock = text.clock()?;
    let offset = match text.0 {
        [] => 0,
        [b'Z' | b'z'] => {
            text.0 = &[];
            0
        }
        _ => text.offset()?,
    };
    text.ends()?;
    at(year, month, day, clock, offset)
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

/// Combines a date and a time of day in nanoseconds, if the date exists and the time is in range.
fn at(year: u32, month: u32, day: u32, clock: i128, offset: i128) -> Option<u64> {
    let small = |number: u32| i8::try_from(number).ok();
    let date = Date::new(i16::try_from(year).ok()?, small(month)?, small(day)?).ok()?;
    let midnight = date.duration_since(Date::constant(1970, 1, 1)).as_nanos();
    bounded(midnight + clock - offset)
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
    text: Vec<u8>,
    time: u64,
    /// `17/May/2015:` and ` +0200`, and the midnight that they mean; empty if there is none.
    day: Vec<u8>,
    zone: Vec<u8>,
    midnight: i128,
}

impl TimeCache {
    /// The length of `17/May/2015:10:05:03 +0000`, and where in it the time of day begins and ends.
    const LENGTH: usize = 26;
    const CLOCK: Range<usize> = 12..20;

    /// Parses a time with `parse`, which must give the same result each time.
    #[inline]
    pub fn read(&mut self, text: &[u8], parse: impl Fn(&[u8]) -> Option<u64>) -> Option<u64> {
        if text == self.text && !text.is_empty() {
            return Some(self.time);
        }
        let time = parse(text)?;
        self.text.clear();
        self.text.extend_from_slice(text);
        self.time = time;
        Some(time)
    }

    /// A time in the form of access logs or of RFC 3339.
    #[inline]
    pub fn read_log_time(&mut self, text: &[u8]) -> Option<u64> {
        if text == self.text && !text.is_empty() {
            return Some(self.time);
        }
        let usual = text.len() == Self::LENGTH && text[2] == b'/';
        if usual
            && text[..Self::CLOCK.start] == self.day
            && text[Self::CLOCK.end..] == self.zone
            && let Some(clock) = clock(&text[Self::CLOCK])
        {
            return bounded(self.midnight + clock);
        }
        let time = self.read(text, |text| {
            parse_access_log_time(text).or_else(|| parse_rfc3339(text))
        })?;
        if usual && let Some(clock) = clock(&text[Self::CLOCK]) {
            self.day = text[..Self::CLOCK.start].to_vec();
            self.zone = text[Self::CLOCK.end..].to_vec();
            self.midnight = i128::from(time) - clock;
        }
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
