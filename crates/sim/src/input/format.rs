//! The formats of logs, and how to detect them.

use std::{fmt, str::FromStr};

use super::{access_log::AccessLine, line::LineError, timestamp::TimeCache};

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
    /// The access log of an AWS application load balancer.
    Alb,
    /// One JSON object per line.
    JsonLines,
    /// The number of requests in each second: numbers separated by blanks or line ends.
    Rate,
}

impl Format {
    /// The text for logs of an unknown format.
    pub const ACCEPTED: &'static str = "accepted are access logs (common or combined: `host ident user \
         [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 512`; vhost_combined; Envoy's and an AWS load balancer's), \
         JSON lines (one object a line with a time, as nginx, Caddy and Envoy write them) and requests per second (whole \
         numbers with blanks between them)";
    const ALL: [Self; 6] =
        [Self::AccessLog, Self::VhostCombined, Self::Envoy, Self::Alb, Self::JsonLines, Self::Rate];

    /// The format of most of these lines.
    pub(super) fn detect<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut votes = [0; Self::ALL.len()];
        for line in lines {
            if let Some(format) = Self::of_line(line) {
                votes[format as usize] += 1;
            }
        }
        let most = votes.iter().copied().max().filter(|most| *most > 0)?;
        Self::ALL.into_iter().find(|format| votes[*format as usize] == most)
    }

    pub(super) fn of_line(line: &[u8]) -> Option<Self> {
        // Lines with other mistakes than at their beginning count too: the head may cut a line off.
        let begins = |line: Result<AccessLine<'_>, LineError>| {
            use LineError::{AccessTime, AlbTime, NotAccessLog, NotAlb, NotEnvoy};
            !matches!(line, Err(NotAccessLog | AccessTime | NotEnvoy | NotAlb | AlbTime))
        };
        let times = &mut TimeCache::default();
        if line.starts_with(b"{") {
            Some(Self::JsonLines)
        } else if line.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_whitespace()) {
            Some(Self::Rate)
        } else if begins(AccessLine::envoy(line, times)) {
            Some(Self::Envoy)
        } else if begins(AccessLine::alb(line, times)) {
            Some(Self::Alb)
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
        f.write_str(match self {
            Self::AccessLog => "an access log",
            Self::VhostCombined => "a vhost_combined access log",
            Self::Envoy => "an Envoy access log",
            Self::Alb => "a load balancer's access log",
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
            "vhost_combined" => Ok(Self::VhostCombined),
            "envoy" => Ok(Self::Envoy),
            "alb" => Ok(Self::Alb),
            "jsonl" => Ok(Self::JsonLines),
            "rate" => Ok(Self::Rate),
            _ => Err(UnknownFormat),
        }
    }
}

/// A text is not a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "choose common, combined, vhost_combined, envoy or alb (access logs), jsonl, or rate; or leave it out to have it detected"
)]
pub struct UnknownFormat;

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(head: &[u8]) -> Option<Format> {
        Format::detect(
            head.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()),
        )
    }

    #[test]
    fn the_format_is_detected_from_most_of_the_first_lines() {
        let access = br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
        assert_eq!(detect(&[b"# a comment\n\n", &access[..]].concat()), Some(Format::AccessLog));
        let vhost = [b"www.example.com:80 ", &access[..]].concat();
        assert_eq!(detect(&vhost), Some(Format::VhostCombined));
        let envoy =
            br#"[2015-05-17T10:05:03.250Z] "GET / HTTP/2" 200 - 0 5 1 1 "-" "curl" "id" "h" "tcp://h""#;
        assert_eq!(detect(envoy), Some(Format::Envoy));
        let alb = br#"h2 2015-05-17T10:05:03.1Z app/x 1.2.3.4:9 10.0.0.1:80 0 0 0 200 200 0 57 "GET https://h/ HTTP/2" "curl""#;
        assert_eq!(detect(alb), Some(Format::Alb));
        assert_eq!(detect(b"{\"time\":1}\n{\"ti"), Some(Format::JsonLines));
        assert_eq!(detect(b"1 0 0 3\n5 5"), Some(Format::Rate));
        assert_eq!(detect(b"once upon\na time"), None);
        // Words in front of the client would otherwise be taken for the client.
        for front in ["app INFO access ", "web-1 : ", "x y z | "] {
            assert_eq!(detect(&[front.as_bytes(), &access[..]].concat()), None, "{front}");
        }
        assert_eq!(detect(b"  \n\n"), None);
    }
}
