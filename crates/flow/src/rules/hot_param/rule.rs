//! The configuration of hot-parameter rules.

use super::super::InvalidRule;
use std::{fmt, time::Duration};

use tidegate_core::MAX_WINDOW;

use crate::rules::{Target, arg::Arg};

/// Gives each value of an argument its own threshold.
///
/// A value starts with `threshold + burst` units. Once `duration` has passed since the last
/// renewal, the next call renews the units by `threshold` for each duration passed, up to
/// `threshold + burst`. Bound: at most twice `threshold + burst` in any duration, once at the end
/// of one duration and once at the beginning of the next.
///
/// ```
/// use tidegate_flow::rules::{HotParamRule, ParamKey};
/// let rule = HotParamRule::new("search", ParamKey::Index(0), 5).burst(3).exception("vip", 100);
/// assert_eq!(rule.to_string(), "5/1s for each arg 0");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HotParamRule {
    /// The rule's id, which a [`Blocked`](crate::Blocked) reports.
    pub id: Option<String>,
    /// The resources that the rule applies to.
    pub resource: Target,
    /// The argument. Entries without it are not checked.
    pub key: ParamKey,
    /// The threshold of each value.
    pub threshold: u32,
    /// The measured quantity. Default: the rate.
    pub measure: ParamMeasure,
    /// The time between renewals. Default: one second.
    pub duration: Duration,
    /// Additional units that a value may use at once, for [`ParamMeasure::Rate`]. Default: 0.
    pub burst: u32,
    /// Separate thresholds for certain values.
    pub exceptions: Vec<(Arg<'static>, u32)>,
    /// How many values are kept whole. Default (`None`): 4,000 for each second of the duration, at
    /// most 200,000, as in Sentinel.
    ///
    /// When the table is full, a new value replaces one whose share is untouched, or else one that
    /// has used little of its share. The replaced value leaves a record and continues from it when
    /// it returns. There are four records for each value kept whole (48 bytes each, allocated when
    /// the first value is replaced).
    ///
    /// When the records are full, too, a value is forgotten, the one that has used least first. It
    /// may then use what it had used a second time; [`Resource::crowded`](crate::Resource::crowded)
    /// counts how often this happens. No value gets the share of another. With
    /// [`ParamMeasure::InFlight`], the units in flight of a forgotten value are no longer counted.
    pub max_values: Option<usize>,
    /// Whether new values are denied while the table is full of values that have a part of their
    /// share in use, instead of forgetting one of these. Default: false.
    pub deny_when_full: bool,
}

/// The argument of an entry that a rule checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParamKey {
    /// The argument at this position, from 0. Negative positions count from the end; −1 is the last
    /// argument.
    Index(i32),
    /// The argument attached under this name.
    Name(String),
}

/// The quantity that a hot-parameter rule measures for each value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParamMeasure {
    /// Units that passed. Entries over the threshold are blocked.
    #[default]
    Rate,
    /// Units that passed, spaced evenly. The rule delays calls that arrive early and blocks those
    /// that would have to wait too long. It combines with other throttles as described for
    /// [`Behaviour::Throttle`](crate::rules::Behaviour::Throttle).
    Throttle {
        /// The longest delay that this rule may require.
        max_wait: Duration,
    },
    /// Units in flight.
    InFlight,
}

impl HotParamRule {
    /// Creates a rule that admits `threshold` units a second for each value.
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
            max_values: None,
            deny_when_full: false,
        }
    }

    crate::rules::id_setter!();

    /// Sets the duration.
    #[must_use]
    pub fn duration(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// Sets the burst.
    #[must_use]
    pub fn burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }

    /// Sets the measured quantity.
    #[must_use]
    pub fn measure(self, measure: ParamMeasure) -> Self {
        Self { measure, ..self }
    }

    /// Adds a separate threshold for one value.
    #[must_use]
    pub fn exception(mut self, value: impl Into<Arg<'static>>, threshold: u32) -> Self {
        self.exceptions.push((value.into(), threshold));
        self
    }

    /// Sets how many values are kept whole.
    #[must_use]
    pub fn max_values(self, max_values: usize) -> Self {
        Self {
            max_values: Some(max_values),
            ..self
        }
    }

    /// Denies new values while the table is full, instead of forgetting another value.
    #[must_use]
    pub fn deny_when_full(self) -> Self {
        Self {
            deny_when_full: true,
            ..self
        }
    }

    /// How many values are kept whole.
    pub(crate) fn capacity(&self) -> usize {
        let seconds = usize::try_from(self.duration.as_secs().max(1)).unwrap_or(usize::MAX);
        self.max_values
            .unwrap_or_else(|| seconds.saturating_mul(4_000).min(200_000))
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        self.resource.compile()?;
        if matches!(&self.key, ParamKey::Name(name) if name.is_empty()) {
            return Err("the argument has no name; give it one, or an index".into());
        }
        if self.duration.is_zero() || self.duration > MAX_WINDOW {
            return Err("the duration must be above zero and at most 366 days".into());
        }
        if !(1..=10_000_000).contains(&self.capacity()) {
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
            ParamMeasure::Rate | ParamMeasure::Throttle { .. } => {
                write!(f, "/{:?}", self.duration)?;
            }
        }
        match &self.key {
            ParamKey::Index(index) => write!(f, " for each arg {index}"),
            ParamKey::Name(name) => write!(f, " for each {name}"),
        }
    }
}
