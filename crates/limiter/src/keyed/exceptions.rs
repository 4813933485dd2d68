//! Keys that are treated otherwise: blocked until a time, or with a quota of their own.
//!
//! The lock in here is a leaf: whoever holds it takes no key's lock.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{Arc, PoisonError},
};

use crate::{
    sync::{AtomicUsize, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard},
    table::Tag,
};
use tidegate_core::Nanos;

use super::{Generation, Marks, TooManyExceptions};

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
pub(crate) struct TagHasher(u64);

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

/// The exceptions of a limiter: at most as many as it may hold keys. Each has a mark.
pub(crate) struct Exceptions {
    map: RwLock<Map>,
    most: AtomicUsize,
}

impl Exceptions {
    pub fn new(most: usize) -> Self {
        Self { map: RwLock::new(Map::default()), most: AtomicUsize::new(most) }
    }

    /// Another bound. Keys that have an exception already keep it.
    pub fn set_most(&self, most: usize) {
        // Relaxed, as where it is read: it orders nothing.
        self.most.store(most, Ordering::Relaxed);
    }

    /// What is particular about a key. Only marked keys have anything.
    pub fn get(&self, tag: Tag) -> Option<Exception> {
        self.read().get(&tag).cloned()
    }

    /// Until when a key is blocked.
    pub fn blocked(&self, tag: Tag) -> Nanos {
        self.read().get(&tag).map_or(Nanos::ZERO, |exception| exception.blocked)
    }

    /// Drops a block that has passed, and the key's mark with it.
    pub fn drop_passed(&self, marks: &Marks, tag: Tag, now: Nanos) {
        let mut map = self.write();
        if map.get(&tag).is_some_and(|exception| !exception.says_something(now)) {
            map.remove(&tag);
            marks.remove(tag);
        }
    }

    /// Changes a key's exception; one that says nothing any more is dropped. Its mark is there before anybody can see it.
    pub fn change<R>(
        &self,
        marks: &Marks,
        tag: Tag,
        now: Nanos,
        change: impl FnOnce(&mut Exception) -> R,
    ) -> Result<R, TooManyExceptions> {
        let mut map = self.write();
        let (known, most) = (map.contains_key(&tag), self.most.load(Ordering::Relaxed));
        if map.len() >= most && !known {
            map.retain(|&tag, exception| {
                let stays = exception.says_something(now);
                if !stays {
                    marks.remove(tag);
                }
                stays
            });
            if map.len() >= most {
                return Err(TooManyExceptions);
            }
        }
        if !known {
            marks.add(tag);
        }
        let exception = map.entry(tag).or_default();
        let result = change(exception);
        if !exception.says_something(now) {
            map.remove(&tag);
            marks.remove(tag);
        }
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
