//! Captures the log lines of one thread, for tests.

use std::sync::Arc;

use tracing::Level;

/// What `run` logs on this thread: one line for each event, with its level, message and fields.
pub(crate) fn captured(run: impl FnOnce()) -> Vec<String> {
    let (log, writer) = std::io::pipe().unwrap();
    let lines = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(false).without_time();
    let lines = lines.with_target(false).with_writer(Arc::new(writer)).finish();
    tracing::subscriber::with_default(lines, run);
    // A level is padded.
    std::io::read_to_string(log).unwrap().lines().map(|line| line.trim_start().to_owned()).collect()
}
