//! The keyed limiter and its operations.

use std::{fmt, sync::PoisonError, time::Duration};

use crate::table::{BuildError, HashKeys, Stats, Tag, WhenFull};
use tidegate_core::{Algorithm, Clock, Decision, Key, Nanos, Policy};

use super::{
    Generation, KeyedBuilder, Marks, TooManyExceptions,
    exceptions::Exceptions,
    generation::{Generations, Home, NoStep, Room},
};
use crate::{
    SystemClock, Timer, WaitError,
    block::{denied_until, refused_until},
    sync::{Mutex, yield_now},
    wait::{Ground, Line, Lines, Wakes, wait},
};

/// A limit for each key, up to as many as the bound allows. A [`Key`] is text or bytes of any length, a number, or an
/// address.
///
/// ```
/// use tidegate::{KeyedLimiter, Policy};
/// let limiter = KeyedLimiter::new(Policy::sliding_window("100/1m".parse()?))?;
/// if limiter.acquire("alice", 1).is_denied() {
///     // tell alice to come back later
/// }
/// let address = std::net::IpAddr::from([192, 0, 2, 1]);
/// assert!(limiter.check(address).is_allowed() && limiter.check(7_u64).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When the table is full
///
/// Recovered keys give way first. After them the key that has least to lose does, and leaves a record of its own: the share
/// of its limit that it used, and when that ends. It takes the record back when it returns. A flood of made-up keys pushes
/// keys out of the table, and in the end records out of theirs: the smallest share first. These are the bounds;
/// `tests/flood.rs` shows them.
///
/// | what | bound |
/// |---|---|
/// | a new key is taken for an evicted one, and gets its debt | 1 of 19,000,000 |
/// | a key that has a record when it returns: how much stricter than before | token and leaky bucket: a millionth of the time that it had left. Fixed window, sliding counter: a 126th of the limit, nothing for limits up to 127. Sliding log and window: also, all that was in use counts as taken at the newest admission |
/// | an exhausted key among made-up keys that have something left, however many | never forgotten |
/// | an exhausted key among made-up keys that are exhausted, too | kept until 4 × `max_keys` of them have come in the time that a limit takes to end; then forgotten, or with [`WhenFull::Deny`] the made-up keys are refused |
/// | any other key that is forgotten | gets at most the share of its limit a second time that it had used |
/// | memory beyond the full table | 40 bytes × `max_keys`, and 1 KiB |
///
/// "Exhausted" is a key that would be denied a cost of 1 when it is evicted. Where limits come with requests, the table knows
/// none of them: what has the earliest end goes first. [`Stats`] counts what is evicted, returned, refused and forgotten, the
/// last by the share used.
pub struct KeyedLimiter<C = SystemClock> {
    pub(super) generations: Generations,
    pub(super) exceptions: Exceptions,
    pub(super) hash: HashKeys,
    /// Held for the length of a change of policy, or of the room for keys.
    pub(super) changing: Mutex<Room>,
    /// The keys that have an exception or a line.
    pub(super) marks: Marks,
    pub(super) lines: Lines,
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
        let room = Room { max_keys, when_full };
        let generation = Generation::new(policy, room, None)?;
        Ok(Self {
            generations: Generations::new(generation),
            exceptions: Exceptions::new(max_keys),
            hash,
            changing: Mutex::new(room),
            marks: Marks::new(max_keys),
            lines: Lines::new(),
            clock,
        })
    }

    /// The policy of keys without one of their own.
    #[must_use]
    pub fn policy(&self) -> Policy {
        *self.generations.current().policy()
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

    #[inline]
    pub(crate) fn tag_of(&self, key: &impl Key) -> Tag {
        key.with_bytes(|bytes| self.tag(bytes))
    }

    /// Begins to fetch a key's state, for a decision that comes soon. With many keys most of a decision is waiting for
    /// memory; who knows the next few keys (a batch of requests) can let them all be fetched at once. Changes nothing.
    #[inline]
    pub fn prefetch(&self, key: impl Key) {
        self.generations.newest().table.prefetch(self.tag_of(&key));
    }

    /// Asks for `cost` at a time of the caller's. A cost of 0 is a peek that does not add the key.
    ///
    /// While somebody [waits](Self::wait) for this key, the answer is a denial until after everybody who waits. Its
    /// `retry_after` is exact behind up to 64 of them. Behind `n` more it may be that of the line as it was up to `n / 64`
    /// requests ago, before somebody left it or the policy changed.
    #[inline]
    pub fn acquire_at(&self, key: impl Key, cost: u32, now: Nanos) -> Decision {
        self.decide(self.tag_of(&key), cost, now)
    }

    /// Decides by the general policy where that is all there is to it, as most of the time it is.
    #[inline(always)]
    #[allow(clippy::inline_always)] // In the caller most of a decision is never looked at, and falls away.
    pub(super) fn decide(&self, tag: Tag, cost: u32, now: Nanos) -> Decision {
        let generation = self.generations.newest();
        let near = generation.table.apply_near(tag, |state| {
            // Looked at under the key's lock: the key may have got a policy of its own meanwhile, or all of them a new one.
            let plain = !(cost == 0 || self.marks.has(tag) || generation.is_retired());
            plain.then(|| generation.policy().decide(state, now, cost))
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
        self.on_line(
            tag,
            now,
            |line, ground, wakes| line.decide(ground, cost, wakes),
            |policy, state| policy.decide(state, now, cost),
        )
        .unwrap_or_else(|refused| refused)
    }

    /// One atomic step on a key's state, with the policy that is the key's.
    ///
    /// # Errors
    /// When the key is new and has no place until a time: that time ([`WhenFull::Deny`]).
    pub(super) fn with_state<R>(
        &self,
        tag: Tag,
        now: Nanos,
        step: impl FnOnce(&Policy, &mut [u64]) -> R,
    ) -> Result<R, Nanos> {
        let mut step = Some(step);
        loop {
            let generation = self.generation_of(tag);
            let policy = generation.policy();
            let result = generation.apply(policy, tag, now, |state| {
                let step = if self.is_home(tag, &generation) { step.take() } else { None };
                step.map(|step| step(policy, state))
            });
            match result {
                Ok(Some(result)) => return Ok(result),
                Err(NoStep::Refused(until)) => return Err(until),
                // The state has just moved, or is about to.
                Ok(None) | Err(NoStep::Retired) => yield_now(),
            }
        }
    }

    /// One atomic step on a key's state and on its line, or on the state alone where there is none. The error is the denial
    /// of a new key that has no place.
    fn on_line<R>(
        &self,
        tag: Tag,
        now: Nanos,
        on_line: impl FnOnce(&mut Line, &mut Ground<'_>, &mut Wakes) -> R,
        alone: impl FnOnce(&Policy, &mut [u64]) -> R,
    ) -> Result<R, Decision> {
        // First, so that it is dropped last: nobody is woken under a lock.
        let mut wakes = Wakes::default();
        let stepped = self.with_state(tag, now, |policy, state| {
            if self.marks.has(tag) {
                let blocked = self.exceptions.blocked(tag);
                let behind = |line: &mut Line| {
                    on_line(line, &mut Ground { policy, state: &mut *state, blocked, now }, &mut wakes)
                };
                if let Some(found) = self.lines.find(&self.marks, tag, behind) {
                    return found;
                }
            }
            alone(policy, state)
        });
        stepped.map_err(|until| refused_until(&self.policy(), until, now))
    }

    /// Serves those who wait for a key, after something that may have made room.
    pub(super) fn serve(&self, tag: Tag, now: Nanos) {
        // Looked at under the key's lock: whoever joins a line later has seen what made room. A key without a line is not
        // added for it.
        let has_line = |_: &Policy, _: &mut [u64]| self.lines.find(&self.marks, tag, |_| ()).is_some();
        if self.marks.has(tag) && self.look(tag, now, has_line) {
            // Who waits for a key that has no place asks again when it may have one.
            let _ = self.on_line(tag, now, Line::changed, |_, _| ());
        }
    }

    /// Serves all who wait.
    pub(super) fn serve_all(&self, now: Nanos) {
        for tag in self.lines.keys() {
            self.serve(tag, now);
        }
    }

    /// Answers for a key in a joint decision, which holds the key's lock: `None` where nobody waits for it.
    pub(crate) fn answer_behind(
        &self,
        tag: Tag,
        ground: &mut Ground<'_>,
        cost: u32,
        wakes: &mut Wakes,
    ) -> Option<Decision> {
        if cost == 0 || !self.marks.has(tag) {
            return None;
        }
        ground.blocked = self.exceptions.blocked(tag);
        let behind = |line: &mut Line| {
            line.settle(ground, wakes);
            line.is_waiting().then(|| line.answer(ground, cost))
        };
        self.lines.find(&self.marks, tag, behind).flatten()
    }

    /// Whether a key's state lives in this generation, as seen under the key's lock there: changes happen under it.
    pub(crate) fn is_home(&self, tag: Tag, generation: &Generation) -> bool {
        let own = if self.marks.has(tag) { self.exceptions.get(tag).and_then(|e| e.own) } else { None };
        own.map_or_else(|| !generation.is_own, |own| std::ptr::eq(&raw const *own, generation))
    }

    /// A look at a key's state, with the policy that is the key's.
    fn look<R>(&self, tag: Tag, now: Nanos, step: impl Fn(&Policy, &mut [u64]) -> R) -> R {
        loop {
            let generation = self.generation_of(tag);
            if let Ok(result) = generation.look(tag, now, |state| step(generation.policy(), state)) {
                return result;
            }
            yield_now();
        }
    }

    /// Where a key's state lives.
    pub(crate) fn generation_of(&self, tag: Tag) -> Home {
        let own = if self.marks.has(tag) { self.exceptions.get(tag).and_then(|e| e.own) } else { None };
        own.map_or_else(|| Home::General(self.generations.current()), Home::Own)
    }

    pub(crate) fn blocked_at(&self, tag: Tag, now: Nanos) -> Option<Decision> {
        if !self.marks.has(tag) {
            return None;
        }
        let blocked = self.exceptions.blocked(tag);
        if blocked > Nanos::ZERO && blocked <= now {
            self.exceptions.drop_passed(&self.marks, tag, now);
        }
        denied_until(self.generation_of(tag).policy(), blocked, now)
    }

    /// Decides by another policy on the key's state, for a limit that comes with each request. The policy must read the
    /// same words in the same way: the same algorithm and options, with other numbers that keep
    /// [`words`](Algorithm::words).
    ///
    /// # Panics
    /// When the policy has another algorithm, or states of another width.
    pub fn acquire_with_at(&self, policy: &Policy, key: impl Key, cost: u32, now: Nanos) -> Decision {
        let tag = self.tag_of(&key);
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
        let behind = |line: &mut Line, ground: &mut Ground<'_>, wakes: &mut Wakes| {
            fits(ground.policy);
            line.settle(ground, wakes);
            if line.is_waiting() { line.answer(ground, cost) } else { policy.decide(ground.state, now, cost) }
        };
        let decided = self.on_line(tag, now, behind, |mine, state| {
            fits(mine);
            policy.decide(state, now, cost)
        });
        decided.unwrap_or_else(|refused| refused)
    }

    /// What the answer to `cost` would be at `now`; nothing is taken, and the key is not added.
    pub fn peek_at(&self, key: impl Key, cost: u32, now: Nanos) -> Decision {
        self.peek_tag(self.tag_of(&key), cost, now)
    }

    fn peek_tag(&self, tag: Tag, cost: u32, now: Nanos) -> Decision {
        if let Some(denied) = self.blocked_at(tag, now) {
            return denied;
        }
        if cost > 0 && self.marks.has(tag) {
            let check = |line: &mut Line, ground: &mut Ground<'_>, wakes: &mut Wakes| {
                Some(line.check(ground, cost, wakes))
            };
            match self.on_line(tag, now, check, |_, _| None) {
                Ok(Some(decision)) | Err(decision) => return decision,
                Ok(None) => {}
            }
        }
        self.look(tag, now, |policy, state| policy.check(state, now, cost))
    }

    /// Takes as much of `cost` as there is at `now`; returns how much, and the decision on it.
    pub fn acquire_up_to_at(&self, key: impl Key, cost: u32, now: Nanos) -> (u32, Decision) {
        let tag = self.tag_of(&key);
        match self.blocked_at(tag, now) {
            Some(denied) => (0, denied),
            None => self
                .on_line(
                    tag,
                    now,
                    |line, ground, wakes| line.decide_up_to(ground, cost, wakes),
                    |policy, state| policy.decide_up_to(state, now, cost),
                )
                .unwrap_or_else(|refused| (0, refused)),
        }
    }

    /// Gives back up to `cost` of what the key took last; never more than is in use.
    pub fn refund_at(&self, key: impl Key, cost: u32, now: Nanos) {
        self.refund_tag(self.tag_of(&key), cost, now);
    }

    pub(crate) fn refund_tag(&self, tag: Tag, cost: u32, now: Nanos) {
        // A key that has no place has taken nothing.
        let _ = self.on_line(
            tag,
            now,
            |line, ground, wakes| line.refund(ground, cost, wakes),
            |policy, state| policy.refund(state, now, cost),
        );
    }

    /// Forgets what a key has used: its next request is as good as its first. A block stays, and so does a quota of its own.
    /// Permits that are out are forgotten, too: giving one back then does nothing. Returns whether there was anything.
    pub fn reset_at(&self, key: impl Key, now: Nanos) -> bool {
        let tag = self.tag_of(&key);
        let reset = self.generation_of(tag).reset(tag, now);
        self.serve(tag, now);
        reset
    }

    /// Forgets what all keys have used (see [`reset_at`](Self::reset_at)), key by key, while decisions go on: what a key
    /// takes meanwhile may be forgotten or not.
    pub fn reset_all_at(&self, now: Nanos) {
        {
            // A change of policy would move keys that are still to be reset to where that has been done.
            let _no_change = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            self.generations.sweep_all(now).table.clear();
            for (_, exception) in self.exceptions.all() {
                if let Some(own) = exception.own {
                    own.table.clear();
                }
            }
        }
        self.serve_all(now);
    }

    /// Denies a key until a time; [`Nanos::MAX`] for good. A block that has passed costs nothing and is dropped.
    ///
    /// # Errors
    /// [`TooManyExceptions`] when as many keys are blocked, or have a policy of their own, as the limiter may hold keys.
    pub fn block_at(&self, key: impl Key, until: Nanos, now: Nanos) -> Result<(), TooManyExceptions> {
        let tag = self.tag_of(&key);
        self.exceptions.change(&self.marks, tag, now, |exception| exception.blocked = until)?;
        self.serve(tag, now);
        Ok(())
    }

    /// Ends a block; returns whether there was one that still held.
    pub fn unblock_at(&self, key: impl Key, now: Nanos) -> bool {
        let lift =
            |exception: &mut super::exceptions::Exception| std::mem::take(&mut exception.blocked) > now;
        // The only error is a new key beyond the bound, which is not blocked.
        let tag = self.tag_of(&key);
        let lifted = self.exceptions.change(&self.marks, tag, now, lift).unwrap_or(false);
        self.serve(tag, now);
        lifted
    }
}

impl<C: Clock> KeyedLimiter<C> {
    /// Asks for one unit now.
    #[inline]
    pub fn check(&self, key: impl Key) -> Decision {
        self.acquire(key, 1)
    }

    /// Denies a key for a span.
    ///
    /// # Errors
    /// As [`block_at`](Self::block_at).
    pub fn block_for(&self, key: impl Key, span: Duration) -> Result<(), TooManyExceptions> {
        let now = self.clock.now();
        self.block_at(key, now.saturating_add(span.into()), now)
    }

    /// Ends a block now; returns whether there was one that still held.
    pub fn unblock(&self, key: impl Key) -> bool {
        self.unblock_at(key, self.clock.now())
    }

    /// Asks for `cost` now. A cost of 0 is a peek.
    #[inline]
    pub fn acquire(&self, key: impl Key, cost: u32) -> Decision {
        self.acquire_at(key, cost, self.clock.now())
    }

    /// What the answer to `cost` would be; nothing is taken.
    pub fn peek(&self, key: impl Key, cost: u32) -> Decision {
        self.peek_at(key, cost, self.clock.now())
    }

    /// Takes as much of `cost` as there is; returns how much, and the decision on it.
    pub fn acquire_up_to(&self, key: impl Key, cost: u32) -> (u32, Decision) {
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

    /// Gives back up to `cost` of what the key took last.
    pub fn refund(&self, key: impl Key, cost: u32) {
        self.refund_at(key, cost, self.clock.now());
    }
}

impl<T: Timer> KeyedLimiter<T> {
    /// Waits until `cost` is admitted for this key, behind whoever waits for it already. Dropping the future gives the
    /// place up.
    ///
    /// # Errors
    /// When no wait can help, or the cost would not be admitted by `deadline`; both are told at once.
    pub fn wait(
        &self,
        key: impl Key,
        cost: u32,
        deadline: Option<Nanos>,
    ) -> impl Future<Output = Result<Decision, WaitError>> {
        wait(OneKey { limiter: self, tag: self.tag_of(&key) }, cost, deadline, &self.clock)
    }

    /// [`wait`](Self::wait) for at most `span`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_for(&self, key: impl Key, cost: u32, span: Duration) -> Result<Decision, WaitError> {
        self.wait(key, cost, Some(self.clock.now().saturating_add(span.into()))).await
    }
}

/// A key that somebody waits for.
struct OneKey<'a, C> {
    limiter: &'a KeyedLimiter<C>,
    tag: Tag,
}

impl<C> crate::wait::Home for OneKey<'_, C> {
    fn step<R>(&self, now: Nanos, step: impl FnOnce(&mut Line, &mut Ground<'_>, &mut Wakes) -> R) -> R {
        let Self { limiter, tag } = *self;
        let mut wakes = Wakes::default();
        // Before the key's lock is taken: whoever decides on what this step leaves sees that there is a line.
        limiter.marks.add(tag);
        let mut step = Some(step);
        let mut on_line = |policy: &Policy, state: &mut [u64], blocked: Nanos| {
            let step = step.take()?;
            let mut ground = Ground { policy, state, blocked, now };
            Some(limiter.lines.with(&limiter.marks, tag, now, |line| step(line, &mut ground, &mut wakes)))
        };
        let stepped = limiter
            .with_state(tag, now, |policy, state| on_line(policy, state, limiter.exceptions.blocked(tag)));
        let stepped = stepped.unwrap_or_else(|until| {
            // A new key that has no place is as good as blocked until then, and has used nothing.
            let policy = limiter.policy();
            on_line(&policy, &mut vec![0; policy.words()], until.max(limiter.exceptions.blocked(tag)))
        });
        stepped.expect("the step is made once")
    }
}

impl<C> fmt::Debug for KeyedLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.generations.current();
        f.debug_struct("KeyedLimiter")
            .field("policy", generation.policy())
            .field("stats", &generation.table.stats())
            .finish_non_exhaustive()
    }
}
