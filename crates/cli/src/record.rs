//! `tidegate record`: writes the trace of a server to a file.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{
    error::Error,
    fs::{self, File},
    io::{self, BufRead, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;
use tidegate_server::shown::{self, counted};

use crate::client::{AdminTarget, Printed, exit, path, print};

/// Write what a server has traced to a file, for `tidegate simulate`
///
/// A server that runs with --trace-keys keeps every request of a share of its keys. The file has a
/// line of JSON for each of them: time, limit, hash of the key, cost and verdict, and the names of
/// heavy keys. The oldest request that the server still has is first.
///
///   tidegate record --server http://127.0.0.1:8082 -o trace.jsonl
///   tidegate simulate trace.jsonl --rules candidate.yaml
///
/// Exits with 0, or with 3 if the server cannot be asked or keeps no trace, or the file cannot be
/// written. With `-o -` nothing but the trace is printed.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    target: AdminTarget,
    /// The file, which is replaced when the whole trace has arrived; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Only this limit
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Only the last seconds of the trace
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Leave the names of heavy keys out, so that the file has hashes only
    #[arg(long)]
    without_names: bool,
    #[command(flatten)]
    format: Printed,
}

pub fn run(args: &Args) -> ExitCode {
    let done = match args.output.as_path() {
        path if path == Path::new("-") => read(args, &mut io::stdout().lock()).map(|_| ()),
        path => to_file(args, path).map(|lines| {
            let path = path.display().to_string();
            print(&if args.format.is_json() {
                json!({"lines": lines, "file": path}).to_string()
            } else {
                format!("wrote {} to {}", counted(lines, "line"), shown::text(&path))
            });
        }),
    };
    exit(done.map(|()| true))
}

/// Writes to another file in the same directory, which takes the file's name when the last line has
/// arrived. A device or a pipe, which no file must replace, gets the lines as they come.
fn to_file(args: &Args, path: &Path) -> Result<u64, Box<dyn Error>> {
    let refused = |error: io::Error| format!("cannot write {}: {error}", path.display());
    // The file behind a link, which stays.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        let mut file = BufWriter::new(File::options().write(true).open(path).map_err(refused)?);
        let lines = read(args, &mut file)?;
        file.flush().map_err(refused)?;
        return Ok(lines);
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let mut file = BufWriter::new(File::create(&part).map_err(refused)?);
    let placed = read(args, &mut file).and_then(|lines| {
        file.flush()
            .and_then(|()| fs::rename(&part, path))
            .map_err(refused)?;
        Ok(lines)
    });
    if placed.is_err() {
        // A part of a trace is useless.
        let _ = fs::remove_file(&part);
    }
    placed
}

/// Writes the trace. Returns the number of its lines.
fn read(args: &Args, out: &mut dyn Write) -> Result<u64, Box<dyn Error>> {
    let (seconds, names) = (
        args.seconds.map(|seconds| seconds.to_string()),
        args.without_names.then(|| "false".to_owned()),
    );
    let fields = [
        ("limit", args.limit.as_ref()),
        ("seconds", seconds.as_ref()),
        ("names", names.as_ref()),
    ];
    let path = path("/v1/trace", fields);
    let whole = args.target.target().read(&path, |body| copy(body, out))??;
    whole.ok_or_else(|| "the server stopped before the last line; record again".into())
}

/// Copies all lines. Returns their number, or `None` if the last one is not the trace's end.
fn copy(body: &mut dyn BufRead, out: &mut dyn Write) -> io::Result<Option<u64>> {
    let (mut line, mut lines, mut is_whole) = (Vec::new(), 0, false);
    loop {
        line.clear();
        // Nothing is read after the last line: how the connection ends then does not matter.
        if is_whole || body.read_until(b'\n', &mut line)? == 0 {
            out.flush()?;
            return Ok(is_whole.then_some(lines));
        }
        lines += 1;
        is_whole = line.starts_with(b"{\"end\":") && line.ends_with(b"\n");
        out.write_all(&line)?;
    }
}
