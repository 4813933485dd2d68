//! An algorithm named together with its options, as configuration files write it.
//!
//! Each algorithm's own file holds its [`AlgorithmEntry`]: its name, aliases and options, how to
//! build it, and how to write it. The `registry` finds entries by name.

mod registry;
#[cfg(feature = "serde")]
mod text;

use core::{fmt, time::Duration};

pub use self::registry::ParsePolicyError;
use crate::{Penalty, Policy, PolicyError, Quota, Spans, write_duration};

/// The options that every rate-limiting algorithm accepts: what denials do.
const COMMON: &[Known] = &[
    Known::new(COUNT_DENIED, Wants::Flag),
    Known::new(BLOCK_FOR, Wants::Spans),
    Known::new(BLOCK_AFTER, Wants::count(1, u32::MAX as u64)),
    Known::new(BLOCK_WITHIN, Wants::Span),
];
const COUNT_DENIED: &str = "count_denied";
const BLOCK_FOR: &str = "block_for";
const BLOCK_AFTER: &str = "block_after";
const BLOCK_WITHIN: &str = "block_within";
/// The largest number of options of one algorithm.
const MOST_OPTIONS: usize = 6;

/// An algorithm's entry in the registry.
pub(crate) struct AlgorithmEntry {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub options: &'static [Known],
    /// Whether the algorithm limits a rate; otherwise it limits work in flight.
    pub limits_rate: bool,
    pub build: fn(&AlgorithmSpec, Amount) -> Result<Policy, PolicyError>,
}

/// The amount: units in a window, or permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Quota(Quota),
    Permits(u32),
}

impl Amount {
    pub fn quota(self) -> Result<Quota, PolicyError> {
        match self {
            Self::Quota(quota) => Ok(quota),
            Self::Permits(_) => Err(PolicyError::NoWindow),
        }
    }
}

/// An option of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Known {
    /// The option's name in files. In text, hyphens may replace the underscores.
    pub name: &'static str,
    /// The values that the option accepts.
    pub wants: Wants,
}

impl Known {
    pub(crate) const fn new(name: &'static str, wants: Wants) -> Self {
        Self { name, wants }
    }
}

/// The values that an option accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wants {
    /// `true` or `false`; no value means `true`.
    Flag,
    /// A whole number.
    Count {
        /// The smallest number allowed.
        least: u64,
        /// The largest number allowed.
        most: u64,
    },
    /// `true` or `false`, of which neither is the default: without the option, the algorithm
    /// chooses.
    Switch,
    /// A duration, as in `500ms`.
    Span,
    /// One to three durations, as in `60s, 10m, 1d`.
    Spans,
    /// A time zone's name. A name, `UTC` included, means that windows follow the calendar.
    Zone,
    /// One of these words; the first is the default.
    OneOf(&'static [&'static str]),
}

impl Wants {
    pub(crate) const fn count(least: u64, most: u64) -> Self {
        Self::Count { least, most }
    }
}

impl fmt::Display for Wants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag | Self::Switch => f.write_str("nothing, true or false"),
            Self::Count { least, most } => write!(f, "a whole number from {least} to {most}"),
            Self::Span => f.write_str("a duration, as in 500ms or 1m30s"),
            Self::Spans => {
                f.write_str(
                    "one to three durations from 1ms to 49d, none shorter than the one before, as in 60s or 60s,10m,1d",
                )
            }
            Self::Zone => f.write_str("a time zone's name, as in Europe/Berlin"),
            Self::OneOf(words) => f.write_str(&words.join(" or ")),
        }
    }
}

/// An option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// The value of a [`Wants::Flag`] or [`Wants::Switch`].
    Flag(bool),
    /// The value of a [`Wants::Count`].
    Count(u64),
    /// The value of a [`Wants::Span`].
    Span(Duration),
    /// The value of a [`Wants::Spans`].
    Spans(Spans),
    /// The value of a [`Wants::OneOf`] or [`Wants::Zone`].
    Word(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(on) => on.fmt(f),
            Self::Count(count) => count.fmt(f),
            Self::Span(span) => write_duration(f, *span),
            Self::Spans(spans) => spans.fmt(f),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// An algorithm with its options, but without a quota.
///
/// The text form is the name followed by the options, each after a colon: `fixed-window:first-hit`,
/// `sliding-window:slots=60:mode=balanced`, `token-bucket:burst=20`, `leaky-bucket:max-wait=500ms`,
/// `concurrency:hold=30s`.
///
/// ```
/// use tidegate_core::AlgorithmSpec;
/// let spec: AlgorithmSpec = "gcra:burst=20".parse()?;
/// assert_eq!((spec.name(), spec.to_string().as_str()), ("token-bucket", "token-bucket:burst=20"));
/// let policy = spec.policy("10/1s".parse()?)?;
/// assert_eq!(policy.name(), "token-bucket");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct AlgorithmSpec {
    entry: &'static AlgorithmEntry,
    /// In the order of the entry's options.
    values: [Option<Value>; MOST_OPTIONS],
    /// In the order of [`COMMON`].
    common: [Option<Value>; COMMON.len()],
}

impl AlgorithmSpec {
    pub(crate) const fn of(entry: &'static AlgorithmEntry) -> Self {
        Self {
            entry,
            values: [None; MOST_OPTIONS],
            common: [None; COMMON.len()],
        }
    }

    /// The algorithm's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.entry.name
    }

    /// The algorithm's aliases.
    #[must_use]
    pub const fn aliases(&self) -> &'static [&'static str] {
        self.entry.aliases
    }

    /// Whether the algorithm limits a rate and so needs a window. Otherwise it limits work in
    /// flight.
    #[must_use]
    pub const fn limits_rate(&self) -> bool {
        self.entry.limits_rate
    }

    /// The algorithm's own options, without the [common](Self::common) ones.
    #[must_use]
    pub const fn known(&self) -> &'static [Known] {
        self.entry.options
    }

    /// The options that every algorithm accepts that limits a rate: `count_denied`, `block_for`,
    /// `block_after` and `block_within`.
    #[must_use]
    pub const fn common() -> &'static [Known] {
        COMMON
    }

    /// Whether denied requests also consume units.
    #[must_use]
    pub fn counts_denied(&self) -> bool {
        self.flag(COUNT_DENIED)
    }

    /// The value of an option, if it has been set.
    #[must_use]
    pub fn get(&self, option: &str) -> Option<Value> {
        let common = COMMON.iter().position(|known| same(known.name, option));
        match (self.position(option), common) {
            (Some(at), _) => self.values[at],
            (None, Some(at)) => self.common[at],
            (None, None) => None,
        }
    }

    fn position(&self, option: &str) -> Option<usize> {
        self.entry
            .options
            .iter()
            .position(|known| same(known.name, option))
    }

    pub(crate) fn with(mut self, option: &str, value: Option<Value>) -> Self {
        if let Some(at) = self.position(option) {
            self.values[at] = value;
        }
        self
    }

    /// The same algorithm with what a policy does with denials.
    pub(crate) fn with_denials(mut self, count_denied: bool, penalty: Option<Penalty>) -> Self {
        let (after, within) = penalty.map_or((1, Duration::ZERO), |penalty| penalty.denials());
        let several = after > 1;
        self.common = [
            count_denied.then_some(Value::Flag(true)),
            penalty.map(|penalty| Value::Spans(penalty.spans())),
            several.then_some(Value::Count(after.into())),
            several.then_some(Value::Span(within)),
        ];
        self
    }

    /// What denials do to a key.
    fn penalty(&self) -> Result<Option<Penalty>, PolicyError> {
        let (after, within) = (self.count(BLOCK_AFTER), self.span(BLOCK_WITHIN));
        let Some(Value::Spans(spans)) = self.get(BLOCK_FOR) else {
            return if after.is_some() || within.is_some() {
                Err(PolicyError::Block(
                    "block_after and block_within need block_for, the time for which a key is blocked",
                ))
            } else {
                Ok(None)
            };
        };
        let penalty = Penalty::of(spans);
        match (after, within) {
            (None | Some(1), None) => Ok(penalty),
            (Some(after), Some(within)) => {
                // The option accepts only smaller numbers.
                penalty.after(u32::try_from(after).unwrap_or(u32::MAX), within)
            }
            (Some(_), None) => Err(PolicyError::Block(
                "block_after needs block_within, the time in which the denials count",
            )),
            (None, Some(_)) => Err(PolicyError::Block(
                "block_within needs block_after, the number of denials that block a key",
            )),
        }
        .map(Some)
    }

    pub(crate) fn flag(&self, option: &str) -> bool {
        self.get(option) == Some(Value::Flag(true))
    }

    pub(crate) fn count(&self, option: &str) -> Option<u64> {
        if let Some(Value::Count(count)) = self.get(option) {
            Some(count)
        } else {
            None
        }
    }

    pub(crate) fn span(&self, option: &str) -> Option<Duration> {
        if let Some(Value::Span(span)) = self.get(option) {
            Some(span)
        } else {
            None
        }
    }

    pub(crate) fn has_word(&self, option: &str, word: &str) -> bool {
        matches!(self.get(option), Some(Value::Word(chosen)) if chosen == word)
    }

    /// The options that are set, in the algorithm's order.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let own = self.entry.options.iter().zip(self.values);
        let own = own.filter_map(|(known, value)| Some((known.name, value?)));
        let common = COMMON.iter().zip(self.common);
        own.chain(common.filter_map(|(known, value)| Some((known.name, value?))))
    }

    /// The policy of this algorithm with the quota.
    ///
    /// # Errors
    /// If the quota does not suit the algorithm or its options: see [`PolicyError`].
    pub fn policy(&self, quota: Quota) -> Result<Policy, PolicyError> {
        self.build(Amount::Quota(quota))
    }

    /// The policy of this algorithm with `permits`, if the algorithm limits work in flight.
    ///
    /// # Errors
    /// If the algorithm limits a rate, or the number is above 4,294,967,295 or does not suit its
    /// options.
    pub fn permits(&self, permits: u64) -> Result<Policy, PolicyError> {
        self.build(Amount::Permits(
            u32::try_from(permits).map_err(|_| PolicyError::TooManyPermits)?,
        ))
    }

    fn build(&self, amount: Amount) -> Result<Policy, PolicyError> {
        let policy = (self.entry.build)(self, amount)?;
        let policy = if self.counts_denied() {
            policy.count_denied()
        } else {
            policy
        };
        Ok(match self.penalty()? {
            Some(penalty) => policy.block_for(penalty),
            None => policy,
        })
    }
}

impl PartialEq for AlgorithmSpec {
    fn eq(&self, other: &Self) -> bool {
        (self.name(), self.values, self.common) == (other.name(), other.values, other.common)
    }
}

impl Eq for AlgorithmSpec {}

impl fmt::Debug for AlgorithmSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlgorithmSpec({self})")
    }
}

/// Writes the form that is parsed.
impl fmt::Display for AlgorithmSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry.name)?;
        for (name, value) in self.options() {
            match value {
                Value::Flag(true) => write!(f, ":{}", name.replace('_', "-"))?,
                value => write!(f, ":{}={value}", name.replace('_', "-"))?,
            }
        }
        Ok(())
    }
}

/// Whether `name` names this option.
fn same(name: &str, option: &str) -> bool {
    name.bytes().eq(option
        .bytes()
        .map(|byte| if byte == b'-' { b'_' } else { byte }))
}
