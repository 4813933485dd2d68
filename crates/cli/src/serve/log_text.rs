//! The fields of a line of the text log: control characters are escaped, so no value that comes from
//! a client begins another line or reaches a terminal as a command.

use std::fmt::{self, Write as _};

use tracing::field::Field;
use tracing_subscriber::{
    field::MakeExt as _,
    fmt::{FormatFields, format},
};

/// How fields are written.
pub(super) fn fields() -> impl for<'a> FormatFields<'a> + Send + Sync + 'static {
    let write = |writer: &mut format::Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        if field.name() != "message" {
            write!(writer, "{}=", field.name())?;
        }
        write!(Escaped(writer), "{value:?}")
    };
    format::debug_fn(write).delimited(" ")
}

/// Escapes control characters of what is written.
struct Escaped<W>(W);

impl<W: fmt::Write> fmt::Write for Escaped<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut plain = 0;
        for (at, char) in text.char_indices().filter(|(_, char)| is_unsafe(*char)) {
            self.0.write_str(text.get(plain..at).unwrap_or_default())?;
            write!(self.0, "{}", char.escape_default())?;
            plain = at + char.len_utf8();
        }
        self.0.write_str(text.get(plain..).unwrap_or_default())
    }
}

/// Whether a terminal, or a reader of lines, takes a character for more than a sign: control
/// characters, line separators, and those that change the direction of text.
fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_value_and_no_message_begins_a_line_or_reaches_the_terminal() {
        let lines = Lines::default();
        let its = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || its.clone())
            .with_ansi(false)
            .fmt_fields(fields())
            .finish();
        let forged = "a\nERROR forged\r\u{1b}[2J\u{9b}31m\u{202e}\u{2028}é";
        tracing::subscriber::with_default(log, || {
            tracing::warn!(key = %forged, text = forged, "about {forged}");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let bad = |char: &char| is_unsafe(*char) && *char != '\n';
        assert_eq!(text.chars().find(bad), None, "{text:?}");
        let shown = r"a\nERROR forged\r\u{1b}[2J\u{9b}31m\u{202e}\u{2028}é";
        assert!(
            text.contains(&format!("about {shown} key={shown}")),
            "{text}"
        );
    }
}
