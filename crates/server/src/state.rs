//! When the state file is read and written, and what is told about it.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use tidegate_core::Nanos;
use tidegate_limiter::HashKeys;

use crate::{metrics::Events, service::Service, start_error::StartError, state_file};

/// A state file of a server.
pub(crate) struct State {
    path: PathBuf,
    /// What was found at the start.
    found: Option<state_file::Headers>,
    events: Arc<Events>,
}

impl State {
    /// Checks the file at this path, and sets a damaged one aside; `None` without a path.
    ///
    /// # Errors
    /// When the file cannot be read, or could not be written later.
    pub fn open(path: Option<PathBuf>, events: &Arc<Events>) -> Result<Option<Self>, StartError> {
        let Some(path) = path else { return Ok(None) };
        let refused = |source: io::Error| StartError::State { path: path.clone(), source };
        state_file::try_place(&path).map_err(refused)?;
        let found = match state_file::check(&path) {
            Ok(found) => found,
            Err(state_file::StateError::Io(source)) => return Err(refused(source)),
            Err(error) => {
                let aside = state_file::set_aside(&path).map_err(refused)?;
                tracing::error!(
                    file = %path.display(),
                    reason = %error,
                    set_aside = %aside.display(),
                    "the state file is refused: every limit begins anew",
                );
                None
            }
        };
        Ok(Some(Self { path, found, events: Arc::clone(events) }))
    }

    /// When the file was written, on the clock of the server that wrote it.
    pub fn written_at(&self) -> Nanos {
        self.found.as_ref().map_or(Nanos::ZERO, |found| found.written_at)
    }

    /// The hash keys that a limit's states in the file need.
    pub fn hash_keys(&self, name: &str) -> Option<HashKeys> {
        self.found.as_ref()?.hash_keys(name)
    }

    /// Gives the states in the file back to the limits.
    pub fn restore(&self, service: &Service) {
        if self.found.is_none() {
            return;
        }
        match state_file::restore(&self.path, service, service.now()) {
            Ok(restored) => tracing::info!(
                file = %self.path.display(),
                states = restored.states,
                dropped = restored.dropped,
                "state restored",
            ),
            Err(error) => tracing::error!(
                file = %self.path.display(),
                %error,
                "the state file changed while it was read: not all of it is restored",
            ),
        }
    }

    /// Writes the file; a failure is told, and tried again at the next interval.
    pub fn write(&self, service: &Service) {
        match state_file::write(&self.path, service) {
            Ok(bytes) => {
                self.events.state_writes.fetch_add(1, Ordering::Relaxed);
                self.events.state_written_at.store(service.now().get(), Ordering::Relaxed);
                self.events.state_bytes.store(bytes, Ordering::Relaxed);
                tracing::debug!(file = %self.path.display(), bytes, "state written");
            }
            Err(error) => {
                self.events.state_writes_failed.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    file = %self.path.display(),
                    %error,
                    "the state could not be written; the file is as it was before",
                );
            }
        }
    }
}
