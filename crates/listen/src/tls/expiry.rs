//! When a certificate expires: the one field of X.509 that neither rustls nor webpki shows. The
//! certificate is the server's own, and rustls checks it.

use jiff::civil::{Date, DateTime, Time};

const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0] EXPLICIT Version`, which certificates of version 1 do not have.
const VERSION: u8 = 0xa0;

/// `notAfter` of a certificate in DER, in seconds since 1970.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (certificate, _) = take(SEQUENCE, certificate)?;
    let (mut fields, _) = take(SEQUENCE, certificate)?;
    if let Some((_, rest)) = take(VERSION, fields) {
        fields = rest;
    }
    // The serial number, the algorithm of the signature, and the issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, fields) = take(tag, fields)?;
    }
    let (validity, _) = take(SEQUENCE, fields)?;
    let (tag, _) = validity.split_first()?;
    let (_, after) = take(*tag, validity)?;
    if let Some((text, _)) = take(UTC_TIME, after) {
        let (year, rest) = number(text, 2)?;
        // RFC 5280: two digits are a year from 1950 to 2049.
        seconds(if year < 50 { 2000 + year } else { 1900 + year }, rest)
    } else {
        let (text, _) = take(GENERALIZED_TIME, after)?;
        let (year, rest) = number(text, 4)?;
        seconds(year, rest)
    }
}

/// The content of the first value, which has this tag, and what follows it.
fn take(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let [first, length, rest @ ..] = der else {
        return None;
    };
    if *first != tag {
        return None;
    }
    let (length, rest) = match length {
        // An indefinite length is not DER, and no certificate has a longer one.
        0x80 | 0x85.. => return None,
        ..0x80 => (usize::from(*length), rest),
        // The length follows in that many bytes.
        _ => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            let all = |sum: usize, byte: &u8| (sum << 8) + usize::from(*byte);
            (bytes.iter().fold(0, all), rest)
        }
    };
    rest.split_at_checked(length)
}

/// The number in the first digits, and the text behind them.
fn number(text: &[u8], digits: usize) -> Option<(i16, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let number = str::from_utf8(number).ok()?;
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_plain)?, rest))
}

/// The time of a year and of `MMDDhhmmssZ`.
fn seconds(year: i16, text: &[u8]) -> Option<i64> {
    let mut rest = text;
    let mut next = || -> Option<i8> {
        let (number, after) = number(rest, 2)?;
        rest = after;
        i8::try_from(number).ok()
    };
    let date = Date::new(year, next()?, next()?).ok()?;
    let time = Time::new(next()?, next()?, next()?, 0).ok()?;
    let at = DateTime::from_parts(date, time);
    let utc = at.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    (rest == b"Z").then(|| utc.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate that ends at this time, signed by itself.
    fn certificate(year: i32) -> Vec<u8> {
        let mut parameters = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        parameters.not_after = rcgen::date_time_ymd(year, 2, 28);
        let key = rcgen::KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().der().to_vec()
    }

    fn midnight(year: i16) -> i64 {
        let date = Date::new(year, 2, 28).unwrap();
        let zoned = date.to_zoned(jiff::tz::TimeZone::UTC).unwrap();
        zoned.timestamp().as_second()
    }

    #[test]
    fn the_end_of_a_certificate_is_read_in_both_forms_of_time() {
        // From 2050 on the year has four digits.
        for year in [2026, 2049, 2050, 9999] {
            let wanted = midnight(i16::try_from(year).unwrap());
            assert_eq!(not_after(&certificate(year)), Some(wanted), "{year}");
        }
    }

    #[test]
    fn a_cut_or_changed_certificate_gives_another_time_or_none_and_no_panic() {
        let whole = certificate(2031);
        for end in 0..whole.len() {
            assert_eq!(not_after(&whole[..end]), None, "cut at {end}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                let _ = not_after(&changed);
            }
        }
    }
}
