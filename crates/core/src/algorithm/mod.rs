//! The limit algorithms. Each file holds one, with the layout of its state, its bound and the
//! reason for the bound.

mod concurrency;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod token_bucket;

pub use concurrency::Concurrency;
pub use fixed_window::FixedWindow;
pub use leaky_bucket::LeakyBucket;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub(crate) use token_bucket::PlainBucket;
pub use token_bucket::TokenBucket;

/// The bit of a state's first word that each algorithm leaves clear, so that a cell can mark with it
/// that it is locked.
pub(crate) const FREE_BIT: u64 = 1 << 63;

/// The algorithm that is used if none is named.
pub(crate) const DEFAULT: &crate::spec::AlgorithmEntry = &sliding_window::ENTRY;

/// Every algorithm, in the order in which they are listed.
pub(crate) const ENTRIES: &[&crate::spec::AlgorithmEntry] = &[
    &fixed_window::ENTRY,
    &sliding_log::ENTRY,
    &sliding_window::ENTRY,
    &sliding_counter::ENTRY,
    &token_bucket::ENTRY,
    &leaky_bucket::ENTRY,
    &concurrency::ENTRY,
];

use crate::{Debt, Decision, Nanos, Standing};

/// A limit as a pure function of state and time.
///
/// The trait is sealed: tables, stores and snapshots hold a [`Policy`](crate::Policy), which knows
/// only the algorithms of this crate. ARCHITECTURE.md describes how to add one.
///
/// **A cost of 0 is a peek**, in every method here and everywhere else in Tidegate: it takes
/// nothing, and it is not counted as a request. It is admitted even if nothing is left, but denied
/// while the state is *over its limit*: more is in use than the limit, because of a
/// [charge](Self::charge) or a lowered limit.
///
/// A state is [`words`](Algorithm::words) 64-bit words, all zero when fresh. The owner of a state
/// must use it with one configuration of one algorithm (see
/// [`Policy::transfer`](crate::Policy::transfer) for a change of configuration), and must read,
/// decide and write in one atomic step. The top bit of a one-word state is never set, so that a
/// cell may keep a flag there.
///
/// A time older than the newest one that a state remembers never admits more than that newest time
/// would.
///
/// # Panics
/// Every method may panic if the slice is shorter than [`words`](Algorithm::words).
pub trait Algorithm: sealed::Sealed {
    /// The number of words in a state. Fixed for one configuration.
    fn words(&self) -> usize;

    /// The highest cost that is admitted at once: the quota's limit, or the burst if there is one.
    /// A higher one is denied for good, unless the [policy](crate::Policy::highest_cost) lets it
    /// wait.
    fn limit(&self) -> u64;

    /// The decision on `cost`, without taking it. For admitted work, `remaining` and `reset_after`
    /// have the values that they would have after taking the cost.
    fn peek(&self, state: &[u64], now: Nanos, cost: u64) -> Decision;

    /// Takes `cost` without a check; the state saturates at its bound.
    fn record(&self, state: &mut [u64], now: Nanos, cost: u64);

    /// Takes `cost` whether it fits or not, for a cost that is known only after the work. Units
    /// beyond the limit are debt, which time repays by the algorithm's own rule: all that is in use
    /// must fall to the limit before a cost of 0 is admitted again.
    ///
    /// A fixed window counts up to 2⁵³ units, and so do a sliding counter and a sliding window of a
    /// limit above 4,294,967,295; with a lower limit these count up to 4,294,967,295. Buckets
    /// saturate at a debt of 109 years. A sliding window of a limit up to 254 (65,534) counts up to
    /// 254 (65,534) units a slot; a higher count stands for any number until its slot leaves.
    fn charge(&self, state: &mut [u64], now: Nanos, cost: u64);

    /// Returns up to `cost` of the units that were taken last; never more than are in use.
    fn refund(&self, state: &mut [u64], now: Nanos, cost: u64);

    /// How much of the limit is in use, in whole units, rounded up.
    fn used(&self, state: &[u64], now: Nanos) -> u64;

    /// Decides on `cost` and takes it if it is admitted. A cost of 0 is a peek.
    #[inline]
    fn decide(&self, state: &mut [u64], now: Nanos, cost: u64) -> Decision {
        let decision = self.peek(state, now, cost);
        if cost > 0 && decision.is_allowed() {
            self.record(state, now, cost);
        }
        decision
    }

    /// Takes as much of `cost` as is admitted now. Returns that amount and the decision on it.
    fn decide_up_to(&self, state: &mut [u64], now: Nanos, cost: u64) -> (u64, Decision) {
        let peek = self.peek(state, now, 0);
        // `remaining` of a peek is, by definition, the highest cost that is admitted.
        let granted = peek.remaining().min(cost);
        if granted == 0 {
            return (0, self.peek(state, now, cost.min(1)));
        }
        (granted, self.decide(state, now, granted))
    }

    /// Whether the state has recovered completely, so that dropping it changes nothing.
    fn is_recovered(&self, state: &[u64], now: Nanos) -> bool {
        self.peek(state, now, 0).reset_after_nanos() == 0
    }
}

/// The part of an [`Algorithm`] for tables, snapshots and stores of states: it checks a state,
/// joins two states of one key, and builds an evicted one again.
///
/// Callers that ask a limiter do not need it.
///
/// # Panics
/// As [`Algorithm`].
pub trait StoredState: Algorithm {
    /// Makes `state` at least as strict as `other`, at every time from `now` on: after the join,
    /// `state` admits only what both would have admitted.
    fn join(&self, state: &mut [u64], other: &[u64], now: Nanos);

    /// Whether these words can be a state of this algorithm. Words from outside (a file, another
    /// process) must pass this before any other method sees them.
    fn accepts(&self, state: &[u64]) -> bool;

    /// The state's debt at `now`; `None` if the state has recovered completely. A bounded store
    /// keeps the debt of a key that it has no room for, and uses it to choose which key to evict.
    fn debt(&self, state: &[u64], now: Nanos) -> Option<Debt>;

    /// Rebuilds a fresh state from a [debt](Self::debt). The rebuilt state is at least as strict as
    /// the state that had the debt, at every time, and recovers completely when the debt ends. If
    /// the share or the end of a debt was rounded up, the rebuilt state is as strict as the rounded
    /// values. A token bucket that owes more than it holds recovers up to 256 ns later, and a limit
    /// of 0 may count as used for longer.
    fn owe(&self, state: &mut [u64], debt: Debt);
}

/// The denial of a cost above the limit: it can never fit. With a limit of 0, every cost is above
/// the limit.
#[inline]
fn never_fits(limit: u64, room: u64, reset_after: u64) -> Decision {
    Decision::too_large(Standing {
        limit,
        room,
        unit: 1,
        reset_after,
    })
}

mod sealed {
    use super::{
        Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow,
        TokenBucket,
    };

    /// Keeps implementations of [`Algorithm`](super::Algorithm) within this crate.
    pub trait Sealed {}

    macro_rules! sealed {
        ($($name:ty),*) => { $(impl Sealed for $name {})* };
    }
    sealed!(
        Concurrency,
        FixedWindow,
        LeakyBucket,
        SlidingCounter,
        SlidingLog,
        SlidingWindow,
        TokenBucket,
        crate::Policy
    );
}
