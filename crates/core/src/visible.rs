//! Text that others chose, for a terminal, a log or a page.

use core::fmt::{self, Write as _};

/// Whether a terminal or a page shows the character as itself: not a control character, and none
/// that hides text or changes its direction.
#[must_use]
pub fn is_visible(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Shows a text on one line: characters that are not [visible](is_visible) are written as in
/// `\u{1b}`.
///
/// ```
/// use tidegate_core::Visible;
/// assert_eq!(Visible("a\u{1b}[2J\nb").to_string(), "a\\u{1b}[2J\\u{a}b");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible<'a>(pub &'a str);

impl fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_visible(c) {
                f.write_char(c)?;
            } else {
                write!(f, "{}", c.escape_unicode())?;
            }
        }
        Ok(())
    }
}
