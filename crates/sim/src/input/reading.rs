//! Reading the requests of sources that have one format.

use std::io::{self, BufRead};

use super::{
    charge::cost,
    columns::Header,
    envelope::Envelope,
    error::{InputError, Unparsed},
    filter::Condition,
    format::Format,
    line::{LineError, each_line},
    options::Options,
    proof::{Ends, Proof, Sample},
    rates::read_count,
    record::Record,
    request::{LogRequest, Stamp},
    timestamp::TimeCache,
};
use crate::{
    progress::Progress,
    workload::{By, Field, Trace, TraceBuilder},
};

const SECOND: u64 = 1_000_000_000;
/// The last second for a request, 146 years after the first: later ones saturate there.
const LAST_SECOND: u64 = (1 << 62) / SECOND - 1;
/// Among how many of the first requests the samples are.
const SAMPLED_FROM: u64 = 1_000;
/// How many lines are read between two progress reports.
const TOLD: u64 = 4_096;

/// Why reading stops early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error(transparent)]
    Stream(#[from] io::Error),
    #[error(transparent)]
    Log(#[from] InputError),
    #[error("asked to stop")]
    Asked,
}

impl Stopped {
    /// The same with the name of its source, of which so many lines were read before.
    pub fn of(self, source: &str, after: u64) -> Self {
        match self {
            Self::Stream(error) => Self::Log(InputError::Read {
                source_name: source.to_owned(),
                after,
                error,
            }),
            other => other,
        }
    }

    /// The error; `None` if reading was asked to stop.
    pub fn into_error(self, source: &str) -> Option<InputError> {
        match self.of(source, 0) {
            Self::Log(error) => Some(error),
            Self::Asked | Self::Stream(_) => None,
        }
    }
}

/// The destination of requests.
pub(super) struct RequestTarget {
    conditions: Vec<Condition>,
    pub by: By,
    pub trace: TraceBuilder,
    /// Whether a request without the key's fields counts as an invalid line, instead of a request
    /// without a limit.
    needs_key: bool,
    pub keyless: u64,
}

impl RequestTarget {
    pub fn new(conditions: Vec<Condition>, by: By, needs_key: bool) -> Self {
        Self {
            conditions,
            trace: TraceBuilder::new(by.clone()),
            by,
            needs_key,
            keyless: 0,
        }
    }

    pub fn finish(self, format: Format, spread: bool) -> Trace {
        let spread = match format {
            _ if !spread => 0,
            Format::Rate => SECOND,
            _ => self.trace.resolution(),
        };
        self.trace.build(format != Format::Rate, spread)
    }
}

pub(super) struct Reading<'a> {
    pub format: Format,
    /// That of the current source.
    envelope: Envelope,
    /// The columns of the current source.
    header: Option<Header>,
    options: &'a Options,
    progress: &'a Progress,
    pub targets: Vec<RequestTarget>,
    pub lines: u64,
    pub unparsed: Unparsed,
    /// The number of requests taken, and of those left out.
    pub taken: u64,
    pub excluded: u64,
    pub excluded_span: (u64, u64),
    /// For each condition of the filter, whether a line had its field.
    pub has_field: Vec<bool>,
    /// Whether a request had a cost to charge.
    pub has_cost: bool,
    /// The sum of these costs.
    charged: u64,
    /// The current second, for requests per second.
    second: u64,
    pub times: TimeCache,
    /// The key under construction.
    key: Vec<u8>,
    /// Whether the clients of the current source have ports.
    has_ports: bool,
    pub proof: Proof,
    /// The keys of the samples.
    sampled: Vec<Vec<Option<String>>>,
    /// The sources so far.
    ends: Vec<(String, Ends)>,
}

impl<'a> Reading<'a> {
    pub fn new(
        format: Format,
        targets: Vec<RequestTarget>,
        options: &'a Options,
        progress: &'a Progress,
    ) -> Self {
        Self {
            format,
            envelope: Envelope::Plain,
            header: None,
            options,
            progress,
            targets,
            lines: 0,
            unparsed: Unparsed::default(),
            taken: 0,
            excluded: 0,
            excluded_span: (u64::MAX, 0),
            has_field: vec![false; options.filter.exclude.len()],
            has_cost: false,
            charged: 0,
            second: 0,
            times: TimeCache::new(options.zone.clone()),
            key: Vec::new(),
            has_ports: false,
            proof: Proof {
                stamped: options.stamped,
                ..Proof::default()
            },
            sampled: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Prepares for a source that begins with `head`.
    pub fn begin(&mut self, envelope: Envelope, head: &[u8]) {
        self.envelope = envelope;
        self.has_ports = self.format == Format::AccessLog && envelope.has_ports(head);
    }

    pub fn source(&mut self, name: &str, mut input: impl BufRead) -> Result<(), Stopped> {
        let before = self.lines;
        self.header = None;
        let read = match self.format {
            Format::Rate => self.counts(name, &mut input),
            _ => self.log_lines(name, &mut input),
        };
        if self.times.is_local {
            self.proof.time_without_zone(&self.options.zone);
        }
        let after = self.lines - before;
        self.progress.add(after % TOLD);
        read.map_err(|stopped| stopped.of(name, after))
    }

    fn counts(&mut self, name: &str, input: &mut impl BufRead) -> Result<(), Stopped> {
        let mut number = 0;
        while let Some(count) = read_count(input)? {
            if self.progress.is_stopped() {
                return Err(Stopped::Asked);
            }
            number += 1;
            self.add_line(number);
            let time = self.second.min(LAST_SECOND) * SECOND;
            match count {
                Ok(count) => {
                    self.taken += u64::from(count);
                    for target in &mut self.targets {
                        if !target.trace.push(b"", time, count) {
                            return Err(InputError::TooManyKeys.into());
                        }
                    }
                }
                Err(error) => self.unparsed.add(name, number, error),
            }
            self.second += 1;
        }
        Ok(())
    }

    fn log_lines(&mut self, name: &str, input: &mut impl BufRead) -> Result<(), Stopped> {
        let (mut number, mut from_start) = (0, 0);
        let mut ends = Ends::default();
        let read = each_line(input, |line| {
            if self.progress.is_stopped() {
                return Err(Stopped::Asked);
            }
            number += 1;
            if line.is_some_and(|line| line.trim_ascii().is_empty()) {
                return Ok(());
            }
            ends.add(line.unwrap_or_default());
            from_start += 1;
            self.add_line(from_start);
            match line.map_or(Err(LineError::TooLong.into()), |line| self.line(line)) {
                Ok(()) => {}
                Err(Unread::Line(error)) => self.unparsed.add(name, number, error),
                Err(Unread::TooManyKeys) => return Err(InputError::TooManyKeys.into()),
                Err(Unread::TooCostly) => return Err(InputError::TooCostly.into()),
            }
            Ok(())
        });
        if let Some((same, _)) = self.ends.iter().find(|(_, known)| known.same(&ends)) {
            self.proof.repeated.push((same.clone(), name.to_owned()));
        }
        self.ends.push((name.to_owned(), ends));
        read
    }

    fn add_line(&mut self, number: u64) {
        self.lines += 1;
        if number.is_multiple_of(TOLD) {
            self.progress.add(TOLD);
        }
    }

    pub fn line(&mut self, text: &[u8]) -> Result<(), Unread> {
        let line = self.envelope.open(text).ok_or(LineError::Envelope)?;
        let line = &*line;
        let (times, time_field) = (&mut self.times, &self.options.time_field);
        match self.format {
            Format::JsonLines => {
                if let Some(record) = Record::json(line, time_field, times)? {
                    return self.request(&record, text);
                }
                // Neither a request nor a mistake.
                self.lines -= 1;
                Ok(())
            }
            Format::Logfmt => {
                let record = Record::logfmt(line, time_field, times)?;
                self.request(&record, text)
            }
            Format::W3c | Format::Csv => {
                let is_directive = self.format == Format::W3c && line.starts_with(b"#");
                if is_directive || (self.format == Format::Csv && self.header.is_none()) {
                    let new = if is_directive {
                        Header::directive(line)
                    } else {
                        Header::of_table(line)
                    };
                    self.header = new.or(self.header.take());
                    // Neither a request nor a mistake.
                    self.lines -= 1;
                    return Ok(());
                }
                let header = self
                    .header
                    .as_ref()
                    .ok_or(LineError::Columns { wanted: 0 })?;
                let record = Record::columns(line, header, time_field, times)?;
                self.request(&record, text)
            }
            format => {
                let line = format.access_line(line, times)?;
                let line = if self.has_ports {
                    line.without_port()
                } else {
                    line
                };
                self.request(&line, text)
            }
        }
    }

    /// When a request began, and when it ended as far as that is known.
    fn span(&mut self, request: &impl LogRequest) -> Result<(u64, u64), LineError> {
        let time = request.time();
        let took = match &self.options.took {
            Some(took) => took.of(request)?,
            None => request.took(),
        };
        self.proof.longest = self.proof.longest.max(took);
        match (self.options.stamped.or_else(|| request.stamp()), took) {
            (Some(Stamp::End), Some(took)) => {
                self.proof.moved += 1;
                return Ok((time.saturating_sub(took), time));
            }
            (Some(Stamp::End), None) => self.proof.late += 1,
            (Some(Stamp::Start), _) => {}
            (None, _) => self.proof.unstamped += 1,
        }
        let end = time.saturating_add(took.unwrap_or(0));
        Ok((time, end.min(tidegate_core::Nanos::MAX.get())))
    }

    fn request(&mut self, request: &impl LogRequest, line: &[u8]) -> Result<(), Unread> {
        let (time, end) = self.span(request)?;
        for (condition, has) in self.options.filter.exclude.iter().zip(&mut self.has_field) {
            *has = *has || request.field(condition.field()).is_ok();
        }
        if !self.options.filter.takes(request, time) {
            self.excluded += 1;
            self.excluded_span = (
                self.excluded_span.0.min(time),
                self.excluded_span.1.max(time),
            );
            return Ok(());
        }
        let charge = match &self.options.charge {
            Some(field) => Some(cost(request, field)?),
            None => None,
        };
        self.has_cost |= charge.is_some_and(|cost| cost.is_some());
        let cost = charge.flatten().unwrap_or(0);
        self.charged = self.charged.checked_add(cost).ok_or(Unread::TooCostly)?;
        let wants_sample = self.sampled.len() < Proof::SAMPLES && self.taken < SAMPLED_FROM;
        let mut keys = Vec::new();
        for target in &mut self.targets {
            if !target
                .conditions
                .iter()
                .all(|condition| condition.fits(request))
            {
                keys.extend(wants_sample.then_some(None));
                continue;
            }
            self.key.clear();
            match request.key(&target.by, &self.options.trusted, &mut self.key) {
                Ok(()) => {
                    target.trace.line_time(request.time());
                    let is_taken = match charge {
                        Some(_) => target.trace.push_charged(&self.key, time, end, cost),
                        None => target.trace.push(&self.key, time, 1),
                    };
                    if !is_taken {
                        return Err(Unread::TooManyKeys);
                    }
                    keys.extend(wants_sample.then(|| Some(target.by.label(&self.key))));
                }
                Err(error) if target.needs_key => return Err(error.into()),
                Err(_) => {
                    target.keyless += 1;
                    keys.extend(wants_sample.then_some(None));
                }
            }
        }
        if wants_sample && !self.sampled.contains(&keys) {
            let path = request.field(&Field::Path).ok();
            let cost = if charge.is_some() { cost } else { 1 };
            let sample = Sample::new(line, keys.clone(), time, path.as_deref(), cost);
            self.proof.samples.push(sample);
            self.sampled.push(keys);
        }
        self.proof.requestless += u64::from(!request.is_http());
        self.taken += 1;
        Ok(())
    }
}

/// Why a line is not counted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unread {
    #[error(transparent)]
    Line(#[from] LineError),
    #[error("too many keys")]
    TooManyKeys,
    #[error("too high costs")]
    TooCostly,
}
