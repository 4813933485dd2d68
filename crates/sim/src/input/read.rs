//! Reads sources, one after another, into traces.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    envelope::Envelope,
    error::{InputError, Unparsed},
    filter::{Condition, Filter},
    format::{Detected, Format},
    options::Options,
    proof::Proof,
    reading::{Reading, RequestTarget, Stopped},
    refusal::advice,
    unpack::unpack,
};
use crate::workload::{By, Field};
use crate::{escape::printable, numbers::counted, progress::Progress, workload::Trace};

/// How much of a source is read to detect its format.
const HEAD: usize = 64 * 1024;
/// Windows' programs begin a text in UTF-8 with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The source of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
    /// An input that is open already, as a pipe of which the beginning was looked at.
    Opened(Opened),
}

/// An input that is open already. It can be read once.
#[derive(Clone)]
pub struct Opened {
    name: String,
    input: Arc<Mutex<Option<Box<dyn Read + Send>>>>,
}

impl Opened {
    /// An input, with its name in messages.
    pub fn new(name: impl Into<String>, input: impl Read + Send + 'static) -> Self {
        let input: Box<dyn Read + Send> = Box::new(input);
        Self {
            name: name.into(),
            input: Arc::new(Mutex::new(Some(input))),
        }
    }

    fn take(&self) -> Option<Box<dyn Read + Send>> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input.take()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({})", self.name)
    }
}

/// The same input, not one with the same bytes.
impl PartialEq for Opened {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.input, &other.input)
    }
}

impl Eq for Opened {}

impl Source {
    /// The source's name in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Stdin => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
            Self::Opened(opened) => opened.name.clone(),
        }
    }

    fn open(&self) -> io::Result<Box<dyn Read>> {
        Ok(match self {
            Self::Stdin => Box::new(io::stdin()),
            Self::File(path) => Box::new(File::open(path)?),
            // What was read is at its end.
            Self::Opened(opened) => match opened.take() {
                Some(input) => input,
                None => Box::new(io::empty()),
            },
        })
    }
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
    let read = reading.source(source_name, lines);
    if let Some(error) = read
        .err()
        .and_then(|stopped| stopped.into_error(source_name))
    {
        return Err(error);
    }
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
    let format = given_or_found(envelope, head, options, source_name)?;
    if options.time_field.is_named() && !format.names_fields() {
        return Err(InputError::TimeField { format });
    }
    Ok(format)
}

fn given_or_found(
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
            return format!(
                "{} in no known format, such as {shown}",
                counted(count as u64, "line")
            );
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
            "{} read as {format}, such as {shown}: {}",
            counted(count as u64, "line"),
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
            let is_cut = head.len() == HEAD;
            if head.starts_with(BYTE_ORDER_MARK) {
                head.drain(..BYTE_ORDER_MARK.len());
            }
            if head.trim_ascii().is_empty() && !is_cut {
                return Ok(());
            }
            // The last line of the head may be cut.
            let whole = head.iter().rposition(|&byte| byte == b'\n');
            let whole = &head[..whole.filter(|_| is_cut).unwrap_or(head.len())];
            let envelope = Envelope::detect(whole);
            let format = format_of(envelope, whole, options, &source_name)?;
            if format == Format::Rate && options.filter != Filter::default() {
                return Err(Stopped::Log(InputError::RateFilter));
            }
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
        if let Err(stopped) = read {
            match stopped.into_error(&source_name) {
                Some(error) => return Err(error),
                // The results are those of what was read.
                None => break,
            }
        }
    }
    let names = || {
        sources
            .iter()
            .map(Source::name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut reading = reading.ok_or_else(|| InputError::NoRequests {
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
    reading.proof.stopped = progress.is_stopped().then_some(reading.lines);
    Ok(reading)
}
