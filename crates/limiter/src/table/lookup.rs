//! The table: finding a key's cell.
//!
//! Locks: one bucket, or a key's two in the order of their index, or (for joint decisions) all that are needed in the
//! order of their address; then at most one debt cell. A third bucket, to displace a cell to, is only ever tried.

use std::cmp::Ordering;

use tidegate_core::{Algorithm, Nanos};

use super::{
    Stats, TableError, Tag,
    debts::Debts,
    layout::Layout,
    memory::{Bucket, Memory},
    room::Pair,
    stats::{Counter, Counters},
};

/// Whether a key was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was; the state is its own.
    Known,
    /// It was not; the state is what it starts with.
    New,
}

/// A bounded concurrent table from tags to states of a fixed number of words.
///
/// The table stores words and knows no algorithm: each call brings its own, which must be the one that the states are
/// for (or one that reads the same words the same way).
pub struct Table {
    pub(crate) memory: Memory,
    pub(crate) debts: Debts,
    pub(crate) max_keys: u64,
    pub(crate) counters: Counters,
    pub(crate) sweep: Counter,
}

impl Table {
    /// A table for up to `max_keys` states of `words` words.
    ///
    /// # Errors
    /// When the bound is 0, or the memory cannot be reserved.
    pub fn new(words: usize, max_keys: usize) -> Result<Self, TableError> {
        let memory = Memory::new(Layout::new(words, max_keys)?)?;
        Ok(Self {
            memory,
            debts: Debts::new(words, max_keys)?,
            max_keys: max_keys as u64,
            counters: Counters::default(),
            sweep: Counter::default(),
        })
    }

    /// Gives the memory back to the system where that is possible (Linux), and forgets every state. For a table whose
    /// states have all been moved elsewhere: who still looks finds no key, and adds it as a new one.
    pub fn release(&self) {
        self.memory.release();
    }

    /// The table's figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let c = &self.counters;
        Stats {
            keys: c.keys.get(),
            max_keys: self.max_keys,
            bytes: (self.memory.layout.bytes() + self.debts.bytes()) as u64,
            added: c.added.get(),
            reclaimed: c.reclaimed.get(),
            evicted: c.evicted.get(),
            inherited: c.inherited.get(),
            untracked: c.untracked.get(),
        }
    }

    /// One atomic step on the state of a key that is in one of its two buckets, as known keys are. `None` when it is in
    /// neither (or was being moved between them), or when `step` returns `None`, which must then have changed nothing:
    /// [`apply`](Self::apply) goes on from there.
    ///
    /// This is the short way of a decision: each bucket is locked for itself.
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

    /// Begins to fetch a key's first bucket, for a step that comes soon: the memory then answers while the caller does
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

    /// One atomic step on a key's state, which is added fresh (or with an inherited debt) where it is new.
    #[inline]
    pub fn apply<R>(
        &self,
        algorithm: &impl Algorithm,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64], Found) -> R,
    ) -> R {
        let mut first = self.memory.lock(tag.first(self.memory.layout.buckets));
        if let Some(cell) = first.find(tag.get()) {
            return step(first.state(cell), Found::Known);
        }
        self.apply_further(algorithm, first, tag, now, step)
    }

    /// The rest of [`apply`](Self::apply), when the key is not in its first bucket.
    #[inline(never)]
    fn apply_further<R>(
        &self,
        algorithm: &impl Algorithm,
        first: Bucket<'_>,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64], Found) -> R,
    ) -> R {
        let (mut first, mut second) = self.both(first, tag);
        let mut pair = Pair::new(&mut first, second.as_mut());
        if let Some(place) = pair.find(tag) {
            return step(pair.state(place), Found::Known);
        }
        let result = if let Ok(place) = self.make_room(algorithm, &mut pair, tag, now, &[]) {
            step(pair.state(place), Found::New)
        } else {
            self.counters.untracked.add(1);
            step(self.debts.cell(tag).state(0), Found::Known)
        };
        drop((first, second));
        self.sweep_one(algorithm, now);
        result
    }

    /// A look at a key's state, which must not be changed. A key that is not there stays away; the words are then a copy
    /// of what it would start with.
    pub fn look<R>(
        &self,
        algorithm: &impl Algorithm,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64], Found) -> R,
    ) -> R {
        // Under the buckets' locks to the end: a key that is just being evicted is seen here or in its debt cell.
        let (mut first, mut second) = self.both_of(tag);
        let mut pair = Pair::new(&mut first, second.as_mut());
        if let Some(place) = pair.find(tag) {
            return step(pair.state(place), Found::Known);
        }
        let mut fresh = vec![0; self.memory.layout.words];
        self.debts.inherit(algorithm, tag, &mut fresh, now);
        step(&mut fresh, Found::New)
    }

    /// Every state, bucket by bucket, each bucket locked for its own turn only. A key that is displaced meanwhile may be
    /// seen twice or not at all.
    pub fn for_each(&self, mut visit: impl FnMut(Tag, &mut [u64])) {
        for index in 0..self.memory.layout.buckets {
            let mut bucket = self.memory.lock(index);
            for cell in 0..self.memory.layout.cells {
                let tag = bucket.tag(cell);
                if tag != 0 {
                    visit(Tag::new(tag), bucket.state(cell));
                }
            }
        }
    }

    /// What evicted keys owe, cell by cell: the cell's number and its state.
    pub fn for_each_debt(&self, visit: impl FnMut(usize, &mut [u64])) {
        self.debts.for_each(visit);
    }

    /// Joins a state into the debt cell of this number; returns whether there is such a cell.
    pub fn join_debt(&self, algorithm: &impl Algorithm, cell: usize, state: &[u64], now: Nanos) -> bool {
        self.debts.join(algorithm, cell, state, now)
    }

    /// Writes into `state`, a fresh one, what this key would inherit.
    pub fn inherit(&self, algorithm: &impl Algorithm, tag: Tag, state: &mut [u64], now: Nanos) -> bool {
        self.debts.inherit(algorithm, tag, state, now)
    }

    /// Takes a key out; `take` sees its last state.
    pub fn remove<R>(&self, tag: Tag, take: impl FnOnce(&[u64]) -> R) -> Option<R> {
        let (mut first, mut second) = self.both_of(tag);
        let mut pair = Pair::new(&mut first, second.as_mut());
        let place = pair.find(tag)?;
        let result = take(pair.state(place));
        pair.clear(place);
        self.counters.keys.sub(1);
        Some(result)
    }

    fn both_of(&self, tag: Tag) -> (Bucket<'_>, Option<Bucket<'_>>) {
        self.both(self.memory.lock(tag.first(self.memory.layout.buckets)), tag)
    }

    /// A key's second bucket, locked beside its first; `None` where they are the same.
    fn both<'a>(&'a self, first: Bucket<'a>, tag: Tag) -> (Bucket<'a>, Option<Bucket<'a>>) {
        let (index, second) = (first.index(), tag.second(self.memory.layout.buckets));
        match index.cmp(&second) {
            Ordering::Equal => (first, None),
            Ordering::Less => (first, Some(self.memory.lock(second))),
            Ordering::Greater => {
                // The lower index first: let go, and look again afterwards.
                drop(first);
                let second = self.memory.lock(second);
                (self.memory.lock(index), Some(second))
            }
        }
    }
}
