//! Token bucket: a bucket of `burst` tokens that refills by `limit` tokens per window (GCRA).

use core::{hint::select_unpredictable, time::Duration};

use super::{
    Algorithm, StoredState,
    gcra::{Gcra, MAX_OWED, MAX_SPAN},
    never_fits,
};
use crate::spec::{AlgorithmEntry, AlgorithmSpec, Amount, Known, Value, Wants};
use crate::{
    Debt, Decision, MAX_LIMIT, MAX_WINDOW, Nanos, Parameters, PolicyError, Quota, QuotaError,
    Share, Standing,
};

/// The registry entry.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    name: "token-bucket",
    aliases: &["gcra"],
    options: &[
        Known::new("burst", Wants::count(0, MAX_LIMIT)),
        Known::new("oversize_wait", Wants::Span),
    ],
    limits_rate: true,
    build: |spec, amount| {
        let bucket = TokenBucket::new(amount.quota()?);
        let bucket = spec
            .count("burst")
            .map_or(Ok(bucket), |burst| bucket.burst(burst))?;
        Ok(spec
            .span("oversize_wait")
            .map_or(Ok(bucket), |wait| bucket.oversize_wait(wait))?
            .into())
    },
};

/// A bucket of `burst` tokens (default: the limit) that refills evenly, one token per
/// `window / limit`.
///
/// Bound: `burst + limit` in any window. State: one word, or two if `window / limit` is not a whole
/// number of nanoseconds; both are exact.
///
/// A bucket may owe more than its capacity. What charges made it owe is recorded exactly, whichever
/// limits come next. After the limit is lowered, up to twice the capacity is recorded exactly, so
/// that raising the limit again changes nothing. A bucket that would owe more is *shut* instead: it
/// admits nothing for the time that it takes to fill once, also if the limit changes in that time,
/// and then counts as just used up. The lowest byte of the state distinguishes the cases, so a time
/// is up to 256 ns later than it would be. The byte has no meaning while the bucket owes no more
/// than its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    gcra: Gcra,
    burst: u64,
    /// `burst` in nanoseconds, rounded up.
    capacity_nanos: u64,
    /// The longest wait of a cost above the burst, in nanoseconds; 0 if such costs are denied.
    oversize_wait: u64,
}

/// Why a bucket owes more than its capacity: the lowest byte of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    /// Units were charged; or it owes no more than its capacity.
    Charged,
    /// The limit was lowered, and nothing was charged since.
    Lowered,
    /// It is shut.
    Shut,
    /// It is shut, and units were charged since.
    ShutAndCharged,
}

impl Above {
    /// The lowest byte of a state whose bucket owes more than it can hold for another reason than a
    /// charge.
    const LEAST: u64 = 0xFD;

    const fn of(byte: u64) -> Self {
        match byte & 0xFF {
            0xFF => Self::Shut,
            0xFE => Self::Lowered,
            Self::LEAST => Self::ShutAndCharged,
            _ => Self::Charged,
        }
    }

    /// The earliest time from `tat` on that has this mark.
    const fn mark(self, tat: u64) -> u64 {
        let byte = match self {
            Self::Shut => 0xFF,
            Self::Lowered => 0xFE,
            Self::ShutAndCharged => Self::LEAST,
            Self::Charged if tat & 0xFF < Self::LEAST => tat & 0xFF,
            Self::Charged => 0,
        };
        let marked = tat & !0xFF | byte;
        if marked < tat { marked + 0x100 } else { marked }
    }

    const fn is_shut(self) -> bool {
        matches!(self, Self::Shut | Self::ShutAndCharged)
    }

    /// After a charge.
    const fn charged(self) -> Self {
        if self.is_shut() {
            Self::ShutAndCharged
        } else {
            Self::Charged
        }
    }
}

impl TokenBucket {
    /// A bucket with a capacity of `quota.limit()` tokens.
    ///
    /// # Panics
    /// Never: a quota's window is at most 366 days, and a bucket may take 73 years to fill.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self::with(Gcra::new(quota), quota.limit())
            .expect("a window of at most 366 days fills in 366 days")
    }

    /// The same rate with a bucket of `burst` tokens. A burst of 0 denies everything.
    ///
    /// # Errors
    /// [`PolicyError::BurstTooLong`] if an empty bucket would take more than 73 years to fill, or
    /// if the burst is above [`MAX_LIMIT`].
    pub fn burst(self, burst: u64) -> Result<Self, PolicyError> {
        let denies_all = self.burst == 0;
        Ok(Self {
            oversize_wait: self.oversize_wait,
            ..Self::with(self.gcra, if denies_all { 0 } else { burst })?
        })
    }

    /// Admits a cost above the burst when the bucket is full: it starts when the rest of it has
    /// come, and the bucket owes that much until then. A cost whose rest takes longer than `wait`
    /// never fits.
    ///
    /// # Errors
    /// [`PolicyError::Oversize`] if `wait` is shorter than the time of one token, or above 36
    /// years.
    pub fn oversize_wait(self, wait: Duration) -> Result<Self, PolicyError> {
        let wait = Nanos::from(wait).get();
        if self.gcra.ticks(1) > u128::from(wait) * u128::from(self.gcra.parts) {
            return Err(PolicyError::Oversize(
                "oversize_wait is shorter than the time in which one unit comes back; raise it",
            ));
        }
        if wait > MAX_SPAN / 2 {
            return Err(PolicyError::Oversize(
                "oversize_wait is above 36 years; lower it",
            ));
        }
        Ok(Self {
            oversize_wait: wait,
            ..self
        })
    }

    /// The highest cost that can ever be admitted.
    pub(crate) fn most(&self) -> u64 {
        if self.burst == 0 {
            return 0;
        }
        let ticks = u128::from(self.oversize_wait) * u128::from(self.gcra.parts);
        let units = (ticks / u128::from(self.gcra.step)).min(MAX_LIMIT.into()) as u64;
        self.burst.saturating_add(units).min(MAX_LIMIT)
    }

    /// The burst in ticks.
    #[inline]
    const fn capacity(&self) -> u128 {
        self.gcra.ticks(self.burst)
    }

    pub(crate) const fn waits_for_oversize(&self) -> bool {
        self.oversize_wait > 0
    }

    /// A bucket of `burst` tokens that gains one token per `interval` (at least a nanosecond).
    ///
    /// # Errors
    /// The same as [`burst`](Self::burst).
    pub fn from_interval(interval: Nanos, burst: u64) -> Result<Self, PolicyError> {
        Self::with(
            Gcra {
                step: interval.get().max(1),
                parts: 1,
            },
            burst,
        )
    }

    fn with(gcra: Gcra, burst: u64) -> Result<Self, PolicyError> {
        if burst > MAX_LIMIT {
            return Err(PolicyError::Quota(QuotaError::LimitTooHigh));
        }
        let capacity_nanos = gcra.span(burst).ok_or(PolicyError::BurstTooLong)?;
        Ok(Self {
            gcra,
            burst,
            capacity_nanos,
            oversize_wait: 0,
        })
    }

    /// The same rate with a smaller capacity: what refills in `slack` is kept back. Units may then
    /// be used up to the returned span after they were taken. `None` if the bucket is too small to
    /// keep anything back.
    ///
    /// At most a sixteenth of the bucket is kept back.
    pub(crate) fn kept_back(&self, slack: u64) -> Option<(Self, u64)> {
        let ticks = u128::from(slack) * u128::from(self.gcra.parts);
        let units = (ticks / u128::from(self.gcra.step)).min(u128::from(self.burst / 16)) as u64;
        let span = self.gcra.ticks(units) / u128::from(self.gcra.parts);
        let less = Self::with(self.gcra, self.burst - units).ok()?;
        (units > 0).then_some((less, span as u64))
    }

    /// The time when nothing is owed any more, rounded up to a nanosecond.
    pub(crate) const fn end(&self, state: &[u64]) -> u64 {
        self.gcra.end(state)
    }

    /// How long a shut bucket stays shut, in nanoseconds: as long as an empty bucket takes to fill,
    /// or the window if the limit is 0.
    const fn filling(&self) -> u64 {
        if self.burst == 0 {
            self.gcra.step
        } else {
            self.capacity_nanos
        }
    }

    /// Why the state owes more than the capacity.
    fn above(&self, state: &[u64], now: Nanos) -> Above {
        if self.gcra.debt(state, now) > self.capacity() {
            Above::of(state[0])
        } else {
            Above::Charged
        }
    }

    /// Marks a state that owes more than the capacity.
    fn mark(&self, state: &mut [u64], now: Nanos, why: Above) {
        if self.gcra.debt(state, now) <= self.capacity() {
            return;
        }
        let marked = why.mark(state[0]);
        if marked > state[0] {
            state[0] = marked;
            if let Some(part) = state.get_mut(1).filter(|_| self.gcra.parts > 1) {
                *part = 0;
            }
        }
    }

    /// Shuts the bucket: it admits nothing for `span` nanoseconds from now, and then counts as just
    /// used up.
    fn shut(&self, state: &mut [u64], now: Nanos, span: u64, why: Above) {
        let debt = self.capacity_nanos.saturating_add(span).min(MAX_OWED);
        self.gcra
            .set_debt(state, now, u128::from(debt) * u128::from(self.gcra.parts));
        self.mark(state, now, why);
    }

    /// Whether both read the same words in the same way.
    pub(crate) const fn same_layout(&self, other: &Self) -> bool {
        self.gcra.parts == other.gcra.parts
    }

    /// Carries the debt over from `old`, a state of `from`, to `new`, a fresh state: the same
    /// number of units, at the new rate.
    pub(crate) fn carry(&self, new: &mut [u64], from: &Self, old: &[u64], now: Nanos) {
        let (debt, above) = (from.gcra.debt(old, now), from.above(old, now));
        if above.is_shut() {
            let left = from.gcra.to_nanos(debt - from.capacity());
            // How much of the span the charges are is unknown, so all of it counts as charged.
            let span = if above == Above::ShutAndCharged {
                let (units, part) = self.units_of(from, debt - from.capacity());
                let charged = units
                    .saturating_mul(self.gcra.step.into())
                    .saturating_add(part)
                    .min(self.gcra.longest_debt());
                left.max(self.gcra.to_nanos(charged))
            } else {
                left.min(self.filling())
            };
            return self.shut(new, now, span, above);
        }
        let is_charged = debt > from.capacity() && above == Above::Charged;
        let (units, part) = self.units_of(from, debt);
        self.owe(new, now, units, part, is_charged);
    }

    /// The whole units in a debt of `from`, and the rest in ticks of this bucket.
    fn units_of(&self, from: &Self, debt: u128) -> (u128, u128) {
        let step = u128::from(from.gcra.step);
        let part = ((debt % step) * u128::from(self.gcra.step)).div_ceil(step);
        (debt / step, part)
    }

    /// Records in `new`, a fresh state, that `used` units were taken at `now`.
    pub(crate) fn keep(&self, new: &mut [u64], now: Nanos, used: u64) {
        self.owe(new, now, used.into(), 0, false);
    }

    fn owe(&self, new: &mut [u64], now: Nanos, units: u128, part: u128, is_charged: bool) {
        let debt = units
            .saturating_mul(u128::from(self.gcra.step))
            .saturating_add(part);
        let longest = self.gcra.longest_debt();
        if is_charged {
            self.gcra.set_debt(new, now, debt.min(longest));
            self.mark(new, now, Above::Charged);
        } else if debt <= longest.min(2 * self.capacity()) {
            self.gcra.set_debt(new, now, debt);
            self.mark(new, now, Above::Lowered);
        } else {
            self.shut(new, now, self.filling(), Above::Shut);
        }
    }

    /// An upper bound on the units in use: unbounded if the bucket is shut.
    pub(crate) fn at_most(&self, state: &[u64], now: Nanos) -> u64 {
        if self.above(state, now).is_shut() {
            u64::MAX
        } else {
            self.used(state, now)
        }
    }

    /// Returns units that were taken at `taken`, less what has been refilled since: a full bucket
    /// may have overflowed since, and the overflow is lost.
    pub(crate) fn give_back(&self, state: &mut [u64], now: Nanos, taken: Nanos, cost: u64) {
        let refilled = u128::from(now.saturating_since(taken).get()) * u128::from(self.gcra.parts);
        let (debt, above) = (self.gcra.debt(state, now), self.above(state, now));
        let credit = self.gcra.ticks(cost).saturating_sub(refilled).min(debt);
        if credit > 0 {
            self.gcra.set_debt(state, now, debt - credit);
            self.mark(state, now, above);
        }
    }

    /// The decision if the interval is a whole number and `cost` is at most the burst, and the TAT
    /// after it.
    ///
    /// It does not branch on the outcome, which is often unpredictable and depends on a state that
    /// may still be on its way from memory (see the table's search for a tag).
    #[inline]
    fn decide_whole(&self, tat: u64, now: u64, cost: u64) -> (u64, Decision) {
        // No overflow: at most 2⁶² + 2⁶¹ + 2⁶¹.
        let debt = tat.saturating_sub(now);
        let after = debt + cost * self.gcra.step;
        let allowed = after <= self.capacity_nanos;
        let reset = select_unpredictable(allowed, after, debt);
        let room = self.capacity_nanos.saturating_sub(reset);
        let wait = after.saturating_sub(self.capacity_nanos);
        let decision = Decision::allow_if(
            allowed,
            Standing {
                limit: self.burst,
                room,
                unit: self.gcra.step,
                reset_after: reset,
            },
            wait,
        );
        (
            select_unpredictable(allowed && cost > 0, now + after, tat),
            decision,
        )
    }

    /// The decision if the interval is a fraction, or `cost` above the burst. A separate function,
    /// because its registers would slow the common case down.
    #[inline(never)]
    fn decide_parts(&self, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
        let decision = self.peek(state, now, cost);
        if cost > 0 && decision.is_allowed() {
            self.record(state, now, cost);
        }
        decision
    }

    /// The decision on a cost above the burst.
    #[cold]
    fn peek_oversize(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        if cost > self.most() {
            let peek = self.peek(state, now, 0);
            return never_fits(self.burst, peek.remaining(), peek.reset_after_nanos());
        }
        let whole = self.peek(state, now, self.burst);
        if whole.is_denied() {
            return whole;
        }
        // The bucket is full.
        let after = self.gcra.ticks(cost);
        Decision::delayed(
            Standing {
                limit: self.burst,
                room: 0,
                unit: 1,
                reset_after: self.gcra.to_nanos(after),
            },
            self.gcra.to_nanos(after - self.capacity()),
        )
    }

    fn peek_parts(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        let debt = self.gcra.debt(state, now);
        let after = debt + self.gcra.ticks(cost);
        let units = |room: u128| (room / u128::from(self.gcra.step)) as u64;
        if after <= self.capacity() {
            let room = units(self.capacity() - after);
            return Decision::allow(Standing {
                limit: self.burst,
                room,
                unit: 1,
                reset_after: self.gcra.to_nanos(after),
            });
        }
        let room = units(self.capacity().saturating_sub(debt));
        let wait = self.gcra.to_nanos(after - self.capacity());
        Decision::deny(
            Standing {
                limit: self.burst,
                room,
                unit: 1,
                reset_after: self.gcra.to_nanos(debt),
            },
            wait,
        )
    }

    /// Only the rate is kept, not the original quota. The written window is the time in which the
    /// bucket fills, if that is a whole number of nanoseconds, and otherwise the shortest window
    /// that gives the rate.
    pub(crate) fn written(&self) -> (AlgorithmSpec, Amount) {
        let wait = Duration::from_nanos(self.oversize_wait);
        let spec = AlgorithmSpec::of(&ENTRY).with(
            "oversize_wait",
            (!wait.is_zero()).then_some(Value::Span(wait)),
        );
        let parts = u128::from(self.gcra.parts);
        let longest = MAX_WINDOW.as_nanos();
        if self.burst > 0
            && self.capacity().is_multiple_of(parts)
            && self.capacity() / parts <= longest
        {
            return (
                spec,
                Amount::Quota(Quota::of(self.burst, (self.capacity() / parts) as u64)),
            );
        }
        let quota = Quota::of(self.gcra.parts, self.gcra.step);
        (
            spec.with("burst", Some(Value::Count(self.burst))),
            Amount::Quota(quota),
        )
    }

    pub(crate) const fn parameters(&self) -> Parameters {
        Parameters::TokenBucket {
            burst: self.burst,
            step: self.gcra.step,
            parts: self.gcra.parts,
            oversize_wait: self.oversize_wait,
        }
    }
}

/// The numbers of a token bucket with a whole interval: only what a decision in registers needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlainBucket {
    /// 0 if the policy is not such a bucket.
    burst: u64,
    step: u64,
    /// The burst in nanoseconds.
    capacity: u64,
}

impl TokenBucket {
    pub(crate) const fn plain(&self) -> PlainBucket {
        if self.gcra.parts != 1 {
            return PlainBucket::NONE;
        }
        PlainBucket {
            burst: self.burst,
            step: self.gcra.step,
            capacity: self.capacity_nanos,
        }
    }
}

impl PlainBucket {
    pub const NONE: Self = Self {
        burst: 0,
        step: 0,
        capacity: 0,
    };

    /// Whether [`step`](Self::step) can decide on this cost: the bucket can hold it, and it is not
    /// a peek.
    #[inline]
    pub const fn takes(self, cost: u64) -> bool {
        cost > 0 && cost <= self.burst
    }

    /// The TAT after the cost and its distance from now, or the denial.
    ///
    /// Unlike `decide_whole` it branches: one limiter usually answers as it did the last time, and
    /// the next thread need not wait for what is predicted correctly.
    #[inline]
    pub fn step(self, tat: u64, now: Nanos, cost: u64) -> Result<(u64, u64), Decision> {
        let next = tat.max(now.get()) + cost * self.step;
        let after = next - now.get();
        if after <= self.capacity {
            return Ok((next, after));
        }
        let debt = tat.saturating_sub(now.get());
        let room = self.capacity.saturating_sub(debt);
        Err(Decision::deny(
            Standing {
                limit: self.burst,
                room,
                unit: self.step,
                reset_after: debt,
            },
            after - self.capacity,
        ))
    }

    #[inline]
    pub const fn allow(self, after: u64) -> Decision {
        Decision::allow(Standing {
            limit: self.burst,
            room: self.capacity - after,
            unit: self.step,
            reset_after: after,
        })
    }
}

impl Algorithm for TokenBucket {
    fn words(&self) -> usize {
        self.gcra.words()
    }

    #[inline]
    fn limit(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision {
        if cost > self.burst {
            return self.peek_oversize(state, now, cost);
        }
        if self.gcra.parts == 1 {
            self.decide_whole(state[0], now.get(), cost).1
        } else {
            self.peek_parts(state, now, cost)
        }
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u64) {
        if cost > self.burst && self.peek_oversize(state, now, cost).is_allowed() {
            return self.charge(state, now, cost);
        }
        let cost = cost.min(self.burst);
        if self.gcra.parts == 1 {
            let tat = state[0].max(now.get());
            let full = now.get() + self.capacity_nanos;
            state[0] = (tat + cost * self.gcra.step).min(full.max(tat));
        } else {
            let debt = self.gcra.debt(state, now);
            let after = (debt + self.gcra.ticks(cost)).min(self.capacity().max(debt));
            self.gcra.set_debt(state, now, after);
        }
    }

    #[inline]
    fn decide(&self, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
        if self.gcra.parts != 1 || cost > self.burst {
            return self.decide_parts(state, now, cost);
        }
        let (tat, decision) = self.decide_whole(state[0], now.get(), cost);
        state[0] = tat;
        decision
    }

    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64) {
        if cost > 0 {
            let above = self.above(state, now).charged();
            self.gcra.charge(state, now, cost);
            self.mark(state, now, above);
        }
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64) {
        // A shut bucket does not record how much it owes.
        let above = self.above(state, now);
        if !above.is_shut() {
            self.gcra.refund(state, now, cost);
            self.mark(state, now, above);
        }
    }

    fn used(&self, state: &[u64], now: Nanos) -> u64 {
        self.gcra.units(self.gcra.debt(state, now))
    }
}

impl StoredState for TokenBucket {
    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos) {
        let both =
            [&*state, other].map(|state| (self.above(state, now), self.gcra.debt(state, now)));
        self.gcra.join(state, other);
        // A later end must not turn a bucket that is shut into one that owes what it says: a raised
        // limit would find less in use.
        if both.iter().any(|(why, _)| why.is_shut()) {
            let is_charged = both.iter().any(|(why, debt)| {
                *why == Above::ShutAndCharged || *why == Above::Charged && *debt > self.capacity()
            });
            let why = if is_charged {
                Above::ShutAndCharged
            } else {
                Above::Shut
            };
            self.mark(state, now, why);
        }
    }

    fn accepts(&self, state: &[u64]) -> bool {
        self.gcra.accepts(state)
    }

    #[inline]
    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        let mut debt = Debt::until(self.used(state, now), self.burst, self.gcra.end(state), now)?;
        // A record has the end only roughly, so the share says whether the bucket is shut.
        debt.share = if self.above(state, now).is_shut() {
            Share::UNBOUNDED
        } else {
            debt.share.min(Share::MOST_KNOWN)
        };
        Some(debt)
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        self.gcra.owe(state, debt);
        if debt.share == Share::UNBOUNDED {
            state[0] = Above::Shut.mark(state[0]);
        } else if debt.share > Share::EXHAUSTED && Above::of(state[0]) != Above::Charged {
            // Not shut, and what it owes counts as charged. The largest fraction of a nanosecond
            // below the end is at least what the bucket owed, unless the limit was lowered.
            if state[0] & 0xFF == Above::LEAST && self.gcra.parts > 1 {
                (state[0], state[1]) = (state[0] - 1, self.gcra.parts - 1);
            } else {
                state[0] = Above::Charged.mark(state[0]);
            }
        }
    }
}
