//! A limit for each key.

mod at;
mod batch;
mod build;
mod change;
mod error;
mod exceptions;
mod generation;
mod limiter;
mod snapshot;
mod steps;
mod waiting;

pub use at::KeyedAt;
pub use build::KeyedBuilder;
pub use change::{Change, Sweeping};
pub use error::{OverrideError, TooManyExceptions};
use generation::Generation;
pub(crate) use generation::Home;
pub use limiter::KeyedLimiter;
pub use snapshot::SnapshotEntry;
pub(crate) use steps::{NearKey, step_by};
