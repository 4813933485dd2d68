//! The arithmetic that token and leaky bucket share: a theoretical arrival time (TAT) that moves on
//! by one emission interval for each unit (the generic cell rate algorithm of ITU-T I.371, in its
//! virtual scheduling form).
//!
//! ```text
//!            now                 TAT
//!  ───────────┼──────── debt ─────┼──────────────►  time
//! ```
//!
//! The interval `window / limit` is kept as an exact fraction `step / parts` in lowest terms. If it
//! is a whole number (`parts` = 1, as for 100/1m) the state is one word, the TAT. Otherwise a
//! second word holds the TAT's fraction of a nanosecond, in units of `1/parts`: no rate is ever
//! rounded.

use super::FREE_BIT;
use crate::{Debt, MOST_USED, Nanos, Quota};

/// The longest burst or wait, in nanoseconds: keeps a TAT below 2⁶³ at any time up to
/// [`Nanos::MAX`].
pub(super) const MAX_SPAN: u64 = 1 << 61;
/// The longest debt, in nanoseconds (109 years): keeps a TAT below 2⁶³ at any time, with its lowest
/// byte free for a mark.
pub(super) const MAX_OWED: u64 = MAX_SPAN / 2 * 3 - 1 - 0xFF;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gcra {
    /// Numerator of the emission interval, in nanoseconds; at least 1.
    pub step: u64,
    /// Its denominator; 1 if the interval is a whole number.
    pub parts: u64,
}

impl Gcra {
    /// The emission interval of a quota. A limit of 0 is denied before any arithmetic; it gets a
    /// whole window here.
    pub const fn new(quota: Quota) -> Self {
        let limit = if quota.limit() == 0 { 1 } else { quota.limit() };
        let common = gcd(quota.window_nanos(), limit);
        Self {
            step: quota.window_nanos() / common,
            parts: limit / common,
        }
    }

    pub const fn words(self) -> usize {
        if self.parts == 1 { 1 } else { 2 }
    }

    /// The span of `units` emissions in nanoseconds, rounded up; `None` above [`MAX_SPAN`].
    pub fn span(self, units: u64) -> Option<u64> {
        let ticks = self.ticks(units);
        (ticks <= u128::from(MAX_SPAN) * u128::from(self.parts)).then(|| self.to_nanos(ticks))
    }

    /// `units` emissions in ticks of `1/parts` ns.
    pub const fn ticks(self, units: u64) -> u128 {
        units as u128 * self.step as u128
    }

    /// Ticks as nanoseconds, rounded up.
    pub const fn to_nanos(self, ticks: u128) -> u64 {
        // Most debts are short: a 64-bit division is several times as fast as a 128-bit one.
        if ticks <= u64::MAX as u128 {
            (ticks as u64).div_ceil(self.parts)
        } else {
            ticks.div_ceil(self.parts as u128) as u64
        }
    }

    /// How far the TAT lies ahead of `now`, in ticks.
    pub const fn debt(self, state: &[u64], now: Nanos) -> u128 {
        let Some(ahead) = state[0].checked_sub(now.get()) else {
            return 0;
        };
        if self.parts == 1 {
            ahead as u128
        } else {
            ahead as u128 * self.parts as u128 + state[1] as u128
        }
    }

    /// Puts the TAT `debt` ticks ahead of `now`.
    pub fn set_debt(self, state: &mut [u64], now: Nanos, debt: u128) {
        if self.parts == 1 {
            state[0] = now.get() + debt as u64;
        } else {
            let parts = u128::from(self.parts);
            state[0] = now.get() + (debt / parts) as u64;
            state[1] = (debt % parts) as u64;
        }
    }

    /// The longest debt in ticks.
    pub const fn longest_debt(self) -> u128 {
        MAX_OWED as u128 * self.parts as u128
    }

    /// Owes `cost` more, without a bound but the longest debt.
    pub fn charge(self, state: &mut [u64], now: Nanos, cost: u64) {
        let debt = self.debt(state, now);
        self.set_debt(
            state,
            now,
            (debt + self.ticks(cost)).min(self.longest_debt().max(debt)),
        );
    }

    pub fn accepts(self, state: &[u64]) -> bool {
        state.len() == self.words()
            && state[0] < FREE_BIT
            && (self.parts == 1 || state[1] < self.parts)
    }

    /// How many whole units a debt is, rounded up.
    #[inline]
    pub fn units(self, debt: u128) -> u64 {
        if let Ok(debt) = u64::try_from(debt) {
            return debt.div_ceil(self.step).min(MOST_USED);
        }
        debt.div_ceil(u128::from(self.step)).min(MOST_USED.into()) as u64
    }

    pub fn refund(self, state: &mut [u64], now: Nanos, cost: u64) {
        let debt = self.debt(state, now);
        if debt > 0 {
            self.set_debt(state, now, debt.saturating_sub(self.ticks(cost)));
        }
    }

    /// The TAT, rounded up to a nanosecond: the time when nothing is owed any more.
    pub const fn end(self, state: &[u64]) -> u64 {
        state[0] + (self.parts > 1 && state[1] > 0) as u64
    }

    /// A debt's end is the TAT.
    pub fn owe(self, state: &mut [u64], debt: Debt) {
        state[0] = debt.end();
        if self.parts > 1 {
            state[1] = 0;
        }
    }

    /// The later TAT of two owes more at every time.
    pub fn join(self, state: &mut [u64], other: &[u64]) {
        let words = self.words();
        if state[..words] < other[..words] {
            state[..words].copy_from_slice(&other[..words]);
        }
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
