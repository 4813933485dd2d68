//! A policy and the states that it is for.
//!
//! A change of policy makes a new generation. From then on a key's state lives in the old one until the key is asked
//! for (or a sweep gets to it), and is then moved over, once:
//!
//! * the old generation is retired *before* the new one can be seen;
//! * whoever decides in the old one looks at the retirement under the bucket's lock, so either its effect is there
//!   when the state is taken out under that lock, or it sees the retirement and starts again in the new one.
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
    table::{Cursor, Found, Refused, Table, TableError, Tag, WhenFull},
};
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
    /// Where states of before the change are, until they have been moved.
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
    /// First nobody may add a key in the old table any more.
    Close,
    Keys(Cursor),
    Records(Cursor),
}

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
    pub fn new(policy: Policy, room: Room, previous: Option<Arc<Self>>) -> Result<Self, TableError> {
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
            sweep: Mutex::new(Sweep::Close),
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
        *lock(&self.sweep) = Sweep::Close;
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
    pub fn own(policy: Policy) -> Result<Self, TableError> {
        let room = Room { max_keys: 1, when_full: WhenFull::Forget };
        Ok(Self { is_own: true, ..Self::new(policy, room, None)? })
    }

    /// Which of one limiter's tables is locked first: a newer generation before the one that it takes states over from,
    /// a key's own after the general ones.
    pub fn rank(&self) -> u64 {
        // Relaxed: it changes only while nobody holds a reference.
        if self.is_own { u64::MAX } else { u64::MAX - 1 - self.number.load(Ordering::Relaxed) }
    }

    /// Makes sure that a key has nothing left in the generation before. Only one key's locks are held for it.
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
        if self.table.denies_when_full()
            && let Some(previous) = self.incomplete()
        {
            // A key of the generation before is no stranger: it has a record here before it asks for a place.
            let keep = |old: &[u64]| self.keep(tag, previous.policy(), old, now);
            previous.table.take_out(previous.policy(), tag, now, keep);
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
        // The generation before first: whatever moves meanwhile is seen here or there.
        let before = self.incomplete().and_then(|previous| {
            previous.table.look(previous.policy(), tag, now, |old, _| {
                (!previous.policy().is_recovered(old, now))
                    .then(|| self.converted(previous.policy(), old, now))
            })
        });
        self.table.look(self.policy(), tag, now, |state, found| {
            if self.is_retired() {
                return Err(NoStep::Retired);
            }
            match before {
                Some(before) if found == Found::New => {
                    let mut joined = state.to_vec();
                    self.policy().join(&mut joined, &before, now);
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

    /// The generation before, while it may still have states.
    fn incomplete(&self) -> Option<Arc<Self>> {
        // Acquire: who sees that all has been moved also sees where to.
        if self.complete.load(Ordering::Acquire) { None } else { lock(&self.previous).clone() }
    }

    /// Moves the next stretch of what nobody has asked for since the change; returns whether there is more.
    pub fn sweep(&self, now: Nanos) -> bool {
        let Some(previous) = self.incomplete() else { return false };
        let mut sweep = lock(&self.sweep);
        if self.complete.load(Ordering::Acquire) {
            return false;
        }
        let next = match *sweep {
            Sweep::Close => {
                // Who began in the old table before it was retired may still add a key there, and move another.
                previous.table.close();
                Some(Sweep::Keys(Cursor::default()))
            }
            Sweep::Keys(from) => {
                let mut tags = Vec::new();
                let next = previous.table.walk(from, |tag, _| tags.push(tag));
                for tag in tags {
                    // A key of its own already, or one to be moved: in both cases it is here afterwards. This generation
                    // is not retired before its sweep has ended.
                    let _ = self.apply(self.policy(), tag, now, |_| ());
                }
                Some(next.map_or(Sweep::Records(Cursor::default()), Sweep::Keys))
            }
            Sweep::Records(from) => {
                let convert = |debt| self.receive_debt(previous.policy(), debt, now);
                previous.table.move_records(from, &self.table, now, convert).map(Sweep::Records)
            }
        };
        if let Some(next) = next {
            *sweep = next;
            return true;
        }
        // Everything that the generation before had is here; its memory goes back to the system.
        self.complete.store(true, Ordering::Release);
        previous.table.release();
        lock(&self.previous).take();
        false
    }

    /// Moves over what a key that is new here has in the previous generation. The caller holds the key's lock here.
    fn take_over(&self, tag: Tag, state: &mut [u64], now: Nanos) {
        // Relaxed: a first generation never has anything else, nor does one that is complete.
        if self.number.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(previous) = self.incomplete() {
            let receive = |old: &[u64]| self.receive(state, previous.policy(), old, now);
            previous.table.take_out(previous.policy(), tag, now, receive);
        }
        // Its record may have moved since the table looked for one here.
        self.table.take_record(self.policy(), tag, now, state);
    }

    /// Forgets what a key has in use; returns whether there was anything.
    pub fn reset(&self, tag: Tag, now: Nanos) -> bool {
        // The generation before first: what moves meanwhile moves here.
        let moved = self.incomplete().and_then(|previous| {
            previous
                .table
                .take_out(previous.policy(), tag, now, |old| !previous.policy().is_recovered(old, now))
        });
        let here =
            self.table.take_out(self.policy(), tag, now, |state| !self.policy().is_recovered(state, now));
        moved == Some(true) || here == Some(true)
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
    /// All that there are: a latecomer may still look at any of them. At most two or three of each width and room.
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
    ) -> Result<Arc<Generation>, TableError> {
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

    /// Lets a new generation decide, after the one before was retired.
    pub fn publish(&self, new: Arc<Generation>) {
        self.newest.store(Arc::as_ptr(&new).cast_mut(), Ordering::Release);
        self.current.store(new);
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
