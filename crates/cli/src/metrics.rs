//! `tidegate metrics`: reads metric logs.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use tidegate_core::{Clock, Nanos, parse_duration};
use tidegate_flow::{
    SystemClock,
    metric_log::{MetricLine, Query, ReadError, read_files},
};
use tidegate_server::shown::counted;
use tidegate_sim::{
    input::{parse_rfc3339, parse_unix, write_utc},
    report::printable,
};

use crate::output::{Unwritten, written};

/// Show the traffic of resources, second by second, from metric logs
///
/// Services that guard their resources write metric logs (gate.log_metrics in the library), with
/// one line for each resource and second with traffic. The files are APP-metrics.log.DATE,
/// APP-metrics.log.DATE.1 and so on.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER)]
pub struct Args {
    /// Metric logs, in any order; index files (.idx) are ignored
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Show only this resource; write `_` for a `|` in its name. All inbound traffic:
    /// __total_inbound_traffic__
    #[arg(long, short, value_name = "NAME")]
    resource: Option<String>,

    /// Show only lines from this time on: 2026-03-14T15:09:26Z, seconds or milliseconds since 1970,
    /// -15m, or now
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = Time::parse)]
    from: Option<Time>,

    /// Show only lines up to this time, including its second; the same form as for --from
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = Time::parse)]
    to: Option<Time>,

    #[command(flatten)]
    format: crate::client::Printed,
}

const AFTER: &str = include_str!("metrics.txt").trim_ascii_end();

/// A time as a user writes it.
#[derive(Clone, Copy, Debug)]
enum Time {
    /// Nanoseconds since 1970.
    At(u64),
    Ago(Duration),
}

impl Time {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let at = || {
            parse_rfc3339(text.as_bytes())
                .or_else(|| parse_unix(text))
                .map(Self::At)
        };
        let ago = || parse_duration(text.strip_prefix('-')?).ok().map(Self::Ago);
        let now = || (text == "now").then_some(Self::Ago(Duration::ZERO));
        at().or_else(ago).or_else(now).ok_or(
            "write it as 2026-03-14T15:09:26Z, as seconds or milliseconds since 1970, as -15m (15 minutes ago), or as now",
        )
    }

    /// The second since 1970 that contains the time.
    fn second(self, now: Nanos) -> u64 {
        let at = match self {
            Self::At(at) => at,
            Self::Ago(span) => now.saturating_since(span.into()).get(),
        };
        at / 1_000_000_000
    }
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
enum MetricsError {
    #[error("--from ({}) is later than --to ({}): swap them", utc(*from), utc(*to))]
    Backwards { from: u64, to: u64 },
    #[error("{}{}", .0, advice(.0))]
    Read(ReadError),
    /// Other files than metric logs.
    #[error("none of {} is one of a metric log: name files such as APP-metrics.log.2026-03-14", counted(*.0, "line"))]
    NoMetrics(u64),
    #[error(transparent)]
    Output(#[from] Unwritten),
}

fn advice(error: &ReadError) -> String {
    match error.source.kind() {
        io::ErrorKind::IsADirectory => {
            format!(
                "; name the files in it, as in {}",
                error.path.join("*-metrics.log.*").display()
            )
        }
        _ => String::new(),
    }
}

pub fn run(args: &Args) -> ExitCode {
    let Err(error) = show(args) else {
        return ExitCode::SUCCESS;
    };
    note(&format!("error: {error}"));
    ExitCode::FAILURE
}

fn show(args: &Args) -> Result<(), MetricsError> {
    let now = SystemClock::new().now();
    let (from, to) = (
        args.from.map(|time| time.second(now)),
        args.to.map(|time| time.second(now)),
    );
    if let (Some(from), Some(to)) = (from, to)
        && from > to
    {
        return Err(MetricsError::Backwards { from, to });
    }
    let query = Query {
        from,
        to,
        resource: args.resource.clone(),
        limit: None,
    };
    let logs = args
        .files
        .iter()
        .filter(|path| path.extension().is_none_or(|extension| extension != "idx"));
    let found = read_files(logs, &query).map_err(MetricsError::Read)?;
    if found.lines.is_empty() && found.unreadable > 0 && is_whole(&query) {
        return Err(MetricsError::NoMetrics(found.unreadable));
    }
    match found.unreadable {
        0 => {}
        1 => note("1 line could not be read and is left out"),
        more => note(&format!("{more} lines could not be read and are left out")),
    }
    if found.lines.is_empty() {
        note(
            "no line of these logs matches; without --resource, --from and --to all lines are shown",
        );
        return Ok(());
    }
    let write = if args.format.is_json() {
        write_json
    } else {
        write_table
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let result = write(&mut out, &found.lines).and_then(|()| out.flush());
    Ok(written(result, "standard output")?)
}

/// Whether every line of the logs is wanted.
const fn is_whole(query: &Query) -> bool {
    query.from.is_none() && query.to.is_none() && query.resource.is_none()
}

fn write_json(out: &mut dyn Write, lines: &[MetricLine]) -> io::Result<()> {
    for line in lines {
        serde_json::to_writer(&mut *out, line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn write_table(out: &mut dyn Write, lines: &[MetricLine]) -> io::Result<()> {
    let names: Vec<String> = lines
        .iter()
        .map(|line| printable(&line.resource, 200))
        .collect();
    let width = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0)
        .max("RESOURCE".len());
    let head = [
        "PASS",
        "BLOCK",
        "SUCCESS",
        "EXCEPTION",
        "RT MS",
        "IN FLIGHT",
    ];
    let mut row = |time: &str, name: &str, cells: [String; 6]| {
        write!(out, "{time:19}  {name:width$}")?;
        for (cell, title) in cells.iter().zip(head) {
            write!(out, "  {cell:>0$}", title.len().max(7))?;
        }
        out.write_all(b"\n")
    };
    row("TIME (UTC)", "RESOURCE", head.map(str::to_owned))?;
    for (line, name) in lines.iter().zip(&names) {
        let cells = [
            line.pass,
            line.block,
            line.success,
            line.exception,
            line.rt_ms,
            line.concurrency,
        ];
        row(
            &utc(line.at_ms / 1_000),
            name,
            cells.map(|cell| cell.to_string()),
        )?;
    }
    Ok(())
}

fn utc(second: u64) -> String {
    write_utc(Nanos::from_secs(second).get())
}

fn note(text: &str) {
    // If standard error is closed, the lines still matter.
    let _ = writeln!(io::stderr(), "{text}");
}
