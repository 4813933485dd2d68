//! Reads sources, one after another, into one trace.

use std::{
    fs::File,
    io::{self, BufRead, Read},
    path::PathBuf,
};

use super::{
    access_log::AccessLine,
    by::{By, Field},
    error::{InputError, Unparsed},
    format::Format,
    json_lines::{self, TimeField},
    line::{LineError, read_line},
    rates::read_count,
    unpack::unpack,
};
use crate::{
    progress::Progress,
    workload::{Trace, TraceBuilder},
};

const SECOND: u64 = 1_000_000_000;
/// How much of a source is looked at to tell its form.
const HEAD: usize = 64 * 1024;
/// The last second that a request may come in, 146 years after the first: later ones saturate there.
const LAST_SECOND: u64 = (1 << 62) / SECOND - 1;

/// Where a log comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl Source {
    /// How messages call it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Stdin => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    fn open(&self) -> io::Result<Box<dyn Read>> {
        Ok(match self {
            Self::Stdin => Box::new(io::stdin()),
            Self::File(path) => Box::new(File::open(path)?),
        })
    }
}

/// How sources are read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Their form; `None` detects it.
    pub format: Option<Format>,
    /// What limits are keyed by; `None` is by address, for requests per second one limit for all.
    pub by: Option<By>,
    /// Where JSON lines have their time.
    pub time_field: TimeField,
    /// In requests per second, whether those of a second come evenly over it. Otherwise they come at its start, as
    /// they do in a log whose times are whole seconds.
    pub spread: bool,
}

/// A log, read.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Its requests.
    pub trace: Trace,
    /// Its form.
    pub format: Format,
    /// What its keys are.
    pub by: By,
    /// Lines that are not blank (for requests per second: numbers).
    pub lines: u64,
    /// Those of them that are no requests.
    pub unparsed: Unparsed,
}

/// Reads sources, one after another: their requests are put in the order of their times, requests per second go on
/// where the source before ended.
///
/// `progress` counts lines.
///
/// # Errors
/// When a source cannot be read to its end, when no line of it is a request, or when the key asks for what the form
/// does not have.
pub fn read(sources: &[Source], options: &Options, progress: &Progress) -> Result<Loaded, InputError> {
    let mut reading: Option<Reading<'_>> = None;
    for source in sources {
        let source_name = source.name();
        let failed = |error| InputError::Read { source_name: source.name(), after: 0, error };
        let input = source.open().map_err(|error| InputError::Open { source_name: source.name(), error })?;
        let mut input = unpack(input).map_err(failed)?;
        let mut head = Vec::with_capacity(HEAD);
        (&mut input).take(HEAD as u64).read_to_end(&mut head).map_err(failed)?;
        if head.trim_ascii().is_empty() && head.len() < HEAD {
            continue;
        }
        let format = options.format.or_else(|| Format::detect(&head));
        let format = format.ok_or_else(|| InputError::UnknownFormat { source_name: source_name.clone() })?;
        let reading = match &mut reading {
            None => reading.insert(Reading::new(format, options, progress)?),
            Some(reading) if reading.format != format => {
                return Err(InputError::Mixed { before: reading.format, source_name, format });
            }
            Some(reading) => reading,
        };
        reading.source(&source_name, io::Cursor::new(head).chain(input))?;
    }
    let names = || sources.iter().map(Source::name).collect::<Vec<_>>().join(", ");
    reading.ok_or_else(|| InputError::NoRequests { source_name: names() })?.finish(names)
}

struct Reading<'a> {
    format: Format,
    options: &'a Options,
    progress: &'a Progress,
    by: By,
    trace: TraceBuilder,
    lines: u64,
    unparsed: Unparsed,
    /// Of requests per second.
    second: u64,
}

impl<'a> Reading<'a> {
    fn new(format: Format, options: &'a Options, progress: &'a Progress) -> Result<Self, InputError> {
        let default = || if format == Format::Rate { By::GLOBAL } else { By::ip() };
        let by = options.by.clone().unwrap_or_else(default);
        let fits = match format {
            Format::JsonLines => true,
            Format::AccessLog => !by.fields().iter().any(|field| matches!(field, Field::Named(_))),
            Format::Rate => by == By::GLOBAL,
        };
        if !fits {
            return Err(InputError::By { by, format });
        }
        let trace = TraceBuilder::new(by.clone());
        Ok(Self { format, options, progress, by, trace, lines: 0, unparsed: Unparsed::default(), second: 0 })
    }

    fn source(&mut self, name: &str, mut input: impl BufRead) -> Result<(), InputError> {
        let before = self.lines;
        let read = match self.format {
            Format::Rate => self.counts(name, &mut input),
            Format::AccessLog | Format::JsonLines => self.log_lines(name, &mut input),
        };
        let after = self.lines - before;
        read.map_err(|error| InputError::Read { source_name: name.to_owned(), after, error })?
    }

    /// The outer error is the stream's, the inner one the log's.
    fn counts(&mut self, name: &str, input: &mut impl BufRead) -> io::Result<Result<(), InputError>> {
        let mut number = 0;
        while let Some(count) = read_count(input)? {
            number += 1;
            self.lines += 1;
            self.progress.add(1);
            let time = self.second.min(LAST_SECOND) * SECOND;
            match count {
                Ok(count) if !self.trace.push(b"", time, count) => return Ok(Err(InputError::TooManyKeys)),
                Ok(_) => {}
                Err(error) => self.unparsed.add(name, number, error),
            }
            self.second += 1;
        }
        Ok(Ok(()))
    }

    fn log_lines(&mut self, name: &str, input: &mut impl BufRead) -> io::Result<Result<(), InputError>> {
        let (mut line, mut key) = (Vec::new(), Vec::new());
        let mut number = 0;
        while let Some(fits) = read_line(input, &mut line)? {
            number += 1;
            if fits && line.trim_ascii().is_empty() {
                continue;
            }
            self.lines += 1;
            self.progress.add(1);
            key.clear();
            let time = if fits { self.line(&line, &mut key) } else { Err(LineError::TooLong) };
            match time {
                Ok(time) if !self.trace.push(&key, time, 1) => return Ok(Err(InputError::TooManyKeys)),
                Ok(_) => {}
                Err(error) => self.unparsed.add(name, number, error),
            }
        }
        Ok(Ok(()))
    }

    fn line(&self, line: &[u8], key: &mut Vec<u8>) -> Result<u64, LineError> {
        if self.format == Format::JsonLines {
            return json_lines::parse(line, &self.options.time_field, &self.by, key);
        }
        let line = AccessLine::parse(line)?;
        line.key(&self.by, key)?;
        Ok(line.time)
    }

    fn finish(self, names: impl Fn() -> String) -> Result<Loaded, InputError> {
        let Self { format, by, trace, lines, unparsed, .. } = self;
        if unparsed.count == lines {
            return Err(InputError::NothingParsed { format, unparsed });
        }
        if trace.requests() == 0 {
            return Err(InputError::NoRequests { source_name: names() });
        }
        let spread = if self.options.spread && format == Format::Rate { SECOND } else { 0 };
        let trace = trace.build(format != Format::Rate, spread);
        Ok(Loaded { trace, format, by, lines, unparsed })
    }
}
