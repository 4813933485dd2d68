//! Keys with exceptions: blocked until a time, or with their own policy.
//!
//! The lock in this module is a leaf: a thread that holds it takes no key's lock.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
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
    inner: RwLock<Inner>,
    most: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    map: Map,
    /// The ends of blocks, the earliest first. An end that its key no longer has is skipped.
    ends: BinaryHeap<Reverse<(Nanos, Tag)>>,
}

impl Exceptions {
    pub fn new(most: usize) -> Self {
        Self {
            inner: RwLock::default(),
            most: AtomicUsize::new(most),
        }
    }

    /// Changes the maximum. Keys that already have an exception keep it.
    pub fn set_most(&self, most: usize) {
        // Relaxed, as where it is read: no other data depends on it.
        self.most.store(most, Ordering::Relaxed);
    }

    /// The maximum.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// The exception of a key. Only marked keys have one.
    pub fn get(&self, tag: Tag) -> Option<Exception> {
        self.read().map.get(&tag).cloned()
    }

    /// The time until which a key is blocked.
    pub fn blocked(&self, tag: Tag) -> Nanos {
        self.read()
            .map
            .get(&tag)
            .map_or(Nanos::ZERO, |exception| exception.blocked)
    }

    /// Drops a block that has passed, together with the key's mark.
    pub fn drop_passed(&self, marks: &Marks, tag: Tag, now: Nanos) {
        self.write().drop_passed(marks, tag, now);
    }

    /// Changes a key's exception; an empty one is dropped. The mark is set before other threads can
    /// see the exception.
    pub fn change<R>(
        &self,
        marks: &Marks,
        tag: Tag,
        now: Nanos,
        change: impl FnOnce(&mut Exception) -> R,
    ) -> Result<R, TooManyExceptions> {
        let inner = &mut *self.write();
        let most = self.most();
        inner.drop_some_passed(marks, most, now);
        let known = inner.map.contains_key(&tag);
        if inner.map.len() >= most && !known {
            return Err(TooManyExceptions);
        }
        if !known {
            marks.add(tag);
        }
        let exception = inner.map.entry(tag).or_default();
        let before = exception.blocked;
        let result = change(exception);
        let until = exception.blocked;
        if until != before && until > now && until < Nanos::MAX {
            inner.ends.push(Reverse((until, tag)));
        }
        inner.drop_passed(marks, tag, now);
        inner.forget_old_ends();
        Ok(result)
    }

    pub fn all(&self) -> Vec<(Tag, Exception)> {
        self.read()
            .map
            .iter()
            .map(|(tag, exception)| (*tag, exception.clone()))
            .collect()
    }

    /// The keys with their own policies.
    pub fn own(&self) -> Vec<(Tag, Arc<Generation>)> {
        let inner = self.read();
        let own = |(tag, exception): (&Tag, &Exception)| Some((*tag, exception.own.clone()?));
        inner.map.iter().filter_map(own).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        // No change panics midway.
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Drops a key's exception if it has passed. Returns whether it had.
    fn drop_passed(&mut self, marks: &Marks, tag: Tag, now: Nanos) -> bool {
        let has_passed = self
            .map
            .get(&tag)
            .is_some_and(|exception| !exception.says_something(now));
        if has_passed {
            self.map.remove(&tag);
            marks.remove(tag);
        }
        has_passed
    }

    /// Drops two blocks that have passed, and more if the map has no room for another one. So each
    /// block that was set is looked at once, and no call walks all of them.
    fn drop_some_passed(&mut self, marks: &Marks, most: usize, now: Nanos) {
        let mut dropped = 0;
        while dropped < 2 || self.map.len() >= most {
            let Some(Reverse((_, tag))) = self
                .ends
                .peek()
                .copied()
                .filter(|Reverse((end, _))| *end <= now)
            else {
                return;
            };
            self.ends.pop();
            dropped += u32::from(self.drop_passed(marks, tag, now));
        }
    }

    /// Keys that are blocked again and again leave their old ends behind.
    fn forget_old_ends(&mut self) {
        if self.ends.len() > 2 * self.map.len() + 64 {
            let map = &self.map;
            self.ends.retain(|Reverse((end, tag))| {
                map.get(tag)
                    .is_some_and(|exception| exception.blocked == *end)
            });
        }
    }
}

impl Exception {
    fn says_something(&self, now: Nanos) -> bool {
        self.blocked > now || self.own.is_some()
    }
}
