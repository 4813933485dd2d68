//! Lines of bounded length out of a stream, and why a line may be no request.

use std::{
    fmt,
    io::{self, BufRead},
};

/// The longest line that is kept: 1 MiB. A longer one is skipped and counted as one that does not parse.
const MAX_LINE: usize = 1 << 20;

/// Reads the next line into `line`, without its end (`\n` or `\r\n`). `Ok(None)` at the end of the stream;
/// `Some(false)` when the line was too long to keep.
pub(super) fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let (mut any, mut fits) = (false, true);
    loop {
        let available = match input.fill_buf() {
            Ok(available) => available,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if available.is_empty() {
            break;
        }
        any = true;
        let end = available.iter().position(|&byte| byte == b'\n');
        let text = &available[..end.unwrap_or(available.len())];
        fits &= line.len() + text.len() <= MAX_LINE;
        if fits {
            line.extend_from_slice(text);
        }
        let used = text.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            break;
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(any.then_some(fits))
}

/// Why a line (or, in a file of requests per second, a number) is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineError {
    /// Longer than a mebibyte.
    TooLong,
    /// Nothing that looks like `host ident user [time] …`.
    NotAccessLog,
    /// A bracket holds no time as access logs write it.
    AccessTime,
    /// No request in quotes behind the time.
    NoRequest,
    /// No status behind the request.
    NoStatus,
    /// The key asks for a user agent and the line has none: the common log format.
    NoUserAgent,
    /// No JSON object.
    NotJson,
    /// The key asks for a field that the line does not have.
    NoField(String),
    /// None of the fields that hold the time is there.
    NoTime(String),
    /// The time field holds no time.
    Time(String),
    /// No whole number from 0 to 4294967295.
    NotCount,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("longer than 1 MiB"),
            Self::NotAccessLog => f.write_str("no `host ident user [time] …`"),
            Self::AccessTime => f.write_str("no time such as [17/May/2015:10:05:03 +0000]"),
            Self::NoRequest => f.write_str("no request in quotes behind the time"),
            Self::NoStatus => f.write_str("no status behind the request"),
            Self::NoUserAgent => f.write_str("no user agent (the common log format has none)"),
            Self::NotJson => f.write_str("no JSON object"),
            Self::NoField(name) => write!(f, "no field `{name}`"),
            Self::NoTime(name) => {
                write!(f, "no field `{name}` that holds the time (name it with --time-field)")
            }
            Self::Time(name) => {
                write!(
                    f,
                    "the field `{name}` holds neither an RFC 3339 time nor a number of seconds since 1970"
                )
            }
            Self::NotCount => f.write_str("no whole number of requests"),
        }
    }
}

impl std::error::Error for LineError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    fn lines(text: &[u8], buffer: usize) -> Vec<(Vec<u8>, bool)> {
        let mut input = BufReader::with_capacity(buffer, text);
        let (mut line, mut lines) = (Vec::new(), Vec::new());
        while let Some(fits) = read_line(&mut input, &mut line).unwrap() {
            lines.push((line.clone(), fits));
        }
        lines
    }

    #[test]
    fn lines_are_the_same_whatever_the_buffer() {
        for buffer in 1..12 {
            let expected = [&b"one"[..], b"", b"three", b"four"].map(|line| (line.to_vec(), true));
            assert_eq!(lines(b"one\r\n\nthree\nfour", buffer), expected);
        }
    }

    #[test]
    fn an_endless_line_is_skipped_and_holds_no_memory() {
        let mut text = vec![b'x'; MAX_LINE + 1];
        text.extend_from_slice(b"\nnext\n");
        let lines = lines(&text, 8192);
        assert!(!lines[0].1 && lines[0].0.len() <= MAX_LINE);
        assert_eq!(lines[1], (b"next".to_vec(), true));
    }
}
