//! When the state file is read and written, and what is told about it.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_limiter::HashKeys;
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    metrics::Events,
    service::Service,
    start_error::StartError,
    state_file::{self, StateError, StateFile, StatePathError},
};

/// After this long a write that has not ended is told: the disk may be hung.
const SLOW: Duration = Duration::from_secs(10);

/// A state file of a server.
pub(crate) struct State {
    file: StateFile,
    /// What was found at the start.
    found: Option<state_file::Headers>,
    events: Arc<Events>,
    /// One write at a time: the last one waits for one that is under way.
    writing: Mutex<()>,
}

impl State {
    /// Checks and locks the file at this path, and sets a damaged one aside; `None` without a path.
    ///
    /// # Errors
    /// When the file cannot be read, could not be written later, is used by another server or is something else.
    pub fn open(path: Option<PathBuf>, now: Nanos, events: &Arc<Events>) -> Result<Option<Self>, StartError> {
        let Some(path) = path else { return Ok(None) };
        let refused = |source: StatePathError| StartError::State { path: path.clone(), source };
        let file = StateFile::open(&path).map_err(refused)?;
        let found = match state_file::check(file.path(), now) {
            Ok(found) => found,
            Err(StateError::Io(source)) => return Err(refused(source.into())),
            // Whatever it is, it was not written by a server: it is not to be touched.
            Err(StateError::NotAState) => return Err(refused(StatePathError::NotAState)),
            Err(error) => {
                let aside = file.set_aside().map_err(|source| refused(source.into()))?;
                tracing::error!(
                    file = %path.display(),
                    reason = %error,
                    set_aside = %aside.display(),
                    "state file refused: every limit begins anew",
                );
                None
            }
        };
        Ok(Some(Self { file, found, events: Arc::clone(events), writing: Mutex::default() }))
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
        match state_file::restore(self.file.path(), service, service.now()) {
            Ok(restored) => tracing::info!(
                file = %self.file.path().display(),
                states = restored.states,
                dropped = restored.dropped,
                "state restored",
            ),
            Err(error) => tracing::error!(
                file = %self.file.path().display(),
                %error,
                "the state file changed while it was read: not all of it is restored",
            ),
        }
    }

    /// Writes the file; a failure is logged, and the file stays as it was. Returns whether it was written.
    pub fn write(&self, service: &Service) -> bool {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        match state_file::write(&self.file, service) {
            Ok(bytes) => {
                self.events.state_writes.fetch_add(1, Ordering::Relaxed);
                self.events.state_written_at.store(service.now().get(), Ordering::Relaxed);
                self.events.state_bytes.store(bytes, Ordering::Relaxed);
                tracing::debug!(file = %self.file.path().display(), bytes, "state written");
                true
            }
            Err(error) => {
                self.failed();
                tracing::error!(
                    file = %self.file.path().display(),
                    %error,
                    "the state could not be written; the file is as it was before",
                );
                false
            }
        }
    }

    fn failed(&self) {
        self.events.state_writes_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the file again and again, until the future is dropped.
    pub async fn write_at_intervals(self: Arc<Self>, service: Arc<Service>, every: Duration) {
        let mut ticks = interval(every.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once: nothing has been used yet that was not just read.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let (state, service) = (Arc::clone(&self), Arc::clone(&service));
            let mut write = spawn_blocking(move || state.write(&service));
            if timeout(SLOW, &mut write).await.is_err() {
                self.failed();
                tracing::error!(
                    file = %self.file.path().display(),
                    seconds = SLOW.as_secs(),
                    "the state is still being written: is the disk hung?",
                );
                // A panic while writing was told by the panic itself.
                let _ = write.await;
            }
        }
    }

    /// Writes the file a last time, for at most so long; whether it was written.
    pub async fn write_last(self: Arc<Self>, service: Arc<Service>, most: Duration) -> bool {
        let state = Arc::clone(&self);
        if let Ok(written) = timeout(most, spawn_blocking(move || state.write(&service))).await {
            // A panic while writing was told by the panic itself.
            return written.unwrap_or(false);
        }
        self.failed();
        tracing::error!(
            file = %self.file.path().display(),
            "the disk did not take the state in time; the file is as it was before",
        );
        false
    }
}
