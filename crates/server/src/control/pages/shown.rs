//! Formats numbers and text for pages.

/// Text from elsewhere: control characters, and those that change the writing direction, are replaced.
pub(super) fn text(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '\u{fffd}' } else { c }).collect()
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
    if whole > 0.0 { format!("{:.0} %", part / whole * 100.0) } else { "–".to_owned() }
}

/// A value in a URL's query.
pub(super) fn encoded(value: &str) -> String {
    percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 99.94, 100.0, 12_345.0, 5e7].map(rate), ["0.0", "99.9", "100", "12.3k", "50.0M"]);
        assert_eq!([0, 999, 1_000, 50_000_000].map(count), ["0", "999", "1,000", "50,000,000"]);
        assert_eq!([share(1.0, 4.0), share(0.0, 0.0)], ["25 %", "–"]);
    }

    #[test]
    fn text_cannot_change_its_line() {
        assert_eq!(text("a\u{1b}[2J\n\u{202e}b"), "a\u{fffd}[2J\u{fffd}\u{fffd}b");
        assert_eq!(encoded("a b&c"), "a%20b%26c");
    }
}
