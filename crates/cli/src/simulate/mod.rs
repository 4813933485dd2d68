//! `tidegate simulate`: runs the simulator with the options of the command line, and prints the
//! findings.

mod args;
mod error;
mod follow;
mod progress;
mod recorded;
mod rules;
mod shares;

use std::{
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, Write},
    num::NonZeroUsize,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use clap::error::ErrorKind;
use signal_hook::{consts::SIGINT, flag};
use tidegate_core::{Clock, Nanos, Quota, clock::SystemClock};
use tidegate_server::shown::{self, counted};
use tidegate_sim::{
    AlgorithmSpec, Progress, Stage, SuggestError, Survey, Trial, Workload, curve, heat_map,
    input::{self, By, Field, Format, Source, Unparsed},
    limits_around, recommend, replay,
    report::{BusiestWindow, Report, Suggested, printable, write_html, write_json, write_table},
    suggest_all,
    workload::{Synthetic, Trace, Traffic},
};

pub use args::Args;
use args::Output;
use error::SimulateError;
use progress::ProgressLine;
use recorded::Input;

/// The exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 128 + SIGINT as u8;

/// Runs the simulation and prints the findings, or the error.
pub fn run(args: &Args) -> ExitCode {
    if args.limits.is_empty() && !args.suggest.suggest && args.rules.is_none() {
        return nothing_to_try();
    }
    match simulate(args) {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            // If standard error is closed too, the exit code still shows the failure.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the error of a command line without a limit.
fn nothing_to_try() -> ExitCode {
    let mut command = crate::help::command();
    command.build();
    let error = command.find_subcommand_mut("simulate").map(|simulate| {
        simulate.error(
            ErrorKind::MissingRequiredArgument,
            "nothing to try: --suggest finds a limit that suits the log, --limit 100/1m tries one, and --rules FILE tries \
             those of a rules file",
        )
    });
    error.map_or(ExitCode::FAILURE, |error| error.exit())
}

/// Fails if the input cannot be read, an argument is invalid, or the findings cannot be written. A
/// reader that closes standard output is not a failure.
/// Returns whether Ctrl-C ended the reading, so that the results are those of a part.
fn simulate(args: &Args) -> Result<bool, SimulateError> {
    let by = || args.by.iter().chain(&args.shares).flat_map(By::fields);
    check_proxies(by(), args)?;
    if args.report.as_deref() == Some(Path::new("-")) && matches!(args.format, Output::Json) {
        return Err(SimulateError::PageAsFindings);
    }
    if args.follow {
        check_forwarded(by(), args)?;
        return follow::follow(args).map(|()| false);
    }
    let input = if args.synthetic.synthetic {
        Input::Logs(Vec::new())
    } else {
        recorded::load(args)?
    };
    if let Input::Trace(recorded) = &input {
        if args.shares.is_some() {
            return Err(SimulateError::SharesOfTrace);
        }
        if let Some(path) = &args.rules {
            return recorded::try_rules(path, recorded, args).map(|()| false);
        }
    } else if args.rules.is_none() {
        check_forwarded(by(), args)?;
    }
    let page = args.report.as_deref();
    let (page_on_stdout, page) = (
        page == Some(Path::new("-")),
        page.filter(|path| *path != Path::new("-")),
    );
    if let Some(path) = page {
        check_not_read(path, args)?;
        check_writable(path)?;
    }
    let progress = Arc::new(Progress::default());
    let stopped = end_reading_on_ctrl_c(&progress)?;
    let line = ProgressLine::show(Arc::clone(&progress));
    let report = match &input {
        _ if args.synthetic.synthetic => made_up(args, &progress),
        Input::Trace(recorded) => recorded::replay(recorded, args, &progress),
        Input::Logs(sources) => match (&args.rules, &args.shares) {
            (Some(path), _) => rules::replay_rules(path, sources, args, &progress),
            (None, Some(by)) => shares::replay_quotas(by, sources, args, &progress),
            (None, None) => logged(sources, args, &progress),
        },
    }?;
    drop(line);
    let report = Report {
        command: command_line(),
        date: now(),
        ..report
    };
    let is_part = stopped.load(Ordering::Relaxed);
    if page_on_stdout {
        return written(print_with(|out| write_html(out, &report))).map(|()| is_part);
    }
    if let Some(path) = page {
        let write = |file| {
            let mut out = BufWriter::new(file);
            write_html(&mut out, &report)?;
            out.flush()
        };
        File::create(path)
            .and_then(write)
            .map_err(|error| SimulateError::Report(path.to_owned(), error))?;
    }
    written(print_with(|out| match args.format {
        Output::Text => write_table(out, &report, args.top.into()),
        Output::Json => write_json(out, &report),
    }))
    .map(|()| is_part)
}

/// Has the first Ctrl-C end the reading, so that the results are those of what was read. A second
/// one, and one after the reading, ends the program. Returns whether the first one came.
fn end_reading_on_ctrl_c(progress: &Progress) -> Result<Arc<AtomicBool>, SimulateError> {
    let (stop, has_read) = (progress.stop(), progress.has_read());
    // In this order: the first signal sets what the second one finds.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED.into(), Arc::clone(&has_read))
        .and_then(|_| flag::register(SIGINT, has_read))
        .and_then(|_| flag::register(SIGINT, Arc::clone(&stop)))
        .map_err(SimulateError::Signal)?;
    Ok(stop)
}

/// Checks that it is known whose `X-Forwarded-For` counts, if a key needs it.
fn check_proxies<'a>(
    mut by: impl Iterator<Item = &'a Field>,
    args: &Args,
) -> Result<(), SimulateError> {
    let needs_proxies = by.any(|field| *field == Field::Forwarded);
    if needs_proxies && args.trusted_proxies.is_none() {
        return Err(SimulateError::NoProxies);
    }
    Ok(())
}

/// Checks that trusted proxies are not given in vain.
fn check_forwarded<'a>(
    mut by: impl Iterator<Item = &'a Field>,
    args: &Args,
) -> Result<(), SimulateError> {
    let uses_proxies = by.any(|field| *field == Field::Forwarded);
    if args.trusted_proxies.is_some() && !uses_proxies {
        return Err(SimulateError::NoForwarded);
    }
    Ok(())
}

fn print_with(
    write: impl Fn(&mut BufWriter<io::StdoutLock<'static>>) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out)?;
    out.flush()
}

/// A reader that has closed the output is not a failure.
fn written(result: io::Result<()>) -> Result<(), SimulateError> {
    result.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(SimulateError::Output(error)),
    })
}

/// The command line, quoted for a shell.
fn command_line() -> String {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    shown::command(std::iter::once("tidegate").chain(words.iter().map(String::as_str)))
}

fn now() -> String {
    format!("{} UTC", input::write_utc(SystemClock::new().now().get()))
}

/// Checks that the report does not replace a file that the simulation reads, under whichever name.
fn check_not_read(path: &Path, args: &Args) -> Result<(), SimulateError> {
    let Ok(report) = fs::metadata(path) else {
        return Ok(());
    };
    let is_same = |read: &&PathBuf| {
        fs::metadata(read)
            .is_ok_and(|read| (read.dev(), read.ino()) == (report.dev(), report.ino()))
    };
    let read = args.files.iter().chain(&args.rules).find(is_same);
    read.map_or(Ok(()), |read| Err(SimulateError::Overwrites(read.clone())))
}

/// Checks before the replay that the report can be written. An existing file stays unchanged.
fn check_writable(path: &Path) -> Result<(), SimulateError> {
    let existed = path.exists();
    File::options()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|_| {
            if existed {
                Ok(())
            } else {
                fs::remove_file(path)
            }
        })
        .map_err(|error| SimulateError::Report(path.to_owned(), error))
}

fn made_up(args: &Args, progress: &Progress) -> Result<Report, SimulateError> {
    let traffic = args.synthetic.traffic();
    let made = Synthetic::new(traffic)?;
    let by = args.by.clone().unwrap_or_else(By::ip);
    let mut report = match by.fields() {
        [] => examine(&made.global(), "global", args, progress),
        [Field::Ip] => examine(&made, "ip", args, progress),
        _ => return Err(SimulateError::SyntheticBy),
    }?;
    let Traffic {
        sources,
        requests,
        duration,
        zipf,
        arrival,
        seed,
    } = traffic;
    let length = Nanos::from(duration);
    report.source = format!(
        "synthetic traffic: {} of {} in {length}, zipf {zipf}, {arrival}, seed {seed}",
        counted(requests, "request"),
        counted(sources.into(), "source")
    );
    let by = if by == By::GLOBAL { "global" } else { "source" };
    Ok(Report {
        by: by.to_owned(),
        ..report
    })
}

fn logged(sources: &[Source], args: &Args, progress: &Progress) -> Result<Report, SimulateError> {
    let loaded = input::read(sources, &options(args), progress)?;
    warn_of_unparsed(&loaded.unparsed, loaded.lines, loaded.format.parts());
    let mut report = examine(&loaded.trace, &loaded.by.to_string(), args, progress)?;
    let windows = report
        .findings
        .iter()
        .map(|findings| findings.quota.window())
        .min();
    report
        .warnings
        .extend(windows.and_then(|window| warn_of_grain(&loaded.trace, window, args.spread)));
    report
        .warnings
        .extend(warn_of_keys(&loaded.trace, &loaded.by));
    report.warnings.extend(loaded.proof.notes(windows));
    report.samples = loaded.proof.samples;
    report.source = source_names(args, sources, loaded.format);
    report.by = loaded.by.to_string();
    report.lines = loaded.lines;
    report.unparsed = loaded.unparsed.count;
    report.excluded = loaded.excluded;
    report
        .warnings
        .iter()
        .for_each(|warning| note(&format!("warning: {warning}")));
    Ok(report)
}

fn source_names(args: &Args, sources: &[Source], format: Format) -> String {
    let names = sources
        .iter()
        .map(Source::name)
        .collect::<Vec<_>>()
        .join(", ");
    let charged = args
        .charge
        .as_ref()
        .map(|cost| format!(", {} charged after the answer", cost.name()));
    format!("{names} ({format}){}", charged.unwrap_or_default())
}

fn options(args: &Args) -> input::Options {
    input::Options {
        format: args.format_in,
        by: args.by.clone(),
        time_field: input::TimeField::new(args.time_field.clone()),
        spread: args.spread,
        filter: args.filter(),
        charge: args.charge.clone(),
        took: args.took.clone(),
        stamped: args.stamped,
        zone: args.zone.clone(),
        trusted: args.trusted_proxies.clone().unwrap_or_default(),
    }
}

/// If nearly every key occurs once, no limit denies anything; if one key has nearly all requests, a
/// limit treats all clients as one. Either way the key is probably not the client.
pub(super) fn warn_of_keys(trace: &Trace, by: &By) -> Option<String> {
    let (keys, requests) = (u64::from(trace.keys()), trace.requests());
    if requests < 100 || *by == By::GLOBAL {
        return None;
    }
    let found = if keys * 10 >= requests * 9 {
        format!(
            "{} in {}: nearly every one occurs once, so no limit for each key denies anything",
            counted(keys, "key"),
            counted(requests, "request")
        )
    } else {
        let (key, most) = trace
            .busiest()
            .filter(|(_, most)| most * 10 >= requests * 9)?;
        let key = printable(&key, 60);
        format!(
            "the key {key} has {} of {}, as a proxy or a constant field would",
            shown::grouped(most),
            counted(requests, "request")
        )
    };
    Some(format!(
        "{found}. Is `{by}` what identifies a client in this log? Name another field with --by"
    ))
}

/// If times are not finer than a window, all algorithms get all requests of a window at once.
fn warn_of_grain(trace: &Trace, window: Duration, spread: bool) -> Option<String> {
    let grain = Duration::from_nanos(trace.resolution());
    if spread || grain < window || trace.requests() < 2 || trace.span().0 == trace.span().1 {
        return None;
    }
    Some(format!(
        "the log's times are whole multiples of {}, as coarse as the window of {}: whatever comes within one counts as coming \
         at once. Add --spread to spread it evenly, take a window of {} or more, or log finer times ($msec in nginx, \
         %{{msec_frac}}t in Apache)",
        Nanos::from(grain),
        Nanos::from(window),
        Nanos::from(grain * 10),
    ))
}

/// Suggests limits if requested, and replays the workload through all limits, given or suggested.
fn examine<W: Workload>(
    workload: &W,
    by: &str,
    args: &Args,
    progress: &Progress,
) -> Result<Report, SimulateError> {
    let threads = threads(args);
    let mut candidates: Vec<(Quota, Vec<AlgorithmSpec>)> = Vec::new();
    for &quota in &args.limits {
        candidates.push((quota, algorithms(args, quota)));
    }
    let suggested = if args.suggest.suggest {
        Some(propose(workload, by, args, threads, progress)?)
    } else {
        None
    };
    for (algorithm, suggestion) in suggested.iter().flat_map(|suggested| &suggested.found) {
        match candidates
            .iter_mut()
            .find(|(quota, _)| *quota == suggestion.quota)
        {
            Some((_, specs)) if specs.contains(algorithm) => {}
            Some((_, specs)) => specs.push(algorithm.clone()),
            None => candidates.push((suggestion.quota, vec![algorithm.clone()])),
        }
    }
    let fleet = args.fleet.fleet();
    let trial = |(quota, specs): &(Quota, Vec<AlgorithmSpec>)| {
        Trial::new(*quota, specs).map(|trial| trial.on(fleet))
    };
    let trials = candidates
        .iter()
        .map(trial)
        .collect::<Result<Vec<_>, _>>()?;
    let findings = replay(workload, &trials, threads, progress);
    let names = findings.iter().map(|each| {
        each.most_denied
            .iter()
            .map(|key| workload.label(key.key))
            .collect()
    });
    let heat = findings
        .iter()
        .zip(&trials)
        .map(|(each, trial)| heat_map(workload, trial, each));
    Ok(Report {
        names: names.collect(),
        heat: heat.collect(),
        findings,
        suggested,
        ..Report::default()
    })
}

fn threads(args: &Args) -> NonZeroUsize {
    let asked = args
        .threads
        .and_then(|count| NonZeroUsize::new(count.into()));
    asked
        .or_else(|| thread::available_parallelism().ok())
        .unwrap_or(NonZeroUsize::MIN)
}

/// The requested algorithms; by default all, except for those that the quota does not suit.
fn algorithms(args: &Args, quota: Quota) -> Vec<AlgorithmSpec> {
    if let Some(lists) = &args.algorithms {
        return lists.concat();
    }
    let (suited, others): (Vec<_>, Vec<_>) = AlgorithmSpec::all()
        .into_iter()
        .partition(|spec| spec.policy(quota).is_ok());
    for spec in others {
        if let Err(error) = spec.policy(quota) {
            note(&format!("{} is left out of {quota}: {error}", spec.label()));
        }
    }
    suited
}

fn propose<W: Workload>(
    workload: &W,
    by: &str,
    args: &Args,
    threads: NonZeroUsize,
    progress: &Progress,
) -> Result<Suggested, SimulateError> {
    let mut windows: Vec<Duration> = match args.suggest.window {
        Some(window) => vec![window],
        None if args.limits.is_empty() => vec![Duration::from_mins(1)],
        None => args.limits.iter().map(|quota| quota.window()).collect(),
    };
    windows.sort_unstable();
    windows.dedup();
    let goal = args.suggest.goal();
    let specs = args
        .algorithms
        .as_ref()
        .map_or_else(AlgorithmSpec::all, |lists| lists.concat());
    let mut found = Vec::new();
    let mut surveys = Vec::new();
    let mut failed = None;
    progress.begin(Stage::Suggesting, 0);
    for window in windows {
        let survey =
            Survey::new(workload, window, threads, progress).map_err(SuggestError::Window)?;
        let suggested = suggest_all(workload, &survey, &specs, goal, threads, progress);
        for (spec, suggestion) in specs.iter().zip(suggested) {
            match suggestion {
                Ok(suggestion) => found.push((spec.clone(), suggestion)),
                Err(error) => {
                    // Each replaces the one before, so that the last of several failures becomes
                    // the error of the run.
                    if let Some(before) = failed.replace(error) {
                        note(&format!("no limit is suggested: {before}"));
                    }
                }
            }
        }
        surveys.push(survey);
    }
    match failed {
        Some(error) if found.is_empty() => return Err(error.into()),
        Some(error) => note(&format!("no limit is suggested: {error}")),
        None => {}
    }
    let mut recommended = recommend(&found, by);
    if let Some(recommended) = &mut recommended
        && let Some(survey) = surveys
            .iter()
            .find(|survey| survey.window() == recommended.quota.window())
        && let Some((spec, _)) = found
            .iter()
            .find(|(spec, _)| spec.label() == recommended.algorithm)
    {
        let milder = recommended.milder_goal(goal, workload.requests());
        recommended.milder = milder.and_then(|goal| {
            let specs = std::slice::from_ref(spec);
            suggest_all(workload, survey, specs, goal, threads, progress)
                .pop()?
                .ok()
        });
        let mut limits = limits_around(recommended.quota.limit());
        if let Some(milder) = &recommended.milder {
            recommended.yaml = spec.yaml(milder.quota, by);
            limits.extend(limits_around(milder.quota.limit()));
            limits.sort_unstable();
            limits.dedup();
        }
        recommended.curve = curve(workload, survey, spec, limits, threads, progress);
    }
    Ok(Suggested {
        goal,
        found,
        busiest: surveys.iter().map(BusiestWindow::new).collect(),
        recommended,
    })
}

/// Prints the first of the lines that are not requests.
fn warn_of_unparsed(unparsed: &Unparsed, lines: u64, parts: &str) {
    if unparsed.count == 0 {
        return;
    }
    note(&format!(
        "{} of {lines} {parts} are not requests and are left out:",
        unparsed.count
    ));
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
    // A terminal may show a progress line, which this text replaces.
    let wipe = if out.is_terminal() { "\r\x1b[K" } else { "" };
    // If standard error is closed, the findings still matter.
    let _ = writeln!(out, "{wipe}{text}");
}
