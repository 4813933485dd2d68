//! Durations, counts and commands as people read them: one form for the command, the log and the
//! dashboard.

use std::{fmt::Write as _, time::Duration};

use tidegate_core::{Nanos, is_visible, write_duration};

/// The units of a duration in nanoseconds, each with how much of it is left out of a duration that
/// has the unit two above.
const UNITS: [u64; 6] = [
    86_400_000_000_000,
    3_600_000_000_000,
    60_000_000_000,
    1_000_000_000,
    1_000_000,
    1_000,
];

/// A duration in its two largest units, rounded up: `1h59m`, `2m5s`, `450ms`. Who waits as long as
/// it says has waited long enough.
#[must_use]
pub fn span(span: Duration) -> String {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let largest = UNITS.iter().position(|unit| nanos >= *unit);
    // Below a millisecond nothing is of interest, except that it is not zero.
    let kept = largest.map_or(1_000_000, |at| {
        UNITS.get(at + 1).copied().unwrap_or(1_000).max(1_000_000)
    });
    let rounded = nanos.checked_next_multiple_of(kept).unwrap_or(nanos);
    let mut text = String::new();
    // Writing to a `String` does not fail.
    let _ = write_duration(&mut text, Duration::from_nanos(rounded));
    text
}

/// The same for milliseconds.
#[must_use]
pub fn span_ms(ms: u64) -> String {
    span(Duration::from_millis(ms))
}

/// A time as seen from now, both in milliseconds since 1970: `in 5m` or `2m3s ago`.
#[must_use]
pub fn when(ms: u64, now: Nanos) -> String {
    let now = now.get() / 1_000_000;
    if ms > now {
        format!("in {}", span_ms(ms - now))
    } else {
        // A past time has whole seconds.
        format!("{} ago", span_ms((now - ms) / 1_000 * 1_000))
    }
}

/// A number with what it counts: `1 server`, `3 servers`. The plural has an `s`.
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{} {what}{s}", grouped(count))
}

/// A whole number with its digits in groups of three.
#[must_use]
pub fn grouped(number: u64) -> String {
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
#[must_use]
pub fn rate(rate: f64) -> String {
    match rate {
        _ if rate >= 9_999_950.0 => format!("{:.1}M", rate / 1e6),
        _ if rate >= 9_999.5 => format!("{:.1}k", rate / 1_000.0),
        _ if rate >= 99.95 => format!("{rate:.0}"),
        _ => format!("{rate:.1}"),
    }
}

/// Text from elsewhere, for a terminal or a page: control characters, and those that change the
/// writing direction, are replaced.
#[must_use]
pub fn text(text: &str) -> String {
    text.chars()
        .map(|c| if is_visible(c) { c } else { '\u{fffd}' })
        .collect()
}

/// A command line that a shell reads as these words. Words after `--` may begin with a hyphen.
#[must_use]
pub fn command<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.into_iter().map(word).collect();
    words.join(" ")
}

/// A word, quoted for a shell if that is necessary. What a terminal would interpret is escaped in
/// the form of bash, zsh and ksh: `$'a\nb'`.
#[must_use]
pub fn word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./,:=%+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if word.chars().all(is_visible) {
        return format!("'{}'", word.replace('\'', "'\\''"));
    }
    let mut quoted = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if !is_visible(c) => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    // Writing to a `String` does not fail.
                    let _ = write!(quoted, "\\{byte:03o}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

/// A command of `tidegate` about a key of a limit: its name, the limit, the key (none for a global
/// limit) and what follows.
#[must_use]
pub fn about_key(name: &str, limit: &str, key: &str, rest: &str) -> String {
    let mut words = vec!["tidegate", name, limit];
    if !key.is_empty() {
        // A key may look like an option.
        words.extend(key.starts_with('-').then_some("--"));
        words.push(key);
    }
    words.extend((!rest.is_empty()).then_some(rest));
    command(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_two_units_and_is_never_shorter_than_it_was() {
        for (nanos, shown) in [
            (0, "0s"),
            (1, "1ms"),
            (449_000_001, "450ms"),
            (2_500_000_000, "2s500ms"),
            (59_999_999_999, "1m"),
            (125_000_000_000, "2m5s"),
            (7_126_500_000_000, "1h59m"),
            (3_599_999_000_000, "1h"),
            (86_400_000_000_000 + 1, "1d1h"),
        ] {
            assert_eq!(span(Duration::from_nanos(nanos)), shown, "{nanos}");
        }
        let longest = span(Duration::MAX);
        assert!(longest.starts_with("213503d"), "{longest}");
    }

    #[test]
    fn one_is_not_a_plural() {
        assert_eq!(
            [0, 1, 1_234].map(|count| counted(count, "server")),
            ["0 servers", "1 server", "1,234 servers"]
        );
    }

    #[test]
    fn a_shell_reads_a_printed_command_as_the_words_that_were_meant() {
        for key in [
            "alice",
            "",
            "a b",
            "it's",
            "$(id)",
            "`id`",
            "a\nb",
            "\u{1b}[2J'\\",
            "é",
            "*",
            "-x",
            "a;b&c|d",
            "\u{202e}x",
            "~",
            "#",
        ] {
            let line = command(["printf", "%s|", "a", key]);
            assert!(!line.chars().any(|c| !is_visible(c)), "{line:?}");
            let output = std::process::Command::new("bash")
                .args(["-c", &line])
                .output()
                .unwrap();
            assert_eq!(
                String::from_utf8(output.stdout).unwrap(),
                format!("a|{key}|"),
                "{line}"
            );
        }
        assert_eq!(
            about_key("override", "l", "-k", "QUOTA"),
            "tidegate override l -- -k QUOTA"
        );
        assert_eq!(about_key("reset", "l", "", ""), "tidegate reset l");
    }
}
