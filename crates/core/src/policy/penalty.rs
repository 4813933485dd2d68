//! Blocks by a rule: what a denial does to its key.
//!
//! The block is a part of the key's state: three words behind the algorithm's own. So a denial and
//! its block are one step, and a snapshot, a restore or a change of the policy carry both along.

use core::{fmt, num::NonZeroU32, time::Duration};

use super::Policy;
use crate::{Decision, DenialReason, Nanos, PolicyError, Standing, parse_duration, write_duration};

/// The words of a penalty in a state: the end of the block, the first of the denials that count,
/// and their number with the step of the block.
pub(super) const WORDS: usize = Penalty::WORDS;
/// The largest number of steps.
const MOST_SPANS: usize = 3;
/// The longest span, in milliseconds: it has room in 32 bits, so a policy stays small.
const LONGEST: u64 = 49 * 86_400_000;
const MILLISECOND: u64 = 1_000_000;
const STEP_SHIFT: u32 = 32;

/// How long blocks last, one after another: `60s`, or `60s,10m,1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spans([u32; MOST_SPANS]);

/// The span in milliseconds, if it is a whole number of them, up to 49 days.
fn millis(span: Duration) -> Option<NonZeroU32> {
    let nanos = span.as_nanos();
    let millis = u64::try_from(nanos / u128::from(MILLISECOND)).ok()?;
    let is_whole = nanos.is_multiple_of(MILLISECOND.into()) && millis <= LONGEST;
    NonZeroU32::new(u32::try_from(millis).ok().filter(|_| is_whole)?)
}

impl Spans {
    /// One to three spans.
    ///
    /// # Errors
    /// [`PolicyError::Block`] if there are none or more, if one is not a whole number of
    /// milliseconds from 1 up to 49 days, or if one is shorter than the one before.
    pub fn new(spans: &[Duration]) -> Result<Self, PolicyError> {
        let mut all = [0; MOST_SPANS];
        if spans.is_empty() || spans.len() > MOST_SPANS {
            return Err(PolicyError::Block("block_for is one to three durations"));
        }
        for (place, span) in all.iter_mut().zip(spans) {
            *place = millis(*span)
                .ok_or(PolicyError::Block(
                    "a block lasts 1ms to 49d, in whole milliseconds",
                ))?
                .get();
        }
        if !all.iter().take(spans.len()).is_sorted() {
            return Err(PolicyError::Block(
                "the blocks of block_for grow: none is shorter than the one before",
            ));
        }
        Ok(Self(all))
    }

    /// The spans in `60s, 10m, 1d`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut all = [Duration::ZERO; MOST_SPANS];
        let mut count = 0;
        for part in text.split(',') {
            *all.get_mut(count)? = parse_duration(part.trim_matches(' ')).ok()?;
            count += 1;
        }
        Self::new(&all[..count]).ok()
    }

    /// How long each step's block lasts; zero for a step that there is not.
    #[must_use]
    pub fn steps(&self) -> [Duration; 3] {
        self.0.map(|millis| Duration::from_millis(millis.into()))
    }

    fn count(&self) -> u64 {
        self.0.iter().take_while(|&&span| span > 0).count() as u64
    }

    /// The span of this step, counted from 0; the last one stays.
    fn of(&self, step: u64) -> u64 {
        u64::from(self.0[step.min(self.count() - 1) as usize]) * MILLISECOND
    }
}

impl fmt::Display for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in 0..self.count() {
            if step > 0 {
                f.write_str(",")?;
            }
            write_duration(f, Duration::from_nanos(self.of(step)))?;
        }
        Ok(())
    }
}

/// The effect of denials on a key: after some of them, the key is blocked for a time.
///
/// Denials of a blocked key do not count, so a block ends however often the key asks. A block is
/// one step longer than the one before if it begins while no more time has passed since that one's
/// end than it lasted.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Algorithm, Nanos, Penalty, Policy};
/// let penalty = Penalty::new(&[Duration::from_secs(60), Duration::from_secs(600)])?
///     .after(2, Duration::from_secs(30))?;
/// let policy = Policy::fixed_window("1/1s".parse()?).block_for(penalty);
/// let mut state = [0; 5];
/// let reasons: Vec<_> = (0..3)
///     .map(|_| policy.decide(&mut state, Nanos::from_secs(100), 1).retry_after())
///     .collect();
/// let seconds = |span| Some(Duration::from_secs(span));
/// assert_eq!(reasons, [None, seconds(1), seconds(60)]);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    spans: Spans,
    after: NonZeroU32,
    /// In milliseconds; 0 if one denial blocks.
    within: u32,
}

impl Penalty {
    /// The words of a penalty: until when the key is blocked, when the first of the denials that
    /// count was, and in one word their number (the low 32 bits) and the step of the last block.
    pub const WORDS: usize = 3;

    /// Every denial blocks, for the first of these spans, then the second, and so on.
    ///
    /// # Errors
    /// The same as [`Spans::new`].
    pub fn new(spans: &[Duration]) -> Result<Self, PolicyError> {
        Ok(Self::of(Spans::new(spans)?))
    }

    pub(crate) const fn of(spans: Spans) -> Self {
        Self {
            spans,
            after: NonZeroU32::MIN,
            within: 0,
        }
    }

    /// Only the last of this number of denials blocks, if all are within a span.
    ///
    /// # Errors
    /// [`PolicyError::Block`] if the number is 0, or the span is not a whole number of milliseconds
    /// from 1 up to 49 days.
    pub fn after(self, denials: u32, within: Duration) -> Result<Self, PolicyError> {
        let (Some(after), Some(within)) = (NonZeroU32::new(denials), millis(within)) else {
            return Err(PolicyError::Block(
                "block_after is at least 1, and block_within 1ms to 49d, in whole milliseconds",
            ));
        };
        // One denial needs no time.
        let within = if denials == 1 { 0 } else { within.get() };
        Ok(Self {
            after,
            within,
            ..self
        })
    }

    /// How long blocks last.
    #[must_use]
    pub const fn spans(&self) -> Spans {
        self.spans
    }

    /// The number of denials, and the span in which they block.
    #[must_use]
    pub const fn denials(&self) -> (u32, Duration) {
        (self.after.get(), Duration::from_millis(self.within as u64))
    }

    /// A decision with these words, of a state that is kept in two places: `made` is the decision
    /// without them. If the request `takes` its cost, its denial counts, and may block the key.
    pub fn decide(
        &self,
        words: [u64; Self::WORDS],
        (made, takes): (Decision, bool),
        now: Nanos,
    ) -> Decision {
        let is_blocked = words[0] > now.get();
        let words = if takes && !is_blocked && made.is_denied() {
            self.denied(words, now.get())
        } else {
            words
        };
        Policy::unless_blocked(&words, now, made)
    }

    fn within(&self) -> u64 {
        u64::from(self.within) * MILLISECOND
    }

    /// When the step of the last block is forgotten, and the denials that counted are.
    fn ends(&self, [until, first, counts]: [u64; WORDS]) -> u64 {
        let (count, step) = (counts & u64::from(u32::MAX), counts >> STEP_SHIFT);
        let steps = if step > 0 {
            until.saturating_add(self.spans.of(step - 1))
        } else {
            0
        };
        let denials = if count > 0 {
            first.saturating_add(self.within())
        } else {
            0
        };
        steps.max(denials).max(until)
    }

    /// The words after a denial at `now`, while the key is not blocked.
    fn denied(&self, [until, first, counts]: [u64; WORDS], now: u64) -> [u64; WORDS] {
        let (count, step) = (counts & u64::from(u32::MAX), counts >> STEP_SHIFT);
        let (first, count) = if count == 0 || now >= first.saturating_add(self.within()) {
            (now, 1)
        } else {
            (first, count + 1)
        };
        let kept = step > 0 && now < until.saturating_add(self.spans.of(step - 1));
        let step = if kept { step } else { 0 };
        if count < u64::from(self.after.get()) {
            return [until, first, step << STEP_SHIFT | count];
        }
        let until = now
            .saturating_add(self.spans.of(step))
            .min(Nanos::MAX.get());
        [until, 0, (step + 1).min(self.spans.count()) << STEP_SHIFT]
    }
}

/// The words of a penalty.
fn read(words: &[u64]) -> [u64; WORDS] {
    [words[0], words[1], words[2]]
}

/// The decision during a block that lasts for `left` longer.
fn during(decision: &Decision, left: u64) -> Decision {
    let standing = Standing {
        limit: decision.limit(),
        room: 0,
        unit: 1,
        reset_after: decision.reset_after_nanos().max(left),
    };
    if decision.exceeds_limit() {
        return Decision::too_large(standing);
    }
    if decision.is_allowed() {
        return Decision::deny(standing, left).because(DenialReason::Blocked);
    }
    let denied = decision.retry_after().map_or_else(
        || Decision::deny_for_good(standing),
        |wait| Decision::deny(standing, left.max(Nanos::from(wait).get())),
    );
    denied.because(DenialReason::Blocked)
}

impl Policy {
    /// Denials block the key (see [`Penalty`]). For algorithms that limit a rate; it changes nothing
    /// for permits.
    ///
    /// A [`charge`](crate::Algorithm::charge) is no denial, and neither is a cost of 0.
    #[must_use]
    pub const fn block_for(self, penalty: Penalty) -> Self {
        if self.is_concurrency() {
            return self;
        }
        Self {
            penalty: Some(penalty),
            plain: super::PlainBucket::NONE,
            ..self
        }
    }

    /// The same policy, for a state whose [`Penalty`] is kept in another place (see
    /// [`Penalty::decide`]).
    #[must_use]
    pub const fn without_block(self) -> Self {
        match (self.penalty, self.count_denied) {
            (None, _) => self,
            (Some(_), true) => Self::new(self.rule).count_denied(),
            (Some(_), false) => Self::new(self.rule),
        }
    }

    /// The effect of denials on a key, beyond being denied.
    #[must_use]
    pub const fn penalty(&self) -> Option<&Penalty> {
        self.penalty.as_ref()
    }

    /// The algorithm's own words of a state, and those of the penalty: none without one.
    #[inline]
    pub(super) fn split<'s>(&self, state: &'s [u64]) -> (&'s [u64], &'s [u64]) {
        if self.penalty.is_none() {
            return (state, &[]);
        }
        let (own, rest) = state.split_at(self.own_words());
        (own, &rest[..WORDS])
    }

    #[inline]
    pub(super) fn split_mut<'s>(&self, state: &'s mut [u64]) -> (&'s mut [u64], &'s mut [u64]) {
        if self.penalty.is_none() {
            return (state, &mut []);
        }
        let (own, rest) = state.split_at_mut(self.own_words());
        (own, &mut rest[..WORDS])
    }

    /// The words in which a state's units count: all but those of a [`Penalty`].
    #[must_use]
    pub fn units_of<'s>(&self, state: &'s [u64]) -> &'s [u64] {
        self.split(state).0
    }

    /// The time until which the rule blocks the key of this state; not in the future if it does
    /// not.
    #[must_use]
    #[inline]
    pub fn blocked_until(&self, state: &[u64]) -> Nanos {
        let (_, words) = self.split(state);
        Nanos::new(words.first().copied().unwrap_or_default())
    }

    /// The decision of the algorithm's own words, or a denial during a block.
    pub(super) fn unless_blocked(words: &[u64], now: Nanos, decision: Decision) -> Decision {
        match words.first() {
            Some(until) if *until > now.get() => during(&decision, until - now.get()),
            _ => decision,
        }
    }

    /// Counts a denial that was not made by [`decide`](crate::Algorithm::decide), such as one of a decision
    /// over several limits. Returns whether it blocks the key.
    pub fn count_denial(&self, state: &mut [u64], now: Nanos) -> bool {
        let (_, words) = self.split_mut(state);
        let Some(penalty) = self.penalty.filter(|_| words[0] <= now.get()) else {
            return false;
        };
        words.copy_from_slice(&penalty.denied(read(words), now.get()));
        words[0] > now.get()
    }

    /// Ends a block, and forgets the denials. Returns whether the key was blocked.
    pub fn unblock(&self, state: &mut [u64], now: Nanos) -> bool {
        let (_, words) = self.split_mut(state);
        let was_blocked = words.first().is_some_and(|until| *until > now.get());
        words.fill(0);
        was_blocked
    }

    /// Keeps the penalty's words of `before` in `state`, both states of this policy.
    pub fn keep_block(&self, state: &mut [u64], before: &[u64]) {
        self.split_mut(state)
            .1
            .copy_from_slice(self.split(before).1);
    }

    pub(super) fn accepts_block(&self, words: &[u64]) -> bool {
        self.penalty.is_none_or(|penalty| {
            let [until, first, counts] = read(words);
            until <= Nanos::MAX.get()
                && first <= Nanos::MAX.get()
                && counts >> STEP_SHIFT <= penalty.spans.count()
        })
    }

    /// Whether no block, and no denial that counts, is left.
    pub(super) fn is_forgiven(&self, words: &[u64], now: Nanos) -> bool {
        self.penalty
            .is_none_or(|penalty| penalty.ends(read(words)) <= now.get())
    }

    /// Words as strict as both.
    pub(super) fn join_blocks(words: &mut [u64], others: &[u64]) {
        let counts = |words: &[u64]| words.get(2).copied().unwrap_or_default();
        let (mine, theirs) = (counts(words), counts(others));
        for (word, other) in words.iter_mut().zip(others) {
            *word = (*word).max(*other);
        }
        if let Some(word) = words.get_mut(2) {
            let low = u64::from(u32::MAX);
            *word = (mine >> STEP_SHIFT).max(theirs >> STEP_SHIFT) << STEP_SHIFT
                | (mine & low).max(theirs & low);
        }
    }

    /// Carries blocks over to a policy that has a penalty, too.
    pub(super) fn transfer_block(&self, new: &mut [u64], from: &Self, old: &[u64]) {
        if let Some(penalty) = &self.penalty
            && from.penalty.is_some()
        {
            let [until, first, counts] = read(old);
            let step = (counts >> STEP_SHIFT).min(penalty.spans.count());
            let low = counts & u64::from(u32::MAX);
            new.copy_from_slice(&[until, first, step << STEP_SHIFT | low]);
        }
    }
}
