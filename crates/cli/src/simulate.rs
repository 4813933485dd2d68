//! `tidegate simulate`: from the command line to the simulator and back.

mod args;
mod error;
mod progress;

use std::{
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, Write},
    num::NonZeroUsize,
    path::Path,
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use tidegate_core::{Quota, write_duration};
use tidegate_sim::{
    AlgorithmSpec, Goal, Progress, Stage, SuggestError, Suggestion, Survey, Trial, Workload,
    input::{self, By, Field, Loaded, Source},
    replay,
    report::{Report, printable, write_html, write_json, write_table},
    suggest_all,
    workload::{Synthetic, Traffic},
};

pub use args::Args;
use args::Output;
use error::SimulateError;
use progress::ProgressLine;

/// Replays what the arguments say and prints what came out, or what went wrong.
pub fn run(args: &Args) -> ExitCode {
    match simulate(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // When standard error is gone too, the exit code still tells.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Fails when the input cannot be read, an argument makes no sense, or the findings cannot be written. A reader of standard
/// output that goes away is none.
fn simulate(args: &Args) -> Result<(), SimulateError> {
    if let Some(path) = &args.report {
        check_writable(path)?;
    }
    let progress = Arc::new(Progress::default());
    let line = ProgressLine::show(Arc::clone(&progress));
    let report = if args.synthetic.synthetic { made_up(args, &progress) } else { logged(args, &progress) }?;
    drop(line);
    if let Some(path) = &args.report {
        let write = |file| {
            let mut out = BufWriter::new(file);
            write_html(&mut out, &report)?;
            out.flush()
        };
        File::create(path).and_then(write).map_err(|error| SimulateError::report(path, error))?;
    }
    print(args, &report).or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(SimulateError::Output(error)),
    })
}

fn print(args: &Args, report: &Report) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match args.format {
        Output::Table => write_table(&mut out, report, args.top.into())?,
        Output::Json => write_json(&mut out, report)?,
    }
    out.flush()
}

/// Finds out before the work whether its findings will have a place; what is there stays as it is.
fn check_writable(path: &Path) -> Result<(), SimulateError> {
    let existed = path.exists();
    File::options()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|_| if existed { Ok(()) } else { fs::remove_file(path) })
        .map_err(|error| SimulateError::report(path, error))
}

fn made_up(args: &Args, progress: &Progress) -> Result<Report, SimulateError> {
    let traffic = args.synthetic.traffic();
    let made = Synthetic::new(traffic)?;
    let by = args.by.clone().unwrap_or_else(By::ip);
    let mut report = match by.fields() {
        [] => examine(&made.global(), args, progress),
        [Field::Ip] => examine(&made, args, progress),
        _ => return Err(SimulateError::SyntheticBy),
    }?;
    let Traffic { sources, requests, duration, zipf, arrival, seed } = traffic;
    let mut length = String::new();
    // Writing into a string cannot fail.
    let _ = write_duration(&mut length, duration);
    report.source = format!(
        "made-up traffic: {requests} requests of {sources} sources in {length}, zipf {zipf}, {arrival}, seed {seed}"
    );
    let by = if by == By::GLOBAL { "global" } else { "source" };
    Ok(Report { by: by.to_owned(), ..report })
}

fn logged(args: &Args, progress: &Progress) -> Result<Report, SimulateError> {
    let source = |path: &std::path::PathBuf| {
        if path.as_os_str() == "-" { Source::Stdin } else { Source::File(path.clone()) }
    };
    let sources: Vec<Source> = args.files.iter().map(source).collect();
    let options = input::Options {
        format: args.format_in.0,
        by: args.by.clone(),
        time_field: input::TimeField::new(args.time_field.clone()),
        spread: args.spread,
        filter: args.filter(),
    };
    let loaded = input::read(&sources, &options, progress)?;
    warn_of(&loaded);
    let mut report = examine(&loaded.trace, args, progress)?;
    let names = sources.iter().map(Source::name).collect::<Vec<_>>().join(", ");
    report.source = format!("{names} ({})", loaded.format);
    report.by = loaded.by.to_string();
    report.lines = loaded.lines;
    report.unparsed = loaded.unparsed.count;
    Ok(report)
}

/// Suggests what is to be suggested, and replays the workload through all limits, given or suggested.
fn examine<W: Workload>(workload: &W, args: &Args, progress: &Progress) -> Result<Report, SimulateError> {
    let asked = args.threads.and_then(|count| NonZeroUsize::new(count.into()));
    let threads = asked.or_else(|| thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
    let mut candidates: Vec<(Quota, Vec<AlgorithmSpec>)> = Vec::new();
    for &quota in &args.limits {
        candidates.push((quota, algorithms(args, quota)));
    }
    let suggestions =
        if args.suggest.suggest { Some(propose(workload, args, threads, progress)?) } else { None };
    for (algorithm, suggestion) in suggestions.iter().flat_map(|(_, suggestions)| suggestions) {
        match candidates.iter_mut().find(|(quota, _)| *quota == suggestion.quota) {
            Some((_, specs)) if specs.contains(algorithm) => {}
            Some((_, specs)) => specs.push(algorithm.clone()),
            None => candidates.push((suggestion.quota, vec![algorithm.clone()])),
        }
    }
    let fleet = args.fleet.fleet();
    let trial = |(quota, specs): &(Quota, Vec<AlgorithmSpec>)| {
        let trial = Trial::new(*quota, specs)?;
        Ok(match fleet {
            Some(fleet) => trial.on(fleet),
            None => trial,
        })
    };
    let trials = candidates.iter().map(trial).collect::<Result<Vec<_>, SimulateError>>()?;
    let findings = replay(workload, &trials, threads, progress);
    let names =
        findings.iter().map(|each| each.most_denied.iter().map(|key| workload.label(key.key)).collect());
    Ok(Report {
        names: names.collect(),
        findings,
        suggestions: suggestions.map(|(goal, suggestions)| {
            let named = suggestions.into_iter().map(|(spec, found)| (spec.label().to_owned(), found));
            (goal, named.collect())
        }),
        ..Report::default()
    })
}

/// The algorithms asked for; all where nobody asks, but for those that such a quota does not suit.
fn algorithms(args: &Args, quota: Quota) -> Vec<AlgorithmSpec> {
    if let Some(lists) = &args.algorithms {
        return lists.concat();
    }
    let (suited, others): (Vec<_>, Vec<_>) =
        AlgorithmSpec::all().into_iter().partition(|spec| spec.policy(quota).is_ok());
    for spec in others {
        if let Err(error) = spec.policy(quota) {
            note(&format!("{} is left out of {quota}: {error}", spec.label()));
        }
    }
    suited
}

type Proposals = (Goal, Vec<(AlgorithmSpec, Suggestion)>);

fn propose<W: Workload>(
    workload: &W,
    args: &Args,
    threads: NonZeroUsize,
    progress: &Progress,
) -> Result<Proposals, SimulateError> {
    let mut windows: Vec<Duration> = match args.suggest.window {
        Some(window) => vec![window],
        None => args.limits.iter().map(|quota| quota.window()).collect(),
    };
    windows.sort_unstable();
    windows.dedup();
    if windows.is_empty() {
        return Err(SimulateError::NoWindow);
    }
    let goal = args.suggest.goal();
    let specs = args.algorithms.as_ref().map_or_else(AlgorithmSpec::all, |lists| lists.concat());
    let mut found = Vec::new();
    let mut failed = None;
    progress.begin(Stage::Suggesting, 0);
    for window in windows {
        let survey = Survey::new(workload, window, threads, progress).map_err(SuggestError::Window)?;
        let suggested = suggest_all(workload, &survey, &specs, goal, threads, progress);
        for (spec, suggestion) in specs.iter().zip(suggested) {
            match suggestion {
                Ok(suggestion) => found.push((spec.clone(), suggestion)),
                Err(error) => {
                    // One after another, so that of several failures the last is the run's own error.
                    if let Some(before) = failed.replace(error) {
                        note(&format!("no limit is suggested: {before}"));
                    }
                }
            }
        }
    }
    match failed {
        Some(error) if found.is_empty() => return Err(error.into()),
        Some(error) => note(&format!("no limit is suggested: {error}")),
        None => {}
    }
    Ok((goal, found))
}

/// Names the first of the lines that are no requests.
fn warn_of(loaded: &Loaded) {
    let Loaded { unparsed, lines, format, .. } = loaded;
    if unparsed.count == 0 {
        return;
    }
    note(&format!("{} of {lines} {} are no requests and are left out:", unparsed.count, format.parts()));
    for line in &unparsed.first {
        note(&format!("  {}", printable(&line.to_string(), 200)));
    }
    let others = unparsed.count - unparsed.first.len() as u64;
    if others > 0 {
        note(&format!("  and {others} more"));
    }
}

fn note(text: &str) {
    let mut out = io::stderr().lock();
    // A terminal may show a line of progress, which this takes the place of.
    let wipe = if out.is_terminal() { "\r\x1b[K" } else { "" };
    // Where standard error is gone, the findings still matter.
    let _ = writeln!(out, "{wipe}{text}");
}
