//! The text that log collectors put in front of a program's line.

use std::borrow::Cow;

use super::{
    access_log::AccessLine,
    client::{has_port, is_address},
    format::{Detected, Format},
    timestamp::{MONTHS, TimeCache, parse_rfc3339},
};

/// How much a program's logger may write in front of a line.
const LONGEST_PREFIX: usize = 256;

/// The text in front of each line of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Envelope {
    /// Nothing.
    #[default]
    Plain,
    /// A container runtime's: `2015-05-17T10:05:03.123456789Z stdout F …`.
    Cri,
    /// `kubectl logs --prefix`: `[pod/web-1/nginx] …`.
    Kubectl,
    /// `docker compose logs`: `web-1  | …`.
    Compose,
    /// Docker's files: `{"log":"…\\n","stream":"stdout","time":"…"}`.
    Docker,
    /// syslog's and journalctl's: `<190>May 17 10:05:03 host nginx[7]: …`, also with a time as in
    /// RFC 3339.
    Syslog,
    /// The prefix of a program's logger in front of an access line: hypercorn's
    /// `[2015-05-17 10:05:03 +0000] [7] [INFO] …`, Spring Boot's `2015-05-17T10:05:03Z INFO 1 --- […] o.a.c.Access : …`,
    /// Python's `INFO:aiohttp.access:…`. It ends where a client's address begins, from which on
    /// the line is an access line.
    Logger,
}

impl Envelope {
    const ALL: [Self; 5] = [
        Self::Cri,
        Self::Kubectl,
        Self::Compose,
        Self::Docker,
        Self::Syslog,
    ];

    /// The envelope of most of the first lines, if the rest of them has a known format.
    pub fn detect(head: &[u8]) -> Self {
        let known = |envelope: Self| {
            let inside = first_lines(head).filter_map(|line| envelope.open(line));
            inside
                .filter(|line| Format::of_line(line.trim_ascii()).is_some())
                .count()
        };
        let total = first_lines(head).count();
        Self::ALL
            .into_iter()
            .chain([Self::Plain, Self::Logger])
            .find(|envelope| 2 * known(*envelope) > total)
            .unwrap_or_default()
    }

    /// The formats of the programs' lines.
    pub fn formats_of(self, head: &[u8]) -> Detected {
        Format::detect(first_lines(head).filter_map(|line| self.open(line)))
    }

    /// Whether the clients of an access log have ports, so that `::1:80` is not an address alone.
    pub fn has_ports(self, head: &[u8]) -> bool {
        let times = &mut TimeCache::default();
        first_lines(head)
            .filter_map(|line| self.open(line))
            .any(|line| AccessLine::common(&line, times).is_ok_and(|line| line.client_has_port()))
    }

    /// The program's line; `None` if the line does not begin as it should, or is only a part of
    /// one.
    pub fn open(self, line: &[u8]) -> Option<Cow<'_, [u8]>> {
        if self == Self::Docker {
            #[derive(serde::Deserialize)]
            struct Wrapped {
                log: String,
                #[serde(rename = "stream")]
                _stream: String,
            }
            let Wrapped { log, .. } = serde_json::from_slice(line).ok()?;
            // A line that is longer than Docker's buffer is in several parts.
            return Some(log.strip_suffix('\n')?.as_bytes().to_vec().into());
        }
        self.behind(line).map(Cow::Borrowed)
    }

    fn behind(self, line: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Plain | Self::Docker => Some(line),
            Self::Logger => behind_logger(line),
            Self::Cri => {
                let (time, rest) = word(line)?;
                let (stream, rest) = word(rest)?;
                let (tag, rest) = word(rest)?;
                let is_whole = tag.split(|&byte| byte == b':').any(|tag| tag == b"F");
                let fits =
                    parse_rfc3339(time).is_some() && [&b"stdout"[..], b"stderr"].contains(&stream);
                (fits && is_whole).then_some(rest)
            }
            Self::Kubectl => {
                let end = line
                    .strip_prefix(b"[pod/")?
                    .windows(2)
                    .position(|two| two == b"] ")?;
                Some(&line[b"[pod/".len() + end + 2..])
            }
            Self::Compose => {
                let bar = line.iter().position(|&byte| byte == b'|')?;
                let name = line[..bar].trim_ascii_end();
                let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
                let fits = name.len() < bar && !name.is_empty() && name.iter().all(is_name);
                fits.then(|| line[bar + 1..].trim_ascii_start())
            }
            Self::Syslog => {
                let line = without_priority(line);
                let line = line.strip_prefix(b"1 ").unwrap_or(line);
                // Everything up to the program's name: month, day and time, or one time; and the
                // host.
                let (first, rest) = word(line)?;
                let rest = if is_time(first) {
                    rest
                } else if MONTHS.contains(&first) {
                    let (day, rest) = word(rest.trim_ascii_start())?;
                    let (time, rest) = word(rest)?;
                    let is_day = day.iter().all(u8::is_ascii_digit);
                    if !is_day || time.split(|&byte| byte == b':').count() != 3 {
                        return None;
                    }
                    rest
                } else {
                    return None;
                };
                let (_host, rest) = word(rest)?;
                let (program, behind) = word(rest)?;
                if program.ends_with(b":") {
                    return Some(behind);
                }
                // RFC 5424: program, process, message's name, and structured data.
                let (_process, behind) = word(behind)?;
                let (_name, behind) = word(behind)?;
                match behind.first()? {
                    b'-' => behind.strip_prefix(b"- "),
                    b'[' => behind
                        .windows(2)
                        .position(|two| two == b"] ")
                        .map(|end| &behind[end + 2..]),
                    _ => None,
                }
            }
        }
    }
}

/// The access line behind a logger's prefix. Nothing in front of it is from the client.
fn behind_logger(line: &[u8]) -> Option<&[u8]> {
    let end = line.len().min(LONGEST_PREFIX);
    let starts = (1..end).filter(|&at| b" :|]".contains(&line[at - 1]));
    let found = starts.map(|at| line.split_at(at)).find(|(_, rest)| {
        let client = rest.split(|&byte| byte == b' ').next().unwrap_or_default();
        (is_address(client) || has_port(client))
            && AccessLine::common(rest, &mut TimeCache::default()).is_ok()
    });
    let (prefix, rest) = found?;
    // A single word could be a column, and `:` in front of `::` a part of what is no address.
    let prefix = prefix.trim_ascii();
    let is_of_address = |byte: &u8| byte.is_ascii_hexdigit() || b".:".contains(byte);
    let is_prefix = prefix.contains(&b' ')
        || prefix.last().is_some_and(|end| b":]|".contains(end))
            && !prefix.iter().all(is_of_address);
    is_prefix.then_some(rest)
}

/// The text in front of an access line with any client.
pub(super) fn prefix(line: &[u8]) -> Option<&[u8]> {
    let end = line.len().min(LONGEST_PREFIX);
    let mut starts = (1..end).filter(|&at| line[at - 1] == b' ');
    let is_line = |at: &usize| Format::of_line(&line[*at..]).is_some_and(Format::is_access_line);
    starts.find(is_line).map(|at| &line[..at])
}

/// The lines that a format is detected from.
fn first_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = head.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty()).take(100)
}

/// The text up to the next blank, and the text after it.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&byte| byte == b' ')?;
    (end > 0).then(|| (&text[..end], &text[end + 1..]))
}

/// Whether it is a time as in RFC 3339, or as journalctl writes it, without the colon in `+02:00`.
fn is_time(text: &[u8]) -> bool {
    parse_rfc3339(text).is_some()
        || text
            .split_last_chunk()
            .is_some_and(|(begin, minutes): (_, &[u8; 2])| {
                parse_rfc3339(&[begin, b":", minutes].concat()).is_some()
            })
}

/// The line without `<190>`.
fn without_priority(line: &[u8]) -> &[u8] {
    let end = |line: &[u8]| line.iter().take(5).position(|&byte| byte == b'>');
    match (line.first(), end(line)) {
        (Some(b'<'), Some(end)) if end > 1 && line[1..end].iter().all(u8::is_ascii_digit) => {
            &line[end + 1..]
        }
        _ => line,
    }
}
