//! A limit as configured: one of the algorithms, with its options.

mod ahead;

use core::fmt;

use crate::{
    Algorithm, Debt, Decision, Nanos, Parameters, Quota, QuotaError,
    algorithm::{
        Concurrency, FixedWindow, LeakyBucket, PlainBucket, SlidingCounter, SlidingLog, SlidingWindow,
        TokenBucket,
    },
};

/// Which algorithm, with what quota and options. Built from an algorithm, or by the short forms here:
///
/// ```
/// use tidegate_core::{Policy, Quota, algorithm::SlidingWindow};
/// let quota: Quota = "100/1m".parse()?;
/// let strict = Policy::from(SlidingWindow::new(quota).slots(60)?);
/// let bursty = Policy::token_bucket(quota);
/// assert_eq!((strict.name(), bursty.name()), ("sliding-window", "token-bucket"));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    rule: Rule,
    count_denied: bool,
    /// The usual case, beside the rule: one comparison tells that it is this.
    plain: PlainBucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingWindow(SlidingWindow),
    SlidingCounter(SlidingCounter),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    Concurrency(Concurrency),
}

/// Runs one expression on whichever algorithm the policy has.
macro_rules! each {
    ($policy:expr, $algorithm:ident => $body:expr) => {
        match &$policy.rule {
            Rule::FixedWindow($algorithm) => $body,
            Rule::SlidingLog($algorithm) => $body,
            Rule::SlidingWindow($algorithm) => $body,
            Rule::SlidingCounter($algorithm) => $body,
            Rule::TokenBucket($algorithm) => $body,
            Rule::LeakyBucket($algorithm) => $body,
            Rule::Concurrency($algorithm) => $body,
        }
    };
}

macro_rules! from_algorithm {
    ($($name:ident),*) => {$(
        impl From<$name> for Policy {
            fn from(algorithm: $name) -> Self {
                Self::new(Rule::$name(algorithm))
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
    /// The names of the algorithms, as configuration and reports write them.
    pub const NAMES: [&'static str; 7] = [
        "fixed-window",
        "sliding-log",
        "sliding-window",
        "sliding-counter",
        "token-bucket",
        "leaky-bucket",
        "concurrency",
    ];

    const fn new(rule: Rule) -> Self {
        let plain = if let Rule::TokenBucket(bucket) = &rule { bucket.plain() } else { PlainBucket::NONE };
        Self { rule, count_denied: false, plain }
    }

    /// [`FixedWindow`] with aligned windows.
    #[must_use]
    pub fn fixed_window(quota: Quota) -> Self {
        FixedWindow::new(quota).into()
    }

    /// [`SlidingLog`] with half-open windows.
    ///
    /// # Errors
    /// [`PolicyError::LogTooLong`] for a limit above 1,000,000.
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

    /// [`TokenBucket`] that holds the quota's limit.
    ///
    /// # Panics
    /// Never: a quota's window is at most 366 days, and a bucket may take 73 years to fill.
    #[must_use]
    pub fn token_bucket(quota: Quota) -> Self {
        TokenBucket::new(quota).expect("a window of at most 366 days fills in 366 days").into()
    }

    /// [`LeakyBucket`] that delays up to the quota's window.
    #[must_use]
    pub fn leaky_bucket(quota: Quota) -> Self {
        LeakyBucket::new(quota).into()
    }

    /// [`Concurrency`] without a longest hold.
    #[must_use]
    pub fn concurrency(limit: u32) -> Self {
        Concurrency::new(limit).into()
    }

    /// Denied requests consume too, as far as the state has room for them: whoever keeps retrying keeps waiting.
    #[must_use]
    pub const fn count_denied(self) -> Self {
        Self { count_denied: true, plain: PlainBucket::NONE, ..self }
    }

    /// The algorithm's name, one of [`NAMES`](Self::NAMES).
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[match self.rule {
            Rule::FixedWindow(_) => 0,
            Rule::SlidingLog(_) => 1,
            Rule::SlidingWindow(_) => 2,
            Rule::SlidingCounter(_) => 3,
            Rule::TokenBucket(_) => 4,
            Rule::LeakyBucket(_) => 5,
            Rule::Concurrency(_) => 6,
        }]
    }

    /// Whether a cost may be given back while work is in flight: permits, and nothing else.
    #[must_use]
    pub const fn is_concurrency(&self) -> bool {
        matches!(self.rule, Rule::Concurrency(_))
    }

    /// The numbers that the algorithm goes by.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        each!(self, algorithm => algorithm.parameters())
    }

    /// Whether denied requests consume too (see [`count_denied`](Self::count_denied)).
    #[must_use]
    pub const fn counts_denied(&self) -> bool {
        self.count_denied
    }

    /// One jump to the algorithm's own function: inlined side by side, each would pay for the registers of all.
    #[inline(never)]
    fn decide_apart(&self, state: &mut [u64], now: Nanos, cost: u32) -> Decision {
        if self.count_denied {
            return self.decide_counting(state, now, cost);
        }
        each!(self, algorithm => decide_with(algorithm, state, now, cost))
    }

    #[cold]
    fn decide_counting(&self, state: &mut [u64], now: Nanos, cost: u32) -> Decision {
        let decision = each!(self, algorithm => algorithm.decide(state, now, cost));
        if decision.is_allowed() {
            return decision;
        }
        self.record(state, now, cost);
        self.check(state, now, cost)
    }

    /// The usual case of a token bucket, if this is one: the state is then one word.
    #[inline]
    pub(crate) fn plain_bucket(&self, cost: u32) -> Option<PlainBucket> {
        self.plain.takes(cost).then_some(self.plain)
    }

    /// Writes into `new`, a fresh state of this policy, what `old`, a state of `from`, has in use at `now`: all of it, also
    /// what is above this policy's limit. Lowering a limit and raising it again admits nothing that the higher limit would
    /// not have admitted.
    ///
    /// Where both keep the same kind of record (a log's times, the counts of equal windows or slots, what a bucket owes, a
    /// queue), the record is carried over. Otherwise what is in use counts as taken at `now`. Where a state has no room for
    /// all of it, it stands for the stricter:
    ///
    /// * a [`SlidingLog`], and [`Concurrency`] with a hold, keep the newest times, and how many more there are; those count
    ///   as taken with the oldest that is kept;
    /// * a [`SlidingWindow`] keeps counts up to 254 for limits up to 254 (65,534 for limits up to that); a higher
    ///   count stands for the whole limit, whichever comes next;
    /// * a [`TokenBucket`] owes up to twice of what it holds. If it would owe more, it is shut for as long as it takes to
    ///   fill once, whichever limits come meanwhile, and then as good as just used up;
    /// * a [`LeakyBucket`] keeps the moments that it has given out.
    ///
    /// A window later, at the latest, something is admitted again: for a sliding counter two, and for a token bucket one and
    /// the time of a token.
    pub fn transfer(&self, new: &mut [u64], from: &Self, old: &[u64], now: Nanos) {
        match (&self.rule, &from.rule) {
            (to, from) if to == from => new.copy_from_slice(old),
            (Rule::SlidingLog(to), Rule::SlidingLog(from)) => to.carry(new, from, old),
            (Rule::SlidingWindow(to), Rule::SlidingWindow(from)) if to.same_slots(from) => {
                to.carry(new, from, old);
            }
            (Rule::FixedWindow(to), Rule::FixedWindow(from)) if to.same_windows(from) => {
                new.copy_from_slice(old);
            }
            (Rule::SlidingCounter(to), Rule::SlidingCounter(from)) if to.same_windows(from) => {
                new.copy_from_slice(old);
            }
            (Rule::TokenBucket(to), Rule::TokenBucket(from)) => to.carry(new, from, old, now),
            (Rule::LeakyBucket(to), Rule::LeakyBucket(from)) => to.carry(new, from, old, now),
            (Rule::Concurrency(to), Rule::Concurrency(from)) => to.carry(new, from, old, now),
            (_, from) => {
                let used = from.at_most(old, now);
                if used > 0 {
                    each!(self, algorithm => algorithm.keep(new, now, used));
                }
            }
        }
    }
}

impl Policy {
    /// [`record`](Algorithm::record), but a [`SlidingWindow`] keeps what is above its limit too, as
    /// [`transfer`](Self::transfer) does: for a store that kept counts while the limit changed.
    pub fn record_all(&self, state: &mut [u64], now: Nanos, cost: u32) {
        match &self.rule {
            Rule::SlidingWindow(window) => window.record_all(state, now, cost),
            _ => self.record(state, now, cost),
        }
    }
}

impl Rule {
    /// The most units that may be in use.
    fn at_most(&self, state: &[u64], now: Nanos) -> u32 {
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
        each!(self, algorithm => algorithm.words())
    }

    fn limit(&self) -> u32 {
        each!(self, algorithm => algorithm.limit())
    }

    #[inline]
    fn check(&self, state: &[u64], now: Nanos, cost: u32) -> Decision {
        each!(self, algorithm => algorithm.check(state, now, cost))
    }

    #[inline]
    fn record(&self, state: &mut [u64], now: Nanos, cost: u32) {
        each!(self, algorithm => algorithm.record(state, now, cost));
    }

    fn refund(&self, state: &mut [u64], now: Nanos, cost: u32) {
        each!(self, algorithm => algorithm.refund(state, now, cost));
    }

    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos) {
        each!(self, algorithm => algorithm.join(state, other, now));
    }

    fn accepts(&self, state: &[u64]) -> bool {
        each!(self, algorithm => algorithm.accepts(state))
    }

    fn used(&self, state: &[u64], now: Nanos) -> u32 {
        each!(self, algorithm => algorithm.used(state, now))
    }

    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt> {
        each!(self, algorithm => algorithm.debt(state, now))
    }

    fn owe(&self, state: &mut [u64], debt: Debt) {
        each!(self, algorithm => algorithm.owe(state, debt));
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // In the caller most of a decision is never looked at, and falls away.
    fn decide(&self, state: &mut [u64], now: Nanos, cost: u32) -> Decision {
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

#[inline(never)]
fn decide_with(algorithm: &impl Algorithm, state: &mut [u64], now: Nanos, cost: u32) -> Decision {
    algorithm.decide(state, now, cost)
}

/// Why a policy's options make no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The quota itself.
    Quota(QuotaError),
    /// A sliding log, or permits with a hold, above 1,000,000 entries.
    LogTooLong,
    /// A number of slots that is 0, above 3,600, or above the window's nanoseconds.
    Slots,
    /// A bucket that takes more than 73 years to fill.
    BurstTooLong,
    /// A leaky bucket's wait above 36 years.
    WaitTooLong,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quota(e) => return e.fmt(f),
            Self::LogTooLong => {
                "a log keeps every admission: its limit is at most 1000000; choose sliding-window above that"
            }
            Self::Slots => "slots must be from 1 to 3600, and no more than the window has nanoseconds",
            Self::BurstTooLong => {
                "the burst would take more than 73 years to refill; lower it or raise the rate"
            }
            Self::WaitTooLong => "max_wait is above 36 years; lower it",
        })
    }
}

impl core::error::Error for PolicyError {}
