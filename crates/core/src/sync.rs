//! The only place that chooses the atomics: loom's under `--cfg loom`, the real ones otherwise.

#[cfg(not(loom))]
pub(crate) use core::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};
#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

/// Lets the thread that holds a cell run, if there are threads to yield to.
pub(crate) fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(all(feature = "std", not(loom)))]
    std::thread::yield_now();
    #[cfg(not(any(feature = "std", loom)))]
    spin_loop();
}

/// `core`'s cell with the only method in use; loom's checks each access.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) const fn get_mut_ptr(&self) -> *mut T {
        self.0.get()
    }
}

#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

#[cfg(loom)]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) fn get_mut_ptr(&self) -> *mut T {
        // For loom, the access ends at once; loom still orders it against the accesses of other
        // threads.
        self.0.with_mut(|words| words)
    }
}
