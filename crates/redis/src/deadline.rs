//! The moment by which an answer must be there.

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
