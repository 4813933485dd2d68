//! How many instructions fourteen hot calls take, counted by Valgrind. Unlike time, the count is the
//! same on a busy machine, so CI compares it: a call that takes 5 % more than `counts.txt` says is
//! an error.
//!
//! ```console
//! $ cargo run --release --manifest-path bench/instructions/Cargo.toml              # compares
//! $ cargo run --release --manifest-path bench/instructions/Cargo.toml -- --write   # writes counts.txt
//! ```

mod calls;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// How many percent above its count a call may be: compilers of one version differ less.
const TOLERANCE: f64 = 5.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let ended = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(),
        ["--write"] => write(),
        [name] => calls::run(name),
        _ => Err("give no argument, --write, or the name of a call".to_owned()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("counts.txt")
}

fn compare() -> Result<(), String> {
    let text = fs::read_to_string(file()).map_err(|error| format!("counts.txt: {error}"))?;
    let mut known: BTreeMap<&str, f64> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, count) = line
            .split_once(' ')
            .ok_or_else(|| format!("counts.txt: {line}"))?;
        known.insert(
            name,
            count
                .trim()
                .parse()
                .map_err(|_| format!("counts.txt: {line}"))?,
        );
    }
    let mut worse = Vec::new();
    for name in calls::NAMES {
        let count = count(name)?;
        let known = *known
            .get(name)
            .ok_or_else(|| format!("counts.txt has no {name}; write it with --write"))?;
        let change = 100.0 * (count / known - 1.0);
        println!("{name:32} {count:8.1} instructions, {change:+.1} %");
        if change > TOLERANCE {
            worse.push(name);
        }
    }
    if worse.is_empty() {
        return Ok(());
    }
    Err(format!(
        "more instructions than in bench/instructions/counts.txt: {}. If that is meant, write the file again with --write and say \
         in the commit what the instructions buy",
        worse.join(", ")
    ))
}

fn write() -> Result<(), String> {
    let mut text = "# Instructions a call, x86-64, the Rust of rust-version. Written by `cargo run --release -- --write`.\n".to_owned();
    for name in calls::NAMES {
        text += &format!("{name} {:.1}\n", count(name)?);
    }
    fs::write(file(), text).map_err(|error| format!("counts.txt: {error}"))
}

/// The instructions of one call, counted in a separate process under Valgrind.
fn count(name: &str) -> Result<f64, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--collect-atstart=no",
        ])
        .arg("--toggle-collect=*counted*")
        .arg(program)
        .arg(name)
        .output()
        .map_err(|error| {
            format!("valgrind cannot be started: {error} (Debian: the package valgrind)")
        })?;
    let told = String::from_utf8_lossy(&output.stderr);
    let total = told.lines().find_map(|line| {
        line.split_once("Collected : ")?
            .1
            .trim()
            .parse::<f64>()
            .ok()
    });
    match total {
        Some(total) if output.status.success() && total > 0.0 => {
            Ok(total / f64::from(calls::CALLS))
        }
        _ => Err(format!("valgrind counted nothing for {name}:\n{told}")),
    }
}
