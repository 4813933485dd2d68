//! `tidegate usage`: what keys and limits have used, from the ledger of `serve --usage`.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use clap::ValueEnum;
use tidegate_server::{
    shown::counted,
    usage::{UsageLine, read_usage},
};

use crate::output;

/// Print what keys and limits have used, from the ledger of serve --usage
///
/// Times are in UTC: a date, or a date with an hour, as in 2026-11-25T14. A key is empty for a
/// global limit, and `-` where a server saw too many keys to count each. `used` is the number of
/// units, without those that were returned.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory of serve --usage
    directory: PathBuf,
    /// The first hour
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<String>,
    /// The hour after the last one
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<String>,
    /// A line for each key of a limit, or for each limit
    #[arg(long, value_enum, default_value = "key")]
    by: By,
    /// A line for each period, or one for all
    #[arg(long, value_enum, default_value = "all")]
    each: Each,
    /// The form of the output: text, csv, or json (an object on each line)
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Key,
    Limit,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Each {
    Hour,
    Day,
    Month,
    All,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    // The aliases are the names in earlier versions.
    #[value(alias = "table")]
    Text,
    Csv,
    #[value(alias = "jsonl")]
    Json,
}

/// A date, or a date with an hour. The text is then the beginning of the hours that it means.
fn time(text: &str) -> Result<String, &'static str> {
    let form = |byte: &u8| if byte.is_ascii_digit() { b'0' } else { *byte };
    let form: Vec<u8> = text.as_bytes().iter().map(form).collect();
    // Two digits are in the order of their numbers.
    let is_within = || {
        let hour = text.get(11..).unwrap_or("00");
        ("01"..="12").contains(&&text[5..7]) && ("01"..="31").contains(&&text[8..10]) && hour < "24"
    };
    match form.as_slice() {
        b"0000-00-00" | b"0000-00-00T00" if is_within() => Ok(text.to_owned()),
        _ => Err("write a date, as in 2026-11-25, or with an hour, as in 2026-11-25T14"),
    }
}

pub fn run(args: &Args) -> ExitCode {
    let mut sums: BTreeMap<(String, String, Option<String>), UsageLine> = BTreeMap::new();
    let range = (args.from.as_deref(), args.to.as_deref());
    if let (Some(from), Some(to)) = range
        && from > to
    {
        eprintln!("error: --from ({from}) is later than --to ({to}): swap them");
        return ExitCode::FAILURE;
    }
    let damaged = read_usage(&args.directory, range, |line| {
        let length = match args.each {
            Each::Hour => 13,
            Each::Day => 10,
            Each::Month => 7,
            Each::All => 0,
        };
        let at = line.at.get(..length).unwrap_or_default().to_owned();
        let key = line.key.filter(|_| args.by == By::Key);
        let sum = sums.entry((at, line.limit, key)).or_default();
        sum.used = sum.used.saturating_add(line.used);
        sum.requests += line.requests;
        sum.denied += line.denied;
    });
    match damaged {
        Ok(0) => {}
        Ok(damaged) => eprintln!(
            "warning: left out, as not whole: {}",
            counted(damaged, "line")
        ),
        Err(error) => {
            eprintln!("error: {}: {error}", args.directory.display());
            return ExitCode::FAILURE;
        }
    }
    let lines = sums.into_iter().map(|((at, limit, key), sum)| UsageLine {
        at,
        limit,
        key,
        ..sum
    });
    output::exit_code(output::write(&shown(args, lines)))
}

fn shown(args: &Args, lines: impl Iterator<Item = UsageLine>) -> String {
    if let Format::Json = args.format {
        let json = |line: UsageLine| {
            // A line has only texts and numbers.
            let text = serde_json::to_string(&line).unwrap_or_default() + "\n";
            // The sum of all hours has no time. It is the first member.
            text.replacen("{\"at\":\"\"", "{\"at\":null", 1)
        };
        return lines.map(json).collect();
    }
    let is_csv = matches!(args.format, Format::Csv);
    let cell = |cell: &str| {
        if !is_csv {
            // A terminal must not interpret what a key has.
            return cell.escape_debug().to_string();
        }
        if cell.contains([',', '"', '\n', '\r']) {
            return format!("\"{}\"", cell.replace('"', "\"\""));
        }
        cell.to_owned()
    };
    let mut rows = vec![
        ["at", "limit", "key", "used", "requests", "denied"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(lines.map(|line| {
        let key = line.key.as_deref().unwrap_or("-");
        let numbers = [
            line.used.to_string(),
            line.requests.to_string(),
            line.denied.to_string(),
        ];
        [cell(&line.at), cell(&line.limit), cell(key)]
            .into_iter()
            .chain(numbers)
            .collect()
    }));
    for row in &mut rows {
        if args.by == By::Limit {
            row.remove(2);
        }
        if matches!(args.each, Each::All) {
            row.remove(0);
        }
    }
    if is_csv {
        rows.iter().map(|row| row.join(",") + "\n").collect()
    } else {
        crate::check::aligned(&rows)
    }
}
