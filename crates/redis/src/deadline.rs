//! How long an answer may take, and the moment by which it must be there.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::StoreError;

/// The longest wait that a deadline stands for.
const LONGEST: Duration = Duration::from_hours(24);

/// The moment by which an answer must be there. A decision that consists of several questions passes the same deadline to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now; at most a day.
    #[must_use]
    pub fn after(wait: Duration) -> Self {
        Self(Instant::now() + wait.min(LONGEST))
    }

    /// How long it is until then; zero when it has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// What the future brings, or that it was not there in time.
    pub(crate) async fn bound<T>(self, answer: impl Future<Output = T>) -> Result<T, StoreError> {
        timeout_at(self.0, answer).await.map_err(|_| StoreError::TimedOut)
    }
}

/// How long the store may take for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// So long.
    After(Duration),
    /// Three round trips and 20 ms, at least 50 ms and at most 1 s, by the round trip to the store as it is measured all the
    /// time; 250 ms before anything is measured.
    Auto,
}

impl Timeout {
    /// How long a decision may take unless a limit says otherwise: 50 ms.
    pub const USUAL: Self = Self::After(Duration::from_millis(50));
}

impl From<Duration> for Timeout {
    fn from(wait: Duration) -> Self {
        Self::After(wait)
    }
}
