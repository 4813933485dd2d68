//! The metric log: what each resource did in each second, in files that stay small.
//!
//! One line a resource a second, as Sentinel writes it:
//!
//! ```text
//! ms|yyyy-MM-dd HH:mm:ss|resource|pass|block|success|exception|rt|occupied|concurrency|class
//! ```
//!
//! Files are named `APP-metrics.log.DATE`, further ones of a day `APP-metrics.log.DATE.1` and so on; beside each lies
//! an index, `….idx`: pairs of big-endian 64-bit numbers, a second (since 1970) and where its lines begin. Dates are
//! UTC. The gate's clock must count from 1970, as [`SystemClock`](crate::SystemClock) does.

mod line;
mod reader;
mod writer;

pub use line::{MetricLine, ParseLineError};
pub use reader::{Found, Query, ReadError, read, read_files};
pub use writer::{MetricLog, MetricLogger};

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The name under which all inbound traffic is logged.
pub const INBOUND: &str = "__total_inbound_traffic__";

/// An application's name as its files have it: a dot becomes `-`, as Sentinel writes it, and what else is no letter, digit,
/// `-` or `_` becomes `_`.
fn file_name(app: &str) -> String {
    let plain = |c: char| match c {
        '.' => '-',
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => c,
        _ => '_',
    };
    app.chars().map(plain).collect()
}

/// A log file: its day and number give the order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogFile {
    date: String,
    number: u32,
    path: PathBuf,
}

impl LogFile {
    fn new(dir: &Path, app: &str, date: &str, number: u32) -> Self {
        let suffix = if number == 0 { String::new() } else { format!(".{number}") };
        let path = dir.join(format!("{app}-metrics.log.{date}{suffix}"));
        Self { date: date.into(), number, path }
    }

    fn index(&self) -> PathBuf {
        index_of(&self.path)
    }
}

/// The index of a log file.
fn index_of(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".idx");
    name.into()
}

/// The log files of an application, oldest first.
fn files(dir: &Path, app: &str) -> io::Result<Vec<LogFile>> {
    let app = &*file_name(app);
    let prefix = format!("{app}-metrics.log.");
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else { continue };
        let (date, number) = match rest.split_once('.') {
            None => (rest, Some(0)),
            Some((date, number)) => (date, number.parse().ok()),
        };
        if let Some(number) = number
            && date.len() == 10
            && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
        {
            files.push(LogFile::new(dir, app, date, number));
        }
    }
    files.sort_unstable();
    Ok(files)
}
