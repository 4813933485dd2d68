//! A policy and the states that it is for.
//!
//! A change of policy makes a new generation. From then on a key's state lives in the old one until the key is asked
//! for (or a sweep gets to it), and is then moved over, once:
//!
//! * the old generation is retired *before* the new one can be seen;
//! * whoever decides in the old one looks at the retirement under the bucket's lock, so either its effect is there
//!   when the state is taken out under that lock, or it sees the retirement and starts again in the new one.
//!
//! A change need not wait for the one before: then a key's state may be in any of a few older generations. Whoever looks
//! for it looks in the oldest first, because a latecomer may still move it, and moves it towards the newest.
//!
//! A decision on a known key finds its generation by one plain load, and nothing tells when it is done with it. So the
//! memory of a generation that was left is not freed but emptied, given back to the system, and used again by the next
//! change whose states are about as wide, and whose bound is the same. All that such a latecomer does is to lock a bucket, which is a bucket in any
//! case, and to look for its key there and then at the retirement. Everybody else holds a reference, and is waited for.
#![allow(unsafe_code)] // The policy of a generation changes when the generation is used again.

use std::{
    cell::UnsafeCell,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, fence},
    },
};

use crate::{
    sync::{AtomicBool, AtomicPtr, Loaded, Mutex, MutexGuard, Ordering, Shared},
    table::{BuildError, Cursor, Found, Refused, Table, Tag, WhenFull},
};
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Debt, Nanos, Policy};

pub(crate) struct Generation {
    /// Written while the generation is retired and nobody holds a reference to it; read by holders of a reference, and
    /// under a bucket's lock by whoever has seen there that it is not retired.
    policy: UnsafeCell<Policy>,
    pub table: Table,
    /// Words of a state in the table: as many as the policy's, or a few more.
    width: usize,
    room: Room,
    /// Whether this is one key's own, not the general one.
    pub is_own: bool,
    /// How many general ones there were before.
    number: AtomicU64,
    /// No decision is made here.
    retired: AtomicBool,
    /// Where states of before the change are, until they have been moved; it may have such a one, too.
    previous: Mutex<Option<Arc<Generation>>>,
    /// All states have been moved; or there never were any.
    complete: AtomicBool,
    sweep: Mutex<Sweep>,
}

/// How many keys there may be, and what happens to more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub max_keys: usize,
    pub when_full: WhenFull,
}

// SAFETY: everything but the policy is `Sync` by itself; the policy is written and read as its field says.
unsafe impl Sync for Generation {}

/// What moves over next, of what nobody asked for.
#[derive(Clone, Copy)]
enum Sweep {
    /// First nobody may add a key in this one of the older tables any more (the newest of them is 0), nor be at it.
    Close(usize, Cursor),
    /// From the oldest table.
    Keys(Cursor),
    /// From the oldest table.
    Records(Cursor),
}

impl Sweep {
    const BEGIN: Self = Self::Close(0, Cursor::BEGIN);
}

/// Older generations, the newest of them first.
type Older = SmallVec<[Arc<Generation>; 2]>;

/// How many older generations may still have states. The oldest is swept before there are more.
pub(super) const MOST_OLDER: usize = 4;

/// Why a generation made no step.
#[derive(Debug)]
pub(crate) enum NoStep {
    /// It was left for a newer one.
    Retired,
    /// The key is new and has no place until then ([`WhenFull::Deny`]).
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
    pub fn new(policy: Policy, room: Room, previous: Option<Arc<Self>>) -> Result<Self, BuildError> {
        let width = previous.as_ref().map_or(policy.words(), |_| width(policy.words()));
        let number = previous.as_ref().map_or(0, |previous| previous.number.load(Ordering::Relaxed) + 1);
        Ok(Self {
            policy: UnsafeCell::new(policy),
            table: Table::new(width, room.max_keys)?.when_full(room.when_full),
            width,
            room,
            is_own: false,
            number: AtomicU64::new(number),
            retired: AtomicBool::new(false),
            complete: AtomicBool::new(previous.is_none()),
            previous: Mutex::new(previous),
            sweep: Mutex::new(Sweep::BEGIN),
        })
    }

    /// Begins a new life after another generation. The caller has seen that nobody holds a reference.
    fn renew(&self, policy: Policy, previous: Arc<Self>) {
        // Acquire: what the last holder did comes before.
        fence(std::sync::atomic::Ordering::Acquire);
        // SAFETY: retired, so no latecomer reads it; those who had looked before that were waited for, bucket by bucket,
        // when the table was emptied; and there are no holders of a reference.
        unsafe { *self.policy.get() = policy };
        // Relaxed, all: the release below, or the publication, comes after.
        self.number.store(previous.number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        *lock(&self.sweep) = Sweep::BEGIN;
        *lock(&self.previous) = Some(previous);
        self.complete.store(false, Ordering::Relaxed);
        self.table.reopen();
        // Release: a latecomer that sees this sees the policy.
        self.retired.store(false, Ordering::Release);
    }

    /// The policy. For holders of a reference; and under a key's lock for whoever has seen there that this generation is
    /// not retired.
    #[inline]
    pub fn policy(&self) -> &Policy {
        // SAFETY: as the field says.
        unsafe { &*self.policy.get() }
    }

    /// A place for one key with a policy of its own.
    pub fn own(policy: Policy) -> Result<Self, BuildError> {
        let room = Room { max_keys: 1, when_full: WhenFull::Forget };
        Ok(Self { is_own: true, ..Self::new(policy, room, None)? })
    }

    /// Which of one limiter's tables is locked first: a newer generation before the one that it takes states over from,
    /// a key's own after the general ones.
    pub fn rank(&self) -> u64 {
        // Relaxed: it changes only while nobody holds a reference.
        if self.is_own { u64::MAX } else { u64::MAX - 1 - self.number.load(Ordering::Relaxed) }
    }

    /// Makes sure that a key has nothing left in an older generation. Only one key's locks are held for it.
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
            // A key of an older generation is no stranger: it has a record here before it asks for a place.
            for older in self.older().iter().rev() {
                let keep = |old: &[u64]| self.keep(tag, older.policy(), old, now);
                older.table.take_out(older.policy(), tag, now, keep);
            }
        }
        self.table.apply(policy, tag, now, |state, found| {
            if self.is_retired() {
                return Err(NoStep::Retired);
            }
            if found == Found::New {
                self.take_over(tag, state, now);
            }
            Ok(step(state))
        })?
    }

    /// A look at a key's state, without adding it.
    pub fn look<R>(&self, tag: Tag, now: Nanos, step: impl FnOnce(&mut [u64]) -> R) -> Result<R, NoStep> {
        // The oldest generation first: whatever moves meanwhile is seen here or there.
        let mut before: Option<Vec<u64>> = None;
        for older in self.older().iter().rev() {
            let owed = older.table.look(older.policy(), tag, now, |old, _| {
                let is_fresh = older.policy().is_recovered(old, now);
                (!is_fresh).then(|| self.converted(older.policy(), old, now))
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
                Some(ref before) if found == Found::New => {
                    let mut joined = state.to_vec();
                    self.policy().join(&mut joined, before, now);
                    Ok(step(&mut joined))
                }
                _ => Ok(step(state)),
            }
        })
    }

    /// Whether no decision is made here, as seen under a key's lock, which orders it after the retirement. Acquire: who
    /// sees that a generation has a new life sees its policy.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// The generation before, while it may still have states, or one older than it may.
    fn incomplete(&self) -> Option<Arc<Self>> {
        // Acquire: who sees that all has been moved also sees where to.
        if self.complete.load(Ordering::Acquire) { None } else { lock(&self.previous).clone() }
    }

    /// The older generations that may still have states.
    fn older(&self) -> Older {
        std::iter::successors(self.incomplete(), |one| one.incomplete()).collect()
    }

    /// How many older generations may still have states.
    pub fn count_older(&self) -> usize {
        self.older().len()
    }

    /// Moves the next stretch of what nobody has asked for since the change; returns whether there is more, here or in a
    /// newer generation.
    pub fn sweep(&self, now: Nanos) -> bool {
        let mut sweep = lock(&self.sweep);
        if self.is_retired() {
            // The newer one sweeps what is left.
            return true;
        }
        let older = self.older();
        let Some(oldest) = older.last() else { return false };
        let next = match *sweep {
            Sweep::Close(at, from) => {
                // Who began in a table before it was retired may still add a key there, move it there from an older one, or
                // move another.
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
                    // A key of its own already, or one to be moved: in both cases it is here afterwards. This generation
                    // is not retired meanwhile: that takes the lock that is held.
                    let _ = self.apply(self.policy(), tag, now, |_| ());
                }
                Some(next.map_or(Sweep::Records(Cursor::BEGIN), Sweep::Keys))
            }
            Sweep::Records(from) => {
                let convert = |debt| self.receive_debt(oldest.policy(), debt, now);
                oldest.table.move_records(from, &self.table, now, convert).map(Sweep::Records)
            }
        };
        if let Some(next) = next {
            *sweep = next;
            return true;
        }
        // Everything that the oldest had is here; its memory goes back to the system.
        let newer = if older.len() > 1 { &*older[older.len() - 2] } else { self };
        newer.complete.store(true, Ordering::Release);
        oldest.table.release();
        lock(&newer.previous).take();
        *sweep = Sweep::Keys(Cursor::BEGIN);
        older.len() > 1
    }

    /// Leaves this generation once nobody sweeps in it; `publish` lets the next one be seen.
    fn leave_for(&self, publish: impl FnOnce()) {
        let _nobody_sweeps = lock(&self.sweep);
        self.retire();
        publish();
    }

    /// Moves over what a key that is new here has in older generations. The caller holds the key's lock here.
    fn take_over(&self, tag: Tag, state: &mut [u64], now: Nanos) {
        // Relaxed: a first generation never has anything else, nor does one that is complete.
        if self.number.load(Ordering::Relaxed) == 0 {
            return;
        }
        for older in self.older().iter().rev() {
            let receive = |old: &[u64]| self.receive(state, older.policy(), old, now);
            older.table.take_out(older.policy(), tag, now, receive);
        }
        // Its record may have moved since the table looked for one here.
        self.table.take_record(self.policy(), tag, now, state);
    }

    /// Forgets what a key has in use; returns whether there was anything.
    pub fn reset(&self, tag: Tag, now: Nanos) -> bool {
        // The oldest generation first: what moves meanwhile moves here.
        let older = self.older();
        let mut had = false;
        for one in older.iter().rev().map(|one| &**one).chain([self]) {
            let policy = one.policy();
            let was_used = one.table.take_out(policy, tag, now, |old| !policy.is_recovered(old, now));
            had |= was_used == Some(true);
        }
        had
    }

    /// What of a debt under another policy is left here.
    pub fn receive_debt(&self, from: &Policy, debt: Debt, now: Nanos) -> Option<Debt> {
        if *from == *self.policy() {
            return Some(debt);
        }
        let mut old = vec![0; from.words()];
        from.owe(&mut old, debt);
        self.policy().debt(&self.converted(from, &old, now), now)
    }

    /// Puts down what a key of another policy that has no place here owes.
    pub fn keep(&self, tag: Tag, from: &Policy, old: &[u64], now: Nanos) {
        if let Some(debt) = self.policy().debt(&self.converted(from, old, now), now) {
            self.table.keep(tag, debt, now);
        }
    }

    /// Joins into `state` what `old`, a state of another policy, has in use.
    pub fn receive(&self, state: &mut [u64], from: &Policy, old: &[u64], now: Nanos) {
        self.policy().join(state, &self.converted(from, old, now), now);
    }

    fn converted(&self, from: &Policy, old: &[u64], now: Nanos) -> Vec<u64> {
        let mut converted = vec![0; self.width];
        let words = self.policy().words();
        self.policy().transfer(&mut converted[..words], from, &old[..from.words()], now);
        converted
    }
}

/// The general generations of a limiter, of which the newest decides.
pub(crate) struct Generations {
    /// The newest, for decisions on known keys.
    newest: AtomicPtr<Generation>,
    /// The same, for everybody who may do more than that.
    current: Shared<Generation>,
    /// All that there are: a latecomer may still look at any of them. Of each width and room at most two more than may have states.
    all: Mutex<Vec<Arc<Generation>>>,
}

impl Generations {
    pub fn new(first: Generation) -> Self {
        let first = Arc::new(first);
        Self {
            newest: AtomicPtr::new(Arc::as_ptr(&first).cast_mut()),
            current: Shared::new(Arc::clone(&first)),
            all: Mutex::new(vec![first]),
        }
    }

    /// The generation that decides, or one that has just been left: for a look at a known key, which asks under the key's
    /// lock whether it was.
    #[inline]
    pub fn newest(&self) -> &Generation {
        // Acquire: with the pointer comes what it points to.
        // SAFETY: it points to one of `all`, from which nothing is ever removed.
        unsafe { &*self.newest.load(Ordering::Acquire) }
    }

    /// The generation that decides.
    pub fn current(&self) -> Loaded<Generation> {
        self.current.load()
    }

    /// The generation that decides, to be held for longer.
    pub fn current_full(&self) -> Arc<Generation> {
        self.current.load_full()
    }

    /// A generation after `previous`: one that was left long ago, or a new one. Changes come one at a time.
    pub fn make(
        &self,
        policy: Policy,
        room: Room,
        previous: Arc<Generation>,
    ) -> Result<Arc<Generation>, BuildError> {
        let width = width(policy.words());
        let mut all = lock(&self.all);
        // Only the list has it: nobody can get hold of it any more.
        let is_spare = |one: &&Arc<Generation>| {
            one.width == width && one.room == room && one.is_retired() && Arc::strong_count(one) == 1
        };
        if let Some(spare) = all.iter().find(is_spare) {
            spare.renew(policy, previous);
            return Ok(Arc::clone(spare));
        }
        let new = Arc::new(Generation::new(policy, room, Some(previous))?);
        all.push(Arc::clone(&new));
        Ok(new)
    }

    /// Lets a new generation decide, after the one before is retired.
    pub fn publish(&self, old: &Generation, new: Arc<Generation>) {
        old.leave_for(|| {
            self.newest.store(Arc::as_ptr(&new).cast_mut(), Ordering::Release);
            self.current.store(new);
        });
    }

    /// Moves everything that older generations than the one that decides still have.
    pub fn sweep_all(&self, now: Nanos) -> Arc<Generation> {
        loop {
            let generation = self.current_full();
            if !generation.sweep(now) {
                return generation;
            }
        }
    }

    /// How many there are, those to be used again included.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        lock(&self.all).len()
    }
}

/// The width of the states of a changed policy, of which a later one can use the table if it is about as wide: in steps of
/// an eighth, above three words.
const fn width(words: usize) -> usize {
    if words <= 3 {
        return words;
    }
    let step = words.next_power_of_two() / 16;
    words.next_multiple_of(if step == 0 { 1 } else { step })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics with such a lock held and its value half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The generation where a key's state lives.
pub(crate) enum Home {
    General(Loaded<Generation>),
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
