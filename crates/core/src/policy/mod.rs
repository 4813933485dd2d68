//! A configured limit: one of the algorithms with its options.

mod ahead;
mod holds;
mod penalty;
mod settle;

pub use holds::Holds;
pub use penalty::{Penalty, Spans};
pub use settle::Estimate;

use crate::spec::{AlgorithmSpec, Amount};
use crate::{
    Algorithm, Debt, Decision, Lasts, Nanos, Parameters, PolicyError, Quota, Share, StoredState,
    algorithm::{
        Concurrency, FixedWindow, LeakyBucket, PlainBucket, SlidingCounter, SlidingLog,
        SlidingWindow, TokenBucket,
    },
};

/// An algorithm with its quota and options. Build it from an algorithm, or with one of the
/// constructors here:
///
/// ```
/// use tidegate_core::{Policy, Quota, algorithm::SlidingWindow};
/// let quota: Quota = "100/1m".parse()?;
/// let strict = Policy::from(SlidingWindow::new(quota).slots(60)?);
/// let bursty = Policy::token_bucket(quota);
/// assert_eq!((strict.name(), bursty.name()), ("sliding-window", "token-bucket"));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    rule: AnyAlgorithm,
    count_denied: bool,
    /// The effect of denials on a key.
    penalty: Option<Penalty>,
    /// The common case, kept next to the rule so that one comparison recognizes it.
    plain: PlainBucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AnyAlgorithm {
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingWindow(SlidingWindow),
    SlidingCounter(SlidingCounter),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    Concurrency(Concurrency),
}

/// Evaluates one expression on the algorithm that the policy holds.
macro_rules! each {
    ($policy:expr, $algorithm:ident => $body:expr) => {
        match &$policy.rule {
            AnyAlgorithm::FixedWindow($algorithm) => $body,
            AnyAlgorithm::SlidingLog($algorithm) => $body,
            AnyAlgorithm::SlidingWindow($algorithm) => $body,
            AnyAlgorithm::SlidingCounter($algorithm) => $body,
            AnyAlgorithm::TokenBucket($algorithm) => $body,
            AnyAlgorithm::LeakyBucket($algorithm) => $body,
            AnyAlgorithm::Concurrency($algorithm) => $body,
        }
    };
}

macro_rules! from_algorithm {
    ($($name:ident),*) => {$(
        impl From<$name> for Policy {
            fn from(algorithm: $name) -> Self {
                Self::new(AnyAlgorithm::$name(algorithm))
            }
        }
    )*};
}
from_algorithm!(
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    Concurrency
);

impl Policy {
    const fn new(rule: AnyAlgorithm) -> Self {
        let plain = if let AnyAlgorithm::TokenBucket(bucket) = &rule {
            bucket.plain()
        } else {
            PlainBucket::NONE
        };
        Self {
            rule,
            count_denied: false,
            penalty: None,
            plain,
        }
    }

    /// [`FixedWindow`] with aligned windows.
    #[must_use]
    pub fn fixed_window(quota: Quota) -> Self {
        FixedWindow::new(quota).into()
    }

    /// [`SlidingLog`] with half-open windows.
    ///
    /// # Errors
    /// [`PolicyError::LogTooLong`] if the limit is above 1,000,000.
    pub fn sliding_log(quota: Quota) -> Result<Self, PolicyError> {
        Ok(SlidingLog::new(quota)?.into())
    }

    /// [`SlidingWindow`], strict, with ten slots.
    #[must_use]
    pub fn sliding_window(quota: Quota) -> Self {
        SlidingWindow::new(quota).into()
    }

    /// [`SlidingCounter`].
    #[must_use]
    pub fn sliding_counter(quota: Quota) -> Self {
        SlidingCounter::new(quota).into()
    }

    /// [`TokenBucket`] whose capacity is the quota's limit.
    #[must_use]
    pub fn token_bucket(quota: Quota) -> Self {
        TokenBucket::new(quota).into()
    }

    /// [`LeakyBucket`] that delays up to the quota's window.
    #[must_use]
    pub fn leaky_bucket(quota: Quota) -> Self {
        LeakyBucket::new(quota).into()
    }

    /// [`Concurrency`] without a maximum hold time.
    #[must_use]
    pub fn concurrency(limit: u32) -> Self {
        Concurrency::new(limit).into()
    }

    /// Denied requests also consume units, as far as the state has room for them: a client that
    /// keeps retrying keeps waiting.
    #[must_use]
    pub const fn count_denied(self) -> Self {
        Self {
            count_denied: true,
            plain: PlainBucket::NONE,
            ..self
        }
    }

    /// The same policy for a clock that the system's time is `ahead` of, in nanoseconds (see
    /// [`Clock::wall_ahead`](crate::Clock::wall_ahead)). Only windows on a
    /// [`Calendar`](crate::Calendar) depend on it; they change with the system's time. Changing a
    /// limiter's policy to it keeps each count in its window, so a window's units are admitted
    /// once, however the system's time is set. One exception: after a step back by less than half
    /// a period, a key that was evicted from a full table is remembered until its window's end by
    /// the clock of before.
    #[must_use]
    pub const fn with_wall_ahead(self, ahead: i64) -> Self {
        match self.rule {
            AnyAlgorithm::FixedWindow(window) => Self {
                rule: AnyAlgorithm::FixedWindow(window.with_wall_ahead(ahead)),
                ..self
            },
            _ => self,
        }
    }

    /// The same policy for a clock that the system's time is `ahead` of, if it depends on that and
    /// differs by a second or more. The smaller drift of two clocks is not worth a change.
    #[must_use]
    pub fn follow_wall(&self, ahead: i64) -> Option<Self> {
        let is_off = self.wall_ahead().abs_diff(ahead) >= crate::period::SECOND;
        Some(self.with_wall_ahead(ahead)).filter(|policy| is_off && policy != self)
    }

    /// What [`with_wall_ahead`](Self::with_wall_ahead) set, in nanoseconds.
    #[must_use]
    pub const fn wall_ahead(&self) -> i64 {
        match &self.rule {
            AnyAlgorithm::FixedWindow(window) => window.wall_ahead(),
            _ => 0,
        }
    }

    /// The algorithm's name, as in its [`AlgorithmSpec`](crate::AlgorithmSpec).
    #[must_use]
    pub fn name(&self) -> &'static str {
        each!(self, algorithm => algorithm.written()).0.name()
    }

    /// The algorithm with its options, and its quota or number of permits.
    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        let (spec, amount) = each!(self, algorithm => algorithm.written());
        (spec.with_denials(self.count_denied, self.penalty), amount)
    }

    /// The number of the algorithm's own words.
    #[inline]
    fn own_words(&self) -> usize {
        each!(self, algorithm => algorithm.words())
    }

    /// The algorithm with its options.
    #[must_use]
    pub fn spec(&self) -> AlgorithmSpec {
        self.written().0
    }

    /// Whether a cost may be returned while work is in flight: true for permits only.
    #[must_use]
    pub const fn is_concurrency(&self) -> bool {
        matches!(self.rule, AnyAlgorithm::Concurrency(_))
    }

    /// Whether the policy queues requests: true for a leaky bucket only.
    #[must_use]
    pub const fn is_leaky_bucket(&self) -> bool {
        matches!(self.rule, AnyAlgorithm::LeakyBucket(_))
    }

    /// The highest cost that can ever be admitted: the limit, or what comes in the longest wait of a
    /// cost above the limit, too (see [`TokenBucket::oversize_wait`]).
    #[must_use]
    pub fn highest_cost(&self) -> u64 {
        match &self.rule {
            AnyAlgorithm::TokenBucket(bucket) => bucket.most(),
            AnyAlgorithm::FixedWindow(window) => window.most(),
            _ => self.limit(),
        }
    }

    /// Whether a cost above the limit waits, instead of being denied.
    #[must_use]
    pub const fn waits_for_oversize(&self) -> bool {
        match &self.rule {
            AnyAlgorithm::TokenBucket(bucket) => bucket.waits_for_oversize(),
            AnyAlgorithm::FixedWindow(window) => window.waits_for_oversize(),
            _ => false,
        }
    }

    /// The numbers that define the algorithm.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        each!(self, algorithm => algorithm.parameters())
    }

    /// Whether denied requests also consume units (see [`count_denied`](Self::count_denied)).
    #[must_use]
    pub const fn counts_denied(&self) -> bool {
        self.count_denied
    }

    /// The same policy with states in which limits up to 4,294,967,295 have room, so that policies
    /// with other limits [decide on the same states](Self::reads_states_of). It makes the states of
    /// a [`SlidingWindow`] wider (see [`SlidingWindow::wide`]) and changes no other algorithm.
    #[must_use]
    pub fn wide(self) -> Self {
        match self.rule {
            AnyAlgorithm::SlidingWindow(window) => Self {
                rule: AnyAlgorithm::SlidingWindow(window.wide()),
                ..self
            },
            _ => self,
        }
    }

    /// Whether this policy can decide on states of another as they are: the same algorithm, with
    /// the same layout of its words. Otherwise [`transfer`](Self::transfer) converts a state.
    #[must_use]
    #[inline]
    pub fn reads_states_of(&self, other: &Self) -> bool {
        if self.penalty.is_some() != other.penalty.is_some() {
            return false;
        }
        match (&self.rule, &other.rule) {
            (AnyAlgorithm::FixedWindow(one), AnyAlgorithm::FixedWindow(other)) => {
                one.same_windows(other) && one.wall_ahead() == other.wall_ahead()
            }
            (AnyAlgorithm::SlidingLog(one), AnyAlgorithm::SlidingLog(other)) => {
                one.same_layout(other)
            }
            (AnyAlgorithm::SlidingWindow(one), AnyAlgorithm::SlidingWindow(other)) => {
                one.same_layout(other)
            }
            (AnyAlgorithm::SlidingCounter(one), AnyAlgorithm::SlidingCounter(other)) => {
                one.same_layout(other)
            }
            (AnyAlgorithm::TokenBucket(one), AnyAlgorithm::TokenBucket(other)) => {
                one.same_layout(other)
            }
            (AnyAlgorithm::LeakyBucket(one), AnyAlgorithm::LeakyBucket(other)) => {
                one.same_layout(other)
            }
            (AnyAlgorithm::Concurrency(one), AnyAlgorithm::Concurrency(other)) => {
                one.same_layout(other)
            }
            _ => false,
        }
    }

    /// A single call to the algorithm's own function. If all were inlined side by side, each would
    /// pay for the registers of all.
    #[inline(never)]
    fn decide_apart(&self, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
        if self.count_denied || self.penalty.is_some() {
            return self.decide_counting(state, now, cost);
        }
        each!(self, algorithm => decide_with(algorithm, state, now, cost))
    }

    #[cold]
    fn decide_counting(&self, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
        // Denials during a block count nowhere, so a block ends however often the key asks.
        if self.blocked_until(state) > now {
            return self.peek(state, now, cost);
        }
        let (own, _) = self.split_mut(state);
        let decision = each!(self, algorithm => algorithm.decide(own, now, cost));
        if decision.is_allowed() || cost == 0 {
            return decision;
        }
        if self.count_denied {
            self.record(state, now, cost);
        }
        self.count_denial(state, now);
        self.peek(state, now, cost)
    }

    /// The one-word token bucket, if the policy is one.
    #[inline]
    pub(crate) fn plain_bucket(&self, cost: u64) -> Option<PlainBucket> {
        self.plain.takes(cost).then_some(self.plain)
    }

    /// The sliding window, if the policy is one whose denials take nothing.
    #[inline]
    pub(crate) const fn plain_window(&self) -> Option<&SlidingWindow> {
        match &self.rule {
            AnyAlgorithm::SlidingWindow(window) if !self.count_denied && self.penalty.is_none() => {
                Some(window)
            }
            _ => None,
        }
    }

    /// Carries what `old`, a state of `from`, has in use at `now` over into `new`, a fresh state of
    /// this policy. Usage above this policy's limit is carried over too, so lowering a limit and
    /// raising it again admits nothing that the higher limit would not have admitted.
    ///
    /// If both policies keep the same kind of record (a log's times, the counts of equal windows or
    /// slots, a bucket's debt, a queue, permits), the record itself is carried over. Units of another
    /// algorithm do not count as permits in flight, because nobody would return them: a change to
    /// [`Concurrency`] begins with no permit in use. A permit that was taken before its algorithm
    /// changed, and that is returned after a change back, therefore returns one taken since.
    /// Permits whose hold has passed at `now` stay free, however long the new hold is. In all other
    /// cases the units in use count as taken at `now`. If a state has no room for all of them,
    /// it rounds towards the stricter side:
    ///
    /// * a [`SlidingLog`], and [`Concurrency`] with a hold, keep the newest times and the number of
    ///   older ones; the older ones count as taken at the oldest time that is kept;
    /// * a [`SlidingWindow`] keeps counts up to 254 for limits up to 254 (65,534 for limits up to
    ///   that); a higher count stands for the whole limit, whichever limit comes next;
    /// * a [`TokenBucket`] that owes more than its capacity because of charges keeps all that it
    ///   owes. Otherwise it owes up to twice its capacity. If it would owe more, it denies
    ///   everything for the time that it takes to fill once, also if the limit changes in that
    ///   time, and then counts as just used up;
    /// * a [`LeakyBucket`] keeps the start times that it has handed out.
    ///
    /// The new state admits something again after one window at the latest. For a sliding counter
    /// it is two windows, and for a token bucket one window and the time of one token. Fixed windows
    /// that save what is left give it back at their own pace.
    ///
    /// A [`Penalty`]'s blocks and denials are carried over to a policy that has one, too.
    pub fn transfer(&self, new: &mut [u64], from: &Self, old: &[u64], now: Nanos) {
        let ((new, blocks), (old, others)) = (self.split_mut(new), from.split(old));
        self.transfer_block(blocks, from, others);
        match (&self.rule, &from.rule) {
            (to, from) if to == from => new.copy_from_slice(old),
            (AnyAlgorithm::SlidingLog(to), AnyAlgorithm::SlidingLog(from)) => {
                to.carry(new, from, old);
            }
            (AnyAlgorithm::SlidingWindow(to), AnyAlgorithm::SlidingWindow(from))
                if to.same_slots(from) =>
            {
                to.carry(new, from, old);
            }
            (AnyAlgorithm::FixedWindow(to), AnyAlgorithm::FixedWindow(from))
                if to.same_windows(from) =>
            {
                new.copy_from_slice(old);
            }
            (AnyAlgorithm::SlidingCounter(to), AnyAlgorithm::SlidingCounter(from))
                if to.same_windows(from) =>
            {
                to.carry(new, from, old);
            }
            (AnyAlgorithm::TokenBucket(to), AnyAlgorithm::TokenBucket(from)) => {
                to.carry(new, from, old, now);
            }
            (AnyAlgorithm::LeakyBucket(to), AnyAlgorithm::LeakyBucket(from)) => {
                to.carry(new, from, old, now);
            }
            (AnyAlgorithm::Concurrency(to), AnyAlgorithm::Concurrency(from)) => {
                to.carry(new, from, old, now);
            }
            // Units of a rate are no permits: nobody would ever return them.
            (AnyAlgorithm::Concurrency(_), _) => {}
            (_, from) => {
                let used = from.at_most(old, now);
                if used > 0 {
                    each!(self, algorithm => algorithm.keep(new, now, used));
                }
            }
        }
    }
}

impl AnyAlgorithm {
    /// An upper bound on the units in use.
    fn at_most(&self, state: &[u64], now: Nanos) -> u64 {
        match self {
            Self::SlidingWindow(window) => window.at_most(state, now),
            Self::TokenBucket(bucket) => bucket.at_most(state, now),
            Self::FixedWindow(window) => window.used(state, now),
            Self::SlidingLog(log) => log.used(state, now),
            Self::SlidingCounter(counter) => counter.used(state, now),
            Self::LeakyBucket(bucket) => bucket.used(state, now),
            Self::Concurrency(permits) => permits.used(state, now),
        }
    }
}

impl Algorithm for Policy {
    fn words(&self) -> usize {
        self.own_words()
            + if self.penalty.is_some() {
                penalty::WORDS
            } else {
                0
            }
    }

    fn limit(&self) -> u64 {
        each!(self, algorithm => algorithm.limit())
    }

    #[inline]
    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        let (own, blocks) = self.split(state);
        let decision = each!(self, algorithm => algorithm.peek(own, now, cost));
        Self::unless_blocked(blocks, now, decision)
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let (own, _) = self.split_mut(state);
        each!(self, algorithm => algorithm.record(own, now, cost));
    }

    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let (own, _) = self.split_mut(state);
        each!(self, algorithm => algorithm.charge(own, now, cost));
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64) {
        let (own, _) = self.split_mut(state);
        each!(self, algorithm => algorithm.refund(own, now, cost));
    }

    fn used(&self, state: &[u64], now: Nanos) -> u64 {
        let (own, _) = self.split(state);
        each!(self, algorithm => algorithm.used(own, now))
    }

    fn decide_up_to(&self, state: &mut [u64], now: Nanos, cost: u64) -> (u64, Decision) {
        let peek = self.peek(state, now, 0);
        let granted = peek.remaining().min(cost);
        match (granted, self.penalty) {
            (0, None) => (0, self.peek(state, now, cost.min(1))),
            // Nothing is left, so this is a denial.
            (0, Some(_)) => (0, self.decide(state, now, cost.min(1))),
            _ => (granted, self.decide(state, now, granted)),
        }
    }

    fn is_recovered(&self, state: &[u64], now: Nanos) -> bool {
        let (own, blocks) = self.split(state);
        self.is_forgiven(blocks, now) && each!(self, algorithm => algorithm.is_recovered(own, now))
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // Callers use a small part of a decision; inlining lets the compiler drop the rest.
    fn decide(&self, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
        if let Some(bucket) = self.plain_bucket(cost) {
            return match bucket.step(state[0], now, cost) {
                Ok((next, after)) => {
                    state[0] = next;
                    bucket.allow(after)
                }
                Err(denied) => denied,
            };
        }
        self.decide_apart(state, now, cost)
    }
}

impl StoredState for Policy {
    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos) {
        let ((own, blocks), (other, others)) = (self.split_mut(state), self.split(other));
        Self::join_blocks(blocks, others);
        each!(self, algorithm => algorithm.join(own, other, now));
    }

    fn accepts(&self, state: &[u64]) -> bool {
        if self.penalty.is_some() && state.len() != self.words() {
            return false;
        }
        let (own, blocks) = self.split(state);
        self.accepts_block(blocks) && each!(self, algorithm => algorithm.accepts(own))
    }

    /// A block counts as more than any use of the limit. The denials that count, and the step of
    /// the next block, are no debt: a full table forgets them.
    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let (own, _) = self.split(state);
        let debt = each!(self, algorithm => algorithm.debt(own, now));
        let until = self.blocked_until(state);
        if until <= now {
            return debt;
        }
        let block = Debt {
            share: Share::UNBOUNDED,
            lasts: Lasts::Until(until),
        };
        Some(debt.map_or(block, |debt| debt.join(block)))
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        let (own, blocks) = self.split_mut(state);
        match (debt, blocks) {
            (
                Debt {
                    share: Share::UNBOUNDED,
                    lasts: Lasts::Until(end),
                },
                [until, ..],
            ) => *until = end.get().min(Nanos::MAX.get()),
            _ => each!(self, algorithm => algorithm.owe(own, debt)),
        }
    }
}

#[inline(never)]
fn decide_with(algorithm: &impl Algorithm, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
    algorithm.decide(state, now, cost)
}
