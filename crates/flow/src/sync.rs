//! The atomics and mutexes of the code under loom tests: loom's under `--cfg loom`, those of `std`
//! otherwise.

pub(crate) use std::sync::PoisonError;

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};
