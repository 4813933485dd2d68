//! What keeps a log from being read, whole or in part.

use std::{fmt, io};

use super::{
    by::{By, Field},
    format::Format,
    line::LineError,
    timestamp::write_utc,
};

/// A line (in a file of requests per second: a number) that is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedLine {
    /// The source it is in.
    pub source: String,
    /// Its number there, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub error: LineError,
}

impl fmt::Display for FailedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.source, self.line, self.error)
    }
}

/// The lines that are no requests: how many, and the first few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unparsed {
    /// How many there are.
    pub count: u64,
    /// The first of them, at most [`Unparsed::SHOWN`].
    pub first: Vec<FailedLine>,
}

impl Unparsed {
    /// How many are kept to be shown.
    pub const SHOWN: usize = 5;

    pub(super) fn add(&mut self, source: &str, line: u64, error: LineError) {
        self.count += 1;
        if self.first.len() < Self::SHOWN {
            self.first.push(FailedLine { source: source.to_owned(), line, error });
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
        /// Which.
        source_name: String,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A source breaks off, or cannot be unpacked.
    #[error("cannot read {source_name}{}: {error}", after_line(*after))]
    Read {
        /// Which.
        source_name: String,
        /// Lines (or numbers) read before.
        after: u64,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// None of the first lines has an accepted form.
    #[error("{source_name} is in no form that can be replayed; {}", Format::ACCEPTED)]
    UnknownFormat {
        /// Of which source.
        source_name: String,
    },
    /// Not one line is a request.
    #[error("none of {} {} parses as {format}{}; {}", unparsed.count, format.parts(), first_of(unparsed), Format::ACCEPTED)]
    NothingParsed {
        /// How the lines were read.
        format: Format,
        /// What is wrong with them.
        unparsed: Unparsed,
    },
    /// There are no requests at all: an empty file, or zeros alone.
    #[error("there are no requests in {source_name}")]
    NoRequests {
        /// The sources.
        source_name: String,
    },
    /// The form has nothing of the kind that the limit is to be keyed by.
    #[error("{}", no_such_key(by, *format))]
    By {
        /// The key.
        by: By,
        /// The form.
        format: Format,
    },
    /// The sources have different forms.
    #[error(
        "{source_name} holds {format}, but what came before is {before}: replay them one by one, or say --format-in"
    )]
    Mixed {
        /// The form of those before.
        before: Format,
        /// The source that differs.
        source_name: String,
        /// Its form.
        format: Format,
    },
    /// Every request was left out by a filter.
    #[error("all {requests} requests, from {} to {}, are left out: see --since, --until and --exclude", write_utc(span.0), write_utc(span.1))]
    AllExcluded {
        /// How many there were.
        requests: u64,
        /// When the first and the last of them came.
        span: (u64, u64),
    },
    /// More than 4,294,967,295 keys.
    #[error("more than 4294967295 keys: choose a coarser --by, such as ip instead of ip,path")]
    TooManyKeys,
    /// Requests per second cannot be followed.
    #[error("requests per second have no lines that could be followed")]
    NoLines,
}

fn after_line(after: u64) -> String {
    if after == 0 { String::new() } else { format!(" after line {after}") }
}

fn first_of(unparsed: &Unparsed) -> String {
    unparsed.first.first().map(|first| format!(" ({first})")).unwrap_or_default()
}

fn no_such_key(by: &By, format: Format) -> String {
    if format == Format::Rate {
        return format!("requests per second do not say who asked: use --by global instead of --by {by}");
    }
    let unknown = by.fields().iter().find(|field| matches!(field, Field::Named(_)));
    format!(
        "{format} has no `{}`: choose from ip, path, method, status, user-agent, host and global",
        unknown.map_or("such field", Field::name)
    )
}
