//! The keyed limiter and its operations.

use std::{fmt, sync::PoisonError, time::Duration};

use crate::table::{BuildError, HashKeys, Stats, Tag};
use tidegate_core::{Algorithm, Clock, Decision, Estimate, Key, Nanos, Policy};

use super::{
    Generation, KeyedBuilder, TooManyExceptions,
    exceptions::Exceptions,
    generation::{Generations, Home, Room},
    steps::step_by,
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

    /// The override of a key (see [`set_override_at`](Self::set_override_at)), if it has one. If no
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

    /// Asks for `cost` at the given time. A cost of 0 is a peek that does not add the key.
    ///
    /// While callers [wait](Self::wait) for this key, the answer is a denial until all of them have
    /// been served. Its `retry_after` is exact behind up to 64 waiters. Behind `n` more, it may
    /// describe the queue as it was up to `n / 64` requests ago, before a waiter left or the policy
    /// changed.
    #[inline]
    pub fn acquire_at(&self, key: impl Key, cost: u64, now: Nanos) -> Decision {
        self.decide(self.tag_of(&key), cost, now)
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

    /// [`acquire_at`](Self::acquire_at) for units that may return. The second value is what was
    /// taken, for [`settle_at`](Self::settle_at): nothing if the request was denied.
    pub fn acquire_estimate_at(
        &self,
        key: impl Key,
        cost: u64,
        now: Nanos,
    ) -> (Decision, Estimate) {
        self.acquire_estimate(self.tag_of(&key), cost, now)
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

    /// Decides by another policy on the key's state, for a limit that comes with each request.
    ///
    /// If the policy does not [read the state as it is](Policy::reads_states_of), the state is
    /// converted for the decision and back (see [`Policy::transfer`]). That allocates, and is as
    /// strict as the limiter's own states are exact: give the limiter a policy whose states have
    /// room for all limits that requests may bring, such as [`Policy::wide`].
    pub fn acquire_with_at(
        &self,
        policy: &Policy,
        key: impl Key,
        cost: u64,
        now: Nanos,
    ) -> Decision {
        let tag = self.tag_of(&key);
        if let Some(denied) = self.blocked_tag(tag, now) {
            return denied;
        }
        if cost == 0 {
            return self.look(tag, now, |mine, state| {
                step_by(mine, policy, state, now, |state| policy.peek(state, now, 0))
            });
        }
        let decide = |mine: &Policy, state: &mut [u64]| {
            step_by(mine, policy, state, now, |state| {
                policy.decide(state, now, cost)
            })
        };
        let behind = |line: &mut WaitLine, ground: &mut Ground<'_>, wakes: &mut Wakes| {
            line.settle(ground, wakes);
            if line.is_waiting() {
                line.answer(ground, cost)
            } else {
                decide(ground.policy, ground.state)
            }
        };
        let decided = self.on_line(tag, now, behind, |mine, state, _| decide(mine, state));
        decided.unwrap_or_else(|refused| refused)
    }

    /// The denial of a key that is blocked at `now`, or `None`. Faster than
    /// [`peek_at`](Self::peek_at): it does not look at the key's state, and where nothing is
    /// blocked it does not even hash the key.
    pub fn blocked_at(&self, key: impl Key, now: Nanos) -> Option<Decision> {
        if !self.marks.any() {
            return None;
        }
        self.blocked_tag(self.tag_of(&key), now)
    }

    /// The decision on `cost` at `now`, without taking it and without adding the key.
    pub fn peek_at(&self, key: impl Key, cost: u64, now: Nanos) -> Decision {
        self.peek_tag(self.tag_of(&key), cost, now)
    }

    fn peek_tag(&self, tag: Tag, cost: u64, now: Nanos) -> Decision {
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

    /// Takes as much of `cost` as is available at `now`; returns that amount and the decision on
    /// it.
    pub fn acquire_up_to_at(&self, key: impl Key, cost: u64, now: Nanos) -> (u64, Decision) {
        let tag = self.tag_of(&key);
        match self.blocked_tag(tag, now) {
            Some(denied) => (0, denied),
            None => self
                .on_line(
                    tag,
                    now,
                    |line, ground, wakes| line.decide_up_to(ground, cost, wakes),
                    |policy, state, _| policy.decide_up_to(state, now, cost),
                )
                .unwrap_or_else(|refused| (0, refused)),
        }
    }

    /// Takes `cost` even if it does not fit: for a cost that is known only after the work. Units
    /// above the limit are debt, which time repays (see [`Algorithm::charge`]); it also counts
    /// against waiters, and during a block. Returns the decision on a cost of 0 afterwards: a
    /// denial if more is in use than the limit.
    ///
    /// A new key for which a full table has no room ([`WhenFull::Deny`]) is not charged: it is
    /// denied until the table has room.
    ///
    /// [`WhenFull::Deny`]: crate::WhenFull::Deny
    pub fn charge_at(&self, key: impl Key, cost: u64, now: Nanos) -> Decision {
        self.charge_by(None, self.tag_of(&key), cost, now)
    }

    /// [`charge_at`](Self::charge_at) by another policy on the key's state, as
    /// [`acquire_with_at`](Self::acquire_with_at) decides.
    pub fn charge_with_at(
        &self,
        policy: &Policy,
        key: impl Key,
        cost: u64,
        now: Nanos,
    ) -> Decision {
        self.charge_by(Some(policy), self.tag_of(&key), cost, now)
    }

    fn charge_by(&self, by: Option<&Policy>, tag: Tag, cost: u64, now: Nanos) -> Decision {
        let charge = |mine: &Policy, state: &mut [u64]| {
            let by = by.unwrap_or(mine);
            step_by(mine, by, state, now, |state| {
                if cost > 0 {
                    by.charge(state, now, cost);
                }
                by.peek(state, now, 0)
            })
        };
        let standing = if cost == 0 {
            Ok(self.look(tag, now, charge))
        } else {
            let on_line = |line: &mut WaitLine, ground: &mut Ground<'_>, wakes: &mut Wakes| {
                line.charge(ground, charge, wakes)
            };
            self.on_line(tag, now, on_line, |mine, state, _| charge(mine, state))
        };
        self.blocked_tag(tag, now)
            .unwrap_or_else(|| standing.unwrap_or_else(|refused| refused))
    }

    /// Returns up to `cost` of the units that the key took last; never more than are in use.
    pub fn refund_at(&self, key: impl Key, cost: u64, now: Nanos) {
        // A key without a place has taken nothing.
        let _ = self.on_line(
            self.tag_of(&key),
            now,
            |line, ground, wakes| line.refund(ground, cost, wakes),
            |policy, state, _| policy.refund(state, now, cost),
        );
    }

    /// Where the key's units count now, for the [`Estimate::place`] of units that another call takes
    /// afterwards. A reset in between makes it void.
    /// [`acquire_estimate_at`](Self::acquire_estimate_at) takes and notes in one step.
    #[must_use]
    pub fn place(&self, key: impl Key) -> u64 {
        let tag = self.tag_of(&key);
        let generation = self.generation_of(tag);
        self.look(tag, Nanos::ZERO, |policy, state| {
            self.site(&generation, tag).place(policy, state)
        })
    }

    /// Corrects an estimate of the key at `now` to the `actual` cost (see [`Policy::settle`]). A
    /// caller settles each estimate once. Nothing returns of units that were taken before a reset
    /// of the key, and of a bucket's units that were taken before a change of the key's policy. The
    /// latest resets of as many keys as the limiter holds are remembered.
    pub fn settle_at(&self, key: impl Key, estimate: Estimate, actual: u64, now: Nanos) {
        self.settle_tag(self.tag_of(&key), estimate, actual, now);
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

    /// Forgets what a key has used, as if it had never sent a request, and ends a block by the
    /// policy's [`Penalty`](crate::Penalty). A [block](Self::block_at) stays, and so does the key's
    /// own policy. Permits in use are forgotten too: releasing one later has no effect.
    /// Returns whether there was anything to forget.
    pub fn reset_at(&self, key: impl Key, now: Nanos) -> bool {
        let tag = self.tag_of(&key);
        let is_used = self.look(tag, now, |policy, state| !policy.is_recovered(state, now));
        // A key that has used nothing is not added to the table.
        let was_used = is_used
            && self
                .with_state(tag, now, |policy, state, _| {
                    let was_used = !policy.is_recovered(state, now);
                    state.fill(0);
                    self.eras.reset_key(tag, self.exceptions.most());
                    was_used
                })
                .unwrap_or(false);
        self.serve(tag, now);
        was_used
    }

    /// Forgets the usage of all keys (see [`reset_at`](Self::reset_at)), key by key, while
    /// decisions continue. Units that a key takes during the call may or may not be forgotten.
    pub fn reset_all_at(&self, now: Nanos) {
        {
            // A change of policy would move keys that are not reset yet to places that were already
            // reset.
            let _no_change = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let general = self.generations.sweep_all(now);
            self.eras.reset_all(|| {
                general.table.clear();
                for (_, exception) in self.exceptions.all() {
                    if let Some(own) = exception.own {
                        own.table.clear();
                    }
                }
            });
        }
        self.serve_all(now);
    }

    /// Denies a key until a time, or until it is [unblocked](Self::unblock_at). A block that has
    /// passed costs nothing and is dropped.
    ///
    /// # Errors
    /// [`TooManyExceptions`] if the number of keys with exceptions has reached the maximum number
    /// of keys.
    pub fn block_at(
        &self,
        key: impl Key,
        until: Until,
        now: Nanos,
    ) -> Result<(), TooManyExceptions> {
        let tag = self.tag_of(&key);
        self.exceptions.change(&self.marks, tag, now, |exception| {
            exception.blocked = until.0;
        })?;
        self.serve(tag, now);
        Ok(())
    }

    /// Ends a block, also one by the policy's [`Penalty`](crate::Penalty). Returns whether it was
    /// still in force.
    pub fn unblock_at(&self, key: impl Key, now: Nanos) -> bool {
        let lift = |exception: &mut super::exceptions::Exception| {
            std::mem::take(&mut exception.blocked) > now
        };
        // The only possible error concerns a new key beyond the bound, which is not blocked.
        let tag = self.tag_of(&key);
        let lifted = self
            .exceptions
            .change(&self.marks, tag, now, lift)
            .unwrap_or(false);
        let by_rule = self.blocked_by_rule(tag, now).is_some()
            && self
                .with_state(tag, now, |policy, state, _| policy.unblock(state, now))
                .unwrap_or(false);
        self.serve(tag, now);
        lifted || by_rule
    }

    /// The denial of a key that the policy's [`Penalty`](crate::Penalty) blocks at `now`, or
    /// `None`.
    pub fn blocked_by_rule_at(&self, key: impl Key, now: Nanos) -> Option<Decision> {
        self.blocked_by_rule(self.tag_of(&key), now)
    }

    fn blocked_by_rule(&self, tag: Tag, now: Nanos) -> Option<Decision> {
        self.look(tag, now, |policy, state| {
            (policy.blocked_until(state) > now).then(|| policy.peek(state, now, 0))
        })
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// Asks for one unit at the current time.
    #[inline]
    pub fn check(&self, key: impl Key) -> Decision {
        self.acquire(key, 1)
    }

    /// Denies a key for a time span.
    ///
    /// # Errors
    /// The same as [`block_at`](Self::block_at).
    pub fn block_for(&self, key: impl Key, span: Duration) -> Result<(), TooManyExceptions> {
        let now = self.clock.now();
        self.block_at(key, Until(now.saturating_add(span.into())), now)
    }

    /// Ends a block at the current time. Returns whether it was still in force.
    pub fn unblock(&self, key: impl Key) -> bool {
        self.unblock_at(key, self.clock.now())
    }

    /// Asks for `cost` at the current time. A cost of 0 is a peek.
    #[inline]
    pub fn acquire(&self, key: impl Key, cost: u64) -> Decision {
        let tag = self.tag_of(&key);
        // The bucket arrives from memory while the clock is read.
        self.generations.newest().table().prefetch(tag);
        self.decide(tag, cost, self.clock.now())
    }

    /// The decision on `cost`, without taking it.
    pub fn peek(&self, key: impl Key, cost: u64) -> Decision {
        self.peek_at(key, cost, self.clock.now())
    }

    /// Takes as much of `cost` as is available; returns that amount and the decision on it.
    pub fn acquire_up_to(&self, key: impl Key, cost: u64) -> (u64, Decision) {
        self.acquire_up_to_at(key, cost, self.clock.now())
    }

    /// Forgets what a key has used (see [`reset_at`](Self::reset_at)).
    pub fn reset(&self, key: impl Key) -> bool {
        self.reset_at(key, self.clock.now())
    }

    /// Forgets what all keys have used (see [`reset_all_at`](Self::reset_all_at)).
    pub fn reset_all(&self) {
        self.reset_all_at(self.clock.now());
    }

    /// [`charge_at`](Self::charge_at) at the current time.
    pub fn charge(&self, key: impl Key, cost: u64) -> Decision {
        self.charge_at(key, cost, self.clock.now())
    }

    /// Returns up to `cost` of the units that the key took last.
    pub fn refund(&self, key: impl Key, cost: u64) {
        self.refund_at(key, cost, self.clock.now());
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
