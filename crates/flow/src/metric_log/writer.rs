//! Writing the metric log, off the hot path.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write as _},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tidegate_core::Nanos;

use super::{
    INBOUND, LogFile, file_name, files,
    line::{Date, MetricLine},
};
use crate::{Gate, background::Background};

const SECOND: u64 = 1_000_000_000;

/// The metric log of one application, being written.
pub struct MetricLog {
    dir: PathBuf,
    app: String,
    max_bytes: u64,
    max_files: usize,
    /// The last second that was written, or passed over when the log was opened.
    written: Option<u64>,
    open: Option<Open>,
}

struct Open {
    file: LogFile,
    lines: BufWriter<File>,
    index: File,
    bytes: u64,
}

impl MetricLog {
    /// A log in this directory, which is made if it is not there. `app` becomes part of file names: a dot in it
    /// becomes `-`, and what else is no letter, digit, `-` or `_` becomes `_`.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(dir: impl Into<PathBuf>, app: &str) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        Ok(Self { dir, app: file_name(app), max_bytes: 50 << 20, max_files: 6, written: None, open: None })
    }

    /// Begins a new file when one has this many bytes. Default: 50 MiB.
    #[must_use]
    pub fn max_bytes(self, max_bytes: u64) -> Self {
        Self { max_bytes, ..self }
    }

    /// Keeps this many files, at least 1, and removes the oldest. Default: 6.
    #[must_use]
    pub fn max_files(self, max_files: usize) -> Self {
        Self { max_files: max_files.max(1), ..self }
    }

    /// The name in the files' names.
    #[must_use]
    pub fn app(&self) -> &str {
        &self.app
    }

    /// Writes the whole seconds that have ended since the last call, up to a minute back; the first call begins with
    /// the second before the current. Returns how many lines were written. Seconds in which nothing happened have no
    /// lines.
    ///
    /// # Errors
    /// When a file cannot be written or made. The seconds that were to be written are lost then: a full disk must not
    /// make the next write longer and longer.
    pub fn record(&mut self, gate: &Gate) -> io::Result<usize> {
        let now = gate.now();
        let ended = (now.get() / SECOND).checked_sub(1);
        ended.map_or(Ok(0), |last| self.write_until(gate, now, last))
    }

    /// As [`record`](Self::record), and the second under way, too, as far as it has come: for a program that ends. The
    /// most calls in flight in that second are not known yet, and written as 0; what happens in it later is not written.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn finish(&mut self, gate: &Gate) -> io::Result<usize> {
        let now = gate.now();
        self.write_until(gate, now, now.get() / SECOND)
    }

    /// Writes what has not been written, up to the second `last`.
    fn write_until(&mut self, gate: &Gate, now: Nanos, last: u64) -> io::Result<usize> {
        let begun = (now.get() / SECOND).saturating_sub(1);
        let first = self.written.map_or(begun, |written| written + 1);
        self.written = Some(self.written.map_or(last, |written| written.max(last)));
        let mut lines = Vec::new();
        let mut collect = |name: &str, node: &crate::Node| {
            // A call that read the clock before its second ended, and is counted only now, counts in this second: what
            // is written is complete.
            node.settle(now);
            node.window().look(now, |_| ());
            let ended = node.seconds(now).into_iter().filter(|second| {
                (first..=last).contains(&(second.start.get() / SECOND))
                    && second.counts != tidegate_core::stats::Counts::default()
            });
            lines.extend(ended.map(|second| MetricLine::new(name, &second)));
        };
        collect(INBOUND, gate.inbound());
        for resource in gate.resources() {
            collect(resource.name(), resource.node());
        }
        // Stable: within a second, the order of the names.
        lines.sort_by_key(|line| line.at_ms);
        for second in lines.chunk_by(|a, b| a.at_ms == b.at_ms) {
            self.write(second)?;
        }
        Ok(lines.len())
    }

    /// Writes the lines of one second.
    fn write(&mut self, lines: &[MetricLine]) -> io::Result<()> {
        let Some(second) = lines.first().map(|line| line.at_ms / 1_000) else { return Ok(()) };
        let date = Date::of(second).to_string();
        let fits = |open: &Open| open.file.date == date && open.bytes < self.max_bytes;
        let mut open = match self.open.take() {
            Some(open) if fits(&open) => open,
            _ => self.roll(&date)?,
        };
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&second.to_be_bytes());
        entry[8..].copy_from_slice(&open.bytes.to_be_bytes());
        for line in lines {
            let line = format!("{line}\n");
            open.lines.write_all(line.as_bytes())?;
            open.bytes += line.len() as u64;
        }
        // The lines first: an index entry always finds its lines.
        open.lines.flush()?;
        open.index.write_all(&entry)?;
        self.open = Some(open);
        Ok(())
    }

    /// Begins the next file of a day, and removes what is too old.
    fn roll(&self, date: &str) -> io::Result<Open> {
        let mut kept = files(&self.dir, &self.app)?;
        let newest = kept.iter().filter(|file| file.date == date).map(|file| file.number).max();
        let file = LogFile::new(&self.dir, &self.app, date, newest.map_or(0, |number| number + 1));
        while kept.len() >= self.max_files {
            let oldest = kept.remove(0);
            fs::remove_file(&oldest.path)?;
            // An index that is missing already is as good as removed.
            let _ = fs::remove_file(oldest.index());
        }
        let make = |path: &PathBuf| OpenOptions::new().append(true).create_new(true).open(path);
        let lines = BufWriter::new(make(&file.path)?);
        let index = make(&file.index())?;
        Ok(Open { file, lines, index, bytes: 0 })
    }
}

/// A metric log that is written each second on a thread of its own, until this is dropped; then what is left is written,
/// the second under way included.
pub struct MetricLogger {
    thread: Option<Background>,
    write: Arc<Write>,
}

/// What the thread runs each second, and the logger when it is dropped.
struct Write {
    gate: Gate,
    log: Mutex<MetricLog>,
    failed: Box<dyn Fn(io::Error) + Send + Sync>,
}

impl Write {
    fn run(&self, write: impl FnOnce(&mut MetricLog, &Gate) -> io::Result<usize>) {
        let result = write(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner), &self.gate);
        // The lock is free again: `failed` may end the program, and so drop the logger.
        if let Err(error) = result {
            (self.failed)(error);
        }
    }
}

impl Gate {
    /// Writes a metric log each second. `failed` is called when a second could not be written.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn log_metrics(
        &self,
        log: MetricLog,
        failed: impl Fn(io::Error) + Send + Sync + 'static,
    ) -> io::Result<MetricLogger> {
        let write = Arc::new(Write { gate: self.clone(), log: Mutex::new(log), failed: Box::new(failed) });
        let thread = {
            let write = write.clone();
            let work = move || write.run(MetricLog::record);
            Background::spawn("tidegate-metrics", Duration::from_secs(1), work)?
        };
        Ok(MetricLogger { thread: Some(thread), write })
    }
}

impl Drop for MetricLogger {
    fn drop(&mut self) {
        drop(self.thread.take()); // It writes no more.
        self.write.run(MetricLog::finish);
    }
}
