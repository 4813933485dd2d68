//! An algorithm by its name, with the options that it takes, as configuration writes them.
//!
//! Each algorithm's own file holds its [`Entry`]: name, aliases, options, how to build it, and how to say what it is. The
//! `registry` finds them by name.

mod registry;

use core::{fmt, time::Duration};

pub use self::registry::ParsePolicyError;
use crate::{Policy, PolicyError, Quota, write_duration};

/// The option that every algorithm takes that limits a rate.
const COUNT_DENIED: &str = "count_denied";
/// The most options that one algorithm has.
const MOST_OPTIONS: usize = 2;

/// What the registry knows of an algorithm.
pub(crate) struct Entry {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub options: &'static [Known],
    /// Whether it limits how much in how long; otherwise what is in flight.
    pub limits_rate: bool,
    pub build: fn(&AlgorithmSpec, Amount) -> Result<Policy, PolicyError>,
}

/// How much: units in a window, or permits.
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

/// An option that an algorithm takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Known {
    /// Its name, as files write it. In a text its underscores may be hyphens.
    pub name: &'static str,
    /// What it takes.
    pub wants: Wants,
}

impl Known {
    pub(crate) const fn new(name: &'static str, wants: Wants) -> Self {
        Self { name, wants }
    }
}

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wants {
    /// Nothing, `true` or `false`.
    Flag,
    /// A whole number.
    Count {
        /// The least that it may be.
        least: u32,
    },
    /// A duration, as in `500ms`.
    Span,
    /// One of these words, of which the first is the default.
    OneOf(&'static [&'static str]),
}

impl fmt::Display for Wants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("nothing, true or false"),
            Self::Count { least } => write!(f, "a whole number from {least} to {}", u32::MAX),
            Self::Span => f.write_str("a duration, as in 500ms or 1m30s"),
            Self::OneOf(words) => f.write_str(&words.join(" or ")),
        }
    }
}

/// An option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Of a [`Wants::Flag`].
    Flag(bool),
    /// Of a [`Wants::Count`].
    Count(u32),
    /// Of a [`Wants::Span`].
    Span(Duration),
    /// Of a [`Wants::OneOf`].
    Word(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(on) => on.fmt(f),
            Self::Count(count) => count.fmt(f),
            Self::Span(span) => write_duration(f, *span),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// An algorithm by name, with its options, before it has a quota.
///
/// Written as the name with options behind colons: `fixed-window:first-hit`, `sliding-window:slots=60:mode=balanced`,
/// `token-bucket:burst=20`, `leaky-bucket:max-wait=500ms`, `concurrency:hold=30s`.
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
    entry: &'static Entry,
    /// In the order of the entry's options.
    values: [Option<Value>; MOST_OPTIONS],
    count_denied: bool,
}

impl AlgorithmSpec {
    pub(crate) const fn of(entry: &'static Entry) -> Self {
        Self { entry, values: [None; MOST_OPTIONS], count_denied: false }
    }

    /// The algorithm's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.entry.name
    }

    /// Other names that it is read by.
    #[must_use]
    pub const fn aliases(&self) -> &'static [&'static str] {
        self.entry.aliases
    }

    /// Whether it limits how much in how long, and so needs a window; otherwise it limits what is in flight.
    #[must_use]
    pub const fn limits_rate(&self) -> bool {
        self.entry.limits_rate
    }

    /// The options that it takes, beside `count_denied`, which every algorithm takes that limits a rate.
    #[must_use]
    pub const fn known(&self) -> &'static [Known] {
        self.entry.options
    }

    /// Whether denied requests consume too.
    #[must_use]
    pub const fn counts_denied(&self) -> bool {
        self.count_denied
    }

    /// The value of an option, if it has been set.
    #[must_use]
    pub fn get(&self, option: &str) -> Option<Value> {
        self.values[self.position(option)?]
    }

    fn position(&self, option: &str) -> Option<usize> {
        self.entry.options.iter().position(|known| same(known.name, option))
    }

    pub(crate) fn with(mut self, option: &str, value: Option<Value>) -> Self {
        if let Some(at) = self.position(option) {
            self.values[at] = value;
        }
        self
    }

    pub(crate) fn flag(&self, option: &str) -> bool {
        self.get(option) == Some(Value::Flag(true))
    }

    pub(crate) fn count(&self, option: &str) -> Option<u32> {
        if let Some(Value::Count(count)) = self.get(option) { Some(count) } else { None }
    }

    pub(crate) fn span(&self, option: &str) -> Option<Duration> {
        if let Some(Value::Span(span)) = self.get(option) { Some(span) } else { None }
    }

    pub(crate) fn is(&self, option: &str, word: &str) -> bool {
        matches!(self.get(option), Some(Value::Word(chosen)) if chosen == word)
    }

    /// The options that have been set, in the algorithm's order.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let own = self.entry.options.iter().zip(self.values);
        let own = own.filter_map(|(known, value)| Some((known.name, value?)));
        own.chain(self.count_denied.then_some((COUNT_DENIED, Value::Flag(true))))
    }

    /// The algorithm with a quota.
    ///
    /// # Errors
    /// When the quota does not suit the algorithm or its options: see [`PolicyError`].
    pub fn policy(&self, quota: Quota) -> Result<Policy, PolicyError> {
        self.build(Amount::Quota(quota))
    }

    /// The algorithm with so many permits, where it limits what is in flight.
    ///
    /// # Errors
    /// When it limits a rate, or the number does not suit its options.
    pub fn permits(&self, permits: u32) -> Result<Policy, PolicyError> {
        self.build(Amount::Permits(permits))
    }

    fn build(&self, amount: Amount) -> Result<Policy, PolicyError> {
        let policy = (self.entry.build)(self, amount)?;
        Ok(if self.count_denied { policy.count_denied() } else { policy })
    }
}

impl PartialEq for AlgorithmSpec {
    fn eq(&self, other: &Self) -> bool {
        (self.name(), self.values, self.count_denied) == (other.name(), other.values, other.count_denied)
    }
}

impl Eq for AlgorithmSpec {}

impl fmt::Debug for AlgorithmSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlgorithmSpec({self})")
    }
}

/// In the form that it is read from.
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

/// Whether this option is called so.
fn same(name: &str, option: &str) -> bool {
    name.bytes().eq(option.bytes().map(|byte| if byte == b'-' { b'_' } else { byte }))
}
