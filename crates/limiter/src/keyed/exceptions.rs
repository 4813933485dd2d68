//! Keys with exceptions: blocked until a time, or with their own policy.
//!
//! The lock in this module is a leaf: a thread that holds it takes no key's lock.

use std::{
    collections::HashMap,
    hash::BuildHasherDefault,
    sync::{Arc, PoisonError},
};

use crate::{
    sync::{AtomicUsize, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard},
    table::Tag,
};
use tidegate_core::Nanos;

use super::{Generation, TooManyExceptions};
use crate::marks::{Marks, TagHasher};

/// The exception of one key.
#[derive(Clone, Default)]
pub(crate) struct Exception {
    /// The key is denied until this time; zero if it is not blocked.
    pub blocked: Nanos,
    /// The key's own policy and state.
    pub own: Option<Arc<Generation>>,
}

type Map = HashMap<Tag, Exception, BuildHasherDefault<TagHasher>>;

/// The exceptions of a limiter: at most as many as its maximum number of keys. Each has a mark.
pub(crate) struct Exceptions {
    map: RwLock<Map>,
    most: AtomicUsize,
}

impl Exceptions {
    pub fn new(most: usize) -> Self {
        Self { map: RwLock::new(Map::default()), most: AtomicUsize::new(most) }
    }

    /// Changes the maximum. Keys that already have an exception keep it.
    pub fn set_most(&self, most: usize) {
        // Relaxed, as where it is read: no other data depends on it.
        self.most.store(most, Ordering::Relaxed);
    }

    /// The exception of a key. Only marked keys have one.
    pub fn get(&self, tag: Tag) -> Option<Exception> {
        self.read().get(&tag).cloned()
    }

    /// The time until which a key is blocked.
    pub fn blocked(&self, tag: Tag) -> Nanos {
        self.read().get(&tag).map_or(Nanos::ZERO, |exception| exception.blocked)
    }

    /// Drops a block that has passed, together with the key's mark.
    pub fn drop_passed(&self, marks: &Marks, tag: Tag, now: Nanos) {
        let mut map = self.write();
        if map.get(&tag).is_some_and(|exception| !exception.says_something(now)) {
            map.remove(&tag);
            marks.remove(tag);
        }
    }

    /// Changes a key's exception; an empty one is dropped. The mark is set before other threads can see the exception.
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
        // No change panics midway.
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
