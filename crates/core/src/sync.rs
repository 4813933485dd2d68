//! The one place that says which atomics are meant: loom's under `--cfg loom`, the real ones otherwise.

#[cfg(not(loom))]
pub(crate) use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering},
};
#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering},
};

/// Lets the thread that holds a cell run, where there are threads to yield to.
pub(crate) fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(all(feature = "std", not(loom)))]
    std::thread::yield_now();
    #[cfg(not(any(feature = "std", loom)))]
    spin_loop();
}
