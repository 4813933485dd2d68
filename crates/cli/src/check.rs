//! `tidegate check`: reads a rules file as `serve` would, and says what it holds or what is wrong.
#![allow(clippy::doc_markdown, reason = "the options' comments are their help text")]

use std::{path::PathBuf, process::ExitCode};

use tidegate_core::Nanos;
use tidegate_server::{
    live::{Limit, LiveRules},
    rules,
};

/// Check a rules file
///
/// Prints the limits in it, or everything that is wrong with it: line, reason, mend. Exits with 1 when it cannot be used.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The rules file
    file: PathBuf,
    /// Keys remembered by each limit that has no max_keys of its own
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_KEYS", default_value_t = crate::serve::MAX_KEYS)]
    max_keys: u32,
}

pub fn run(args: &Args) -> ExitCode {
    let made = rules::load(&args.file)
        .and_then(|rules| LiveRules::new(rules, args.max_keys as usize, |_| None, Nanos::ZERO));
    match made {
        Ok(limits) => {
            print!("{}", table(&limits));
            let count = limits.limits().len();
            let plural = if count == 1 { "" } else { "s" };
            println!("\n{} is good: {count} limit{plural}.", args.file.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            let count = error.problems().len();
            if count > 1 {
                eprintln!("\n{} has {count} problems; nothing of it would be used.", args.file.display());
            }
            ExitCode::FAILURE
        }
    }
}

fn table(limits: &LiveRules) -> String {
    let head = ["LIMIT", "QUOTA", "ALGORITHM", "FOR", "KEYS", "MEMORY", "NOTES"].map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(limits.limits().iter().map(|limit| row(limit)));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn row(limit: &Limit) -> [String; 7] {
    let spec = limit.spec();
    let stats = limit.limiter().stats();
    let mut notes = vec![spec.policy.options()];
    notes.extend(spec.shadow.then(|| "shadow".to_owned()));
    let count = |what: &str, count: usize| (count > 0).then(|| format!("{count} {what}"));
    notes.extend(count("overridden", spec.overrides.len()));
    notes.extend(count("denied", spec.deny.len()));
    notes.retain(|note| !note.is_empty());
    [
        spec.name.clone(),
        spec.policy.quota(),
        spec.policy.algorithm.name().to_owned(),
        if spec.global { "all" } else { "each key" }.to_owned(),
        if spec.global { "-".to_owned() } else { stats.max_keys.to_string() },
        format!("at most {}", size(stats.bytes)),
        notes.join(", "),
    ]
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64 / f64::from(1_u32 << (10 * unit.min(3))) / if unit == 4 { 1024.0 } else { 1.0 };
    if value < 10.0 && unit > 0 {
        format!("{value:.1} {}", UNITS[unit as usize])
    } else {
        format!("{value:.0} {}", UNITS[unit as usize])
    }
}
