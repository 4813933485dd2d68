//! Lines of the common and the combined log format:
//! `host ident user [time] "request" status bytes "referer" "user agent"`, the time as `17/May/2015:10:05:03 +0000` or
//! as RFC 3339 has it.

use super::{
    by::{By, Field},
    line::LineError,
    timestamp::{parse_access_log_time, parse_rfc3339},
};

/// The parts of a line that a limit may be keyed by. Texts are as the log has them, escapes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessLine<'a> {
    /// The first column.
    pub ip: &'a [u8],
    /// Nanoseconds since 1970.
    pub time: u64,
    /// `-` where the request has no method (not HTTP, or nothing was sent).
    pub method: &'a [u8],
    /// Without the query; where the request has no method, all of it.
    pub path: &'a [u8],
    /// Three digits, or `-`.
    pub status: &'a [u8],
    /// The combined format alone has it.
    pub user_agent: Option<&'a [u8]>,
}

impl<'a> AccessLine<'a> {
    /// Reads a line.
    ///
    /// # Errors
    /// When it has no host, no time in brackets, no request in quotes, or no status.
    pub fn parse(line: &'a [u8]) -> Result<Self, LineError> {
        let blank = line.iter().position(|&byte| byte == b' ').ok_or(LineError::NotAccessLog)?;
        let (ip, rest) = line.split_at(blank);
        if ip.is_empty() {
            return Err(LineError::NotAccessLog);
        }
        let (time, rest) = bracketed_time(rest)?;
        let (request, rest) = quoted(rest).ok_or(LineError::NoRequest)?;
        let (status, rest) = word(rest);
        let digits = status.len() == 3 && status.iter().all(u8::is_ascii_digit);
        if !digits && status != b"-" {
            return Err(LineError::NoStatus);
        }
        let (method, path) = split_request(request);
        let (_bytes, rest) = word(rest);
        let user_agent = quoted(rest).and_then(|(_referer, rest)| quoted(rest)).map(|(agent, _)| agent);
        Ok(Self { ip, time, method, path, status, user_agent })
    }

    /// Puts together the line's key.
    ///
    /// # Errors
    /// When the line has no user agent, or a part is a field of JSON lines.
    pub(crate) fn key(&self, by: &By, key: &mut Vec<u8>) -> Result<(), LineError> {
        for field in by.fields() {
            let part = match field {
                Field::Ip => self.ip,
                Field::Path => self.path,
                Field::Method => self.method,
                Field::Status => self.status,
                Field::UserAgent => self.user_agent.ok_or(LineError::NoUserAgent)?,
                Field::Named(name) => return Err(LineError::NoField(name.clone())),
            };
            by.push(key, part);
        }
        Ok(())
    }
}

/// The first bracket that holds a time, and what follows it: a user's name may hold brackets too.
fn bracketed_time(mut rest: &[u8]) -> Result<(u64, &[u8]), LineError> {
    let mut error = LineError::NotAccessLog;
    while let Some(open) = rest.iter().position(|&byte| byte == b'[') {
        rest = &rest[open + 1..];
        let Some(close) = rest.iter().position(|&byte| byte == b']') else { break };
        let text = &rest[..close];
        match parse_access_log_time(text).or_else(|| parse_rfc3339(text)) {
            Some(time) => return Ok((time, &rest[close + 1..])),
            None => error = LineError::AccessTime,
        }
    }
    Err(error)
}

/// The text between the next two quotes, a quote behind a backslash being none, and what follows.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let mut escaped = false;
    let end = text.iter().position(|&byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    Some((&text[..end], &text[end + 1..]))
}

fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    text.split_at(text.iter().position(|&byte| byte == b' ').unwrap_or(text.len()))
}

fn split_request(request: &[u8]) -> (&[u8], &[u8]) {
    let (method, rest) = word(request);
    let (target, _) = word(rest);
    if target.is_empty() {
        return (b"-", request);
    }
    let query = target.iter().position(|&byte| byte == b'?').unwrap_or(target.len());
    (method, &target[..query])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMBINED: &[u8] = br#"83.149.9.216 - frank [17/May/2015:10:05:03 +0000] "GET /a/b.png?x=1 HTTP/1.1" 200 203 "http://e/" "Mozilla \"5\" (X)""#;

    #[test]
    fn a_combined_line_gives_every_part() {
        let line = AccessLine::parse(COMBINED).unwrap();
        assert_eq!(line.ip, b"83.149.9.216");
        assert_eq!(line.time, 1_431_857_103_000_000_000);
        assert_eq!((line.method, line.path, line.status), (&b"GET"[..], &b"/a/b.png"[..], &b"200"[..]));
        assert_eq!(line.user_agent, Some(&br#"Mozilla \"5\" (X)"#[..]));
    }

    #[test]
    fn a_common_line_has_no_user_agent() {
        let line =
            AccessLine::parse(br#"::1 - - [17/May/2015:10:05:03 +0000] "HEAD / HTTP/1.0" 304 -"#).unwrap();
        assert_eq!((line.ip, line.method, line.user_agent), (&b"::1"[..], &b"HEAD"[..], None));
        let by: By = "user-agent".parse().unwrap();
        assert_eq!(line.key(&by, &mut Vec::new()), Err(LineError::NoUserAgent));
    }

    #[test]
    fn a_time_may_be_as_rfc3339_writes_it() {
        let line =
            AccessLine::parse(br#"1.2.3.4 - - [2015-05-17T10:05:03+00:00] "GET / HTTP/1.1" 200 5"#).unwrap();
        assert_eq!(line.time, 1_431_857_103_000_000_000);
    }

    #[test]
    fn what_is_not_http_is_still_a_request() {
        let line =
            AccessLine::parse(br#"1.2.3.4 - a [b] [17/May/2015:10:05:03 +0000] "\x16\x03" 400 0 "-" "-""#)
                .unwrap();
        assert_eq!((line.method, line.path), (&b"-"[..], &br"\x16\x03"[..]));
        let line = AccessLine::parse(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "" 408 0"#).unwrap();
        assert_eq!((line.method, line.path), (&b"-"[..], &b""[..]));
    }

    #[test]
    fn a_broken_line_says_what_it_lacks() {
        let error = |line: &[u8]| AccessLine::parse(line).unwrap_err();
        assert_eq!(error(b"# comment"), LineError::NotAccessLog);
        assert_eq!(error(br#"1.2.3.4 - - [32/May/2015:10:05:03 +0000] "GET /" 200"#), LineError::AccessTime);
        assert_eq!(error(b"1.2.3.4 - - [17/May/2015:10:05:03 +0000] GET / 200"), LineError::NoRequest);
        assert_eq!(error(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HT"#), LineError::NoRequest);
        assert_eq!(
            error(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 20"#),
            LineError::NoStatus
        );
    }

    proptest! {
        #[test]
        fn no_line_makes_the_parser_panic(noise in proptest::collection::vec(any::<u8>(), 0..20), at in 0..COMBINED.len(), cut in 0..20_usize) {
            let mut line = COMBINED.to_vec();
            let end = (at + cut).min(line.len());
            line.splice(at..end, noise);
            if let Ok(parsed) = AccessLine::parse(&line) {
                let by: By = "ip,path,method,status".parse().unwrap();
                prop_assert_eq!(parsed.key(&by, &mut Vec::new()), Ok(()));
            }
        }
    }
}
