//! The keyed limiter and its operations.

use std::{fmt, time::Duration};

use crate::table::{BuildError, HashKeys, Stats, Tag};
use tidegate_core::{Algorithm, Clock, Decision, Estimate, Key, Nanos, Policy};

use super::{
    Generation, KeyedAt, KeyedBuilder, TooManyExceptions,
    exceptions::Exceptions,
    generation::{Generations, Home, Room},
};
use crate::{
    SystemClock,
    block::{Until, denied_until, refused_until},
    eras::{Eras, Site},
    limiter::NOTHING,
    marks::Marks,
    sync::{Mutex, yield_now},
    wait::{Ground, Lines, WaitLine, Wakes},
};

/// A limit for each key, up to a maximum number of keys. A [`Key`] is text or bytes of any length,
/// a number, or an address.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{KeyedLimiter, Policy};
/// let limiter = KeyedLimiter::new(Policy::sliding_window("100/1m".parse()?))?;
/// if limiter.acquire("alice", 1).is_denied() {
///     // ask alice to come back later
/// }
/// let address = std::net::IpAddr::from([192, 0, 2, 1]);
/// assert!(limiter.check(address).is_allowed() && limiter.check(7_u64).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When the table is full
///
/// The limiter evicts recovered keys first. After them it evicts the key that would lose least.
/// That key leaves a record: the share of its limit that it used, and the time when that ends. The
/// key gets the record back when it returns. A flood of made-up keys evicts keys from the table,
/// and in the end records too: those with the smallest share first. The table lists the bounds;
/// `tests/flood.rs` shows them.
///
/// | what | bound |
/// |---|---|
/// | a new key is taken for an evicted one, and gets its debt | 1 of 19,000,000 |
/// | a key that has a record when it returns: how much stricter than before | token and leaky bucket: a 250,000th of the time that it had left. Fixed window, sliding counter: a 126th of the limit, nothing for limits up to 127. Sliding log and window: also, all that was in use counts as taken at the newest admission |
/// | an exhausted key among made-up keys that have something left, however many | never forgotten |
/// | an exhausted key among made-up keys that are exhausted, too | kept until 4 × `max_keys` of them have come in the time that a limit takes to end; then forgotten, or with [`WhenFull::Deny`](crate::WhenFull::Deny) the made-up keys are refused |
/// | any other key that is forgotten | gets at most the share of its limit a second time that it had used |
/// | memory beyond the full table | 40 bytes × `max_keys`, and 1 KiB |
///
/// A key is "exhausted" if it would be denied a cost of 1 when it is evicted. If limits come with
/// requests, the table does not know them, and evicts what ends earliest first. [`Stats`] counts
/// keys that were evicted, returned, refused and forgotten, the last by the share used.
pub struct KeyedLimiter<C: ?Sized = SystemClock> {
    pub(super) generations: Generations,
    pub(super) exceptions: Exceptions,
    pub(super) hash: HashKeys,
    /// Held during a change of policy, or of the maximum number of keys.
    pub(super) changing: Mutex<Room>,
    /// The keys that have an exception or waiters.
    pub(super) marks: Marks,
    pub(super) lines: Lines,
    pub(crate) eras: Eras,
    /// Last, so that a reference to a limiter becomes one to a limiter with any clock.
    pub(super) clock: C,
}

impl KeyedLimiter {
    /// A limiter for up to 1,048,576 keys with the system clock.
    ///
    /// # Errors
    /// If the memory for the states cannot be reserved.
    pub fn new(policy: impl Into<Policy>) -> Result<Self, BuildError> {
        Self::builder(policy).build()
    }

    /// A builder for a limiter with other options.
    pub fn builder(policy: impl Into<Policy>) -> KeyedBuilder {
        KeyedBuilder::new(policy.into())
    }
}

impl<C: ?Sized> KeyedLimiter<C> {
    /// The policy of keys without an override.
    #[must_use]
    pub fn policy(&self) -> Policy {
        *self.generations.current().policy()
    }

    /// A number that is another one after each change of the policy. It is cheaper than
    /// [`policy`](Self::policy): compare it to know whether something that you derived from the
    /// policy still holds. Read it before the policy, so that a change in between is noticed next
    /// time.
    #[must_use]
    pub fn policy_version(&self) -> u64 {
        self.generations.changes()
    }

    /// The override of a key (see [`KeyedAt::set_override`]), if it has one. If no
    /// key is an exception, the key is not even hashed.
    pub fn override_of(&self, key: impl Key) -> Option<Policy> {
        if !self.marks.any() {
            return None;
        }
        let tag = self.tag_of(&key);
        let exception = if self.marks.has(tag) {
            self.exceptions.get(tag)
        } else {
            None
        };
        exception?.own.map(|own| *own.policy())
    }

    /// The limiter's clock.
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Statistics of the keys held. A change of policy restarts the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.generations.current().table.stats()
    }

    #[inline]
    pub(crate) fn tag(&self, key: &[u8]) -> Tag {
        self.hash.tag_of(key)
    }

    #[inline]
    pub(crate) fn tag_of(&self, key: &impl Key) -> Tag {
        key.with_bytes(|bytes| self.tag(bytes))
    }

    /// Starts fetching a key's state into the cache, for a decision that follows soon. With many
    /// keys, most of a decision's time is spent waiting for memory; a caller that knows its next
    /// keys (a batch of requests) can have all of them fetched in parallel. Changes nothing.
    #[inline]
    pub fn prefetch(&self, key: impl Key) {
        self.prefetch_tag(self.tag_of(&key));
    }

    #[inline]
    pub(crate) fn prefetch_tag(&self, tag: Tag) {
        self.generations.newest().table().prefetch(tag);
    }

    /// Decides by the general policy in the common case that no exception and no waiter concerns
    /// the key.
    #[inline(always)]
    #[allow(clippy::inline_always)] // In the caller most of a decision is never looked at, and falls away.
    #[allow(unsafe_code)] // The policy is read without a reference to its generation.
    pub(super) fn decide(&self, tag: Tag, cost: u64, now: Nanos) -> Decision {
        let generation = self.generations.newest();
        // `move`, because a reference would keep the generation on the stack.
        let near = generation.table().apply_near(tag, move |state| {
            // Checked under the key's lock: the key, or all keys, may just have got a new policy.
            let plain = !(cost == 0 || self.marks.has(tag) || generation.is_retired());
            // SAFETY: this thread holds the lock of the key's bucket, and the generation is not
            // retired.
            plain.then(|| unsafe { generation.policy() }.decide(state, now, cost))
        });
        match near {
            Some(decision) => decision,
            None => self.decide_with_care(tag, cost, now),
        }
    }

    #[inline(never)]
    fn decide_with_care(&self, tag: Tag, cost: u64, now: Nanos) -> Decision {
        if cost == 0 {
            return self.peek_tag(tag, 0, now);
        }
        if let Some(denied) = self.blocked_tag(tag, now) {
            return denied;
        }
        self.on_line(
            tag,
            now,
            |line, ground, wakes| line.decide(ground, cost, wakes).0,
            |policy, state, _| policy.decide(state, now, cost),
        )
        .unwrap_or_else(|refused| refused)
    }

    pub(crate) fn acquire_estimate(&self, tag: Tag, cost: u64, now: Nanos) -> (Decision, Estimate) {
        if cost == 0 {
            return (self.peek_tag(tag, 0, now), NOTHING);
        }
        if let Some(denied) = self.blocked_tag(tag, now) {
            return (denied, NOTHING);
        }
        loop {
            let decided = self.on_line(
                tag,
                now,
                |line, ground, wakes| {
                    (!ground.site.is_resetting()).then(|| line.decide(ground, cost, wakes))
                },
                |policy, state, site| {
                    if site.is_resetting() {
                        return None;
                    }
                    let decision = policy.decide(state, now, cost);
                    let taken = if decision.is_allowed() { cost } else { 0 };
                    Some((decision, site.note(policy, state, taken, now)))
                },
            );
            match decided {
                Ok(Some(decided)) => return decided,
                // The places of units are not known before all keys are reset.
                Ok(None) => yield_now(),
                Err(refused) => return (refused, NOTHING),
            }
        }
    }

    /// What the place of a key's units depends on in this generation.
    pub(crate) fn site(&self, generation: &Generation, tag: Tag) -> Site<'_> {
        self.eras.site(generation.rate(), Some(tag))
    }

    /// Whether a key's state is in this generation, as seen under the key's lock there, under which
    /// it changes.
    pub(crate) fn is_home(&self, tag: Tag, generation: &Generation) -> bool {
        let own = if self.marks.has(tag) {
            self.exceptions.get(tag).and_then(|e| e.own)
        } else {
            None
        };
        own.map_or_else(
            || !generation.is_own,
            |own| std::ptr::eq(&raw const *own, generation),
        )
    }

    /// A look at a key's state, with the policy that applies to the key.
    pub(super) fn look<R>(
        &self,
        tag: Tag,
        now: Nanos,
        step: impl Fn(&Policy, &mut [u64]) -> R,
    ) -> R {
        loop {
            let generation = self.generation_of(tag);
            if let Ok(result) = generation.look(tag, now, |state| step(generation.policy(), state))
            {
                return result;
            }
            yield_now();
        }
    }

    /// The generation that holds a key's state.
    pub(crate) fn generation_of(&self, tag: Tag) -> Home {
        let own = if self.marks.has(tag) {
            self.exceptions.get(tag).and_then(|e| e.own)
        } else {
            None
        };
        own.map_or_else(|| Home::General(self.generations.current()), Home::Own)
    }

    pub(crate) fn blocked_tag(&self, tag: Tag, now: Nanos) -> Option<Decision> {
        if !self.marks.has(tag) {
            return None;
        }
        let blocked = self.exceptions.blocked(tag);
        if blocked > Nanos::ZERO && blocked <= now {
            self.exceptions.drop_passed(&self.marks, tag, now);
        }
        denied_until(self.generation_of(tag).policy(), blocked, now)
    }

    pub(super) fn peek_tag(&self, tag: Tag, cost: u64, now: Nanos) -> Decision {
        if let Some(denied) = self.blocked_tag(tag, now) {
            return denied;
        }
        if cost > 0 && self.marks.has(tag) {
            let check = |line: &mut WaitLine, ground: &mut Ground<'_>, wakes: &mut Wakes| {
                Some(line.check(ground, cost, wakes))
            };
            match self.on_line(tag, now, check, |_, _, _| None) {
                Ok(Some(decision)) | Err(decision) => return decision,
                Ok(None) => {}
            }
        }
        let generation = self.generation_of(tag);
        if cost > 0
            && let Some(until) = generation.refuses(tag, now)
        {
            return refused_until(generation.policy(), until, now);
        }
        self.look(tag, now, |policy, state| policy.peek(state, now, cost))
    }

    /// Where the key's units count now, for the [`Estimate::place`] of units that another call takes
    /// afterwards. A reset in between makes it void.
    /// [`KeyedAt::acquire_estimate`] takes and notes in one step.
    #[must_use]
    pub fn place(&self, key: impl Key) -> u64 {
        let tag = self.tag_of(&key);
        let generation = self.generation_of(tag);
        self.look(tag, Nanos::ZERO, |policy, state| {
            self.site(&generation, tag).place(policy, state)
        })
    }

    /// Where units that count at this [place](Self::place) now count in another limiter, which
    /// restores a snapshot of this one: resets of before do not concern it. 0, which is nowhere,
    /// for units that no longer count here, so that they do not return there either.
    #[must_use]
    pub fn place_in_copy(&self, key: impl Key, place: u64) -> u64 {
        let tag = self.tag_of(&key);
        let generation = self.generation_of(tag);
        self.look(tag, Nanos::ZERO, |policy, state| {
            let site = self.site(&generation, tag);
            site.place_in_copy(policy, state, place)
        })
    }

    /// Whether units of a key still count here, so that they would return.
    pub(super) fn counts_tag(&self, tag: Tag, estimate: &Estimate, now: Nanos) -> bool {
        let generation = self.generation_of(tag);
        self.look(tag, now, |policy, state| {
            let site = self.site(&generation, tag);
            site.counts(policy, state, estimate, now)
        })
    }

    pub(crate) fn settle_tag(&self, tag: Tag, estimate: Estimate, actual: u64, now: Nanos) {
        // A key without a place has taken nothing, and a full table that denies newcomers has no
        // room for a charge.
        let _ = self.on_line(
            tag,
            now,
            |line, ground, wakes| line.correct(ground, estimate, actual, wakes),
            |policy, state, site| {
                let refund = |state: &mut [u64], units| policy.refund(state, now, units);
                site.settle(policy, state, now, (estimate, actual), refund);
            },
        );
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// The limiter at the current time.
    #[inline]
    pub(super) fn at_now(&self) -> KeyedAt<'_, C> {
        self.at(self.clock.now())
    }

    /// Asks for one unit at the current time.
    #[inline]
    pub fn check(&self, key: impl Key) -> Decision {
        self.acquire(key, 1)
    }

    /// Denies a key for a time span, from now on (see [`KeyedAt::block`]).
    ///
    /// # Errors
    /// The same as [`KeyedAt::block`].
    pub fn block_for(&self, key: impl Key, span: Duration) -> Result<(), TooManyExceptions> {
        let at = self.at_now();
        at.block(key, Until(at.now.saturating_add(span.into())))
    }

    /// Ends a block now (see [`KeyedAt::unblock`]). Returns whether it was still in force.
    pub fn unblock(&self, key: impl Key) -> bool {
        self.at_now().unblock(key)
    }

    /// Asks for `cost` at the current time (see [`KeyedAt::acquire`]). A cost of 0 is a peek.
    #[inline]
    pub fn acquire(&self, key: impl Key, cost: u64) -> Decision {
        let tag = self.tag_of(&key);
        // The bucket arrives from memory while the clock is read.
        self.generations.newest().table().prefetch(tag);
        self.decide(tag, cost, self.clock.now())
    }

    /// The decision on `cost` now, without taking it (see [`KeyedAt::peek`]).
    pub fn peek(&self, key: impl Key, cost: u64) -> Decision {
        self.at_now().peek(key, cost)
    }

    /// Takes as much of `cost` as is available now (see [`KeyedAt::acquire_up_to`]); returns that
    /// amount and the decision on it.
    pub fn acquire_up_to(&self, key: impl Key, cost: u64) -> (u64, Decision) {
        self.at_now().acquire_up_to(key, cost)
    }

    /// Forgets what a key has used (see [`KeyedAt::reset`]).
    pub fn reset(&self, key: impl Key) -> bool {
        self.at_now().reset(key)
    }

    /// Forgets what all keys have used (see [`KeyedAt::reset_all`]).
    pub fn reset_all(&self) {
        self.at_now().reset_all();
    }

    /// Takes `cost` even if it does not fit (see [`KeyedAt::charge`]).
    pub fn charge(&self, key: impl Key, cost: u64) -> Decision {
        self.at_now().charge(key, cost)
    }

    /// Returns up to `cost` of the units that the key took last (see [`KeyedAt::refund`]).
    pub fn refund(&self, key: impl Key, cost: u64) {
        self.at_now().refund(key, cost);
    }
}

impl<C: ?Sized> fmt::Debug for KeyedLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.generations.current();
        f.debug_struct("KeyedLimiter")
            .field("policy", generation.policy())
            .field("stats", &generation.table.stats())
            .finish_non_exhaustive()
    }
}
