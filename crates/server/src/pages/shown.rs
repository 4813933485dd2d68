//! Numbers and texts as pages show them.

/// A text of somebody else's: control characters, and those that turn the direction of writing, are replaced.
pub(super) fn text(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '\u{fffd}' } else { c }).collect()
}

/// Something in a second.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        _ if rate >= 9_999.5 => format!("{:.1}k", rate / 1_000.0),
        _ if rate >= 99.95 => format!("{rate:.0}"),
        _ => format!("{rate:.1}"),
    }
}

/// A part of a whole; nothing where there is no whole.
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
    fn numbers_are_as_short_as_they_can_be() {
        assert_eq!([0.0, 99.94, 100.0, 12_345.0].map(rate), ["0.0", "99.9", "100", "12.3k"]);
        assert_eq!([share(1.0, 4.0), share(0.0, 0.0)], ["25 %", "–"]);
    }

    #[test]
    fn a_text_cannot_change_the_line_that_it_is_in() {
        assert_eq!(text("a\u{1b}[2J\n\u{202e}b"), "a\u{fffd}[2J\u{fffd}\u{fffd}b");
        assert_eq!(encoded("a b&c"), "a%20b%26c");
    }
}
