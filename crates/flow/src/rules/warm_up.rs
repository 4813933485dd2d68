//! Warming up: the rate of a resource that was idle rises gradually to its full value.
//!
//! A bucket of tokens fills while there is little traffic and empties as traffic passes. The fuller
//! the bucket, the colder the resource and the lower the rate. The rate rises from `count / factor`
//! with a full bucket to `count` at the warning line; the slope is such that this takes the warm-up
//! period. Tokens are whole and integer divisions drop the remainder, as in Sentinel: a cold
//! resource that receives all the traffic it is allowed must not count as idle.

use super::InvalidRule;
use std::time::Duration;

use tidegate_core::Nanos;

use crate::{
    stats::bounds,
    sync::{AtomicU64, Ordering},
};

const TOKEN_BITS: u32 = 30;
const TOKENS: u64 = (1 << TOKEN_BITS) - 1;

#[derive(Debug)]
pub(crate) struct WarmUp {
    count: f64,
    factor: f64,
    warning: f64,
    max: u64,
    slope: f64,
    /// `[ the second of the last update 34 │ tokens 30 ]`: both change in one step, once a second.
    state: AtomicU64,
}

impl WarmUp {
    /// Creates a warm-up from `count / factor` to `count` a second within `period`.
    pub(crate) fn new(count: f64, period: Duration, factor: f64) -> Result<Self, InvalidRule> {
        if factor <= 1.0 || !factor.is_finite() {
            return Err(format!(
                "the cold factor is {factor}; it must be greater than 1 (typically 3)"
            )
            .into());
        }
        if count <= 0.0 {
            return Err("a warm-up needs a threshold above 0".into());
        }
        let volume = period.as_secs_f64() * count;
        let warning = (volume.floor() / (factor - 1.0)).floor();
        let span = (2.0 * volume / (1.0 + factor)).floor();
        let max = warning + span;
        if span < 1.0 {
            return Err(
                "the warm-up period is too short for the threshold; increase one of them".into(),
            );
        }
        if max > TOKENS as f64 {
            return Err(
                "more than 1073741823 units would pass during the warm-up; shorten the period"
                    .into(),
            );
        }
        let slope = (factor - 1.0) / count / (max - warning);
        // Checked above to be below 2³⁰. The bucket starts full, so the resource starts cold.
        let max = bounds::whole(max);
        Ok(Self {
            count,
            factor,
            warning,
            max,
            slope,
            state: AtomicU64::new(max),
        })
    }

    /// Returns the rate that is allowed at `now`. `last_second` returns how many units passed in
    /// the previous whole second.
    pub(crate) fn rate(&self, now: Nanos, last_second: impl FnOnce() -> u64) -> f64 {
        let second = now.get() / 1_000_000_000;
        let mut state = self.state.load(Ordering::Relaxed);
        if state >> TOKEN_BITS < second {
            let tokens = self.tokens_at(state, second, last_second());
            let next = second << TOKEN_BITS | tokens;
            // Relaxed: the word publishes no other data. A thread that loses the race uses the
            // winner's value for the same second.
            state =
                match self
                    .state
                    .compare_exchange(state, next, Ordering::Relaxed, Ordering::Relaxed)
                {
                    Ok(_) => next,
                    Err(seen) => seen,
                };
        }
        let tokens = (state & TOKENS) as f64;
        if tokens < self.warning {
            return self.count;
        }
        1.0 / ((tokens - self.warning) * self.slope + 1.0 / self.count)
    }

    fn tokens_at(&self, state: u64, second: u64, passed: u64) -> u64 {
        let tokens = state & TOKENS;
        let idle = (passed as f64) < (self.count.floor() / self.factor).floor();
        let level = tokens as f64;
        let filled = if level < self.warning || level > self.warning && idle {
            let elapsed = second - (state >> TOKEN_BITS);
            // The sum is bounded below.
            tokens.saturating_add(bounds::whole(elapsed as f64 * self.count))
        } else {
            tokens
        };
        filled.min(self.max).saturating_sub(passed)
    }
}

/// Returns the whole units of a rate. A rate that differs from a whole number only by rounding
/// counts as that number.
pub(crate) fn whole(rate: f64) -> u64 {
    bounds::whole(rate * (1.0 + 1e-12))
}
