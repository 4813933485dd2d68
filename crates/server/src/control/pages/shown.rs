//! Formats numbers and text for pages.

/// Text from elsewhere: control characters, and those that change the writing direction, are
/// replaced.
pub(super) fn text(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| {
            if c.is_control() || turns(c) {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

/// A whole number with its digits in groups of three.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A rate per second.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        _ if rate >= 9_999_950.0 => format!("{:.1}M", rate / 1e6),
        _ if rate >= 9_999.5 => format!("{:.1}k", rate / 1_000.0),
        _ if rate >= 99.95 => format!("{rate:.0}"),
        _ => format!("{rate:.1}"),
    }
}

/// A percentage of a whole; a dash if the whole is zero.
pub(super) fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.0} %", part / whole * 100.0)
    } else {
        "–".to_owned()
    }
}

/// A value in a URL's query.
pub(super) fn encoded(value: &str) -> String {
    percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC).to_string()
}
