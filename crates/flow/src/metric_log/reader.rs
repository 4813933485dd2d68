//! Reads a metric log.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::{files, index_of, line::MetricLine};

/// A query for lines of a log.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only lines of this second (since 1970) or later.
    pub from: Option<u64>,
    /// Only lines of this second or earlier.
    pub to: Option<u64>,
    /// Only lines of this resource, by its name as written in the log (see
    /// [`MetricLine::resource`]).
    pub resource: Option<String>,
    /// The maximum number of lines, beginning with the oldest.
    pub limit: Option<usize>,
}

impl Query {
    fn wants(&self, line: &MetricLine) -> bool {
        let second = line.at_ms / 1_000;
        self.from.is_none_or(|from| second >= from)
            && self.to.is_none_or(|to| second <= to)
            && self
                .resource
                .as_ref()
                .is_none_or(|name| *name == line.resource)
    }
}

/// The result of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The lines, oldest first.
    pub lines: Vec<MetricLine>,
    /// The number of log files that were found; 0 if no file has that name.
    pub files: usize,
    /// The number of lines that were skipped because they could not be parsed, such as the last
    /// line of a file whose writer was killed.
    pub unreadable: u64,
}

/// The error of a log that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct ReadError {
    /// The file or directory.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// Returns the lines of an application's log that match a query. `app` is the name that the log was
/// opened with.
///
/// # Errors
/// If the directory or a file cannot be read.
pub fn read(dir: impl AsRef<Path>, app: &str, query: &Query) -> Result<Found, ReadError> {
    let dir = dir.as_ref();
    let mut found = Found::default();
    for file in files(dir, app).map_err(|source| ReadError {
        path: dir.into(),
        source,
    })? {
        scan(&file.path, query, &mut found).map_err(|source| ReadError {
            path: file.path,
            source,
        })?;
    }
    Ok(found)
}

/// Returns the lines of these log files that match a query. The files may be in any order.
///
/// # Errors
/// If a file cannot be read.
pub fn read_files<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
    query: &Query,
) -> Result<Found, ReadError> {
    let mut found = Found::default();
    let whole = Query {
        limit: None,
        ..query.clone()
    };
    for path in paths {
        let path = path.as_ref();
        scan(path, &whole, &mut found).map_err(|source| ReadError {
            path: path.into(),
            source,
        })?;
    }
    // The sort is stable: lines of the same second stay in the order of the files.
    found.lines.sort_by_key(|line| line.at_ms);
    found.lines.truncate(query.limit.unwrap_or(usize::MAX));
    Ok(found)
}

/// Adds the matching lines of one file.
fn scan(path: &Path, query: &Query, found: &mut Found) -> io::Result<()> {
    let mut file = File::open(path)?;
    found.files += 1;
    let Some(offset) = offset_of(&mut file, path, query)? else {
        return Ok(());
    };
    file.seek(SeekFrom::Start(offset))?;
    for text in BufReader::new(file).split(b'\n') {
        if found.lines.len() >= query.limit.unwrap_or(usize::MAX) {
            break;
        }
        match String::from_utf8_lossy(&text?).parse::<MetricLine>() {
            Ok(line) if query.to.is_some_and(|to| line.at_ms / 1_000 > to) => break,
            Ok(line) if query.wants(&line) => found.lines.push(line),
            Ok(_) => {}
            Err(_) => found.unreadable += 1,
        }
    }
    Ok(())
}

/// Returns the offset from which to read the file; `None` if it contains nothing that matches.
/// Without a usable index this is the beginning of the file.
fn offset_of(file: &mut File, path: &Path, query: &Query) -> io::Result<Option<u64>> {
    let index = match fs::read(index_of(path)) {
        Ok(index) => index,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Some(0)),
        Err(e) => return Err(e),
    };
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let entries: Vec<(u64, u64)> = index
        .chunks_exact(16)
        .map(|pair| (number(&pair[..8]), number(&pair[8..])))
        .collect();
    let from = query.from.unwrap_or(0);
    let first = entries.partition_point(|&(second, _)| second < from);
    let offset = match entries.get(first) {
        Some(&(second, _)) if query.to.is_some_and(|to| second > to) => return Ok(None),
        Some(&(_, offset)) => offset,
        // All indexed lines are too old. Lines that were written without an index entry come after
        // the last entry.
        None => entries.last().map_or(0, |&(_, offset)| offset),
    };
    Ok(Some(if begins_a_line(file, offset)? {
        offset
    } else {
        0
    }))
}

/// Whether a line begins at `offset`. An index that is torn, or belongs to another file, may point
/// anywhere.
fn begins_a_line(file: &mut File, offset: u64) -> io::Result<bool> {
    let Some(before) = offset.checked_sub(1) else {
        return Ok(true);
    };
    let mut byte = [0];
    file.seek(SeekFrom::Start(before))?;
    Ok(file.read(&mut byte)? == 1 && byte == *b"\n")
}
