//! Reading a metric log.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Seek, SeekFrom},
    path::Path,
};

use super::{LogFile, files, line::MetricLine};

/// What to look for.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Lines of this second (since 1970) or later.
    pub from: Option<u64>,
    /// Lines of this second or earlier.
    pub to: Option<u64>,
    /// Lines of this resource only.
    pub resource: Option<String>,
    /// At most this many lines.
    pub limit: Option<usize>,
}

impl Query {
    fn is_wanted(&self, line: &MetricLine) -> bool {
        let second = line.at_ms / 1_000;
        self.from.is_none_or(|from| second >= from)
            && self.to.is_none_or(|to| second <= to)
            && self.resource.as_ref().is_none_or(|name| *name == line.resource)
    }
}

/// The lines of an application's log that a query asks for, oldest first, and how many lines could not be read (the
/// last one of a file, when its writer was killed).
///
/// # Errors
/// When the directory or a file cannot be read.
pub fn read(dir: impl AsRef<Path>, app: &str, query: &Query) -> io::Result<(Vec<MetricLine>, usize)> {
    let (mut lines, mut unreadable) = (Vec::new(), 0);
    let limit = query.limit.unwrap_or(usize::MAX);
    for file in files(dir.as_ref(), app)? {
        let Some(offset) = offset_of(&file, query)? else { continue };
        let mut opened = File::open(&file.path)?;
        opened.seek(SeekFrom::Start(offset))?;
        for text in BufReader::new(opened).split(b'\n') {
            if lines.len() >= limit {
                return Ok((lines, unreadable));
            }
            let text = text?;
            match String::from_utf8_lossy(&text).parse::<MetricLine>() {
                Ok(line) if query.to.is_some_and(|to| line.at_ms / 1_000 > to) => break,
                Ok(line) if query.is_wanted(&line) => lines.push(line),
                Ok(_) => {}
                Err(_) => unreadable += 1,
            }
        }
    }
    Ok((lines, unreadable))
}

/// Where in the file to begin; `None` where nothing is wanted. Without an index that can be read: at the beginning.
fn offset_of(file: &LogFile, query: &Query) -> io::Result<Option<u64>> {
    let index = match fs::read(file.index()) {
        Ok(index) => index,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Some(0)),
        Err(e) => return Err(e),
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let entries: Vec<(u64, u64)> =
        index.chunks_exact(16).map(|pair| (number(&pair[..8]), number(&pair[8..]))).collect();
    let from = query.from.unwrap_or(0);
    let first = entries.partition_point(|&(second, _)| second < from);
    match entries.get(first) {
        Some(&(second, _)) if query.to.is_some_and(|to| second > to) => Ok(None),
        Some(&(_, offset)) => Ok(Some(offset)),
        // All that is indexed is too old; lines that were written without their entry come after the last.
        None => Ok(Some(entries.last().map_or(0, |&(_, offset)| offset))),
    }
}
