//! JSON as servers write it: nginx (`escape=json`) passes on bytes that are not UTF-8, and Apache
//! escapes them as in its text logs, `\xe9`. A client chooses these bytes, and must not be able to
//! make its line unreadable.

use std::{borrow::Cow, fmt::Write as _};

use serde_json::{Map, Value};

/// The JSON object of a line, in which a byte that is not UTF-8 reads as `\xE9`, and an escape that
/// JSON does not have as itself.
pub(super) fn object(line: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) => Some(fields),
        Ok(_) => None,
        Err(_) => match serde_json::from_str(&with_known_escapes(line)) {
            Ok(Value::Object(fields)) => Some(fields),
            _ => None,
        },
    }
}

/// A text in which each byte that is not UTF-8 is written as `\xE9`.
pub(super) fn mended(text: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(text) {
        return text.into();
    }
    let mut mended = String::with_capacity(text.len() + 16);
    for chunk in text.utf8_chunks() {
        mended.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing into a string cannot fail.
            let _ = write!(mended, "\\x{byte:02X}");
        }
    }
    mended.into()
}

/// The line with a second backslash before each escape that JSON does not have, and with escapes
/// for control characters.
fn with_known_escapes(line: &[u8]) -> String {
    let line = mended(line);
    let (mut mended, mut rest) = (String::with_capacity(line.len() + 16), &*line);
    let mut is_text = false;
    while let Some(at) = rest.find(|c: char| c == '"' || c == '\\' || c < ' ') {
        mended.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match rest.as_bytes()[0] {
            b'\\' => escape(rest.as_bytes()),
            b'"' => {
                is_text = !is_text;
                1
            }
            control if is_text => {
                let _ = write!(mended, "\\u{control:04x}");
                rest = &rest[1..];
                continue;
            }
            _ => 1,
        };
        if length == 0 {
            mended.push('\\');
        }
        let (found, behind) = rest.split_at(length.max(1));
        mended.push_str(found);
        rest = behind;
    }
    mended.push_str(rest);
    mended
}

/// The length of the escape at the beginning; 0 if JSON does not have it.
fn escape(text: &[u8]) -> usize {
    let unit = |text: &[u8]| {
        let digits = text.strip_prefix(b"\\u")?.get(..4)?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    match text.get(1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
        Some(b'u') => match unit(text) {
            // The two halves of a character belong together.
            Some(0xd800..=0xdbff) => match unit(&text[6..]) {
                Some(0xdc00..=0xdfff) => 12,
                _ => 0,
            },
            Some(0xdc00..=0xdfff) | None => 0,
            Some(_) => 6,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(line: &[u8]) -> Option<String> {
        object(line)?.get("ua")?.as_str().map(str::to_owned)
    }

    #[test]
    fn a_client_cannot_make_its_line_unreadable() {
        for (text, expected) in [
            (&b"caf\xe9"[..], r"caf\xE9"),
            (br"caf\xe9 \x01 \v", r"caf\xe9 \x01 \v"),
            (br#"a \"b\" \\"#, r#"a "b" \"#),
            (
                br"\ud83d\ude00 \ud83d \ude00 \u12",
                r"😀 \ud83d \ude00 \u12",
            ),
            (b"a\x01\tb", "a\u{1}\tb"),
            ("é\u{2028}".as_bytes(), "é\u{2028}"),
        ] {
            let line = [&b"{\"ua\":\""[..], text, b"\",\"t\":1}"].concat();
            assert_eq!(agent(&line).as_deref(), Some(expected), "{}", mended(&line));
        }
    }

    #[test]
    fn what_is_no_object_stays_none() {
        for line in [
            &b"{\"ua\":\"x"[..],
            b"[1]",
            b"{\"ua\":x}",
            b"{\"ua\":\"x\\\"}",
            b"{\xff}",
        ] {
            assert_eq!(agent(line), None, "{}", mended(line));
        }
    }
}
