//! When the state file is read and written, with the log lines about it.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_limiter::HashKeys;
use tidegate_service::{
    decide::service::Service,
    observe::{metrics::Events, once_a_minute::OnceAMinute},
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

use crate::serve::{
    start_error::StartError,
    state_file::{self, Restored, StateError, StateFile, StatePathError, too_far_ahead},
};

/// A write that takes longer than this is logged, because the disk may hang.
const SLOW: Duration = Duration::from_secs(10);

/// The minimum time for the last write, however short the grace.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Writes the states of all limits to the file and returns its length.
type Write = dyn Fn(&StateFile, &Service) -> io::Result<u64> + Send + Sync;

/// The state file of a server.
pub(crate) struct State {
    file: StateFile,
    /// The headers found at the start.
    found: Option<state_file::Headers>,
    /// How far ahead of the clock the file was written if that cannot be right.
    ahead: Nanos,
    events: Arc<Events>,
    /// Allows only one write at a time, so the last one waits for one in progress.
    writing: Mutex<()>,
    complaint: OnceAMinute,
    write: Box<Write>,
    slow: Duration,
    last_write: Duration,
}

impl State {
    /// Checks and locks the file at this path, and renames a damaged one; `None` without a path.
    ///
    /// # Errors
    /// When the file cannot be read or written, another server uses it, or it is not a state file.
    pub fn open(
        path: Option<PathBuf>,
        now: Nanos,
        events: &Arc<Events>,
    ) -> Result<Option<Self>, StartError> {
        let Some(path) = path else { return Ok(None) };
        let refused = |source: StatePathError| StartError::State {
            path: path.clone(),
            source,
        };
        let file = StateFile::open(&path).map_err(refused)?;
        let found = match state_file::check(&file.path) {
            Ok(found) => found,
            Err(StateError::Io(source)) => return Err(refused(source.into())),
            // A server did not write this file, so it must not be touched.
            Err(StateError::NotAState) => return Err(refused(StatePathError::NotAState)),
            Err(error) => {
                let aside = file.set_aside().map_err(|source| refused(source.into()))?;
                tracing::error!(
                    file = %path.display(),
                    reason = %error,
                    set_aside = %aside.display(),
                    "state file rejected: every limit starts fresh",
                );
                None
            }
        };
        let ahead = found
            .as_ref()
            .map_or(Nanos::ZERO, |found| too_far_ahead(found.written_at, now));
        if ahead > Nanos::ZERO {
            tracing::warn!(
                file = %path.display(),
                seconds = Duration::from(ahead).as_secs(),
                "the state file was written in the future: all units in it count as used now; check this machine's clock",
            );
        }
        Ok(Some(Self {
            file,
            found,
            ahead,
            events: Arc::clone(events),
            writing: Mutex::default(),
            complaint: OnceAMinute::default(),
            write: Box::new(state_file::write),
            slow: SLOW,
            last_write: LAST_WRITE,
        }))
    }

    /// When the file was written, by the clock of that server; zero if that clock or this machine's
    /// is wrong.
    pub fn written_at(&self) -> Nanos {
        match &self.found {
            Some(found) if self.ahead == Nanos::ZERO => found.written_at,
            _ => Nanos::ZERO,
        }
    }

    /// The hash keys of a limit's states in the file.
    pub fn hash_keys(&self, name: &str) -> Option<HashKeys> {
        self.found.as_ref()?.hash_keys(name)
    }

    /// Restores the states in the file, or with a store, the number of servers.
    pub fn restore(&self, service: &Service) {
        let Some(found) = &self.found else { return };
        let file = self.file.path.display();
        if let Some(shared) = service.store() {
            if let Some(nodes) = found.nodes() {
                shared.store().recall_nodes(nodes);
                tracing::info!(%file, nodes, "restored the number of servers that share the store");
            } else {
                tracing::warn!(
                    %file,
                    "a server without --store wrote the state file; the limits are in the store now, and the file \
                     will be replaced",
                );
            }
            return;
        }
        match state_file::restore(&self.file.path, service, service.now()) {
            Ok(Restored { states, dropped }) => {
                tracing::info!(%file, states, dropped, "state restored");
            }
            Err(error) => {
                tracing::error!(%file, %error, "the state file changed while it was read: not all of it was restored");
            }
        }
    }

    /// Writes the file. A failure is logged, and the file stays as it was. Returns whether it was
    /// written.
    pub fn write(&self, service: &Service) -> bool {
        let _alone = self.writing.lock();
        let file = self.file.path.display();
        match (self.write)(&self.file, service) {
            Ok(bytes) => {
                self.events.state_writes.fetch_add(1, Ordering::Relaxed);
                self.events
                    .state_written_at
                    .store(service.now().get(), Ordering::Relaxed);
                self.events.state_bytes.store(bytes, Ordering::Relaxed);
                tracing::debug!(%file, bytes, "state written");
                true
            }
            Err(error) => {
                self.failed();
                if self.complaint.is_due(service.now()) {
                    tracing::error!(
                        %file,
                        %error,
                        "cannot write the state; the file is unchanged (at most one line a minute)",
                    );
                }
                false
            }
        }
    }

    fn failed(&self) {
        self.events
            .state_writes_failed
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the file repeatedly, until the future is dropped.
    ///
    /// A write begins early enough to end within `every` after the start of the previous one: see
    /// [`pause`]. So a server that is killed loses the use of at most that time.
    pub async fn write_at_intervals(self: Arc<Self>, service: Arc<Service>, every: Duration) {
        // Nothing has been used since the file was read.
        let mut took = Duration::ZERO;
        loop {
            sleep(pause(every, took)).await;
            let began = Instant::now();
            let (state, service) = (Arc::clone(&self), Arc::clone(&service));
            let mut write = spawn_blocking(move || state.write(&service));
            if timeout(self.slow, &mut write).await.is_err() {
                self.failed();
                let (file, seconds) = (self.file.path.display(), self.slow.as_secs());
                tracing::error!(%file, seconds, "the state is still being written; the disk may hang");
                // A panic while writing has already logged itself.
                let _ = write.await;
            }
            took = began.elapsed();
        }
    }

    /// Writes the file a last time, in what is left of the grace (at least 5 s). Returns whether it
    /// was written.
    pub async fn write_last(self: Arc<Self>, service: Arc<Service>, left: Duration) -> bool {
        let state = Arc::clone(&self);
        let most = left.max(self.last_write);
        if let Ok(written) = timeout(most, spawn_blocking(move || state.write(&service))).await {
            // A panic while writing has already logged itself.
            return written.unwrap_or(false);
        }
        self.failed();
        let file = self.file.path.display();
        tracing::error!(%file, "the state was not written in time; the file is unchanged");
        false
    }
}

/// The pause after a write that took `took`. If the next write takes at most twice as long, it ends
/// within `every` after the start of the first, which is when the first looked at the states. A
/// write that takes more than a third of `every` is followed by the next one without a pause.
fn pause(every: Duration, took: Duration) -> Duration {
    every.saturating_sub(3 * took).max(Duration::from_millis(1))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A state on a disk that hangs: nothing is written until the sender is dropped.
    pub(crate) fn on_a_disk_that_hangs(events: &Arc<Events>) -> (State, mpsc::Sender<()>) {
        let path = std::env::temp_dir().join(format!("tidegate-hangs-{}", std::process::id()));
        let mut state = State::open(Some(path), Nanos::ZERO, events)
            .unwrap()
            .unwrap();
        let (release, hangs) = mpsc::channel();
        let hangs = Mutex::new(hangs);
        state.write = Box::new(move |_, _| {
            let _ = hangs.lock().recv();
            Err(io::Error::other("the disk hung"))
        });
        (state.slow, state.last_write) = (Duration::from_millis(1), Duration::from_millis(50));
        (state, release)
    }

    #[test]
    fn a_write_ends_within_an_interval_after_the_start_of_the_previous_one() {
        let every = Duration::from_secs(30);
        for took in [0, 1, 300, 5_000, 10_000].map(Duration::from_millis) {
            let next_ends = took + pause(every, took) + 2 * took;
            assert!(
                next_ends <= every + Duration::from_millis(1),
                "{took:?}: {next_ends:?}"
            );
        }
        assert_eq!(
            pause(every, Duration::from_secs(11)),
            Duration::from_millis(1)
        );
    }
}
