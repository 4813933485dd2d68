//! The synchronization primitives: the standard library's, or loom's.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

/// An `Arc` that can be replaced, read without writing to a word that others read.
#[cfg(not(loom))]
pub(crate) struct ArcCell<T>(arc_swap::ArcSwap<T>);

/// The value that was read; it is kept alive as long as this guard.
#[cfg(not(loom))]
pub(crate) type Pinned<T> = arc_swap::Guard<std::sync::Arc<T>>;

#[cfg(not(loom))]
impl<T> ArcCell<T> {
    pub fn new(value: std::sync::Arc<T>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    pub fn load(&self) -> Pinned<T> {
        self.0.load()
    }

    pub fn load_full(&self) -> std::sync::Arc<T> {
        self.0.load_full()
    }

    /// After this call, readers that still use the old value count as holders of its `Arc`.
    pub fn store(&self, value: std::sync::Arc<T>) {
        self.0.store(value);
    }
}

#[cfg(loom)]
pub(crate) struct ArcCell<T>(Mutex<std::sync::Arc<T>>);

#[cfg(loom)]
pub(crate) type Pinned<T> = std::sync::Arc<T>;

#[cfg(loom)]
impl<T> ArcCell<T> {
    pub fn new(value: std::sync::Arc<T>) -> Self {
        Self(Mutex::new(value))
    }

    pub fn load(&self) -> Pinned<T> {
        self.load_full()
    }

    pub fn load_full(&self) -> std::sync::Arc<T> {
        self.0.lock().unwrap().clone()
    }

    pub fn store(&self, value: std::sync::Arc<T>) {
        *self.0.lock().unwrap() = value;
    }
}
