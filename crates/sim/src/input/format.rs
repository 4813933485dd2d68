//! The forms that a log may have, and which one a text has.

use std::{fmt, str::FromStr};

use super::{access_log::AccessLine, line::LineError};

/// A form of log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Common or combined access logs.
    AccessLog,
    /// One JSON object a line.
    JsonLines,
    /// How many requests came in each second: numbers with blanks or line ends between them.
    Rate,
}

impl Format {
    /// What to say where no form fits.
    pub const ACCEPTED: &'static str = "accepted are access logs (common or combined: `host ident user [17/May/2015:10:05:03 +0000] \
         \"GET / HTTP/1.1\" 200 512`), JSON lines (one object a line with a time) and requests per second (whole \
         numbers with blanks between them)";

    /// The form that most of the first lines have.
    pub(super) fn detect(head: &[u8]) -> Option<Self> {
        const LINES: usize = 100;
        let lines =
            head.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).take(LINES);
        let mut votes = [(Self::AccessLog, 0), (Self::JsonLines, 0), (Self::Rate, 0)];
        for line in lines {
            for (format, votes) in &mut votes {
                *votes += u32::from(format.resembles(line.trim_ascii()));
            }
        }
        votes
            .into_iter()
            .rev()
            .max_by_key(|(_, votes)| *votes)
            .filter(|(_, votes)| *votes > 0)
            .map(|(format, _)| format)
    }

    fn resembles(self, line: &[u8]) -> bool {
        match self {
            // Also a line with other faults than in its time: the head may cut it off.
            Self::AccessLog => {
                !matches!(AccessLine::parse(line), Err(LineError::NotAccessLog | LineError::AccessTime))
            }
            Self::JsonLines => line.starts_with(b"{"),
            Self::Rate => line.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_whitespace()),
        }
    }

    /// What it is made of: lines, or numbers.
    #[must_use]
    pub const fn parts(self) -> &'static str {
        match self {
            Self::AccessLog | Self::JsonLines => "lines",
            Self::Rate => "numbers",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AccessLog => "an access log",
            Self::JsonLines => "JSON lines",
            Self::Rate => "requests per second",
        })
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "combined" | "common" => Ok(Self::AccessLog),
            "jsonl" => Ok(Self::JsonLines),
            "rate" => Ok(Self::Rate),
            _ => Err(UnknownFormat),
        }
    }
}

/// A name of no form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFormat;

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "choose common or combined (access logs), jsonl, or rate; or leave it out to have it detected",
        )
    }
}

impl std::error::Error for UnknownFormat {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_told_by_most_of_the_first_lines() {
        let access = br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
        assert_eq!(Format::detect(&[b"# a comment\n\n", &access[..]].concat()), Some(Format::AccessLog));
        assert_eq!(Format::detect(b"{\"time\":1}\n{\"ti"), Some(Format::JsonLines));
        assert_eq!(Format::detect(b"1 0 0 3\n5 5"), Some(Format::Rate));
        assert_eq!(Format::detect(b"once upon\na time"), None);
        assert_eq!(Format::detect(b"  \n\n"), None);
    }
}
