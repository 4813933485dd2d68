//! A policy's numbers, for a store that decides with its own translation of the algorithm.

use crate::Calendar;

/// The numbers of a [`Policy`](crate::Policy), for translating it to another place: a script in a
/// shared store, or a wire format. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parameters {
    /// [`FixedWindow`](crate::algorithm::FixedWindow).
    FixedWindow {
        /// Units in each window.
        limit: u64,
        /// The window.
        window: u64,
        /// Whether a window begins at its first admitted request.
        first_hit: bool,
    },
    /// [`FixedWindow`](crate::algorithm::FixedWindow) that saves what windows leave.
    SavingWindow {
        /// Units that each window's end gives back.
        limit: u64,
        /// The window.
        window: u64,
        /// Whether a window begins at its first admitted request.
        first_hit: bool,
        /// The most that can be used at once.
        burst: u64,
        /// The longest wait of a cost above the burst; 0 if such costs are denied.
        oversize_wait: u64,
    },
    /// [`FixedWindow`](crate::algorithm::FixedWindow) that follows a calendar.
    CalendarWindow {
        /// Units in each period.
        limit: u64,
        /// The periods.
        calendar: &'static Calendar,
    },
    /// [`SlidingLog`](crate::algorithm::SlidingLog).
    SlidingLog {
        /// Units in any window.
        limit: u64,
        /// An admission counts while it is younger than this: the window, or one nanosecond more if
        /// windows are closed.
        lifetime: u64,
    },
    /// [`SlidingWindow`](crate::algorithm::SlidingWindow).
    SlidingWindow {
        /// Units over the slots that count.
        limit: u64,
        /// The window.
        window: u64,
        /// The number of slots that the window is divided into.
        slots: u32,
        /// A slot's length: `window / slots`, rounded up.
        slot: u64,
        /// How many slots count, including the current one: `slots`, or `slots + 1` in strict mode.
        span: u32,
    },
    /// [`SlidingCounter`](crate::algorithm::SlidingCounter).
    SlidingCounter {
        /// Approximate units in a window.
        limit: u64,
        /// The window.
        window: u64,
    },
    /// [`TokenBucket`](crate::algorithm::TokenBucket): one token each `step / parts` nanoseconds.
    TokenBucket {
        /// The bucket's capacity in tokens.
        burst: u64,
        /// Numerator of the interval, in lowest terms.
        step: u64,
        /// Its denominator.
        parts: u64,
        /// The longest wait of a cost above the burst; 0 if such costs are denied.
        oversize_wait: u64,
    },
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket): one unit each `step / parts` nanoseconds.
    LeakyBucket {
        /// The highest cost.
        limit: u64,
        /// Numerator of the interval, in lowest terms.
        step: u64,
        /// Its denominator.
        parts: u64,
        /// The longest delay.
        max_wait: u64,
    },
    /// [`Concurrency`](crate::algorithm::Concurrency).
    Concurrency {
        /// The maximum number of permits in use at any instant.
        limit: u64,
        /// The time after which a permit that was not released becomes free, if there is one.
        hold: Option<u64>,
    },
}
