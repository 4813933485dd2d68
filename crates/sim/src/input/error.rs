//! Why a log cannot be read, in whole or in part.

use std::{fmt, io};

use super::{format::Format, line::LineError, timestamp::write_utc};
use crate::workload::{By, Field};

/// A line that is not a request. In a file of requests per second, it is a number instead of a
/// line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedLine {
    /// The name of the source.
    pub source: String,
    /// The line's number in it, from 1.
    pub line: u64,
    /// Why it is not a request.
    pub error: LineError,
}

impl fmt::Display for FailedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.source, self.line, self.error)
    }
}

/// The lines that are not requests: their number, and the first few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unparsed {
    /// The number of such lines.
    pub count: u64,
    /// The first of them, at most [`Unparsed::SHOWN`].
    pub first: Vec<FailedLine>,
}

impl Unparsed {
    /// How many of them are kept.
    pub const SHOWN: usize = 5;

    pub(super) fn add(&mut self, source: &str, line: u64, error: LineError) {
        self.count += 1;
        // What says how to make the log readable comes before lines that are no requests at all.
        let advises = error == LineError::FastifyStatus
            && self.first.iter().all(|failed| failed.error != error);
        if advises {
            self.first.truncate(Self::SHOWN - 1);
        }
        if self.first.len() < Self::SHOWN {
            let at = if advises { 0 } else { self.first.len() };
            let source = source.to_owned();
            let failed = FailedLine {
                source,
                line,
                error,
            };
            self.first.insert(at, failed);
        }
    }
}

/// Why there is nothing to replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// A source cannot be opened.
    #[error("cannot open {source_name}: {error}")]
    Open {
        /// The source.
        source_name: String,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// Reading or unpacking a source failed midway.
    #[error("cannot read {source_name}{}: {error}", after_line(*after))]
    Read {
        /// The source.
        source_name: String,
        /// The number of lines (or numbers) read before.
        after: u64,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// None of the first lines has an accepted format.
    #[error(
        "{source_name} is in no form that can be replayed{}; {}",
        advice.as_ref().map(|advice| format!(": {advice}")).unwrap_or_default(),
        Format::ACCEPTED
    )]
    UnknownFormat {
        /// The source.
        source_name: String,
        /// A description of the lines if they are known, and the server's setting that helps.
        advice: Option<String>,
    },
    /// No format fits most of the first lines.
    #[error(
        "no format fits most of the first {lines} lines of {source_name}:\n  {}\n  {}\nName the right one with --format-in; the other \
         lines are then left out and counted",
        readings[0],
        readings[1]
    )]
    Plurality {
        /// The source.
        source_name: String,
        /// The number of lines.
        lines: usize,
        /// How the lines read in two ways.
        readings: [String; 2],
    },
    /// A condition names a field that no line has, so it would exclude nothing.
    #[error(
        "no line has the field `{field}`, so --exclude {field}=… would leave out nothing{}",
        if format.names_fields() { String::new() } else { format!("; {format} has ip, path, method, status, user-agent and host") }
    )]
    NoSuchField {
        /// The field.
        field: String,
        /// The log's format.
        format: Format,
    },
    /// Requests per second have nothing to select by.
    #[error(
        "requests per second have neither fields nor dates, so --exclude, --from and --to select none of them"
    )]
    RateFilter,
    /// The format has no field that could be named as the time's.
    #[error(
        "--time-field is for lines with named fields, and the time of {format} has its own place: leave it out"
    )]
    TimeField {
        /// The format.
        format: Format,
    },
    /// No line has the cost to charge, or the duration.
    #[error(
        "no line has the field `{field}` that {option} names{}",
        if format.names_fields() || *format == Format::Rate { String::new() } else { format!("; {format} has bytes, those of the answer") }
    )]
    NoCost {
        /// The field.
        field: String,
        /// The option.
        option: &'static str,
        /// The log's format.
        format: Format,
    },
    /// No line is a request.
    #[error("none of {} {} parses as {format}{}; {}", unparsed.count, format.parts(), first_of(unparsed), Format::ACCEPTED)]
    NothingParsed {
        /// The format of the lines.
        format: Format,
        /// The lines, and why they are not requests.
        unparsed: Unparsed,
    },
    /// The input has no requests: an empty file, or only zeros.
    #[error("{source_name} has no requests")]
    NoRequests {
        /// The sources.
        source_name: String,
    },
    /// The format does not have what the limit's key needs.
    #[error("{}", no_such_key(by, *format))]
    By {
        /// The key.
        by: By,
        /// The format.
        format: Format,
    },
    /// The sources have different formats.
    #[error(
        "{source_name} holds {format}, but what came before is {before}: replay them one by one, or say --format-in"
    )]
    Mixed {
        /// The format of the sources before.
        before: Format,
        /// The source that differs.
        source_name: String,
        /// Its format.
        format: Format,
    },
    /// The filter left out every request.
    #[error("all {requests} requests, from {} to {}, are left out: see --from, --to and --exclude", write_utc(span.0), write_utc(span.1))]
    AllExcluded {
        /// The number of requests.
        requests: u64,
        /// The times of the first and the last of them.
        span: (u64, u64),
    },
    /// There are more than 4,294,967,295 keys.
    #[error("more than 4294967295 keys: choose a coarser --by, such as ip instead of ip,path")]
    TooManyKeys,
    /// The sum of the costs exceeds 64 bits.
    #[error(
        "the costs of --charge add up to more than 18446744073709551615: replay a part of the log"
    )]
    TooCostly,
    /// Requests per second, and columns whose header was written before, cannot be followed.
    #[error("{0} cannot be followed, because its new lines do not say what they hold")]
    NoLines(Format),
}

fn after_line(after: u64) -> String {
    if after == 0 {
        String::new()
    } else {
        format!(" after line {after}")
    }
}

fn first_of(unparsed: &Unparsed) -> String {
    unparsed
        .first
        .first()
        .map(|first| format!(" ({first})"))
        .unwrap_or_default()
}

fn no_such_key(by: &By, format: Format) -> String {
    if format == Format::Rate {
        return format!(
            "requests per second do not say who asked: use --by global instead of --by {by}"
        );
    }
    let unknown = by
        .fields()
        .iter()
        .find(|field| matches!(field, Field::Named(_)));
    format!(
        "{format} has no `{}`: choose from ip, path, method, status, user-agent, host and global",
        unknown.map_or("such field", Field::name)
    )
}
