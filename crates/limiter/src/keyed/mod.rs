//! A limit for each key.

mod build;
mod change;
mod exceptions;
mod generation;
mod limiter;
#[cfg(all(test, loom))]
mod loom_tests;
mod marks;
mod snapshot;

pub use build::{BuildError, KeyedBuilder};
pub(crate) use exceptions::TagHasher;
use generation::Generation;
pub(crate) use generation::Home;
pub use limiter::KeyedLimiter;
pub(crate) use marks::Marks;
pub use snapshot::Entry;
