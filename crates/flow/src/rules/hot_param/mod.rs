//! Hot parameters: a separate share for each value of an argument.

mod rule;
mod value_table;

pub use rule::{HotParamRule, ParamKey, ParamMeasure};

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;

use super::throttle::{self, ThrottledCall};
use crate::{
    rules::{
        arg::Arg,
        hot_param::value_table::{Full, Stake, ValueKey, ValueTable},
    },
    sync::{AtomicU64, Ordering},
};

/// The state of one value's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ValueShare {
    /// The units used since the last renewal, or the units in flight. For a throttle, the largest
    /// call.
    used: u64,
    /// The time of the last renewal, plus one; 0 for never. For a throttle, the start of the last
    /// call, plus one. For units in flight, the generation of the value: a value that is forgotten
    /// and returns gets a new one.
    since: u64,
}

/// A hot-parameter rule of one resource, with its state.
pub(crate) struct HotParam {
    pub(crate) rule: HotParamRule,
    pub(crate) label: Arc<str>,
    /// Shared with calls that entered before the rule's numbers changed.
    values: Arc<ValueTable<ValueShare>>,
    /// The counter of generations, for units in flight.
    births: Arc<AtomicU64>,
}

/// The units taken from a value's share, which can be returned.
#[derive(Debug)]
pub(crate) struct HeldShare {
    key: ValueKey,
    before: ValueShare,
    after: ValueShare,
    /// When the call may start. `asked` is the request to a throttle.
    pub(crate) start: Nanos,
    asked: Option<ThrottledCall>,
}

/// Why a value gets no units.
#[derive(Debug)]
pub(crate) struct Short {
    /// The time until it has enough, if it can be given.
    pub(crate) wait: Option<Duration>,
    /// Whether the table has no place for the value.
    pub(crate) is_full: bool,
}

impl From<Option<Duration>> for Short {
    fn from(wait: Option<Duration>) -> Self {
        Self {
            wait,
            is_full: false,
        }
    }
}

impl HotParam {
    pub(crate) fn new(rule: HotParamRule) -> Self {
        let values = Arc::new(ValueTable::new(rule.capacity()));
        Self {
            label: rule.to_string().into(),
            values,
            births: Arc::default(),
            rule,
        }
    }

    /// Whether this rule and `rule` both count units in flight by the same argument, so that they
    /// differ only in their numbers.
    pub(crate) fn counts_as(&self, rule: &HotParamRule) -> bool {
        self.holds() && self.rule.measure == rule.measure && self.rule.key == rule.key
    }

    /// Returns the state of a rule that [counts the same](Self::counts_as). It shares the counts,
    /// so units in flight stay counted, and calls that entered under the old rule also leave the
    /// new one.
    pub(crate) fn changed_to(&self, rule: HotParamRule) -> Self {
        self.values.keep_at_most(rule.capacity());
        let (values, births) = (self.values.clone(), self.births.clone());
        Self {
            label: rule.to_string().into(),
            values,
            births,
            rule,
        }
    }

    /// Returns how many values with a partly used share have been forgotten since the start.
    pub(crate) fn forgotten(&self) -> u64 {
        self.values.forgotten()
    }

    /// Returns the argument of an entry that the rule checks.
    pub(crate) fn pick<'a, 'e>(
        &self,
        args: &'e [Arg<'a>],
        named: &'e [(&'a str, Arg<'a>)],
    ) -> Option<&'e Arg<'a>> {
        match &self.rule.key {
            ParamKey::Index(index) => {
                let from_end = usize::try_from(index.unsigned_abs()).ok()?;
                let at = if *index < 0 {
                    args.len().checked_sub(from_end)?
                } else {
                    from_end
                };
                args.get(at)
            }
            ParamKey::Name(name) => named.iter().find(|(of, _)| of == name).map(|(_, arg)| arg),
        }
    }

    /// Returns the most units of one call.
    pub(crate) fn most(&self, arg: &Arg<'_>) -> u64 {
        let burst = if self.rule.measure == ParamMeasure::Rate {
            self.rule.burst
        } else {
            0
        };
        self.threshold(arg) + u64::from(burst)
    }

    fn threshold(&self, arg: &Arg<'_>) -> u64 {
        let exception = self.rule.exceptions.iter().find(|(value, _)| value == arg);
        exception
            .map_or(self.rule.threshold, |(_, threshold)| *threshold)
            .into()
    }

    /// Takes `n` units from a value's share. A throttle reserves a place that is not before
    /// `earliest`.
    ///
    /// # Errors
    /// If the share has too few units, or the table has no place for the value.
    pub(crate) fn take(
        &self,
        arg: &Arg<'_>,
        now: Nanos,
        earliest: Nanos,
        n: u32,
    ) -> Result<HeldShare, Short> {
        let threshold = self.threshold(arg);
        let is_throttled = matches!(self.rule.measure, ParamMeasure::Throttle { .. });
        if is_throttled && u64::from(n) > threshold {
            return Err(None.into());
        }
        let asked = match self.rule.measure {
            ParamMeasure::Throttle { max_wait } if n > 0 => {
                let cost = throttle::cost(n, threshold as f64, self.rule.duration.into())
                    .ok_or(None::<Duration>)?;
                Some(ThrottledCall {
                    now,
                    cost,
                    longest: max_wait.into(),
                })
            }
            _ => None,
        };
        self.with(arg, now, |share, key| {
            let before = *share;
            let (mut after, mut start) = (before, earliest);
            match asked {
                Some(asked) => start = after.queue(asked, earliest, n).map_err(Some)?,
                None if is_throttled => {} // A look has no place in a queue.
                None if self.rule.measure == ParamMeasure::InFlight => {
                    if before.used == 0 {
                        // Relaxed: the numbers only have to differ.
                        after.since = self.births.fetch_add(1, Ordering::Relaxed) + 1;
                    }
                    after.used += u64::from(n);
                    if after.used > threshold {
                        return Err(None);
                    }
                }
                None => self.renew(&mut after, threshold, now, n)?,
            }
            if n > 0 {
                *share = after; // A query writes nothing, not even the renewal.
            }
            Ok(HeldShare {
                key,
                before,
                after: *share,
                start,
                asked,
            })
        })
    }

    /// Postpones a throttled call to `start`, or to a later time if other calls have queued up
    /// behind it.
    ///
    /// # Errors
    /// Same as [`take`](Self::take).
    pub(crate) fn put_off(
        &self,
        arg: &Arg<'_>,
        held: &mut HeldShare,
        n: u32,
        start: Nanos,
    ) -> Result<(), Short> {
        let Some(asked) = held.asked.filter(|_| held.start < start) else {
            return Ok(());
        };
        self.with(arg, asked.now, |share, _| {
            if *share == held.after {
                share.since = start.get() + 1;
                held.start = start;
            } else {
                let before = *share;
                held.start = share.queue(asked, start, n).map_err(Some)?;
                held.before = before;
            }
            held.after = *share;
            Ok(())
        })
    }

    /// Changes the share of a value. The error is that of `change`, or of a new value for which the
    /// table has no place.
    fn with<T>(
        &self,
        arg: &Arg<'_>,
        now: Nanos,
        change: impl FnOnce(&mut ValueShare, ValueKey) -> Result<T, Option<Duration>>,
    ) -> Result<T, Short> {
        let full = if self.rule.deny_when_full {
            Full::Deny
        } else {
            Full::Forget
        };
        let stake = |value: &Arg<'_>, share: &ValueShare| self.stake(value, share, now);
        let changed = self.values.with(arg, now, full, stake, change);
        let until = match changed {
            Ok(changed) => return changed.map_err(Short::from),
            Err(until) => until,
        };
        let wait =
            (until < Nanos::MAX).then(|| until.saturating_since(now).max(Nanos::new(1)).into());
        Err(Short {
            wait,
            is_full: true,
        })
    }

    fn renew(
        &self,
        share: &mut ValueShare,
        threshold: u64,
        now: Nanos,
        n: u32,
    ) -> Result<(), Option<Duration>> {
        if n == 0 {
            // A look: it takes nothing, so there is nothing to check.
            return Ok(());
        }
        let units = u64::from(n);
        let duration = Nanos::from(self.rule.duration);
        let most = threshold + u64::from(self.rule.burst);
        if threshold == 0 || units > most {
            return Err(None);
        }
        let renewed = Nanos::new(share.since.saturating_sub(1));
        let elapsed = now.saturating_since(renewed);
        let renews = share.since == 0 || elapsed >= duration;
        let used = if renews {
            let more =
                u128::from(elapsed.get()) * u128::from(threshold) / u128::from(duration.get());
            share
                .used
                .saturating_sub(u64::try_from(more).unwrap_or(u64::MAX))
        } else {
            share.used
        };
        if used + units > most {
            // Wait for as many durations after the renewal as renew enough units, and at least one.
            let lacking = u128::from(share.used + units - most);
            let wait = (lacking * u128::from(duration.get())).div_ceil(threshold.into());
            let wait = Nanos::new(u64::try_from(wait).unwrap_or(u64::MAX)).max(duration);
            return Err(Some(
                renewed.saturating_add(wait).saturating_since(now).into(),
            ));
        }
        share.used = used + units;
        if renews {
            share.since = now.get() + 1;
        }
        Ok(())
    }

    /// Returns what a value would gain by being forgotten. `None` if its share is as good as
    /// untouched.
    fn stake(&self, value: &Arg<'_>, share: &ValueShare, now: Nanos) -> Option<Stake> {
        let threshold = self.threshold(value);
        let duration = Nanos::from(self.rule.duration);
        let since = Nanos::new(share.since.saturating_sub(1));
        let of = |part: u64, whole: u64| part.saturating_mul(1_000) / whole.max(1);
        let stake = match self.rule.measure {
            ParamMeasure::InFlight if share.used == 0 => return None,
            ParamMeasure::InFlight => Stake {
                used: of(share.used, threshold),
                until: Nanos::MAX,
            },
            ParamMeasure::Rate if share.since == 0 || threshold == 0 => return None,
            ParamMeasure::Rate => {
                let most = threshold + u64::from(self.rule.burst);
                let renewed = u128::from(share.used) * u128::from(duration.get());
                let whole = u64::try_from(renewed.div_ceil(threshold.into())).unwrap_or(u64::MAX);
                let until = since.saturating_add(Nanos::new(whole).max(duration));
                Stake {
                    used: of(share.used, most),
                    until,
                }
            }
            // After that time the last start does not delay calls up to the size of the largest one
            // so far.
            ParamMeasure::Throttle { max_wait } => {
                let largest = u32::try_from(share.used).unwrap_or(u32::MAX);
                let cost =
                    throttle::cost(largest, threshold as f64, duration).unwrap_or(Nanos::MAX);
                let until = since.saturating_add(cost);
                let longest = cost.saturating_add(max_wait.into());
                Stake {
                    used: of(until.saturating_since(now).get(), longest.get()),
                    until,
                }
            }
        };
        (stake.until > now).then_some(stake)
    }

    /// Gives back what [`take`](Self::take) took, because another rule blocked the same entry.
    pub(crate) fn give_back(&self, held: &HeldShare, n: u32) {
        self.values.at(held.key, |share| match self.rule.measure {
            ParamMeasure::InFlight => share.release(held, n),
            _ if *share == held.after => *share = held.before,
            // Another call has used the share since. A throttle's place stays unused, because later
            // calls already have their start times. Units are returned unless a renewal has already
            // restored them.
            ParamMeasure::Rate if share.since == held.after.since => {
                share.used = share.used.saturating_sub(n.into());
            }
            ParamMeasure::Rate | ParamMeasure::Throttle { .. } => {}
        });
    }

    /// Ends a call that holds part of a value's share.
    pub(crate) fn leave(&self, held: &HeldShare, n: u32) {
        if self.holds() {
            self.values.at(held.key, |share| share.release(held, n));
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.rule.measure == ParamMeasure::InFlight
    }
}

impl ValueShare {
    /// Reserves a throttle's next place.
    fn queue(&mut self, asked: ThrottledCall, earliest: Nanos, n: u32) -> Result<Nanos, Duration> {
        let start = asked.start(self.since, earliest)?;
        *self = Self {
            used: self.used.max(n.into()),
            since: start.get() + 1,
        };
        Ok(start)
    }

    /// Removes units in flight, if they belong to the current generation of the value.
    fn release(&mut self, held: &HeldShare, n: u32) {
        if self.since == held.after.since {
            self.used = self.used.saturating_sub(n.into());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn units_that_were_renewed_meanwhile_are_not_given_back_once_more() {
        let param = HotParam::new(HotParamRule::new("r", ParamKey::Index(0), 5));
        let arg = Arg::from("a");
        let take = |second, n| param.take(&arg, Nanos::from_secs(second), Nanos::ZERO, n);
        let refused = take(1, 3).unwrap();
        assert!(take(1, 1).is_ok());
        assert!(take(2, 5).is_ok());
        param.give_back(&refused, 3);
        assert!(take(2, 1).is_err());
        let refused = take(3, 3).unwrap();
        assert!(take(3, 2).is_ok());
        param.give_back(&refused, 3);
        assert!(take(3, 3).is_ok() && take(3, 1).is_err());
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
