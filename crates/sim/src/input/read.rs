//! Reads sources, one after another, into traces.

use std::{
    fs::File,
    io::{self, BufRead, Read},
    path::PathBuf,
};

use tidegate_headers::Networks;

use super::{
    charge::{Took, cost},
    columns::Header,
    envelope::Envelope,
    error::{InputError, Unparsed},
    filter::{Condition, Filter},
    format::{Detected, Format},
    line::{LineError, each_line},
    proof::{Ends, Proof, Sample},
    rates::read_count,
    record::{Record, TimeField},
    refusal::advice,
    request::{LogRequest, Stamp},
    timestamp::{TimeCache, Zone},
    unpack::unpack,
};
use crate::workload::{By, Field};
use crate::{
    escape::printable,
    progress::Progress,
    workload::{Trace, TraceBuilder},
};

const SECOND: u64 = 1_000_000_000;
/// How much of a source is read to detect its format.
const HEAD: usize = 64 * 1024;
/// The last second for a request, 146 years after the first: later ones saturate there.
const LAST_SECOND: u64 = (1 << 62) / SECOND - 1;
/// Among how many of the first requests the samples are.
const SAMPLED_FROM: u64 = 1_000;
/// How many lines are read between two progress reports.
const TOLD: u64 = 4_096;

/// The source of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl Source {
    /// The source's name in messages.
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

/// Options for reading sources.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format of the sources; `None` detects it.
    pub format: Option<Format>,
    /// The key of the limits; `None` means the client, or for requests per second one limit for
    /// all.
    pub by: Option<By>,
    /// The time field of JSON lines.
    pub time_field: TimeField,
    /// Whether requests of one key with the same time are spread evenly over the resolution of the
    /// times: over one second if times are whole seconds, as in requests per second. Otherwise they
    /// arrive at its start.
    pub spread: bool,
    /// The requests to leave out. Requests per second have no fields to filter by.
    pub filter: Filter,
    /// The field with a cost that is charged after the answer, a whole number: a request asks with
    /// a cost of 0. `None` takes a cost of 1.
    pub charge: Option<Field>,
    /// How long a request took; `None` takes the format's own field, if it has one.
    pub took: Option<Took>,
    /// The moment of a request that the time of its line is; `None` follows the format, and otherwise
    /// means the start.
    pub stamped: Option<Stamp>,
    /// The zone of times that state none.
    pub zone: Zone,
    /// The proxies whose `X-Forwarded-For` counts for the key `forwarded`.
    pub trusted: Networks,
}

/// A log that was read.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The log's requests.
    pub trace: Trace,
    /// The log's format.
    pub format: Format,
    /// The log's keys.
    pub by: By,
    /// The number of lines that are not blank (for requests per second: of numbers).
    pub lines: u64,
    /// The lines that are not requests.
    pub unparsed: Unparsed,
    /// The number of requests that the filter left out.
    pub excluded: u64,
    /// How the log was read.
    pub proof: Proof,
}

/// Selects the requests of a limit, and their keys.
#[derive(Clone, Debug)]
pub struct Selector {
    /// Conditions that a request must all meet.
    pub conditions: Vec<Condition>,
    /// The key.
    pub by: By,
}

/// The requests of one limit.
#[derive(Clone, Debug)]
pub struct Selected {
    /// The requests.
    pub trace: Trace,
    /// Requests that meet the conditions, but have none of the key's fields: the limit does not
    /// apply to them.
    pub keyless: u64,
}

/// A log that was read for several limits.
#[derive(Clone, Debug)]
pub struct LoadedLimits {
    /// One entry for each selector, in their order. A trace may be empty.
    pub selected: Vec<Selected>,
    /// The log's format.
    pub format: Format,
    /// The number of requests, whether or not a limit applies to them.
    pub requests: u64,
    /// The number of lines that are not blank.
    pub lines: u64,
    /// The lines that are not requests.
    pub unparsed: Unparsed,
    /// The number of requests that the filter left out.
    pub excluded: u64,
    /// How the log was read.
    pub proof: Proof,
}

/// Reads sources one after another. Requests are sorted by time; requests per second continue where
/// the previous source ended.
///
/// `progress` counts lines.
///
/// # Errors
/// If a source cannot be read to its end, if no line is a request, or if the key needs what the
/// format does not have.
pub fn read(
    sources: &[Source],
    options: &Options,
    progress: &Progress,
) -> Result<Loaded, InputError> {
    let targets = |format| {
        let default = || {
            if format == Format::Rate {
                By::GLOBAL
            } else {
                By::ip()
            }
        };
        let by = options.by.clone().unwrap_or_else(default);
        check_by(format, &by)?;
        Ok(vec![RequestTarget::new(Vec::new(), by, true)])
    };
    let reading = read_all(sources, options, progress, targets)?;
    let Reading {
        format,
        lines,
        unparsed,
        excluded,
        mut targets,
        proof,
        ..
    } = reading;
    let target = targets.remove(0);
    let by = target.by.clone();
    Ok(Loaded {
        trace: target.finish(format, options.spread),
        format,
        by,
        lines,
        unparsed,
        excluded,
        proof,
    })
}

/// Reads sources once for several limits, each with its own selection of requests.
///
/// # Errors
/// The errors of [`read`].
pub fn read_limits(
    sources: &[Source],
    options: &Options,
    selectors: &[Selector],
    progress: &Progress,
) -> Result<LoadedLimits, InputError> {
    let targets = |format| {
        let target = |selector: &Selector| {
            check_by(format, &selector.by)?;
            Ok(RequestTarget::new(
                selector.conditions.clone(),
                selector.by.clone(),
                false,
            ))
        };
        selectors.iter().map(target).collect()
    };
    let reading = read_all(sources, options, progress, targets)?;
    let Reading {
        format,
        lines,
        unparsed,
        excluded,
        taken,
        targets,
        proof,
        ..
    } = reading;
    let finish = |target: RequestTarget| Selected {
        keyless: target.keyless,
        trace: target.finish(format, options.spread),
    };
    let selected = targets.into_iter().map(finish).collect();
    Ok(LoadedLimits {
        selected,
        format,
        requests: taken,
        lines,
        unparsed,
        excluded,
        proof,
    })
}

/// Lines that were read.
#[derive(Clone, Debug)]
pub struct Lines {
    /// The requests; there may be none.
    pub trace: Trace,
    /// The lines that are not requests.
    pub unparsed: Unparsed,
    /// How the lines were read.
    pub proof: Proof,
}

/// Reads whole lines that were appended to a log. The first of them determine `format`, which is
/// then kept.
///
/// # Errors
/// If the format of the first lines is unknown, if it is requests per second, which have no lines,
/// or if the key needs what the format does not have.
pub fn read_lines(
    lines: &[u8],
    format: &mut Option<Format>,
    options: &Options,
) -> Result<Lines, InputError> {
    let source_name = "the log";
    let known = match (*format, lines.trim_ascii().is_empty()) {
        (Some(format), _) => format,
        // Without lines, every format gives no requests.
        (None, true) => Format::AccessLog,
        (None, false) => *format.insert(format_of(
            Envelope::detect(lines),
            lines,
            options,
            source_name,
        )?),
    };
    if matches!(known, Format::Rate | Format::W3c | Format::Csv) {
        return Err(InputError::NoLines(known));
    }
    let by = options.by.clone().unwrap_or_else(By::ip);
    check_by(known, &by)?;
    let progress = Progress::default();
    let mut reading = Reading::new(
        known,
        vec![RequestTarget::new(Vec::new(), by, true)],
        options,
        &progress,
    );
    reading.begin(Envelope::detect(lines), lines);
    reading.source(source_name, lines)?;
    let Reading {
        mut targets,
        unparsed,
        proof,
        ..
    } = reading;
    Ok(Lines {
        trace: targets.remove(0).finish(known, options.spread),
        unparsed,
        proof,
    })
}

/// The format of a log that begins with `head`.
fn format_of(
    envelope: Envelope,
    head: &[u8],
    options: &Options,
    source_name: &str,
) -> Result<Format, InputError> {
    if let Some(format) = options.format {
        return Ok(format);
    }
    let detected = envelope.formats_of(head);
    if let Some(format) = detected.format() {
        return Ok(format);
    }
    Err(match readings(&detected, options) {
        Some(readings) => InputError::Plurality {
            source_name: source_name.to_owned(),
            lines: detected.lines(),
            readings,
        },
        None => InputError::UnknownFormat {
            source_name: source_name.to_owned(),
            advice: detected.unknown().iter().find_map(|line| advice(line)),
        },
    })
}

/// The two most frequent kinds of lines, each with what is read from its first line.
fn readings(detected: &Detected, options: &Options) -> Option<[String; 2]> {
    let progress = Progress::default();
    let kinds = detected.kinds()?;
    Some(kinds.map(|(format, count, line)| {
        let shown = printable(&String::from_utf8_lossy(line), 120);
        let Some(format) = format else {
            return format!("{count} lines are in no known format, such as {shown}");
        };
        let by = options.by.clone().unwrap_or_else(By::ip);
        let target = RequestTarget::new(Vec::new(), by, true);
        // The filter and the cost say nothing about the format.
        let options = Options {
            filter: Filter::default(),
            charge: None,
            took: None,
            ..options.clone()
        };
        let mut reading = Reading::new(format, vec![target], &options, &progress);
        let read = match reading.line(line) {
            Ok(()) => reading.proof.samples.first().map(ToString::to_string),
            Err(error) => Some(error.to_string()),
        };
        format!(
            "{count} lines read as {format}, such as {shown}: {}",
            read.unwrap_or_default()
        )
    }))
}

fn check_by(format: Format, by: &By) -> Result<(), InputError> {
    let fits = match format {
        Format::Rate => *by == By::GLOBAL,
        _ if format.names_fields() => true,
        _ => !by
            .fields()
            .iter()
            .any(|field| matches!(field, Field::Named(_))),
    };
    if fits {
        Ok(())
    } else {
        Err(InputError::By {
            by: by.clone(),
            format,
        })
    }
}

fn read_all<'a>(
    sources: &[Source],
    options: &'a Options,
    progress: &'a Progress,
    targets: impl Fn(Format) -> Result<Vec<RequestTarget>, InputError>,
) -> Result<Reading<'a>, InputError> {
    let mut reading: Option<Reading<'_>> = None;
    for source in sources {
        let source_name = source.name();
        let input = source.open().map_err(|error| InputError::Open {
            source_name: source.name(),
            error,
        })?;
        let read = unpack(input, |input| {
            let mut head = Vec::with_capacity(HEAD);
            (&mut *input).take(HEAD as u64).read_to_end(&mut head)?;
            if head.trim_ascii().is_empty() && head.len() < HEAD {
                return Ok(());
            }
            // The last line of the head may be cut.
            let whole = head.iter().rposition(|&byte| byte == b'\n');
            let whole = &head[..whole.filter(|_| head.len() == HEAD).unwrap_or(head.len())];
            let envelope = Envelope::detect(whole);
            let format = format_of(envelope, whole, options, &source_name)?;
            let reading = match &mut reading {
                None => reading.insert(Reading::new(format, targets(format)?, options, progress)),
                Some(reading) if reading.format != format => {
                    let (before, source_name) = (reading.format, source_name.clone());
                    return Err(Stopped::Log(InputError::Mixed {
                        before,
                        source_name,
                        format,
                    }));
                }
                Some(reading) => reading,
            };
            reading.begin(envelope, whole);
            reading.source(&source_name, io::Cursor::new(&head).chain(input))?;
            Ok(())
        });
        read.map_err(|stopped| stopped.of(&source_name, 0))?;
    }
    let names = || {
        sources
            .iter()
            .map(Source::name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let reading = reading.ok_or_else(|| InputError::NoRequests {
        source_name: names(),
    })?;
    if reading.unparsed.count == reading.lines {
        return Err(InputError::NothingParsed {
            format: reading.format,
            unparsed: reading.unparsed,
        });
    }
    let missing = options
        .filter
        .exclude
        .iter()
        .zip(&reading.has_field)
        .find(|(_, has)| !**has);
    if let Some((condition, _)) = missing {
        let field = condition.field().name().to_owned();
        return Err(InputError::NoSuchField {
            field,
            format: reading.format,
        });
    }
    let wants_cost = options.charge.as_ref().filter(|_| !reading.has_cost);
    let wants_took = options
        .took
        .as_ref()
        .filter(|_| reading.proof.longest.is_none());
    let wanted = wants_cost
        .map(|field| (field, "--charge"))
        .or(wants_took.map(|took| (took.field(), "--took")));
    if let Some((field, option)) = wanted.filter(|_| reading.taken > 0) {
        return Err(InputError::NoCost {
            field: field.name().to_owned(),
            option,
            format: reading.format,
        });
    }
    if reading.taken == 0 && reading.excluded > 0 {
        let (requests, span) = (reading.excluded, reading.excluded_span);
        return Err(InputError::AllExcluded { requests, span });
    }
    if reading.taken == 0 {
        return Err(InputError::NoRequests {
            source_name: names(),
        });
    }
    Ok(reading)
}

/// Why reading stops early.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Stopped {
    Stream(#[from] io::Error),
    Log(#[from] InputError),
}

impl Stopped {
    /// The error of a source of which so many lines were read before.
    fn of(self, source: &str, after: u64) -> InputError {
        match self {
            Self::Log(error) => error,
            Self::Stream(error) => InputError::Read {
                source_name: source.to_owned(),
                after,
                error,
            },
        }
    }
}

/// The destination of requests.
struct RequestTarget {
    conditions: Vec<Condition>,
    by: By,
    trace: TraceBuilder,
    /// Whether a request without the key's fields counts as an invalid line, instead of a request
    /// without a limit.
    needs_key: bool,
    keyless: u64,
}

impl RequestTarget {
    fn new(conditions: Vec<Condition>, by: By, needs_key: bool) -> Self {
        Self {
            conditions,
            trace: TraceBuilder::new(by.clone()),
            by,
            needs_key,
            keyless: 0,
        }
    }

    fn finish(self, format: Format, spread: bool) -> Trace {
        let spread = match format {
            _ if !spread => 0,
            Format::Rate => SECOND,
            _ => self.trace.resolution(),
        };
        self.trace.build(format != Format::Rate, spread)
    }
}

struct Reading<'a> {
    format: Format,
    /// That of the current source.
    envelope: Envelope,
    /// The columns of the current source.
    header: Option<Header>,
    options: &'a Options,
    progress: &'a Progress,
    targets: Vec<RequestTarget>,
    lines: u64,
    unparsed: Unparsed,
    /// The number of requests taken, and of those left out.
    taken: u64,
    excluded: u64,
    excluded_span: (u64, u64),
    /// For each condition of the filter, whether a line had its field.
    has_field: Vec<bool>,
    /// Whether a request had a cost to charge.
    has_cost: bool,
    /// The current second, for requests per second.
    second: u64,
    times: TimeCache,
    /// The key under construction.
    key: Vec<u8>,
    /// Whether the clients of the current source have ports.
    has_ports: bool,
    proof: Proof,
    /// The keys of the samples.
    sampled: Vec<Vec<Option<String>>>,
    /// The sources so far.
    ends: Vec<(String, Ends)>,
}

impl<'a> Reading<'a> {
    fn new(
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
            // Requests per second have no fields to filter by, and their filter is refused
            // elsewhere.
            has_field: vec![format == Format::Rate; options.filter.exclude.len()],
            has_cost: false,
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
    fn begin(&mut self, envelope: Envelope, head: &[u8]) {
        self.envelope = envelope;
        self.has_ports = self.format == Format::AccessLog && envelope.has_ports(head);
    }

    fn source(&mut self, name: &str, mut input: impl BufRead) -> Result<(), InputError> {
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

    fn line(&mut self, text: &[u8]) -> Result<(), Unread> {
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
                        Some(cost) => target.trace.push_charged(
                            &self.key,
                            time,
                            end,
                            cost.unwrap_or(0).into(),
                        ),
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
            let cost = charge.map_or(1, |cost| cost.unwrap_or(0).into());
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
enum Unread {
    #[error(transparent)]
    Line(#[from] LineError),
    #[error("too many keys")]
    TooManyKeys,
}
