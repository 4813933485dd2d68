//! A policy's numbers, for a store that decides by them elsewhere.

/// What a [`Policy`](crate::Policy) consists of, for a translation of it to another place: a script in a shared store, a
/// wire format. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parameters {
    /// [`FixedWindow`](crate::algorithm::FixedWindow).
    FixedWindow {
        /// Units in each window.
        limit: u32,
        /// The window.
        window: u64,
        /// Whether a window begins at its first admitted request.
        first_hit: bool,
    },
    /// [`SlidingLog`](crate::algorithm::SlidingLog).
    SlidingLog {
        /// Units in any window.
        limit: u32,
        /// An admission counts while it is younger than this: the window, and a nanosecond more where windows are closed.
        lifetime: u64,
    },
    /// [`SlidingWindow`](crate::algorithm::SlidingWindow).
    SlidingWindow {
        /// Units over the slots that count.
        limit: u32,
        /// The window.
        window: u64,
        /// How many slots it is cut into.
        slots: u32,
        /// A slot's length: `window / slots`, rounded up.
        slot: u64,
        /// How many slots count, the current one included: `slots`, and where strict one more.
        span: u32,
    },
    /// [`SlidingCounter`](crate::algorithm::SlidingCounter).
    SlidingCounter {
        /// Units in a window, about.
        limit: u32,
        /// The window.
        window: u64,
    },
    /// [`TokenBucket`](crate::algorithm::TokenBucket): one token each `step / parts` nanoseconds.
    TokenBucket {
        /// Tokens that the bucket holds.
        burst: u32,
        /// Numerator of the interval, in lowest terms.
        step: u64,
        /// Its denominator.
        parts: u64,
    },
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket): one unit each `step / parts` nanoseconds.
    LeakyBucket {
        /// The highest cost.
        limit: u32,
        /// Numerator of the interval, in lowest terms.
        step: u64,
        /// Its denominator.
        parts: u64,
        /// The longest delay.
        max_wait: u64,
    },
    /// [`Concurrency`](crate::algorithm::Concurrency).
    Concurrency {
        /// Permits out at any instant.
        limit: u32,
        /// How long after it was taken a permit comes back by itself, if it does.
        hold: Option<u64>,
    },
}
