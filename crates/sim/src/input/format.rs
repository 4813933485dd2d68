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
    /// Squid's native log, or Traffic Server's with the same columns.
    Squid,
    /// The access log of granian.
    Granian,
    /// The log of Tornado.
    Tornado,
    /// The log of gin.
    Gin,
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
         [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 512`; vhost_combined; those of Envoy, HAProxy, Squid, granian, Tornado, \
         gin and AWS load balancers), lines with named fields and a time (JSON, logfmt, CSV with a header, W3C logs with #Fields) and \
         requests per second (whole numbers with blanks between them)";
    const ALL: [(Self, &'static str, &'static str); 14] = [
        (Self::AccessLog, "combined", "an access log"),
        (
            Self::VhostCombined,
            "vhost_combined",
            "a vhost_combined access log",
        ),
        (Self::Envoy, "envoy", "an Envoy access log"),
        (Self::Alb, "alb", "a load balancer's access log"),
        (Self::Haproxy, "haproxy", "a log of HAProxy"),
        (Self::Squid, "squid", "a log of Squid"),
        (Self::Granian, "granian", "a log of granian"),
        (Self::Tornado, "tornado", "a log of Tornado"),
        (Self::Gin, "gin", "a log of gin"),
        (Self::JsonLines, "jsonl", "JSON lines"),
        (Self::Logfmt, "logfmt", "logfmt"),
        (Self::W3c, "w3c", "a W3C log"),
        (Self::Csv, "csv", "a table with a header"),
        (Self::Rate, "rate", "requests per second"),
    ];

    /// The format of most of these lines.
    pub(super) fn detect<L: AsRef<[u8]>>(lines: impl Iterator<Item = L>) -> Detected {
        let mut detected = Detected::default();
        let mut header = None;
        for (at, line) in lines.enumerate() {
            let line = line.as_ref();
            match at {
                _ if Header::directive(line).is_some() => return Detected::only(Self::W3c),
                0 => header = Header::of_table(line),
                1 if header
                    .take()
                    .is_some_and(|header| header.fields(line).is_ok()) =>
                {
                    return Detected::only(Self::Csv);
                }
                _ => {}
            }
            detected.add(Self::of_line(line), line);
        }
        detected
    }

    /// The format of a line, each of whose columns must hold what it must.
    pub(super) fn of_line(line: &[u8]) -> Option<Self> {
        let times = &mut TimeCache::default();
        let is_count = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace();
        if line.starts_with(b"{") {
            return Some(Self::JsonLines);
        } else if line.iter().all(is_count) {
            return Some(Self::Rate);
        }
        let text = Self::TEXTS
            .into_iter()
            .find(|format| format.access_line(line, times).is_ok());
        text.or_else(|| logfmt(line).map(|_| Self::Logfmt))
    }

    /// The formats of servers' lines, of which a line is at most one.
    const TEXTS: [Self; 9] = [
        Self::AccessLog,
        Self::VhostCombined,
        Self::Envoy,
        Self::Alb,
        Self::Haproxy,
        Self::Squid,
        Self::Granian,
        Self::Tornado,
        Self::Gin,
    ];

    /// Whether a line is a server's text, as it writes it for each request.
    pub(super) fn is_access_line(self) -> bool {
        Self::TEXTS.contains(&self)
    }

    /// Parses a line of one of the [`TEXTS`](Self::TEXTS); any other format as an access log.
    pub(super) fn access_line<'a>(
        self,
        line: &'a [u8],
        times: &mut TimeCache,
    ) -> Result<AccessLine<'a>, LineError> {
        match self {
            Self::VhostCombined => AccessLine::vhost(line, times),
            Self::Envoy => AccessLine::envoy(line, times),
            Self::Alb => AccessLine::alb(line, times),
            Self::Haproxy => AccessLine::haproxy(line, times),
            Self::Squid => AccessLine::squid(line),
            Self::Granian => AccessLine::granian(line, times),
            Self::Tornado => AccessLine::tornado(line, times),
            Self::Gin => AccessLine::gin(line, times),
            _ => AccessLine::common(line, times),
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

/// A format, or `None` for no known one; the number of its lines, and the first of them.
type Kind<'a> = (Option<Format>, usize, &'a [u8]);

/// How many of a log's first lines each format fits.
#[derive(Clone, Debug, Default)]
pub(super) struct Detected {
    /// How many lines a format fits, and the first of them.
    votes: Vec<(Format, usize, Vec<u8>)>,
    /// The lines that no format fits.
    unknown: Vec<Vec<u8>>,
}

impl Detected {
    fn only(format: Format) -> Self {
        Self {
            votes: vec![(format, 1, Vec::new())],
            ..Self::default()
        }
    }

    fn add(&mut self, format: Option<Format>, line: &[u8]) {
        let Some(format) = format else {
            // A comment says nothing about the other lines.
            if !line.starts_with(b"#") {
                self.unknown.push(line.to_vec());
            }
            return;
        };
        match self.votes.iter_mut().find(|(known, ..)| *known == format) {
            Some((_, votes, _)) => *votes += 1,
            None => self.votes.push((format, 1, line.to_vec())),
        }
        self.votes
            .sort_by_key(|(_, votes, _)| std::cmp::Reverse(*votes));
    }

    /// The format that fits most lines.
    pub fn format(&self) -> Option<Format> {
        let &(format, votes, _) = self.votes.first()?;
        (2 * votes > self.lines()).then_some(format)
    }

    pub fn lines(&self) -> usize {
        self.votes.iter().map(|(_, votes, _)| votes).sum::<usize>() + self.unknown.len()
    }

    /// The two kinds of lines of which there are most, if a format fits some: each with its number
    /// and its first line.
    pub fn kinds(&self) -> Option<[Kind<'_>; 2]> {
        let (format, votes, line) = self.votes.first()?;
        let first = self.unknown.first().map_or(&[][..], Vec::as_slice);
        let unknown = (None, self.unknown.len(), first);
        let second = self
            .votes
            .get(1)
            .map(|(format, votes, line)| (Some(*format), *votes, &line[..]));
        let second = second
            .filter(|second| second.1 >= unknown.1)
            .unwrap_or(unknown);
        Some([(Some(*format), *votes, line), second])
    }

    /// The lines that no format fits.
    pub fn unknown(&self) -> &[Vec<u8>] {
        &self.unknown
    }
}

/// A text is not a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "choose common, combined, vhost_combined, envoy, alb, haproxy, squid, granian, tornado or gin (access logs), jsonl, logfmt, w3c, csv, or rate; or leave it out to have it detected"
)]
pub struct UnknownFormat;
