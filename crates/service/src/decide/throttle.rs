//! `CL.THROTTLE`, compatible with redis-cell: each request brings its limit, and the keys are
//! separate from those of other limits.
//!
//! redis-cell is a token bucket in GCRA form. Its emission interval is `period / count`, truncated
//! to whole nanoseconds. Its bucket holds `max_burst + 1`. A key has one theoretical arrival time
//! for all limits that its requests bring. Tidegate keeps the same number in the same form, so the
//! replies are equal: `tests/throttle.rs` compares them with a transcription of redis-cell's
//! arithmetic. There is one difference: redis-cell truncates times to milliseconds before it rounds
//! up to seconds, and computes `remaining` in whole microseconds; here both are exact.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Decision, MAX_LIMIT, Nanos, Policy, Standing, algorithm::TokenBucket};
use tidegate_limiter::{BuildError, HashKeys, KeyedLimiter};

use crate::{
    decide::{counts::Counts, observers::DecisionObservers},
    observe::{
        heavy::{HeavyKeys, Top},
        trace::Tap,
        usage::{Ledger, Use},
    },
    rules::THROTTLE,
};

/// The table behind `CL.THROTTLE`.
pub struct Throttle {
    limiter: KeyedLimiter<()>,
    counts: Counts,
    heavy: HeavyKeys,
    tap: Option<Tap>,
    usage: Option<Arc<Ledger>>,
    allowed: ThrottleAllowed,
}

/// The buckets that clients may use. A bucket occupies its key until it is full again, so the
/// client chooses for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThrottleAllowed {
    /// None: the command is off.
    Nothing,
    /// Buckets whose period and refill time are at most this.
    Within(Duration),
    /// Only these.
    Only(Vec<ThrottleQuota>),
}

impl Default for ThrottleAllowed {
    /// Buckets that refill within a day.
    fn default() -> Self {
        Self::Within(Duration::from_hours(24))
    }
}

/// A request's limit: up to `max_burst + 1` at once, and `count` more in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThrottleQuota {
    /// How many more than one at once.
    pub max_burst: i64,
    /// How many in each period.
    pub count: i64,
    /// The period in seconds.
    pub period: i64,
}

/// Why a request's limit is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// A count or a period is zero, or the rate is above one per nanosecond. The text is
    /// redis-cell's own, because clients may look for it.
    #[error("Cell error: Zero rates are not supported")]
    ZeroRate,
    /// A number is negative.
    #[error("Cell error: max_burst, count, period and quantity must not be negative")]
    Negative,
    /// A burst that counts the request itself is below 1.
    #[error("Cell error: max_burst must be at least 1, because it counts the request itself")]
    NoBurst,
    /// A burst or a quantity exceeds 2⁵³ − 2.
    #[error("Cell error: max_burst and quantity are at most 9007199254740990")]
    TooLarge,
    /// The bucket would take more than 73 years to refill.
    #[error(
        "Cell error: this burst would take more than 73 years to refill; lower it or raise the rate"
    )]
    TooSlow,
    /// The server does not allow this bucket because it would take longer than this to refill.
    #[error("Cell error: this server allows buckets whose period and refill time are at most {}; lower the period or max_burst (or raise --resp-max-period)", Nanos::from(*.0))]
    NotWithin(Duration),
    /// The server allows only other buckets.
    #[error(
        "Cell error: this server does not allow this bucket (--resp-throttle lists the allowed ones)"
    )]
    NotListed,
    /// The server allows none.
    #[error("Cell error: CL.THROTTLE is off on this server (--resp-throttle off)")]
    Off,
}

impl ThrottleError {
    /// The text without redis-cell's prefix.
    pub fn detail(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("Cell error: ")
            .map_or_else(|| text.clone(), str::to_owned)
    }
}

/// A request, converted for the bucket.
#[derive(Clone, Copy, Debug)]
pub struct ThrottleAsk {
    pub policy: Policy,
    pub quantity: u64,
    /// The bucket's refill time in nanoseconds.
    fills_in: u64,
}

impl ThrottleQuota {
    /// The quota of a bucket that admits `burst` at once, as throttlecrab's server counts: the
    /// request itself is one of them.
    ///
    /// # Errors
    /// [`ThrottleError::NoBurst`] if `burst` is below 1.
    pub fn with_burst(burst: i64, count: i64, period: i64) -> Result<Self, ThrottleError> {
        if burst < 1 {
            return Err(ThrottleError::NoBurst);
        }
        Ok(Self {
            max_burst: burst - 1,
            count,
            period,
        })
    }

    /// The bucket of this quota, with a cost of `quantity`; 0 is a peek.
    ///
    /// # Errors
    /// When the numbers are invalid: see [`ThrottleError`].
    pub fn ask(self, quantity: i64) -> Result<ThrottleAsk, ThrottleError> {
        if self.max_burst < 0 || self.count < 0 || self.period < 0 {
            return Err(ThrottleError::Negative);
        }
        let period = u128::from(self.period.unsigned_abs()) * 1_000_000_000;
        let interval = period
            .checked_div(u128::from(self.count.unsigned_abs()))
            .unwrap_or(0);
        if interval == 0 {
            return Err(ThrottleError::ZeroRate);
        }
        let interval = Nanos::new(u64::try_from(interval).unwrap_or(u64::MAX));
        let burst = u64::try_from(self.max_burst)
            .ok()
            .map(|burst| burst + 1)
            .filter(|burst| *burst <= MAX_LIMIT);
        let burst = burst.ok_or(ThrottleError::TooLarge)?;
        let bucket =
            TokenBucket::from_interval(interval, burst).map_err(|_| ThrottleError::TooSlow)?;
        let quantity = match u64::try_from(quantity) {
            Ok(quantity @ 0..MAX_LIMIT) => quantity,
            Ok(_) => return Err(ThrottleError::TooLarge),
            Err(_) => return Err(ThrottleError::Negative),
        };
        // This cannot overflow; the bucket would have been refused.
        Ok(ThrottleAsk {
            policy: bucket.into(),
            quantity,
            fills_in: interval.get() * burst,
        })
    }

    /// The quota of one of `nodes`: a part of the burst, at least 1, and a part of the rate.
    pub fn share(self, nodes: u32) -> Self {
        let nodes = i64::from(nodes.max(1));
        let max_burst = (self.max_burst.saturating_add(1) / nodes).max(1) - 1;
        Self {
            max_burst,
            period: self.period.saturating_mul(nodes),
            ..self
        }
    }
}

impl Throttle {
    /// A table for at most `max_keys` keys, with the given hash keys if states will be restored.
    ///
    /// # Errors
    /// When the memory cannot be reserved.
    ///
    /// # Panics
    /// Never: a bucket that refills in a second is within every bound.
    pub fn new(max_keys: usize, hash_keys: Option<HashKeys>) -> Result<Self, BuildError> {
        let bucket = TokenBucket::from_interval(Nanos::from_secs(1), 1).expect("a second is short");
        let mut builder = KeyedLimiter::builder(bucket).max_keys(max_keys).clock(());
        if let Some(hash_keys) = hash_keys {
            builder = builder.hash_keys(hash_keys);
        }
        let counts = Counts::default();
        Ok(Self {
            limiter: builder.build()?,
            heavy: HeavyKeys::new(0, &counts.sampling),
            counts,
            tap: None,
            usage: None,
            allowed: ThrottleAllowed::default(),
        })
    }

    /// The same store that remembers up to `top_keys` heavy keys by name.
    pub fn with_top_keys(self, top_keys: usize) -> Self {
        Self {
            heavy: HeavyKeys::new(top_keys, &self.counts.sampling),
            ..self
        }
    }

    /// The same store with another trace and ledger.
    pub fn observed_by(self, observers: &DecisionObservers) -> Self {
        let tap = observers
            .trace
            .as_ref()
            .and_then(|trace| trace.tap(THROTTLE, false));
        let usage = observers.usage.clone();
        Self { tap, usage, ..self }
    }

    /// The same table, restricted to these buckets.
    pub fn allowing(self, allowed: ThrottleAllowed) -> Self {
        Self { allowed, ..self }
    }

    /// The bucket of a quota, if it is valid and allowed.
    pub fn ask(&self, quota: ThrottleQuota, quantity: i64) -> Result<ThrottleAsk, ThrottleError> {
        let ask = quota.ask(quantity)?;
        match &self.allowed {
            ThrottleAllowed::Nothing => Err(ThrottleError::Off),
            ThrottleAllowed::Within(most) => {
                let period = Duration::from_secs(quota.period.unsigned_abs());
                if period > *most || Duration::from_nanos(ask.fills_in) > *most {
                    return Err(ThrottleError::NotWithin(*most));
                }
                Ok(ask)
            }
            ThrottleAllowed::Only(quotas) if !quotas.contains(&quota) => {
                Err(ThrottleError::NotListed)
            }
            ThrottleAllowed::Only(_) => Ok(ask),
        }
    }

    /// Takes `quantity` from a key's bucket; 0 is a peek.
    ///
    /// # Errors
    /// When the numbers are invalid: see [`ThrottleError`].
    pub fn acquire(
        &self,
        key: &[u8],
        quota: ThrottleQuota,
        quantity: i64,
        now: Nanos,
    ) -> Result<Decision, ThrottleError> {
        let ask = self.ask(quota, quantity)?;
        Ok(self.acquire_share(key, &ask, now))
    }

    /// Takes from a key's bucket after the request was allowed.
    pub fn acquire_share(&self, key: &[u8], ask: &ThrottleAsk, now: Nanos) -> Decision {
        self.counted(
            key,
            ask,
            self.limiter
                .at(now)
                .acquire_with(&ask.policy, key, ask.quantity),
            now,
        )
    }

    /// Converts and counts a bucket's decision for the client.
    pub fn counted(
        &self,
        key: &[u8],
        ask: &ThrottleAsk,
        decision: Decision,
        now: Nanos,
    ) -> Decision {
        if ask.quantity > 0 {
            if self.counts.add(&decision) {
                self.heavy
                    .record(key, decision.is_denied(), &self.counts.sampling, now);
            }
            if let Some(tap) = &self.tap {
                tap.see(key, ask.quantity, &decision, false, now);
            }
            if let Some(ledger) = &self.usage {
                Self::keep_usage(ledger, key, ask.quantity, &decision, now);
            }
            return decision;
        }
        // The key may owe more than this bucket holds, from an earlier request with another limit.
        // A peek is then admitted by the limiter, but not by redis-cell.
        let owes = decision.reset_after_nanos();
        if decision.is_allowed() && owes > ask.fills_in {
            return Decision::deny(
                Standing {
                    limit: decision.limit(),
                    room: 0,
                    unit: 1,
                    reset_after: owes,
                },
                owes - ask.fills_in,
            );
        }
        decision
    }

    #[cold]
    fn keep_usage(ledger: &Ledger, key: &[u8], quantity: u64, decision: &Decision, now: Nanos) {
        let allowed = decision.is_allowed();
        let used = if allowed { quantity } else { 0 };
        let more = Use {
            used: i64::try_from(used).unwrap_or(i64::MAX),
            requests: u64::from(allowed),
            denied: u64::from(!allowed),
        };
        ledger.add(THROTTLE, key, more, now);
    }

    /// The keys and their states.
    pub fn limiter(&self) -> &KeyedLimiter<()> {
        &self.limiter
    }

    /// The `most` keys with the most recent requests, and those with the most recent denials;
    /// `None` if no names are kept.
    pub fn top(&self, most: usize, now: Nanos) -> Option<Top> {
        self.heavy.top(most, now)
    }

    /// How often it admitted and denied.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// The five numbers of the reply: 0 allowed or 1 denied, the limit, what remains, seconds until a
/// retry can succeed (-1 if it does not apply or never will), seconds until the bucket is full.
/// Seconds are rounded up.
pub fn reply(decision: &Decision) -> [i64; 5] {
    [
        i64::from(decision.is_denied()),
        i64::try_from(decision.limit()).unwrap_or(i64::MAX),
        i64::try_from(decision.remaining()).unwrap_or(i64::MAX),
        decision.retry_after().map_or(-1, seconds),
        seconds(decision.reset_after()),
    ]
}

/// The numbers of throttlecrab's server, in its order: 1 allowed or 0 denied, the limit, what
/// remains, seconds until the bucket is full, seconds until a retry can succeed (0 if it is allowed
/// or never will). Seconds are rounded up. throttlecrab cuts them off, and counts until it forgets
/// the key instead of until the bucket is full.
pub fn throttlecrab_reply(decision: &Decision) -> [i64; 5] {
    let [denied, limit, remaining, retry_after, reset_after] = reply(decision);
    [
        1 - denied,
        limit,
        remaining,
        reset_after,
        retry_after.max(0),
    ]
}

fn seconds(span: Duration) -> i64 {
    i64::try_from(span.as_secs())
        .unwrap_or(i64::MAX)
        .saturating_add(i64::from(span.subsec_nanos() > 0))
}
