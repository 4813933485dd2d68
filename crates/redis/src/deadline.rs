//! Timeouts, and the deadlines computed from them.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::StoreError;

/// The longest possible wait.
const LONGEST: Duration = Duration::from_hours(24);

/// The moment by which the decision must be there. A decision that sends several requests passes
/// the same deadline to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `wait` from now, at most a day.
    #[must_use]
    pub fn after(wait: Duration) -> Self {
        Self(Instant::now() + wait.min(LONGEST))
    }

    /// The time left; zero once it has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Waits for the future until the deadline.
    pub(crate) async fn bound<T>(self, answer: impl Future<Output = T>) -> Result<T, StoreError> {
        timeout_at(self.0, answer)
            .await
            .map_err(|_| StoreError::TimedOut)
    }
}

/// The time limit for a decision by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// A fixed time.
    After(Duration),
    /// Three round trips and 20 ms, at least 50 ms and at most 1 s. The round trip is measured
    /// continuously. Before the first measurement it is 250 ms.
    Auto,
}

impl Timeout {
    /// The default: 50 ms.
    pub const USUAL: Self = Self::After(Duration::from_millis(50));
}

impl From<Duration> for Timeout {
    fn from(wait: Duration) -> Self {
        Self::After(wait)
    }
}
