//! A limit for each key.

mod build;
mod change;
mod exceptions;
mod generation;
mod limiter;
mod snapshot;

pub use build::{BuildError, KeyedBuilder};
pub(crate) use generation::Generation;
pub use limiter::KeyedLimiter;
pub use snapshot::Entry;
