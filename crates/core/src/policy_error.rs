//! Why a policy cannot be built.

use crate::QuotaError;

/// Why a policy's options are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The quota is invalid.
    #[error("{0}")]
    Quota(QuotaError),
    /// A sliding log, or permits with a hold, with a limit above 1,000,000.
    #[error(
        "a log keeps every admission: its limit is at most 1000000; choose sliding-window above that"
    )]
    LogTooLong,
    /// More than 4,294,967,295 permits.
    #[error("concurrency has at most 4294967295 permits; lower the number")]
    TooManyPermits,
    /// The number of slots is 0, above 3,600, or above the number of nanoseconds in the window.
    #[error("slots must be from 1 to 3600, and no more than the window has nanoseconds")]
    Slots,
    /// The bucket takes more than 73 years to fill.
    #[error("the burst would take more than 73 years to refill; lower it or raise the rate")]
    BurstTooLong,
    /// The maximum wait of a leaky bucket is above 36 years.
    #[error("max_wait is above 36 years; lower it")]
    WaitTooLong,
    /// The algorithm limits a rate, but no window was given.
    #[error("the limit has no window; write how much in how long, as in 100/1m")]
    NoWindow,
    /// The algorithm limits permits, but a window was given.
    #[error(
        "concurrency counts permits, not requests in a window; write their number alone, as in 10"
    )]
    Window,
    /// The window cannot follow the calendar like this.
    #[error("{0}")]
    Calendar(&'static str),
    /// A cost above the limit cannot wait like this.
    #[error("{0}")]
    Oversize(&'static str),
    /// Denials cannot block a key like this.
    #[error("{0}")]
    Block(&'static str),
}
