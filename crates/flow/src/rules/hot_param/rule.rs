//! Hot-parameter rules as they are written.

use super::super::InvalidRule;
use std::{fmt, time::Duration};

use tidegate_core::MAX_WINDOW;

use crate::{arg::Arg, rules::Target};

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
    /// How many values are kept whole. Default: 4,000. A value that comes when all are taken replaces one that is as good
    /// as new, or else one that has used little of its share; that one leaves a record, and goes on from it when it comes
    /// back. There are four records for each value kept (48 bytes each, allocated when the first value has to go). Beyond
    /// that a value is forgotten, the one that has used least first, and may have what it had used once more:
    /// [`Resource::crowded`](crate::Resource::crowded) says how often. Nobody has a stranger's share. For units in flight,
    /// those of a forgotten value are no longer counted for it.
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
    /// Units that passed, evenly spaced; who is early is delayed up to a longest time, then blocked. With other
    /// throttles it works together as [`Behaviour::Throttle`](crate::rules::Behaviour::Throttle) says.
    Throttle {
        /// The longest delay that this rule may ask for.
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

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
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
