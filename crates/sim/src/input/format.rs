//! The formats of logs, and how to detect them.

use std::{fmt, str::FromStr};

use super::{
    access_log::AccessLine, columns::Header, line::LineError, record::logfmt, timestamp::TimeCache,
};

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Common or combined access logs.
    AccessLog,
    /// Access logs with the server's name in front: Debian's `vhost_combined`.
    VhostCombined,
    /// Envoy's default access log.
    Envoy,
    /// The access log of an AWS application load balancer, or of a classic one.
    Alb,
    /// HAProxy's log of HTTP requests.
    Haproxy,
    /// One JSON object per line.
    JsonLines,
    /// `name=value` pairs.
    Logfmt,
    /// The extended log format of the W3C, with a `#Fields:` line: IIS, Amazon's CDN.
    W3c,
    /// Columns separated by commas, semicolons or tabs, below a line with their names.
    Csv,
    /// The number of requests in each second: numbers separated by blanks or line ends.
    Rate,
}

impl Format {
    /// The text for logs of an unknown format.
    pub const ACCEPTED: &'static str = "accepted are access logs (common or combined: `host ident user \
         [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 512`; vhost_combined; those of Envoy, HAProxy and AWS load \
         balancers), lines with named fields and a time (JSON, logfmt, CSV with a header, W3C logs with #Fields) and requests per \
         second (whole numbers with blanks between them)";
    const ALL: [(Self, &'static str, &'static str); 10] = [
        (Self::AccessLog, "combined", "an access log"),
        (
            Self::VhostCombined,
            "vhost_combined",
            "a vhost_combined access log",
        ),
        (Self::Envoy, "envoy", "an Envoy access log"),
        (Self::Alb, "alb", "a load balancer's access log"),
        (Self::Haproxy, "haproxy", "a log of HAProxy"),
        (Self::JsonLines, "jsonl", "JSON lines"),
        (Self::Logfmt, "logfmt", "logfmt"),
        (Self::W3c, "w3c", "a W3C log"),
        (Self::Csv, "csv", "a table with a header"),
        (Self::Rate, "rate", "requests per second"),
    ];

    /// The format of most of these lines.
    pub(super) fn detect<L: AsRef<[u8]>>(lines: impl Iterator<Item = L>) -> Option<Self> {
        let mut votes = [0; Self::ALL.len()];
        let mut header = None;
        for (at, line) in lines.enumerate() {
            let line = line.as_ref();
            match at {
                _ if Header::directive(line).is_some() => return Some(Self::W3c),
                0 => header = Header::of_table(line),
                1 if header
                    .take()
                    .is_some_and(|header| header.fields(line).is_ok()) =>
                {
                    return Some(Self::Csv);
                }
                _ => {}
            }
            if let Some(format) = Self::of_line(line) {
                votes[format as usize] += 1;
            }
        }
        let most = votes.iter().copied().max().filter(|most| *most > 0)?;
        Self::ALL
            .into_iter()
            .map(|(format, ..)| format)
            .find(|format| votes[*format as usize] == most)
    }

    pub(super) fn of_line(line: &[u8]) -> Option<Self> {
        // Lines with other mistakes than at their beginning count too: the head may cut a line off.
        let begins = |line: Result<AccessLine<'_>, LineError>| {
            use LineError::{AccessTime, AlbTime, NotAccessLog, NotAlb, NotEnvoy};
            !matches!(
                line,
                Err(NotAccessLog | AccessTime | NotEnvoy | NotAlb | AlbTime)
            )
        };
        let times = &mut TimeCache::default();
        if line.starts_with(b"{") {
            Some(Self::JsonLines)
        } else if line
            .iter()
            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_whitespace())
        {
            Some(Self::Rate)
        } else if AccessLine::haproxy(line, times).is_ok() {
            // An IPv6 address in front of its port begins like the time of Envoy.
            Some(Self::Haproxy)
        } else if begins(AccessLine::envoy(line, times)) {
            Some(Self::Envoy)
        } else if begins(AccessLine::alb(line, times)) {
            Some(Self::Alb)
        } else if logfmt(line).is_some() {
            Some(Self::Logfmt)
        } else if begins(AccessLine::common(line, times)) {
            if AccessLine::has_vhost(line) {
                Some(Self::VhostCombined)
            } else {
                AccessLine::begins_with_client(line).then_some(Self::AccessLog)
            }
        } else {
            None
        }
    }

    /// Whether the log names its fields, so that a key may be any of them.
    pub(super) const fn names_fields(self) -> bool {
        matches!(self, Self::JsonLines | Self::Logfmt | Self::W3c | Self::Csv)
    }

    /// The elements of the format: lines, or numbers.
    pub const fn parts(self) -> &'static str {
        match self {
            Self::Rate => "numbers",
            _ => "lines",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].2)
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = if text == "common" { "combined" } else { text };
        Self::ALL
            .into_iter()
            .find(|(_, known, _)| *known == name)
            .map(|(format, ..)| format)
            .ok_or(UnknownFormat)
    }
}

/// A text is not a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "choose common, combined, vhost_combined, envoy, alb or haproxy (access logs), jsonl, logfmt, w3c, csv, or rate; or leave it out to have it detected"
)]
pub struct UnknownFormat;
