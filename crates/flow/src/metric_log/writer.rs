//! Writes the metric log, off the hot path.

use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tidegate_config::file::append;
use tidegate_core::Nanos;

use super::{
    INBOUND, LogFile, file_name, files,
    line::{Date, MetricLine},
};
use crate::{Gate, background::Background};

const SECOND: u64 = 1_000_000_000;

/// Writes the metric log of one application.
pub struct MetricLog {
    dir: PathBuf,
    app: String,
    max_bytes: u64,
    max_files: usize,
    /// The last second that was written, or that was skipped when the log was opened.
    written: Option<u64>,
    open: Option<OpenLog>,
}

struct OpenLog {
    file: LogFile,
    lines: File,
    index: File,
    bytes: u64,
}

impl MetricLog {
    /// Opens a log in this directory, and creates the directory if necessary. `app` becomes part of
    /// the file names: a dot becomes `-`, and any other character except letters, digits, `-` and
    /// `_` becomes `_`.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn open(dir: impl Into<PathBuf>, app: &str) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        Ok(Self {
            dir,
            app: file_name(app),
            max_bytes: 50 << 20,
            max_files: 6,
            written: None,
            open: None,
        })
    }

    /// Starts a new file once a file has `bytes` bytes. Default: 50 MiB.
    #[must_use]
    pub fn max_bytes(self, max_bytes: u64) -> Self {
        Self { max_bytes, ..self }
    }

    /// Keeps `files` files (at least 1) and removes older ones. Default: 6.
    #[must_use]
    pub fn max_files(self, max_files: usize) -> Self {
        Self {
            max_files: max_files.max(1),
            ..self
        }
    }

    /// Returns the application's name as used in the file names.
    #[must_use]
    pub fn app(&self) -> &str {
        &self.app
    }

    /// Writes the seconds that have ended since the last call, up to one minute back. The first
    /// call begins with the second before the current one. Returns the number of lines written.
    /// Seconds without traffic have no lines.
    ///
    /// # Errors
    /// If a file cannot be created or written. The seconds of this call are then lost, so that a
    /// full disk does not make each following write longer.
    pub fn record(&mut self, gate: &Gate) -> io::Result<usize> {
        let now = gate.now();
        let ended = (now.get() / SECOND).checked_sub(1);
        ended.map_or(Ok(0), |last| self.write_until(gate, now, last))
    }

    /// Same as [`record`](Self::record), but also writes the current second so far. Call it before
    /// the program exits. The highest number of calls in flight in that second is not known yet and
    /// is written as 0. Later events of that second are not written.
    ///
    /// # Errors
    /// Same as [`record`](Self::record).
    pub fn finish(&mut self, gate: &Gate) -> io::Result<usize> {
        let now = gate.now();
        self.write_until(gate, now, now.get() / SECOND)
    }

    /// Writes all seconds that have not been written, up to `last`.
    fn write_until(&mut self, gate: &Gate, now: Nanos, last: u64) -> io::Result<usize> {
        let begun = (now.get() / SECOND).saturating_sub(1);
        let first = self.written.map_or(begun, |written| written + 1);
        self.written = Some(self.written.map_or(last, |written| written.max(last)));
        let mut lines = Vec::new();
        let mut collect = |name: &str, node: &crate::Node| {
            // Turn the window to the current second. A call that read the clock before its second
            // ended but counts only now then counts in the current second, so the written seconds
            // are complete.
            node.turn(now);
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
        // The sort is stable: lines of the same second stay in the order of the names.
        lines.sort_by_key(|line| line.at_ms);
        for second in lines.chunk_by(|a, b| a.at_ms == b.at_ms) {
            self.write(second)?;
        }
        Ok(lines.len())
    }

    /// Writes the lines of one second and their index entry.
    fn write(&mut self, lines: &[MetricLine]) -> io::Result<()> {
        let Some(second) = lines.first().map(|line| line.at_ms / 1_000) else {
            return Ok(());
        };
        let date = Date::of(second).to_string();
        let fits = |open: &OpenLog| open.file.date == date && open.bytes < self.max_bytes;
        let mut open = match self.open.take() {
            Some(open) if fits(&open) => open,
            _ => self.roll(&date)?,
        };
        let entry = [second.to_be_bytes(), open.bytes.to_be_bytes()].concat();
        let lines = lines.iter().fold(String::new(), |mut text, line| {
            // A text takes everything.
            let _ = writeln!(text, "{line}");
            text
        });
        // Write the lines first, so that an index entry always has its lines.
        let written = append(&open.lines, lines.as_bytes())
            .and_then(|()| {
                append(&open.index, &entry).or_else(|error| {
                    open.lines.set_len(open.bytes)?;
                    Err(error)
                })
            })
            .map(|()| open.bytes += lines.len() as u64);
        // A full disk has changed nothing, so the next second goes to the same file.
        self.open = Some(open);
        written
    }

    /// Starts the next file of a day and removes the oldest files.
    fn roll(&self, date: &str) -> io::Result<OpenLog> {
        let mut kept = files(&self.dir, &self.app)?;
        let newest = kept
            .iter()
            .filter(|file| file.date == date)
            .map(|file| file.number)
            .max();
        let file = LogFile::new(
            &self.dir,
            &self.app,
            date,
            newest.map_or(0, |number| number + 1),
        );
        while kept.len() >= self.max_files {
            let oldest = kept.remove(0);
            fs::remove_file(&oldest.path)?;
            // Ignore the error: the index may already be missing.
            let _ = fs::remove_file(oldest.index());
        }
        let make = |path: &PathBuf| OpenOptions::new().append(true).create_new(true).open(path);
        let lines = make(&file.path)?;
        let index = make(&file.index())?;
        Ok(OpenLog {
            file,
            lines,
            index,
            bytes: 0,
        })
    }
}

/// Writes a metric log every second on a background thread. Dropping it writes the remaining
/// seconds, including the current one.
pub struct MetricLogger {
    thread: Option<Background>,
    write: Arc<Write>,
}

/// The work of the thread in each second, and of the logger when it is dropped.
struct Write {
    gate: Gate,
    log: Mutex<MetricLog>,
    failed: Box<dyn Fn(io::Error) + Send + Sync>,
}

impl Write {
    fn run(&self, write: impl FnOnce(&mut MetricLog, &Gate) -> io::Result<usize>) {
        let result = write(
            &mut self.log.lock().unwrap_or_else(PoisonError::into_inner),
            &self.gate,
        );
        // The lock is released here, because `failed` may end the program and so drop the logger.
        if let Err(error) = result {
            (self.failed)(error);
        }
    }
}

impl Gate {
    /// Writes a metric log every second. `failed` is called when a second could not be written.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn log_metrics(
        &self,
        log: MetricLog,
        failed: impl Fn(io::Error) + Send + Sync + 'static,
    ) -> io::Result<MetricLogger> {
        let write = Arc::new(Write {
            gate: self.clone(),
            log: Mutex::new(log),
            failed: Box::new(failed),
        });
        let thread = {
            let write = write.clone();
            let work = move || write.run(MetricLog::record);
            Background::spawn("tidegate-metrics", Duration::from_secs(1), work)?
        };
        Ok(MetricLogger {
            thread: Some(thread),
            write,
        })
    }
}

impl Drop for MetricLogger {
    fn drop(&mut self) {
        drop(self.thread.take()); // The thread writes nothing after this.
        self.write.run(MetricLog::finish);
    }
}
