//! Standard output. A command succeeds if the reader closes it (`| head`), who has seen enough, and
//! fails on a full disk, because the missing text is the result.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

/// An error of writing a result.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to {place}: {error}")]
pub struct Unwritten {
    place: String,
    error: io::Error,
}

/// The result of writing, which succeeds if the reader closes the place.
pub fn written(result: io::Result<()>, place: &str) -> Result<(), Unwritten> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Unwritten {
            place: place.to_owned(),
            error,
        }),
        _ => Ok(()),
    }
}

/// Writes a text to standard output.
pub fn write(text: &str) -> Result<(), Unwritten> {
    let mut out = io::stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written(result, "standard output")
}

/// The exit code of a command whose result is what it has written: 0, or 1 and the error.
pub fn exit_code(result: Result<(), Unwritten>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints the error.
pub fn report(error: &Unwritten) {
    // If standard error is closed too, the exit code still shows the failure.
    let _ = writeln!(io::stderr(), "error: {error}");
}
