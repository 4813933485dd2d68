//! A limit for each key.

mod build;
mod change;
mod exceptions;
mod generation;
mod limiter;
mod snapshot;

pub use build::{BuildError, KeyedBuilder};
use generation::Generation;
pub(crate) use generation::Home;
pub use limiter::KeyedLimiter;
pub use snapshot::Entry;
