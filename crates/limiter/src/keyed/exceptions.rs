//! Keys that are treated otherwise: blocked until a time, or with a quota of their own.
//!
//! The lock in here is a leaf: whoever holds it takes no key's lock.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::table::Tag;
use tidegate_core::Nanos;

use super::{BuildError, Generation};

/// What is particular about one key.
#[derive(Clone, Default)]
pub(crate) struct Exception {
    /// Denied until then; zero for not at all.
    pub blocked: Nanos,
    /// A policy and a state of its own.
    pub own: Option<Arc<Generation>>,
}

/// Tags are hashes already.
#[derive(Default)]
struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, tag: u64) {
        self.0 = tag;
    }
}

type Map = HashMap<Tag, Exception, BuildHasherDefault<TagHasher>>;

/// The exceptions of a limiter: at most as many as it may hold keys.
pub(crate) struct Exceptions {
    /// How many there are: as long as it is 0, no decision looks further.
    count: AtomicUsize,
    map: RwLock<Map>,
    most: usize,
}

impl Exceptions {
    pub fn new(most: usize) -> Self {
        Self { count: AtomicUsize::new(0), map: RwLock::default(), most }
    }

    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    pub fn get(&self, tag: Tag) -> Option<Exception> {
        self.read().get(&tag).cloned()
    }

    /// Changes a key's exception; one that says nothing any more is dropped.
    pub fn change<R>(
        &self,
        tag: Tag,
        now: Nanos,
        change: impl FnOnce(&mut Exception) -> R,
    ) -> Result<R, BuildError> {
        let mut map = self.write();
        if map.len() >= self.most && !map.contains_key(&tag) {
            map.retain(|_, exception| exception.says_something(now));
            if map.len() >= self.most {
                self.count.store(map.len(), Ordering::Relaxed);
                return Err(BuildError::TooManyExceptions);
            }
        }
        let exception = map.entry(tag).or_default();
        let result = change(exception);
        if !exception.says_something(now) {
            map.remove(&tag);
        }
        self.count.store(map.len(), Ordering::Relaxed);
        Ok(result)
    }

    pub fn all(&self) -> Vec<(Tag, Exception)> {
        self.read().iter().map(|(tag, exception)| (*tag, exception.clone())).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Map> {
        // No change panics half way.
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exception {
    fn says_something(&self, now: Nanos) -> bool {
        self.blocked > now || self.own.is_some()
    }
}
