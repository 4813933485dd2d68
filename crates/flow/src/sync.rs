//! The atomics of the lock-free pieces: loom's under `--cfg loom`, the real ones otherwise.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
