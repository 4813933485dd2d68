//! The metric log: the statistics of each resource in each second, in files of bounded size.
//!
//! The log has one line per resource and second, in Sentinel's format:
//!
//! ```text
//! ms|yyyy-MM-dd HH:mm:ss|resource|pass|block|success|exception|rt|occupied|concurrency|class
//! ```
//!
//! Files are named `APP-metrics.log.DATE`; further files of a day are named
//! `APP-metrics.log.DATE.1` and so on. Each file has an index, `….idx`, which contains pairs of
//! big-endian 64-bit numbers: a second (since 1970) and the offset of its first line. Dates are in
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

/// The resource name under which the log contains all inbound traffic.
pub const INBOUND: &str = "__total_inbound_traffic__";

/// Returns an application's name for file names. A dot becomes `-`, as in Sentinel. Any other
/// character except letters, digits, `-` and `_` becomes `_`.
fn file_name(app: &str) -> String {
    let plain = |c: char| match c {
        '.' => '-',
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => c,
        _ => '_',
    };
    app.chars().map(plain).collect()
}

/// A log file. Files are ordered by day and number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogFile {
    date: String,
    number: u32,
    path: PathBuf,
}

impl LogFile {
    fn new(dir: &Path, app: &str, date: &str, number: u32) -> Self {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!(".{number}")
        };
        let path = dir.join(format!("{app}-metrics.log.{date}{suffix}"));
        Self {
            date: date.into(),
            number,
            path,
        }
    }

    fn index(&self) -> PathBuf {
        index_of(&self.path)
    }
}

/// Returns the path of a log file's index.
fn index_of(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".idx");
    name.into()
}

/// Returns the log files of an application, oldest first.
fn files(dir: &Path, app: &str) -> io::Result<Vec<LogFile>> {
    let app = &*file_name(app);
    let prefix = format!("{app}-metrics.log.");
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else {
            continue;
        };
        let (date, number) = match rest.split_once('.') {
            None => (rest, Some(0)),
            Some((date, number)) => (date, number.parse().ok()),
        };
        if let Some(number) = number
            && date.len() == 10
            && date
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'-')
        {
            files.push(LogFile::new(dir, app, date, number));
        }
    }
    files.sort_unstable();
    Ok(files)
}
