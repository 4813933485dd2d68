//! The order of a line.

use tidegate_core::{Nanos, Priority};

/// A place in line: lower ones are served first. Callers of the same rank are served in the order
/// of their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// [`Priority::rank`] of the caller's arrival.
    pub rank: Nanos,
    pub number: u64,
}

impl Place {
    /// The first place behind this one.
    pub const fn behind(self) -> Self {
        Self {
            rank: self.rank,
            number: self.number + 1,
        }
    }
}

/// Until when a caller waits, and its priority. The functions that wait take it, or only the
/// deadline.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{Limiter, Policy, Priority, Quota, WaitUntil};
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Policy::token_bucket(Quota::per_second(10)));
/// let urgent = WaitUntil::new(None).priority(Priority::HIGHEST);
/// limiter.wait(1, urgent).await?;
/// limiter.wait(1, None).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitUntil {
    pub(crate) deadline: Option<Nanos>,
    pub(crate) priority: Priority,
}

impl WaitUntil {
    /// Waits until `deadline`, by the limiter's clock, with the default priority. Without a
    /// deadline it waits for any time.
    #[must_use]
    pub const fn new(deadline: Option<Nanos>) -> Self {
        Self {
            deadline,
            priority: Priority::DEFAULT,
        }
    }

    /// The same with a priority.
    #[must_use]
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }
}

impl From<Option<Nanos>> for WaitUntil {
    fn from(deadline: Option<Nanos>) -> Self {
        Self::new(deadline)
    }
}
