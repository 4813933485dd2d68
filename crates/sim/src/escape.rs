//! Shows text from a log, which clients can choose.

use tidegate_core::is_visible;

/// The text on one line, at most `most` characters, with characters that a terminal would act on
/// written as `\u{1b}`.
///
/// ```
/// use tidegate_sim::report::printable;
/// assert_eq!(printable("a\u{1b}[2Jb", 80), "a\\u{1b}[2Jb");
/// assert_eq!(printable("abcdef", 4), "abc…");
/// ```
pub fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if is_visible(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_unicode());
        }
        if shown.len() > most.saturating_mul(4) {
            break;
        }
    }
    if shown.chars().count() > most {
        shown = shown.chars().take(most.saturating_sub(1)).collect();
        shown.push('…');
    }
    shown
}
