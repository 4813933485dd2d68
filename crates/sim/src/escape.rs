//! Shows text from a log, which clients can choose.

/// Whether a terminal or a page would act on the character instead of showing it: control
/// characters, and characters that reverse or hide text.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

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
        if acts(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
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
