//! The keyed limiter and its operations.

use std::{fmt, sync::Mutex};

use crate::table::{HashKeys, Stats, Tag, WhenFull};
use tidegate_core::{Algorithm, Clock, Decision, Nanos, Policy};

use super::{
    BuildError, Generation, KeyedBuilder,
    exceptions::Exceptions,
    generation::{Generations, Home, NoStep},
};
use crate::{
    SystemClock, Timer, WaitError,
    limiter::{denied_until, refused_until},
    wait::{Admission, Lines, decide_behind},
};

/// A limit for each key: of any length, and as many as the bound allows.
///
/// What happens beyond the bound, and what a key costs, is told in the crate's page: recovered keys give way first,
/// and a limited key never gets a fresh allowance.
///
/// ```
/// use tidegate_limiter::{KeyedLimiter, Policy};
/// let limiter = KeyedLimiter::new(Policy::sliding_window("100/1m".parse()?))?;
/// if limiter.acquire("alice", 1).is_denied() {
///     // tell alice to come back later
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KeyedLimiter<C = SystemClock> {
    pub(super) generations: Generations,
    pub(super) exceptions: Exceptions,
    pub(super) max_keys: usize,
    pub(super) when_full: WhenFull,
    pub(super) hash: HashKeys,
    /// Held for the length of a change of policy.
    pub(super) changing: Mutex<()>,
    lines: Lines,
    clock: C,
}

impl KeyedLimiter {
    /// Up to 1,048,576 keys on the system's clock.
    ///
    /// # Errors
    /// When the memory for the states cannot be reserved.
    pub fn new(policy: impl Into<Policy>) -> Result<Self, BuildError> {
        Self::builder(policy).build()
    }

    /// A limiter with other options.
    pub fn builder(policy: impl Into<Policy>) -> KeyedBuilder {
        KeyedBuilder::new(policy.into())
    }
}

impl<C> KeyedLimiter<C> {
    pub(super) fn from_parts(
        policy: Policy,
        max_keys: usize,
        when_full: WhenFull,
        hash: HashKeys,
        clock: C,
    ) -> Result<Self, BuildError> {
        let generation = Generation::new(policy, max_keys, when_full, None)?;
        Ok(Self {
            generations: Generations::new(generation),
            exceptions: Exceptions::new(max_keys),
            max_keys,
            when_full,
            hash,
            changing: Mutex::new(()),
            lines: Lines::default(),
            clock,
        })
    }

    /// The policy of keys without one of their own.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.generations.current().policy
    }

    /// The clock.
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Figures about the keys held. Those of a policy that was left are counted anew.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.generations.current().table.stats()
    }

    #[inline]
    pub(crate) fn tag(&self, key: &[u8]) -> Tag {
        self.hash.tag(key)
    }

    /// Begins to fetch a key's state, for a decision that comes soon. With many keys most of a decision is waiting for
    /// memory; who knows the next few keys (a batch of requests) can let them all be fetched at once. Changes nothing.
    #[inline]
    pub fn prefetch(&self, key: impl AsRef<[u8]>) {
        self.generations.current().table.prefetch(self.tag(key.as_ref()));
    }

    /// Asks for `cost` at a time of the caller's. A cost of 0 is a peek that does not add the key.
    ///
    /// While somebody [waits](Self::wait) for this key, the answer is a denial until after everybody who waits.
    #[inline]
    pub fn acquire_at(&self, key: impl AsRef<[u8]>, cost: u32, now: Nanos) -> Decision {
        self.decide(self.tag(key.as_ref()), cost, now)
    }

    /// Decides by the general policy where that is all there is to it, as most of the time it is.
    #[inline(always)]
    #[allow(clippy::inline_always)] // In the caller most of a decision is never looked at, and falls away.
    fn decide(&self, tag: Tag, cost: u32, now: Nanos) -> Decision {
        let generation: &Generation = self.generations.current();
        let near = generation.table.apply_near(tag, |state| {
            // Looked at under the key's lock: the key may have got a policy of its own meanwhile, or all of them a new one.
            let plain = !(cost == 0 || self.exceptions.any() || self.lines.any() || generation.is_retired());
            plain.then(|| generation.policy.decide(state, now, cost))
        });
        match near {
            Some(decision) => decision,
            None => self.decide_with_care(tag, cost, now),
        }
    }

    #[inline(never)]
    fn decide_with_care(&self, tag: Tag, cost: u32, now: Nanos) -> Decision {
        if cost == 0 {
            return self.peek_tag(tag, 0, now);
        }
        if let Some(denied) = self.blocked_at(tag, now) {
            return denied;
        }
        let costs = if self.lines.any() { self.lines.costs(tag) } else { Vec::new() };
        if costs.is_empty() {
            let decided = self.with_state(tag, now, |policy, state| policy.decide(state, now, cost));
            decided.unwrap_or_else(|refused| refused)
        } else {
            self.decide_behind(tag, &costs, cost, now)
        }
    }

    /// One atomic step on a key's state, with the policy that is the key's. The error is the denial of a new key that has
    /// no place ([`WhenFull::Deny`]).
    pub(super) fn with_state<R>(
        &self,
        tag: Tag,
        now: Nanos,
        step: impl Fn(&Policy, &mut [u64]) -> R,
    ) -> Result<R, Decision> {
        loop {
            let generation = self.generation_of(tag);
            let policy = &generation.policy;
            let result = generation
                .apply(policy, tag, now, |state| self.is_home(tag, &generation).then(|| step(policy, state)));
            match result {
                Ok(Some(result)) => return Ok(result),
                Err(NoStep::Refused(until)) => return Err(refused_until(policy, until, now)),
                // The state has just moved, or is about to.
                Ok(None) | Err(NoStep::Retired) => std::thread::yield_now(),
            }
        }
    }

    /// Whether a key's state lives in this generation, as seen under the key's lock there: changes happen under it.
    pub(crate) fn is_home(&self, tag: Tag, generation: &Generation) -> bool {
        let own = if self.exceptions.any() { self.exceptions.get(tag).and_then(|e| e.own) } else { None };
        own.map_or_else(|| !generation.is_own, |own| std::ptr::eq(&raw const *own, generation))
    }

    /// A look at a key's state, with the policy that is the key's.
    fn look<R>(&self, tag: Tag, now: Nanos, step: impl Fn(&Policy, &mut [u64]) -> R) -> R {
        loop {
            let generation = self.generation_of(tag);
            if let Ok(result) = generation.look(tag, now, |state| step(&generation.policy, state)) {
                return result;
            }
            std::thread::yield_now();
        }
    }

    /// Where a key's state lives.
    pub(crate) fn generation_of(&self, tag: Tag) -> Home<'_> {
        let own = if self.exceptions.any() { self.exceptions.get(tag).and_then(|e| e.own) } else { None };
        own.map_or_else(|| Home::General(self.generations.current()), Home::Own)
    }

    pub(crate) fn blocked_at(&self, tag: Tag, now: Nanos) -> Option<Decision> {
        let exception = if self.exceptions.any() { self.exceptions.get(tag)? } else { return None };
        denied_until(&self.generation_of(tag).policy, exception.blocked, now)
    }

    fn decide_behind(&self, tag: Tag, costs: &[u32], cost: u32, now: Nanos) -> Decision {
        self.look(tag, now, |policy, state| decide_behind(policy, &mut state.to_vec(), costs, cost, now))
    }

    /// Decides by another policy on the key's state, for a limit that comes with each request. The policy must read the
    /// same words in the same way: the same algorithm and options, with other numbers that keep
    /// [`words`](Algorithm::words).
    ///
    /// # Panics
    /// When the policy has another algorithm, or states of another width.
    pub fn acquire_with_at(&self, policy: &Policy, key: impl AsRef<[u8]>, cost: u32, now: Nanos) -> Decision {
        let tag = self.tag(key.as_ref());
        if let Some(denied) = self.blocked_at(tag, now) {
            return denied;
        }
        let fits = |mine: &Policy| {
            assert!(
                mine.name() == policy.name() && mine.words() == policy.words(),
                "a policy for one request must have the limiter's algorithm and width of state"
            );
        };
        if cost == 0 {
            return self.look(tag, now, |mine, state| {
                fits(mine);
                policy.check(state, now, 0)
            });
        }
        let decided = self.with_state(tag, now, |mine, state| {
            fits(mine);
            policy.decide(state, now, cost)
        });
        decided.unwrap_or_else(|refused| refused)
    }

    /// What the answer to `cost` would be at `now`; nothing is taken, and the key is not added.
    pub fn peek_at(&self, key: impl AsRef<[u8]>, cost: u32, now: Nanos) -> Decision {
        self.peek_tag(self.tag(key.as_ref()), cost, now)
    }

    fn peek_tag(&self, tag: Tag, cost: u32, now: Nanos) -> Decision {
        let blocked = self.blocked_at(tag, now);
        blocked.unwrap_or_else(|| self.look(tag, now, |policy, state| policy.check(state, now, cost)))
    }

    /// Takes as much of `cost` as there is at `now`; returns how much, and the decision on it.
    pub fn acquire_up_to_at(&self, key: impl AsRef<[u8]>, cost: u32, now: Nanos) -> (u32, Decision) {
        let tag = self.tag(key.as_ref());
        match self.blocked_at(tag, now) {
            Some(denied) => (0, denied),
            None => self
                .with_state(tag, now, |policy, state| policy.decide_up_to(state, now, cost))
                .unwrap_or_else(|refused| (0, refused)),
        }
    }

    /// Gives back up to `cost` of what the key took last; never more than is in use.
    pub fn refund_at(&self, key: impl AsRef<[u8]>, cost: u32, now: Nanos) {
        let tag = self.tag(key.as_ref());
        // A key that has no place has taken nothing.
        let _ = self.with_state(tag, now, |policy, state| policy.refund(state, now, cost));
    }

    /// Forgets what a key has used: its next request is as good as its first. A block stays, and so does a quota of its own.
    /// Permits that are out are forgotten, too: giving one back then does nothing. Returns whether there was anything.
    pub fn reset_at(&self, key: impl AsRef<[u8]>, now: Nanos) -> bool {
        let tag = self.tag(key.as_ref());
        self.generation_of(tag).reset(tag, now)
    }

    /// Forgets what all keys have used (see [`reset_at`](Self::reset_at)), key by key, while decisions go on: what a key
    /// takes meanwhile may be forgotten or not.
    pub fn reset_all(&self) {
        // A change of policy would move keys that are still to be reset to where that has been done.
        let _no_change = self.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.generations.current().table.clear();
        for (_, exception) in self.exceptions.all() {
            if let Some(own) = exception.own {
                own.table.clear();
            }
        }
    }

    /// Denies a key until a time; [`Nanos::MAX`] for good. A block that has passed costs nothing and is dropped.
    ///
    /// # Errors
    /// When as many keys are blocked, or have a quota of their own, as the limiter may hold keys.
    pub fn block_at(&self, key: impl AsRef<[u8]>, until: Nanos, now: Nanos) -> Result<(), BuildError> {
        self.exceptions.change(self.tag(key.as_ref()), now, |exception| exception.blocked = until)
    }

    /// Ends a block; returns whether there was one that still held.
    pub fn unblock_at(&self, key: impl AsRef<[u8]>, now: Nanos) -> bool {
        let lift =
            |exception: &mut super::exceptions::Exception| std::mem::take(&mut exception.blocked) > now;
        // The only error is a new key beyond the bound, which is not blocked.
        self.exceptions.change(self.tag(key.as_ref()), now, lift).unwrap_or(false)
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// Asks for `cost` now. A cost of 0 is a peek.
    #[inline]
    pub fn acquire(&self, key: impl AsRef<[u8]>, cost: u32) -> Decision {
        self.acquire_at(key, cost, self.clock.now())
    }

    /// What the answer to `cost` would be; nothing is taken.
    pub fn peek(&self, key: impl AsRef<[u8]>, cost: u32) -> Decision {
        self.peek_at(key, cost, self.clock.now())
    }

    /// Takes as much of `cost` as there is; returns how much, and the decision on it.
    pub fn acquire_up_to(&self, key: impl AsRef<[u8]>, cost: u32) -> (u32, Decision) {
        self.acquire_up_to_at(key, cost, self.clock.now())
    }

    /// Forgets what a key has used (see [`reset_at`](Self::reset_at)).
    pub fn reset(&self, key: impl AsRef<[u8]>) -> bool {
        self.reset_at(key, self.clock.now())
    }

    /// Gives back up to `cost` of what the key took last.
    pub fn refund(&self, key: impl AsRef<[u8]>, cost: u32) {
        self.refund_at(key, cost, self.clock.now());
    }
}

impl<T: Timer> KeyedLimiter<T> {
    /// Waits until `cost` is admitted for this key, behind whoever waits for it already. Dropping the future gives the
    /// place up.
    ///
    /// # Errors
    /// When no wait can help, or the cost would not be admitted by `deadline`; both are told at once.
    pub async fn wait(
        &self,
        key: impl AsRef<[u8]>,
        cost: u32,
        deadline: Option<Nanos>,
    ) -> Result<Decision, WaitError> {
        let tag = self.tag(key.as_ref());
        self.lines.wait(tag, cost, deadline, &self.clock, &Wanted { limiter: self, tag, cost }).await
    }
}

/// A cost that somebody waits for.
struct Wanted<'a, C> {
    limiter: &'a KeyedLimiter<C>,
    tag: Tag,
    cost: u32,
}

impl<C> Admission for Wanted<'_, C> {
    fn ask(&self, now: Nanos) -> Decision {
        let Self { limiter, tag, cost } = *self;
        let decide = || limiter.with_state(tag, now, |policy, state| policy.decide(state, now, cost));
        limiter.blocked_at(tag, now).unwrap_or_else(|| decide().unwrap_or_else(|refused| refused))
    }

    fn ask_behind(&self, costs: &[u32], now: Nanos) -> Decision {
        self.limiter.decide_behind(self.tag, costs, self.cost, now)
    }

    fn give_back(&self, now: Nanos) {
        // A key that has no place has taken nothing.
        let _ = self.limiter.with_state(self.tag, now, |policy, state| policy.refund(state, now, self.cost));
    }
}

impl<C> fmt::Debug for KeyedLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.generations.current();
        f.debug_struct("KeyedLimiter")
            .field("policy", &generation.policy)
            .field("stats", &generation.table.stats())
            .finish_non_exhaustive()
    }
}
