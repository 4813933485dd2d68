//! Hot parameters: a share for each value of an argument.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_core::{MAX_WINDOW, Nanos};

use super::{Target, throttle};
use crate::{
    arg::Arg,
    values::{Place, Values},
};

/// Each value of one argument gets its own threshold.
///
/// A value starts with `threshold + burst` units; when `duration` has passed since its units were last renewed, a call
/// renews them by `threshold` for each duration passed, up to `threshold + burst`. Bound: twice `threshold + burst` in
/// a duration, once at the end of one and once at the beginning of the next.
///
/// ```
/// use tidegate_flow::rules::{HotParamRule, ParamKey};
/// let rule = HotParamRule::new("search", ParamKey::Index(0), 5).burst(3).exception("vip", 100);
/// assert_eq!(rule.to_string(), "5/1s for each arg 0");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct HotParamRule {
    /// A name of the rule's own, for whoever reads a [`Blocked`](crate::Blocked).
    pub id: Option<String>,
    /// The resources it is about.
    pub resource: Target,
    /// Which argument. Entries without it are not checked.
    pub key: ParamKey,
    /// How much each value may have.
    pub threshold: u32,
    /// What is measured. Default: the rate.
    pub measure: ParamMeasure,
    /// In how much time. Default: a second.
    pub duration: Duration,
    /// How much more a value may have at once, for [`ParamMeasure::Rate`]. Default: 0.
    pub burst: u32,
    /// Thresholds of certain values.
    pub exceptions: Vec<(Arg<'static>, u32)>,
    /// How many values are kept at once. Default: 4,000. When all places are taken by values that have used some of
    /// their share, further values share one place: a flood of values resets nobody's share and grows no memory.
    pub max_values: usize,
}

/// Which argument of an entry a rule looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParamKey {
    /// The argument at this place, from 0; negative ones count from the end, −1 being the last.
    Index(i32),
    /// The argument attached by this name.
    Name(String),
}

/// What a hot-parameter rule measures for each value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ParamMeasure {
    /// Units that passed; what is beyond the threshold is blocked.
    #[default]
    Rate,
    /// Units that passed, evenly spaced; who is early is delayed up to a longest time, then blocked.
    Throttle {
        /// The longest delay.
        max_wait: Duration,
    },
    /// Units in flight.
    InFlight,
}

impl HotParamRule {
    /// `threshold` a second for each value.
    pub fn new(resource: impl Into<Target>, key: ParamKey, threshold: u32) -> Self {
        Self {
            id: None,
            resource: resource.into(),
            key,
            threshold,
            measure: ParamMeasure::Rate,
            duration: Duration::from_secs(1),
            burst: 0,
            exceptions: Vec::new(),
            max_values: 4_000,
        }
    }

    /// The same rule in another time.
    #[must_use]
    pub fn duration(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// The same rule with a burst.
    #[must_use]
    pub fn burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }

    /// The same rule with another measure.
    #[must_use]
    pub fn measure(self, measure: ParamMeasure) -> Self {
        Self { measure, ..self }
    }

    /// The same rule with another threshold for one value.
    #[must_use]
    pub fn exception(mut self, value: impl Into<Arg<'static>>, threshold: u32) -> Self {
        self.exceptions.push((value.into(), threshold));
        self
    }

    /// The same rule keeping another number of values.
    #[must_use]
    pub fn max_values(self, max_values: usize) -> Self {
        Self { max_values, ..self }
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        self.resource.compile()?;
        if matches!(&self.key, ParamKey::Name(name) if name.is_empty()) {
            return Err("the argument has no name; give it one, or an index".into());
        }
        if self.duration.is_zero() || self.duration > MAX_WINDOW {
            return Err("the duration must be above zero and at most 366 days".into());
        }
        if !(1..=10_000_000).contains(&self.max_values) {
            return Err("the number of values kept must be from 1 to 10000000".into());
        }
        Ok(())
    }
}

impl fmt::Display for HotParamRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.id {
            return f.write_str(id);
        }
        write!(f, "{}", self.threshold)?;
        match self.measure {
            ParamMeasure::InFlight => f.write_str(" in flight")?,
            ParamMeasure::Rate | ParamMeasure::Throttle { .. } => write!(f, "/{:?}", self.duration)?,
        }
        match &self.key {
            ParamKey::Index(index) => write!(f, " for each arg {index}"),
            ParamKey::Name(name) => write!(f, " for each {name}"),
        }
    }
}

/// What one value has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Units used since the last renewal, or units in flight.
    used: u64,
    /// The last renewal, or for a throttle the last place; plus one, 0 for never.
    since: u64,
}

/// A hot-parameter rule at one resource.
pub(crate) struct HotParam {
    pub(crate) rule: HotParamRule,
    pub(crate) label: Arc<str>,
    values: Values<Share>,
}

/// What was taken of a value's share, so that it can be given back.
#[derive(Debug)]
pub(crate) struct Held {
    place: Place,
    /// The share's time before, and after.
    before: u64,
    after: u64,
    pub(crate) delay: Duration,
}

impl HotParam {
    pub(crate) fn new(rule: HotParamRule) -> Self {
        Self { label: rule.to_string().into(), values: Values::new(rule.max_values), rule }
    }

    /// Values that found no place of their own, ever: entries of values that shared one place.
    pub(crate) fn crowded(&self) -> u64 {
        self.values.crowded()
    }

    /// The argument of an entry that the rule is about.
    pub(crate) fn pick<'a, 'e>(
        &self,
        args: &'e [Arg<'a>],
        named: &'e [(&'a str, Arg<'a>)],
    ) -> Option<&'e Arg<'a>> {
        match &self.rule.key {
            ParamKey::Index(index) => {
                let from_end = usize::try_from(index.unsigned_abs()).ok()?;
                let at = if *index < 0 { args.len().checked_sub(from_end)? } else { from_end };
                args.get(at)
            }
            ParamKey::Name(name) => named.iter().find(|(of, _)| of == name).map(|(_, arg)| arg),
        }
    }

    fn threshold(&self, arg: &Arg<'_>) -> u64 {
        let exception = self.rule.exceptions.iter().find(|(value, _)| value == arg);
        exception.map_or(self.rule.threshold, |(_, threshold)| *threshold).into()
    }

    /// Takes `n` of the share of a value.
    ///
    /// # Errors
    /// With the time until it has as much, where one can be named.
    pub(crate) fn take(&self, arg: &Arg<'_>, now: Nanos, n: u32) -> Result<Held, Option<Duration>> {
        let threshold = self.threshold(arg);
        let recovered = |value: &Arg<'_>, share: &Share| self.is_recovered(value, share, now);
        self.values.with(arg, recovered, |share, place| {
            let before = share.since;
            if n == 0 {
                // A question: not even the renewal is written down.
                let delay = self.take_from(&mut share.clone(), threshold, now, n)?;
                return Ok(Held { place, before, after: before, delay });
            }
            let delay = self.take_from(share, threshold, now, n)?;
            Ok(Held { place, before, after: share.since, delay })
        })
    }

    fn take_from(
        &self,
        share: &mut Share,
        threshold: u64,
        now: Nanos,
        n: u32,
    ) -> Result<Duration, Option<Duration>> {
        let units = u64::from(n);
        let duration = Nanos::from(self.rule.duration);
        match self.rule.measure {
            ParamMeasure::InFlight => {
                if share.used + units > threshold {
                    return Err(None);
                }
                share.used += units;
            }
            ParamMeasure::Rate => {
                let most = threshold + u64::from(self.rule.burst);
                if threshold == 0 || units > most {
                    return Err(None);
                }
                let renewed = Nanos::new(share.since.saturating_sub(1));
                let elapsed = now.saturating_since(renewed);
                let renews = share.since == 0 || elapsed >= duration;
                let used = if renews {
                    let more = u128::from(elapsed.get()) * u128::from(threshold) / u128::from(duration.get());
                    share.used.saturating_sub(u64::try_from(more).unwrap_or(u64::MAX))
                } else {
                    share.used
                };
                if used + units > most {
                    // As many durations after the renewal as renew enough, and one at least.
                    let lacking = u128::from(share.used + units - most);
                    let wait = (lacking * u128::from(duration.get())).div_ceil(threshold.into());
                    let wait = Nanos::new(u64::try_from(wait).unwrap_or(u64::MAX)).max(duration);
                    return Err(Some(renewed.saturating_add(wait).saturating_since(now).into()));
                }
                share.used = used + units;
                if renews {
                    share.since = now.get() + 1;
                }
            }
            ParamMeasure::Throttle { max_wait } => {
                let cost = throttle::cost(n, threshold as f64, duration).ok_or(None)?;
                let place = throttle::next(share.since, now, cost, max_wait.into()).map_err(Some)?;
                share.since = place.taken;
                return Ok(place.delay);
            }
        }
        Ok(Duration::ZERO)
    }

    /// Whether a value's share is as good as untouched, so that its place may go to another.
    fn is_recovered(&self, value: &Arg<'_>, share: &Share, now: Nanos) -> bool {
        let threshold = self.threshold(value);
        let duration = Nanos::from(self.rule.duration);
        let since = Nanos::new(share.since.saturating_sub(1));
        match self.rule.measure {
            ParamMeasure::InFlight => share.used == 0,
            ParamMeasure::Rate => {
                let elapsed = u128::from(now.saturating_since(since).get());
                let renewed = elapsed * u128::from(threshold) / u128::from(duration.get());
                elapsed >= duration.get().into() && renewed >= share.used.into()
            }
            ParamMeasure::Throttle { .. } => {
                let cost = throttle::cost(1, threshold as f64, duration).unwrap_or(Nanos::MAX);
                since.saturating_add(cost) <= now
            }
        }
    }

    /// Gives back what [`take`](Self::take) took, because another rule blocked the same entry.
    pub(crate) fn give_back(&self, held: &Held, n: u32) {
        self.values.at(&held.place, |share| match self.rule.measure {
            // Only while nobody has queued up behind: calls must not come closer than they were told.
            ParamMeasure::Throttle { .. } if share.since == held.after => share.since = held.before,
            ParamMeasure::Throttle { .. } => {}
            ParamMeasure::Rate | ParamMeasure::InFlight => {
                share.used = share.used.saturating_sub(n.into());
            }
        });
    }

    /// Ends a call that holds some of a value's share.
    pub(crate) fn leave(&self, held: &Held, n: u32) {
        if self.rule.measure == ParamMeasure::InFlight {
            self.values.at(&held.place, |share| share.used = share.used.saturating_sub(n.into()));
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.rule.measure == ParamMeasure::InFlight
    }
}
