//! Traces of a server (`--server`, or a file of `tidegate record`): what other limits would have
//! decided on them.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufRead, Read, Write},
    path::Path,
    time::Duration,
};

use serde_json::json;
use tidegate_server::{
    rules::{self as server_rules, Keeping},
    shown::counted,
    trace::{Recording, is_recording},
    what_if::{Denials, KeysEstimate, WhatIf, what_if},
};
use tidegate_sim::{
    Progress,
    input::{By, Opened, Source, Zone, unpack, write_utc},
    report::{Report, printable},
    workload::TraceBuilder,
};

use super::{
    args::{Args, Output},
    error::SimulateError,
    examine, note,
};
use crate::client::HttpTarget;

/// A trace, and where it comes from.
pub struct Recorded {
    recording: Recording,
    source: String,
}

/// The input of a replay.
pub enum Input {
    /// A trace of a server.
    Trace(Recorded),
    /// Logs.
    Logs(Vec<Source>),
}

/// The trace that the arguments name, or else the logs.
pub fn load(args: &Args) -> Result<Input, SimulateError> {
    let (recording, source) = match (&args.server, &args.files[..]) {
        (Some(server), _) => {
            let target = HttpTarget {
                server,
                how: &args.how,
                option: "--admin",
                waits: Duration::ZERO,
            };
            let read = target.read("/v1/trace", |body| Recording::read(body))?;
            (read, format!("the trace of {server}"))
        }
        (None, [path]) => match begin(path, |text| Recording::read(text)) {
            Begun::Trace(read) => (read, named(path)),
            Begun::Log(source) => return Ok(Input::Logs(vec![source])),
        },
        (None, files) => {
            let mut logs = Vec::new();
            for path in files {
                // A pipe is opened in its turn: its writer may write another one first.
                let is_pipe = path.metadata().is_ok_and(|file| !file.is_file());
                if is_pipe && path != Path::new("-") {
                    logs.push(Source::File(path.clone()));
                    continue;
                }
                match begin(path, |_| ()) {
                    Begun::Trace(()) => return Err(SimulateError::TraceAmongFiles(named(path))),
                    Begun::Log(source) => logs.push(source),
                }
            }
            return Ok(Input::Logs(logs));
        }
    };
    let recording = recording.map_err(|error| SimulateError::Trace {
        source_name: source.clone(),
        error,
    })?;
    if args.charge.is_some()
        || args.took.is_some()
        || args.stamped.is_some()
        || !args.exclude.is_empty()
        || args.since.is_some()
        || args.until.is_some()
    {
        return Err(SimulateError::TraceFilter);
    }
    let has_zone = args.zone.to_string() != Zone::default().to_string();
    if args.by.is_some()
        || args.format_in.is_some()
        || args.time_field.is_some()
        || args.spread
        || has_zone
        || args.trusted_proxies.is_some()
    {
        return Err(SimulateError::TraceReading);
    }
    if recording.is_cut {
        note(&format!(
            "warning: {source} was cut off, and is used up to its last whole line"
        ));
    }
    if recording.events.is_empty() {
        return Err(SimulateError::EmptyTrace(source));
    }
    Ok(Input::Trace(Recorded { recording, source }))
}

/// The name of a file in messages.
pub fn named(path: &Path) -> String {
    if path == Path::new("-") {
        Source::Stdin.name()
    } else {
        path.display().to_string()
    }
}

/// Stops unpacking: enough was read, or the file cannot be read. The log reader then reports the
/// error.
struct Stop;

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// The result of a look at an input.
enum Begun<T> {
    /// A trace, and what was read of it.
    Trace(T),
    /// Anything else, with its beginning still in front.
    Log(Source),
}

/// Looks whether an input begins like a trace, packed or not, and if so reads it.
fn begin<T>(path: &Path, read: impl FnOnce(&mut dyn BufRead) -> T) -> Begun<T> {
    if path == Path::new("-") {
        return begin_stream(named(path), io::stdin(), read);
    }
    let log = Begun::Log(Source::File(path.to_owned()));
    // The log reader reports errors.
    let Ok(metadata) = path.metadata() else {
        return log;
    };
    if metadata.is_dir() {
        return log;
    }
    let Ok(file) = File::open(path) else {
        return log;
    };
    if metadata.is_file() {
        return of_trace(file, read).map_or(log, Begun::Trace);
    }
    begin_stream(named(path), file, read)
}

/// The same of an input that can be read only once.
fn begin_stream<T>(
    name: String,
    input: impl Read + Send + 'static,
    read: impl FnOnce(&mut dyn BufRead) -> T,
) -> Begun<T> {
    let keeps = Cell::new(true);
    let mut kept = Kept {
        input,
        begin: Vec::new(),
        error: None,
        keeps: &keeps,
    };
    let found = of_trace(&mut kept, |text| {
        // A trace is not read again.
        keeps.set(false);
        read(text)
    });
    let Kept {
        input,
        begin,
        error,
        ..
    } = kept;
    found.map_or_else(
        || {
            let begin = io::Cursor::new(begin).chain(Failing(error));
            Begun::Log(Source::Opened(Opened::new(name, begin.chain(input))))
        },
        Begun::Trace,
    )
}

/// Passes on an input that begins like a trace.
fn of_trace<T>(input: impl Read, read: impl FnOnce(&mut dyn BufRead) -> T) -> Option<T> {
    let (mut read, mut found) = (Some(read), None);
    let _ = unpack(input, |text| {
        if is_recording(text.fill_buf()?) {
            found = read.take().map(|read| read(text));
        }
        // An archive need not be read to its end.
        Err::<(), _>(Stop)
    });
    found
}

/// Keeps what is read of an input, so that it can be read again.
struct Kept<'k, R> {
    input: R,
    begin: Vec<u8>,
    error: Option<io::Error>,
    keeps: &'k Cell<bool>,
}

impl<R: Read> Read for Kept<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(out);
        if self.keeps.get() {
            match &read {
                Ok(read) => self.begin.extend_from_slice(&out[..*read]),
                // Unpacking goes on after an interruption.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.error = Some(io::Error::new(error.kind(), error.to_string())),
            }
        }
        read
    }
}

/// The error that ended the look, once.
struct Failing(Option<io::Error>);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// Replays the trace through each limit of a rules file, and prints what it would have denied.
pub fn try_rules(path: &Path, recorded: &Recorded, args: &Args) -> Result<(), SimulateError> {
    if args.report.is_some() {
        return Err(SimulateError::TraceReport);
    }
    let rules = server_rules::load(path, Keeping::Memory)?;
    let Recorded { recording, source } = recorded;
    let hash = |name: &str| {
        recording
            .names
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(hash, _)| *hash)
    };
    let replayed = what_if(recording, &rules.limits, &hash, usize::from(args.top));
    super::written(super::print_with(|out| match args.format {
        Output::Text => write_table(out, source, recording, &replayed),
        Output::Json => {
            let replayed = json!({
                "source": source,
                "share": recording.share.fraction(),
                "from": recording.from / 1_000_000_000,
                "until": recording.until / 1_000_000_000,
                "limits": replayed,
            });
            serde_json::to_writer(&mut *out, &replayed)?;
            writeln!(out)
        }
    }))
}

/// The trace as a log: a key of each limit is a key.
pub fn replay(
    recorded: &Recorded,
    args: &Args,
    progress: &Progress,
) -> Result<Report, SimulateError> {
    let Recorded { recording, source } = recorded;
    let mut builder = TraceBuilder::with_costs(By::ip());
    let mut costs = recording.events.iter().map(|event| event.cost);
    if costs.try_fold(0_u64, u64::checked_add).is_none() {
        return Err(SimulateError::CostsTooHigh);
    }
    let (mut refunds, mut charges) = (0, 0);
    for event in &recording.events {
        if event.verdict == tidegate_server::trace::Verdict::Refunded {
            refunds += 1;
            continue;
        }
        charges += u64::from(event.verdict == tidegate_server::trace::Verdict::Charged);
        let hash = format!("{:016x}", event.key);
        let key = recording.names.get(&event.key).unwrap_or(&hash);
        let key = match &recording.limits[..] {
            [_] => key.clone(),
            limits => format!("{} {key}", limits[usize::from(event.limit)].name),
        };
        if !builder.push_cost(key.as_bytes(), event.time, event.cost) {
            return Err(tidegate_sim::input::InputError::TooManyKeys.into());
        }
    }
    let trace = builder.build(true, 0);
    if trace.has_costs() && args.suggest.suggest {
        return Err(SimulateError::SuggestCosts);
    }
    let mut report = examine(&trace, "key", args, progress)?;
    let share = recording.share;
    report
        .warnings
        .push(format!("the trace has {share} of all keys"));
    if refunds > 0 {
        report
            .warnings
            .push(format!("{refunds} refunds are left out"));
    }
    if charges > 0 {
        report.warnings.push(format!(
            "{charges} charges are requests here, which may be denied; --rules charges them"
        ));
    }
    report
        .warnings
        .iter()
        .for_each(|warning| note(&format!("warning: {warning}")));
    report.source = format!("{source} (trace)");
    "limit and key".clone_into(&mut report.by);
    report.lines = recording.events.len() as u64;
    Ok(report)
}

fn write_table(
    out: &mut impl Write,
    source: &str,
    recording: &Recording,
    replayed: &[WhatIf],
) -> io::Result<()> {
    writeln!(
        out,
        "{source}: {} of {} of all keys, {} to {} UTC",
        counted(recording.events.len() as u64, "request"),
        recording.share,
        write_utc(recording.from),
        write_utc(recording.until),
    )?;
    replayed
        .iter()
        .try_for_each(|replayed| write_limit(out, replayed))
}

fn write_limit(out: &mut impl Write, replayed: &WhatIf) -> io::Result<()> {
    let WhatIf {
        limit,
        was,
        candidate,
        requests,
        keys,
        denied,
        would_deny,
        ..
    } = replayed;
    writeln!(out, "\n{limit}: {candidate}")?;
    if let Some(was) = was.as_ref().filter(|was| *was != candidate) {
        writeln!(out, "  in place of {was}")?;
    }
    for line in &replayed.notes {
        writeln!(out, "  note: {line}")?;
    }
    if *requests == 0 {
        return Ok(());
    }
    writeln!(out, "  {:<26}{:>20}{:>20}", "", "really", "candidate")?;
    let mut row = |what: &str, of: &dyn Fn(&Denials) -> String| {
        writeln!(out, "  {what:<26}{:>20}{:>20}", of(denied), of(would_deny))
    };
    let part =
        |part: u64, all: u64| format!("{part} ({:.3}%)", part as f64 / all.max(1) as f64 * 100.0);
    row(
        &format!("denied of {}", counted(*requests, "request")),
        &|of| part(of.requests, *requests),
    )?;
    row(&format!("denied of {}", counted(*keys, "key")), &|of| {
        part(of.keys, *keys)
    })?;
    if replayed.share < 1.0 {
        row("all keys: requests, about", &|of| {
            with_margin(of.all_requests)
        })?;
        row("all keys: keys, about", &|of| with_margin(of.all_keys))?;
    }
    writeln!(
        out,
        "  {} would be denied that were not, and {} would not be denied any more.",
        counted(replayed.newly_denied, "key"),
        counted(replayed.no_longer_denied, "key")
    )?;
    if !replayed.most_denied.is_empty() {
        writeln!(
            out,
            "  {:<36}{:>10}{:>10}{:>10}",
            "denied most", "requests", "really", "candidate"
        )?;
    }
    for key in &replayed.most_denied {
        let name = key.name.as_ref().unwrap_or(&key.hash);
        let shown = printable(name, 34);
        writeln!(
            out,
            "  {shown:<36}{:>10}{:>10}{:>10}",
            key.requests, key.was_denied, key.would_deny
        )?;
    }
    if replayed.share < 1.0 {
        writeln!(
            out,
            "  About: estimated from {} of the keys, with two standard deviations.",
            format_args!("{}%", replayed.share * 100.0)
        )?;
    }
    Ok(())
}

fn with_margin(estimate: KeysEstimate) -> String {
    let KeysEstimate { about, margin } = estimate;
    match about {
        0 if margin > 0 => format!("at most {margin}"),
        _ => format!("{about} ± {margin}"),
    }
}
