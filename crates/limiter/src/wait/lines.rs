//! The storage of lines, outside the path of keys without one.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::BuildHasherDefault,
    sync::{OnceLock, PoisonError},
};

use tidegate_core::Nanos;

use super::WaitLine;
use crate::{
    marks::{Marks, TagHasher},
    sync::{AtomicBool, Mutex, MutexGuard, Ordering},
    table::Tag,
};

/// One shard for loom, which tracks each.
const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

/// The lines of a keyed limiter. A shard's lock is a leaf, except for the tickets' locks.
pub(crate) struct Lines {
    /// Created by the first wait.
    shards: OnceLock<Box<[Mutex<LineShard>]>>,
}

#[derive(Default)]
struct LineShard {
    /// Boxed, because a map keeps room for as many as it once had.
    lines: HashMap<Tag, Box<WaitLine>, BuildHasherDefault<TagHasher>>,
    /// Lines that are kept only for free reservations, and their times.
    kept: VecDeque<(Nanos, Tag)>,
}

impl Lines {
    pub fn new() -> Self {
        let lines = Self {
            shards: OnceLock::new(),
        };
        if cfg!(loom) {
            lines.made(); // Loom does not see that a `OnceLock` orders anything.
        }
        lines
    }

    fn made(&self) -> &[Mutex<LineShard>] {
        self.shards.get_or_init(|| {
            (0..SHARDS)
                .map(|_| Mutex::new(LineShard::default()))
                .collect()
        })
    }

    fn shard(&self, tag: Tag) -> MutexGuard<'_, LineShard> {
        let shards = self.made();
        // Nothing here panics while a line is half changed.
        shards[tag.get() as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A step on a key's line, which is created if there is none. The caller holds the key's lock,
    /// and has marked the key before: the line takes over that mark, or it is removed.
    pub fn with<R>(
        &self,
        marks: &Marks,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut WaitLine) -> R,
    ) -> R {
        let mut shard = self.shard(tag);
        let mut keep = None;
        let (known, mut line) = match shard.lines.entry(tag) {
            Entry::Occupied(line) => (true, line),
            Entry::Vacant(place) => (false, place.insert_entry(Box::default())),
        };
        let result = step(line.get_mut());
        if line.get().is_idle() {
            line.remove();
            marks.remove(tag);
        } else if !line.get().is_waiting() && !line.get().is_listed {
            keep = line.get().kept_until();
            line.get_mut().is_listed = keep.is_some();
        }
        if let Some(until) = keep {
            shard.kept.push_back((until, tag));
        }
        if known {
            marks.remove(tag);
        } else {
            shard.sweep(marks, now);
        }
        result
    }

    /// A step on a key's line, if it has one. The caller holds the key's lock.
    pub fn find<R>(
        &self,
        marks: &Marks,
        tag: Tag,
        step: impl FnOnce(&mut WaitLine) -> R,
    ) -> Option<R> {
        self.shards.get()?;
        let mut shard = self.shard(tag);
        let line = shard.lines.get_mut(&tag)?;
        let result = step(line);
        if line.is_idle() {
            shard.lines.remove(&tag);
            marks.remove(tag);
        }
        Some(result)
    }

    /// The keys with waiters.
    pub fn keys(&self) -> Vec<Tag> {
        let Some(shards) = self.shards.get() else {
            return Vec::new();
        };
        let locked = |shard: &Mutex<LineShard>| -> Vec<Tag> {
            shard
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .lines
                .keys()
                .copied()
                .collect()
        };
        shards.iter().flat_map(locked).collect()
    }
}

impl LineShard {
    /// Drops up to two lines whose free reservations are over.
    fn sweep(&mut self, marks: &Marks, now: Nanos) {
        for _ in 0..2 {
            let Some((_, tag)) = self
                .kept
                .front()
                .copied()
                .filter(|(until, _)| *until <= now)
            else {
                return;
            };
            self.kept.pop_front();
            let Some(line) = self.lines.get_mut(&tag) else {
                continue;
            };
            line.expire(now);
            line.is_listed = false;
            if line.is_idle() {
                self.lines.remove(&tag);
                marks.remove(tag);
            }
        }
    }
}

/// The line of a limiter without keys.
pub(crate) struct OneLine {
    /// Whether there is anything in it.
    busy: AtomicBool,
    line: Mutex<WaitLine>,
}

impl OneLine {
    pub fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            line: Mutex::new(WaitLine::default()),
        }
    }

    /// Whether a decision must consider the line. Relaxed: it is set while the state is locked, so
    /// a thread that sees what that step has left sees this too. A decision that began before a
    /// waiter joined may still overtake it.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// A step on the line. The caller holds the state.
    pub fn with<R>(&self, step: impl FnOnce(&mut WaitLine) -> R) -> R {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let result = step(&mut line);
        self.busy.store(!line.is_idle(), Ordering::Relaxed);
        result
    }
}
