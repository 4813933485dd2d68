//! A policy with its states.
//!
//! A change of policy creates a new generation. A key's state stays in the old one until the next
//! request for the key, or until a sweep reaches it. Then it moves once:
//!
//! * The old generation is retired *before* the new one becomes visible.
//! * A thread that decides in the old one checks the retirement under the bucket's lock. Either its
//!   effect is there when the state is taken out under that lock, or it sees the retirement and
//!   starts again in the new one.
//!
//! A change need not wait for the one before. A key's state may then be in any of a few older
//! generations. A thread that looks for it starts with the oldest, because a late thread may still
//! move it, and states move towards the newest.
//!
//! A decision on a known key finds its generation by one plain load, and it is unknown when the
//! decision is done with it. So the memory of a replaced generation is not freed. It is emptied,
//! returned to the system, and used again by the next change with the same bound and about the same
//! width of states. Such a late thread only locks a bucket, which stays a bucket in any case, and
//! looks there for its key and then at the retirement. All other threads hold a reference, and are
//! waited for.
#![allow(unsafe_code)] // The policy of a generation changes when the generation is used again.

use std::{
    cell::UnsafeCell,
    sync::{Arc, PoisonError, atomic::fence},
};

use crate::{
    sync::{ArcCell, AtomicBool, AtomicPtr, AtomicU64, Mutex, MutexGuard, Ordering, Pinned},
    table::{BuildError, Cursor, KeyFound, Refused, Table, Tag, WhenFull},
};
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Debt, Nanos, Policy, StoredState};

pub(crate) struct Generation {
    /// Written while the generation is retired and no thread holds a reference to it. Read by
    /// holders of a reference, and under a bucket's lock by threads that have seen there that it is
    /// not retired.
    policy: UnsafeCell<Policy>,
    pub table: Table,
    /// The width of a state in the table: as many words as the policy needs, or a few more.
    width: usize,
    room: Room,
    /// Whether this generation is for a single key with its own policy.
    pub is_own: bool,
    /// How many general generations there were before.
    number: AtomicU64,
    /// Identifies the time for which the policy is in force. Generations that differ in their room
    /// alone have the same.
    rate: AtomicU64,
    /// When the policy came into force.
    since: AtomicU64,
    /// Set when no decision may be made here.
    retired: AtomicBool,
    /// The generation that holds states from before the change until they have moved; it may have a
    /// previous one too.
    previous: Mutex<Option<Arc<Generation>>>,
    /// All states have moved, or there never were any.
    complete: AtomicBool,
    sweep: Mutex<Sweep>,
}

/// The maximum number of keys, and what happens to further keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub max_keys: usize,
    /// `None` for as many as keys.
    pub max_exceptions: Option<usize>,
    pub when_full: WhenFull,
}

impl Room {
    pub fn max_exceptions(&self) -> usize {
        self.max_exceptions.unwrap_or(self.max_keys)
    }
}

// SAFETY: everything but the policy is `Sync` by itself; the policy is written and read as its
// field says.
unsafe impl Sync for Generation {}

/// The next part of a sweep, which moves states without a request.
#[derive(Clone, Copy)]
enum Sweep {
    /// Closes this one of the older tables (the newest of them is 0), so that no thread adds a key
    /// or is still doing so.
    Close(usize, Cursor),
    /// Moves keys from the oldest table.
    Keys(Cursor),
    /// Moves records from the oldest table.
    Records(Cursor),
}

impl Sweep {
    const BEGIN: Self = Self::Close(0, Cursor::BEGIN);
}

/// Older generations, the newest first.
type Older = SmallVec<[Arc<Generation>; 2]>;

/// The maximum number of older generations that may still have states. The oldest is swept before
/// there are more.
pub(super) const MOST_OLDER: usize = 4;

/// Why a step was not made.
#[derive(Debug)]
pub(crate) enum NoStep {
    /// A newer generation has replaced this one.
    Retired,
    /// The key is new, and the table has no room for it until this time ([`WhenFull::Deny`]).
    Refused(Nanos),
}

impl From<Refused> for NoStep {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full { until } => Self::Refused(until),
            Refused::Closed => Self::Retired,
        }
    }
}

impl Generation {
    pub fn new(
        policy: Policy,
        (rate, since): (u64, Nanos),
        room: Room,
        previous: Option<Arc<Self>>,
    ) -> Result<Self, BuildError> {
        let width = previous
            .as_ref()
            .map_or(policy.words(), |_| width(policy.words()));
        let number = previous
            .as_ref()
            .map_or(0, |previous| previous.number.load(Ordering::Relaxed) + 1);
        Ok(Self {
            policy: UnsafeCell::new(policy),
            table: Table::new(width, room.max_keys)?.when_full(room.when_full),
            width,
            room,
            is_own: false,
            number: AtomicU64::new(number),
            rate: AtomicU64::new(rate),
            since: AtomicU64::new(since.get()),
            retired: AtomicBool::new(false),
            complete: AtomicBool::new(previous.is_none()),
            previous: Mutex::new(previous),
            sweep: Mutex::new(Sweep::BEGIN),
        })
    }

    /// Reuses this generation after another one. The caller has seen that no thread holds a
    /// reference.
    fn renew(&self, policy: Policy, (rate, since): (u64, Nanos), previous: Arc<Self>) {
        // Acquire: the last holder's actions come before.
        fence(std::sync::atomic::Ordering::Acquire);
        // SAFETY: the generation is retired, so no late thread reads the policy. Threads that had
        // checked before were waited for, bucket by bucket, when the table was emptied. No thread
        // holds a reference.
        unsafe { *self.policy.get() = policy };
        // All relaxed: the release below, or the publication, comes after.
        self.number.store(
            previous.number.load(Ordering::Relaxed) + 1,
            Ordering::Relaxed,
        );
        self.rate.store(rate, Ordering::Relaxed);
        self.since.store(since.get(), Ordering::Relaxed);
        *lock(&self.sweep) = Sweep::BEGIN;
        *lock(&self.previous) = Some(previous);
        self.complete.store(false, Ordering::Relaxed);
        self.table.reopen();
        // Release: a late thread that sees this sees the policy.
        self.retired.store(false, Ordering::Release);
    }

    /// The policy.
    #[inline]
    pub fn policy(&self) -> &Policy {
        // SAFETY: all threads that can call this hold a reference to the generation; the others
        // have a `Newest`.
        unsafe { &*self.policy.get() }
    }

    /// Identifies the time for which the policy is in force.
    pub fn rate(&self) -> u64 {
        // Relaxed: it changes only while no thread holds a reference.
        self.rate.load(Ordering::Relaxed)
    }

    /// A generation for one key with its own policy.
    pub fn own(policy: Policy, rate: (u64, Nanos)) -> Result<Self, BuildError> {
        let room = Room {
            max_keys: 1,
            max_exceptions: None,
            when_full: WhenFull::Forget,
        };
        Ok(Self {
            is_own: true,
            ..Self::new(policy, rate, room, None)?
        })
    }

    /// The rank of the table in the order of locks within one limiter: a newer generation comes
    /// before the one from which it takes states, and a key's own after the general ones.
    pub fn rank(&self) -> u64 {
        // Relaxed: it changes only while no thread holds a reference.
        if self.is_own {
            u64::MAX
        } else {
            u64::MAX - 1 - self.number.load(Ordering::Relaxed)
        }
    }

    /// Ensures that a key has nothing left in an older generation. Only one key's locks are held
    /// for it.
    pub fn bring(&self, tag: Tag, now: Nanos) -> Result<(), NoStep> {
        if self.incomplete().is_none() {
            return Ok(());
        }
        match self.apply(self.policy(), tag, now, |_| ()) {
            // Unknown in both, or in its record.
            Err(NoStep::Refused(_)) => Ok(()),
            done => done,
        }
    }

    /// One atomic step on a key's state.
    #[inline]
    pub fn apply<R>(
        &self,
        policy: &Policy,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64]) -> R,
    ) -> Result<R, NoStep> {
        if self.table.denies_when_full() {
            // A key of an older generation is not new: it has a record here before it needs a
            // place.
            let older = self.older();
            for (at, one) in older.iter().enumerate().rev() {
                one.table.take_out(one.policy(), tag, now, |old| {
                    self.keep_converted(tag, &self.brought(&older[..=at], old, now), now);
                });
            }
        }
        self.table.apply(policy, tag, now, |state, found| {
            if self.is_retired() {
                return Err(NoStep::Retired);
            }
            if found == KeyFound::New {
                self.take_over(tag, state, now);
                // Again: a thread in a newer generation may have taken the key's state out of an
                // older one before this thread looked there. The lock that both had there orders
                // the retirement before this check.
                if self.is_retired() {
                    return Err(NoStep::Retired);
                }
            }
            Ok(step(state))
        })?
    }

    /// A look at a key's state, without adding the key.
    pub fn look<R>(
        &self,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&mut [u64]) -> R,
    ) -> Result<R, NoStep> {
        // The oldest generation first: a state that moves during the look is seen in one of the
        // two.
        let mut before: Option<Vec<u64>> = None;
        let older = self.older();
        for (at, one) in older.iter().enumerate().rev() {
            let owed = one.table.look(one.policy(), tag, now, |old, _| {
                let is_fresh = one.policy().is_recovered(old, now);
                (!is_fresh).then(|| self.brought(&older[..=at], old, now))
            });
            before = match (before, owed) {
                (Some(mut joined), Some(owed)) => {
                    self.policy().join(&mut joined, &owed, now);
                    Some(joined)
                }
                (before, owed) => owed.or(before),
            };
        }
        self.table.look(self.policy(), tag, now, |state, found| {
            if self.is_retired() {
                return Err(NoStep::Retired);
            }
            match before {
                Some(ref before) if found == KeyFound::New => {
                    let mut joined = state.to_vec();
                    self.policy().join(&mut joined, before, now);
                    Ok(step(&mut joined))
                }
                _ => Ok(step(state)),
            }
        })
    }

    /// The time until which a decision on this key would be refused because it is new and the table
    /// has no room.
    pub fn refuses(&self, tag: Tag, now: Nanos) -> Option<Nanos> {
        let until = self.table.refuses(self.policy(), tag, now)?;
        // A key of an older generation is not new.
        self.incomplete().is_none().then_some(until)
    }

    /// Whether no decision may be made here, as seen under a key's lock, which orders it after the
    /// retirement. Acquire: a thread that sees that a generation is reused sees its policy.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// The previous generation, if it, or an older one, may still have states.
    fn incomplete(&self) -> Option<Arc<Self>> {
        // Acquire: a thread that sees that all states have moved also sees where to.
        if self.complete.load(Ordering::Acquire) {
            None
        } else {
            lock(&self.previous).clone()
        }
    }

    /// The older generations that may still have states.
    fn older(&self) -> Older {
        std::iter::successors(self.incomplete(), |one| one.incomplete()).collect()
    }

    /// The number of older generations that may still have states.
    pub fn count_older(&self) -> usize {
        self.older().len()
    }

    /// Moves the next stretch of states without a request since the change. Returns whether there
    /// are more, here or in a newer generation.
    pub fn sweep(&self, now: Nanos) -> bool {
        let mut sweep = lock(&self.sweep);
        if self.is_retired() {
            // The newer generation sweeps the rest.
            return true;
        }
        let older = self.older();
        let Some(oldest) = older.last() else {
            return false;
        };
        let next = match *sweep {
            Sweep::Close(at, from) => {
                // A thread that began in a table before it was retired may still add a key there,
                // move it there from an older one, or move another.
                let table = &older[at].table;
                Some(match table.close_next(from) {
                    Some(next) => Sweep::Close(at, next),
                    None if at + 1 < older.len() => Sweep::Close(at + 1, Cursor::BEGIN),
                    None => Sweep::Keys(Cursor::BEGIN),
                })
            }
            Sweep::Keys(from) => {
                let mut tags = Vec::new();
                let next = oldest.table.walk(from, |tag, _| tags.push(tag));
                for tag in tags {
                    // The key is here already, or moves now; in both cases it is here afterwards.
                    // This generation cannot be retired before: that takes the lock that is held.
                    let _ = self.apply(self.policy(), tag, now, |_| ());
                }
                Some(next.map_or(Sweep::Records(Cursor::BEGIN), Sweep::Keys))
            }
            Sweep::Records(from) => {
                let convert = |debt| {
                    let owed = Self::owed(oldest.policy(), debt);
                    let brought = || self.brought(&older, &owed, now);
                    self.debt_after(oldest.policy(), debt, brought, now)
                };
                oldest
                    .table
                    .move_records(from, &self.table, now, convert)
                    .map(Sweep::Records)
            }
        };
        if let Some(next) = next {
            *sweep = next;
            return true;
        }
        // Everything of the oldest generation is here; its memory is returned to the system.
        let newer = if older.len() > 1 {
            &*older[older.len() - 2]
        } else {
            self
        };
        newer.complete.store(true, Ordering::Release);
        // SAFETY: this generation is retired and all of its states and records have moved, so no
        // thread adds any to its table.
        unsafe { oldest.table.release() };
        lock(&newer.previous).take();
        *sweep = Sweep::Keys(Cursor::BEGIN);
        older.len() > 1
    }

    /// Retires this generation once no thread sweeps in it; `publish` makes the next one visible.
    fn leave_for(&self, publish: impl FnOnce()) {
        let _nobody_sweeps = lock(&self.sweep);
        self.retire();
        publish();
    }

    /// Moves what a key that is new here has in older generations. The caller holds the key's lock
    /// here.
    fn take_over(&self, tag: Tag, state: &mut [u64], now: Nanos) {
        // Relaxed: the first generation never has a previous one, and a complete one has none left.
        if self.number.load(Ordering::Relaxed) == 0 {
            return;
        }
        let older = self.older();
        for (at, one) in older.iter().enumerate().rev() {
            one.table.take_out(one.policy(), tag, now, |old| {
                let brought = self.brought(&older[..=at], old, now);
                self.policy().join(state, &brought, now);
            });
        }
        // The record may have moved since the table looked for one here.
        self.table.take_record(self.policy(), tag, now, state);
    }

    /// Converts a debt under another policy to this one.
    pub fn receive_debt(&self, from: &Policy, debt: Debt, now: Nanos) -> Option<Debt> {
        let owed = || self.converted(from, &Self::owed(from, debt), now);
        self.debt_after(from, debt, owed, now)
    }

    /// A debt under another policy, as a state.
    fn owed(from: &Policy, debt: Debt) -> Vec<u64> {
        let mut owed = vec![0; from.words()];
        from.owe(&mut owed, debt);
        owed
    }

    /// A debt under another policy as one of this policy, in whose state it is `converted`.
    fn debt_after(
        &self,
        from: &Policy,
        debt: Debt,
        converted: impl FnOnce() -> Vec<u64>,
        now: Nanos,
    ) -> Option<Debt> {
        if *from == *self.policy() {
            return Some(debt);
        }
        self.policy().debt(&converted(), now)
    }

    /// Stores the debt of a key of another policy for which the table has no cell.
    pub fn keep(&self, tag: Tag, from: &Policy, old: &[u64], now: Nanos) {
        self.keep_converted(tag, &self.converted(from, old, now), now);
    }

    fn keep_converted(&self, tag: Tag, state: &[u64], now: Nanos) {
        if let Some(debt) = self.policy().debt(state, now) {
            self.table.keep(tag, debt, now);
        }
    }

    /// Merges the usage in `old`, a state of another policy, into `state`.
    pub fn receive(&self, state: &mut [u64], from: &Policy, old: &[u64], now: Nanos) {
        self.policy()
            .join(state, &self.converted(from, old, now), now);
    }

    /// A state of an older generation, the last one, under this policy. Permits may have ended in
    /// between, so they go through each change, as at its time; `now` is later.
    fn brought(&self, older: &[Arc<Self>], old: &[u64], now: Nanos) -> Vec<u64> {
        let Some((oldest, newer)) = older.split_last() else {
            return old.to_vec();
        };
        let way = newer.iter().rev().map(|one| &**one).chain([self]);
        if !oldest.policy().is_concurrency() || !way.clone().all(|to| to.policy().is_concurrency())
        {
            return self.converted(oldest.policy(), old, now);
        }
        let (mut from, mut state) = (&**oldest, old.to_vec());
        for to in way {
            // Relaxed, as `rate`.
            let since = Nanos::new(to.since.load(Ordering::Relaxed));
            state = to.converted(from.policy(), &state, since.min(now));
            from = to;
        }
        state
    }

    fn converted(&self, from: &Policy, old: &[u64], now: Nanos) -> Vec<u64> {
        let mut converted = vec![0; self.width];
        let words = self.policy().words();
        self.policy()
            .transfer(&mut converted[..words], from, &old[..from.words()], now);
        converted
    }
}

/// The newest generation without a reference to it: a later change may reuse it at any time.
#[derive(Clone, Copy)]
pub(crate) struct Newest<'a>(&'a Generation);

impl<'a> Newest<'a> {
    #[inline]
    pub fn table(self) -> &'a Table {
        &self.0.table
    }

    #[inline]
    pub fn is_retired(self) -> bool {
        self.0.is_retired()
    }

    /// The policy.
    ///
    /// # Safety
    /// The caller holds the lock of a bucket of the table, and has seen under it that the
    /// generation is not retired.
    #[inline]
    pub unsafe fn policy(self) -> &'a Policy {
        self.0.policy()
    }

    /// Identifies the time for which the policy is in force, for the same callers.
    #[inline]
    pub fn rate(self) -> u64 {
        self.0.rate()
    }
}

/// The general generations of a limiter. The newest one decides.
pub(crate) struct Generations {
    /// The newest, for decisions on known keys.
    newest: AtomicPtr<Generation>,
    /// The same, for all other operations.
    current: ArcCell<Generation>,
    /// All generations: a late thread may still look at any of them. Of each width and room there
    /// are at most two more than may have states.
    all: Mutex<Vec<Arc<Generation>>>,
    /// How often `current` was replaced.
    changes: AtomicU64,
}

impl Generations {
    pub fn new(first: Generation) -> Self {
        let first = Arc::new(first);
        Self {
            newest: AtomicPtr::new(Arc::as_ptr(&first).cast_mut()),
            current: ArcCell::new(Arc::clone(&first)),
            all: Mutex::new(vec![first]),
            changes: AtomicU64::new(0),
        }
    }

    /// How often the generation that decides was replaced.
    pub fn changes(&self) -> u64 {
        // Acquire: a later read of `current` sees this change's generation, or a newer one.
        self.changes.load(Ordering::Acquire)
    }

    /// The generation that decides, or one that was just replaced.
    #[inline]
    pub fn newest(&self) -> Newest<'_> {
        // Acquire: the data behind the pointer is visible with the pointer.
        // SAFETY: it points to one of `all`, from which nothing is ever removed.
        Newest(unsafe { &*self.newest.load(Ordering::Acquire) })
    }

    /// The generation that decides.
    pub fn current(&self) -> Pinned<Generation> {
        self.current.load()
    }

    /// The generation that decides, for longer use.
    pub fn current_full(&self) -> Arc<Generation> {
        self.current.load_full()
    }

    /// A generation after `previous`: a reused one, or a new one. Changes come one at a time.
    pub fn make(
        &self,
        policy: Policy,
        rate: (u64, Nanos),
        room: Room,
        previous: Arc<Generation>,
    ) -> Result<Arc<Generation>, BuildError> {
        let width = width(policy.words());
        let mut all = lock(&self.all);
        // Only the list holds it: no thread can get a reference any more.
        let is_spare = |one: &&Arc<Generation>| {
            one.width == width
                && one.room == room
                && one.is_retired()
                && Arc::strong_count(one) == 1
        };
        if let Some(spare) = all.iter().find(is_spare) {
            spare.renew(policy, rate, previous);
            return Ok(Arc::clone(spare));
        }
        let new = Arc::new(Generation::new(policy, rate, room, Some(previous))?);
        all.push(Arc::clone(&new));
        Ok(new)
    }

    /// Makes a new generation decide, after the one before is retired.
    pub fn publish(&self, old: &Generation, new: Arc<Generation>) {
        old.leave_for(|| {
            self.newest
                .store(Arc::as_ptr(&new).cast_mut(), Ordering::Release);
            self.current.store(new);
            // Release: see `changes`.
            self.changes.fetch_add(1, Ordering::Release);
        });
    }

    /// Moves all states that are still in older generations.
    pub fn sweep_all(&self, now: Nanos) -> Arc<Generation> {
        loop {
            let generation = self.current_full();
            if !generation.sweep(now) {
                return generation;
            }
        }
    }
}

/// The width of the states of a changed policy: in steps of an eighth above three words, so that a
/// later policy of about the same width can reuse the table.
const fn width(words: usize) -> usize {
    if words <= 3 {
        return words;
    }
    let step = words.next_power_of_two() / 16;
    words.next_multiple_of(if step == 0 { 1 } else { step })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while such a lock is held and its value is half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The generation that holds a key's state.
pub(crate) enum Home {
    General(Pinned<Generation>),
    Own(Arc<Generation>),
}

impl std::ops::Deref for Home {
    type Target = Generation;

    #[inline]
    fn deref(&self) -> &Generation {
        match self {
            Self::General(generation) => generation,
            Self::Own(generation) => generation,
        }
    }
}
