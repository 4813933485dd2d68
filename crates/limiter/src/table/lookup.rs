//! The table: finding a key's cell.
//!
//! The order of locks: one bucket, or a key's two buckets in the order of their index, or (for
//! joint decisions) all that are needed in the order of their address; then a key's two buckets of
//! records. Further buckets, as targets for a cell or a record, are only tried.

use std::{
    cmp,
    sync::atomic::{AtomicBool, Ordering, fence},
};

use smallvec::{SmallVec, smallvec};
use tidegate_core::{Nanos, StoredState};

use super::{
    BuildError, Cursor, NoRoom, Refused, Stats, Tag, WhenFull,
    layout::TableLayout,
    memory::{Bucket, Memory},
    records::{Put, Records},
    room::Pair,
    stats::{Counter, Counters},
    stretches::Stretches,
};

/// Whether a key was in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFound {
    /// It was; the state is the key's.
    Known,
    /// It was not; the state is a new key's.
    New,
}

/// Why a state was not locked without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotNear {
    /// A thread holds it: perhaps the caller itself.
    Busy,
    /// The key is unknown, or its decision needs a closer look.
    Other,
}

/// A bounded concurrent table from tags to states of a fixed number of words.
///
/// The table stores words and knows no algorithm. Each call passes the algorithm of the states (or
/// one that reads the same words in the same way).
pub struct Table {
    pub(crate) memory: Memory,
    pub(crate) records: Records,
    pub(crate) stretches: Stretches,
    pub(crate) max_keys: u64,
    pub(crate) when_full: WhenFull,
    pub(crate) counters: Counters,
    pub(crate) sweep: Counter,
    closed: AtomicBool,
}

impl Table {
    /// A table for up to `max_keys` states of `words` words.
    ///
    /// # Errors
    /// If the bound is 0, or the memory cannot be reserved.
    pub fn new(words: usize, max_keys: usize) -> Result<Self, BuildError> {
        let layout = TableLayout::new(words, max_keys)?;
        let stretches = Stretches::new(&layout);
        Ok(Self {
            memory: Memory::new(layout)?,
            records: Records::new(max_keys)?,
            stretches,
            max_keys: max_keys as u64,
            when_full: WhenFull::Forget,
            counters: Counters::default(),
            sweep: Counter::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// Sets the treatment of a new key for which an exhausted key's record would have to be
    /// forgotten.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Whether the table may refuse a new key.
    #[inline]
    #[must_use]
    pub fn denies_when_full(&self) -> bool {
        self.when_full == WhenFull::Deny
    }

    /// Stops adding and moving keys. When this returns, every thread that began earlier has
    /// finished: a walk then misses nothing, and sees each key once. Known keys are found as
    /// before.
    pub fn close(&self) {
        let mut cursor = Some(Cursor::BEGIN);
        while let Some(from) = cursor {
            cursor = self.close_next(from);
        }
    }

    /// The first part of [`close`](Self::close).
    pub(crate) fn refuse_keys(&self) {
        // A thread that adds a key marks the stretches of its two buckets, passes a fence, and then
        // checks whether the table is closed, all under the locks of these buckets. One of the two
        // fences comes first: either the other thread sees this store, or this thread sees the
        // marks, and waits for the locks.
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Accepts keys again, in a table that was [released](Self::release); its statistics restart.
    pub fn reopen(&self) {
        self.counters.reset();
        // Relaxed: threads that come in learn of the table through something that comes after.
        self.closed.store(false, Ordering::Relaxed);
    }

    /// Whether a key may be added. The caller holds the locks of its two buckets, whose stretches
    /// are marked.
    pub(crate) fn is_open(&self) -> bool {
        // See `close`; the lock orders nothing between two different buckets.
        fence(Ordering::SeqCst);
        !self.closed.load(Ordering::Relaxed)
    }

    /// [Closes](Self::close) the table, returns its memory to the system if possible (Linux), and
    /// forgets every state and record.
    ///
    /// # Safety
    /// No thread may store a state or a record in the table any more, until it is
    /// [reopened](Self::reopen).
    #[allow(unsafe_code)]
    pub unsafe fn release(&self) {
        self.close();
        // SAFETY: the table is closed, and the caller keeps the rest.
        unsafe {
            self.memory.release(self.stretches.touched());
            self.records.release();
        }
    }

    /// The table's statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let c = &self.counters;
        Stats {
            keys: c.keys.get(),
            max_keys: self.max_keys,
            bytes: (self.memory.layout.bytes() + self.records.bytes()) as u64,
            added: c.added.get(),
            reclaimed: c.reclaimed.get(),
            evicted: c.evicted.get(),
            records: self.records.count(),
            returned: c.returned.get(),
            forgotten: c.forgotten(),
            refused: c.refused.get(),
            untracked: c.untracked.get(),
        }
    }

    /// One atomic step on the state of a key that is in one of its two buckets, as known keys are.
    /// `None` if it is in neither (or was being moved between them), or if `step` returns `None`,
    /// which must then have changed nothing: [`apply`](Self::apply) continues from there.
    ///
    /// This is the short path of a decision: each bucket is locked separately.
    #[inline(always)]
    #[allow(clippy::inline_always)] // What a step makes stays in registers.
    pub fn apply_near<R>(&self, tag: Tag, step: impl FnOnce(&mut [u64]) -> Option<R>) -> Option<R> {
        let mut first = self.memory.lock(tag.first(self.memory.layout.buckets));
        let (mut bucket, cell) = if let Some(cell) = first.find(tag.get()) {
            (first, cell)
        } else {
            drop(first);
            self.in_second(tag)?
        };
        step(bucket.state(cell))
    }

    /// Locks the bucket of a known key, and returns the key's cell there, without waiting for a
    /// thread: the caller may hold other buckets.
    #[inline]
    pub(crate) fn try_near(&self, tag: Tag) -> Result<(Bucket<'_>, usize), NotNear> {
        let buckets = self.memory.layout.buckets;
        let near = |index| {
            let mut bucket = self.memory.try_lock(index).ok_or(NotNear::Busy)?;
            let cell = bucket.find(tag.get());
            Ok(cell.map(|cell| (bucket, cell)))
        };
        match near(tag.first(buckets))? {
            Some(found) => Ok(found),
            None => near(tag.second(buckets))?.ok_or(NotNear::Other),
        }
    }

    /// Starts fetching a key's first bucket into the cache for a later step, while the caller does
    /// something else. Changes nothing.
    #[inline]
    pub fn prefetch(&self, tag: Tag) {
        self.memory.prefetch(tag.first(self.memory.layout.buckets));
    }

    #[inline(never)]
    fn in_second(&self, tag: Tag) -> Option<(Bucket<'_>, usize)> {
        let mut second = self.memory.lock(tag.second(self.memory.layout.buckets));
        let cell = second.find(tag.get())?;
        Some((second, cell))
    }

    /// One atomic step on a key's state. A new key is added with a fresh state, or with the state
    /// of its record.
    ///
    /// # Errors
    /// If the key is new and has no record, and the table keeps an exhausted key's record rather
    /// than forget it ([`WhenFull::Deny`]). In a [closed](Self::close) table, for every new key.
    #[inline]
    pub fn apply<R>(
        &self,
        algorithm: &impl StoredState,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64], KeyFound) -> R,
    ) -> Result<R, Refused> {
        let mut first = self.memory.lock(tag.first(self.memory.layout.buckets));
        if let Some(cell) = first.find(tag.get()) {
            return Ok(step(first.state(cell), KeyFound::Known));
        }
        self.apply_further(algorithm, first, tag, now, step)
    }

    /// The rest of [`apply`](Self::apply), if the key is not in its first bucket.
    #[inline(never)]
    fn apply_further<R>(
        &self,
        algorithm: &impl StoredState,
        first: Bucket<'_>,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64], KeyFound) -> R,
    ) -> Result<R, Refused> {
        let (mut first, mut second) = self.both(first, tag);
        let mut pair = Pair::new(&mut first, second.as_mut());
        if let Some(place) = pair.find(tag) {
            return Ok(step(pair.state(place), KeyFound::Known));
        }
        if !self.is_open() {
            return Err(Refused::Closed);
        }
        let result = match self.make_room(algorithm, &mut pair, tag, now, &[]) {
            Ok(place) => Ok(step(pair.state(place), KeyFound::New)),
            Err(no_room) => self.apply_on_record(algorithm, tag, now, no_room, step),
        };
        drop((first, second));
        self.sweep_one(algorithm, now);
        result
    }

    /// One atomic step on a key that cannot get a cell. The caller holds the key's locks.
    #[cold]
    fn apply_on_record<R>(
        &self,
        algorithm: &impl StoredState,
        tag: Tag,
        now: Nanos,
        no_room: NoRoom,
        step: impl FnOnce(&mut [u64], KeyFound) -> R,
    ) -> Result<R, Refused> {
        let mut state = self.fresh();
        // In place, so that no other key gets the record's place first. The key is known: the step
        // takes no other lock.
        let mut step = Some(step);
        let on_record = self.records.update(self.records.spot(tag), now, |debt| {
            algorithm.owe(&mut state, debt);
            let step = step.take()?;
            let result = step(&mut state, KeyFound::Known);
            Some((algorithm.debt(&state, now), result))
        });
        if let Some(result) = on_record {
            self.counters.untracked.add(1);
            return Ok(result);
        }
        match (no_room, step) {
            (NoRoom::Pinned, Some(step)) => {
                let result = step(&mut state, KeyFound::New);
                if let Some(debt) = algorithm.debt(&state, now) {
                    self.keep(tag, debt, now);
                }
                self.counters.untracked.add(1);
                Ok(result)
            }
            (NoRoom::Refused(until), _) => {
                self.counters.refused.add(1);
                Err(Refused::Full { until })
            }
            // `step` is still there unless it was run.
            (NoRoom::Pinned, None) => Err(Refused::Closed),
        }
    }

    pub(super) fn fresh(&self) -> SmallVec<[u64; 16]> {
        smallvec![0; self.memory.layout.words]
    }

    /// A look at a key's state, which must not be changed. A missing key is not added; the words
    /// are then a copy of its initial state.
    pub fn look<R>(
        &self,
        algorithm: &impl StoredState,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64], KeyFound) -> R,
    ) -> R {
        // Under the buckets' locks to the end: a key that is being evicted is seen here or in its
        // record.
        let (mut first, mut second) = self.both_of(tag);
        let mut pair = Pair::new(&mut first, second.as_mut());
        if let Some(place) = pair.find(tag) {
            return step(pair.state(place), KeyFound::Known);
        }
        let mut state = self.fresh();
        if let Some(debt) = self.records.look(self.records.spot(tag), now) {
            algorithm.owe(&mut state, debt);
        }
        step(&mut state, KeyFound::New)
    }

    /// Removes a key, from its cell or its record; `take` sees its last state.
    pub fn take_out<R>(
        &self,
        algorithm: &impl StoredState,
        tag: Tag,
        now: Nanos,
        take: impl FnOnce(&[u64]) -> R,
    ) -> Option<R> {
        let (mut first, mut second) = self.both_of(tag);
        let mut pair = Pair::new(&mut first, second.as_mut());
        if let Some(place) = pair.find(tag) {
            let result = take(pair.state(place));
            self.stretches.sub(pair.index(place));
            pair.clear(place);
            self.counters.keys.sub(1);
            return Some(result);
        }
        let debt = self.records.take(self.records.spot(tag), now)?;
        let mut state = self.fresh();
        algorithm.owe(&mut state, debt);
        Some(take(&state))
    }

    /// Takes this key's record out of the table and restores its debt. For a key without a cell, as
    /// seen under its lock: in a step of [`apply`](Self::apply) that found it new.
    pub fn take_record(
        &self,
        algorithm: &impl StoredState,
        tag: Tag,
        now: Nanos,
        state: &mut [u64],
    ) -> bool {
        let Some(debt) = self.records.take(self.records.spot(tag), now) else {
            return false;
        };
        let mut owed = self.fresh();
        algorithm.owe(&mut owed, debt);
        algorithm.join(state, &owed, now);
        true
    }

    /// Stores a key's debt in its record, joined with what the record contains already.
    pub(crate) fn keep(&self, tag: Tag, debt: tidegate_core::Debt, now: Nanos) {
        if let Put::Forgot(debt) = self
            .records
            .put(self.records.spot(tag), debt, now, None, false)
        {
            self.counters.forget(debt.share);
        }
    }

    pub(crate) fn both_of(&self, tag: Tag) -> (Bucket<'_>, Option<Bucket<'_>>) {
        self.both(self.memory.lock(tag.first(self.memory.layout.buckets)), tag)
    }

    /// A key's second bucket, locked together with its first; `None` if they are the same.
    fn both<'a>(&'a self, first: Bucket<'a>, tag: Tag) -> (Bucket<'a>, Option<Bucket<'a>>) {
        let (index, second) = (first.index(), tag.second(self.memory.layout.buckets));
        self.stretches.touch(index);
        self.stretches.touch(second);
        match index.cmp(&second) {
            cmp::Ordering::Equal => (first, None),
            cmp::Ordering::Less => (first, Some(self.memory.lock(second))),
            cmp::Ordering::Greater => {
                // The lower index first: release, and look again afterwards.
                drop(first);
                let second = self.memory.lock(second);
                (self.memory.lock(index), Some(second))
            }
        }
    }
}
