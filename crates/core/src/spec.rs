//! The registry: every algorithm by its name, with the options that it takes, as configuration writes them.
//!
//! Each algorithm's own file holds its [`Entry`]: name, aliases, options, how to build it, and how to say what it is. Files
//! of rules, command lines and `"sliding-log 100/1m".parse::<Policy>()` read and print by nothing else.

use alloc::{string::String, vec::Vec};
use core::{fmt, str::FromStr, time::Duration};

use crate::{
    ParseQuotaError, Policy, PolicyError, Quota, algorithm::ENTRIES, parse_duration, write_duration,
};

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

    /// Every algorithm there is, with its default options.
    #[must_use]
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        ENTRIES.iter().map(|entry| Self::of(entry))
    }

    /// The algorithm of this name or alias, with its default options.
    ///
    /// # Errors
    /// [`ParsePolicyError::Algorithm`] where there is none.
    pub fn named(name: &str) -> Result<Self, ParsePolicyError> {
        let is_it = |entry: &&&Entry| entry.name == name || entry.aliases.contains(&name);
        let entry = ENTRIES.iter().find(is_it).ok_or_else(|| ParsePolicyError::Algorithm(name.into()))?;
        Ok(Self::of(entry))
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

    /// Sets an option from its text; `None` is an option without a value. The default is as good as none.
    ///
    /// # Errors
    /// When the algorithm has no such option, or the option takes something else.
    pub fn set(&mut self, option: &str, value: Option<&str>) -> Result<(), ParsePolicyError> {
        if same(COUNT_DENIED, option) && self.entry.limits_rate {
            let Value::Flag(on) = read(option, Wants::Flag, value)? else { return Ok(()) };
            self.count_denied = on;
            return Ok(());
        }
        let Some(at) = self.position(option) else {
            return Err(ParsePolicyError::Option { option: option.into(), algorithm: self.entry.name });
        };
        let wants = self.entry.options[at].wants;
        let value = read(option, wants, value)?;
        let is_default = match (wants, value) {
            (Wants::OneOf(words), Value::Word(word)) => words.first() == Some(&word),
            (_, value) => value == Value::Flag(false),
        };
        self.values[at] = (!is_default).then_some(value);
        Ok(())
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

/// The algorithm that is meant where none is named: the sliding window, exact enough to surprise nobody, at any limit.
impl Default for AlgorithmSpec {
    fn default() -> Self {
        Self::of(crate::algorithm::DEFAULT)
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

impl FromStr for AlgorithmSpec {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let mut spec = Self::named(parts.next().unwrap_or_default())?;
        for option in parts {
            let (name, value) =
                option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            spec.set(name, value)?;
        }
        Ok(spec)
    }
}

fn same(name: &str, option: &str) -> bool {
    name.bytes().eq(option.bytes().map(|byte| if byte == b'-' { b'_' } else { byte }))
}

fn read(option: &str, wants: Wants, text: Option<&str>) -> Result<Value, ParsePolicyError> {
    let value = match (wants, text) {
        (Wants::Flag, None | Some("true")) => Some(Value::Flag(true)),
        (Wants::Flag, Some("false")) => Some(Value::Flag(false)),
        (Wants::Count { least }, Some(text)) => {
            text.parse().ok().filter(|count| *count >= least).map(Value::Count)
        }
        (Wants::Span, Some(text)) => parse_duration(text).ok().map(Value::Span),
        (Wants::OneOf(words), Some(text)) => {
            words.iter().copied().find(|word| *word == text).map(Value::Word)
        }
        _ => None,
    };
    value.ok_or_else(|| ParsePolicyError::Value { option: option.into(), wants })
}

/// A policy from its quota, `100/1m`, by the sliding window; or with an algorithm before it,
/// `token-bucket:burst=20 100/1m`, `concurrency:hold=30s 10`.
///
/// ```
/// use tidegate_core::{Policy, Quota};
/// let strict: Policy = "100/1m".parse()?;
/// assert_eq!(strict, Policy::sliding_window("100/1m".parse()?));
/// let bursty: Policy = "token-bucket 100/1m".parse()?;
/// assert_eq!(bursty, Policy::token_bucket("100/1m".parse()?));
/// assert_eq!(bursty.to_string(), "token-bucket 100/1m");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (spec, amount) = match words[..] {
            [amount] if amount.starts_with(|first: char| first.is_ascii_digit()) => {
                (AlgorithmSpec::default(), amount)
            }
            [algorithm, amount] => (algorithm.parse()?, amount),
            [algorithm] => {
                let spec: AlgorithmSpec = algorithm.parse()?;
                return Err(ParsePolicyError::NoQuota(spec.name()));
            }
            _ => return Err(ParsePolicyError::Form),
        };
        let policy = if spec.limits_rate() {
            spec.policy(amount.parse().map_err(ParsePolicyError::Quota)?)
        } else {
            spec.permits(amount.parse().map_err(|_| ParsePolicyError::Permits)?)
        };
        policy.map_err(ParsePolicyError::Policy)
    }
}

/// The sliding window, strict, with ten slots: what [`Policy::sliding_window`] builds.
impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::sliding_window(quota)
    }
}

/// In the form that it is read from: `token-bucket:burst=20 10/1s`.
///
/// Reading it back gives an equal policy, in the fewest words: a burst that is a whole window's worth is written as that
/// window's quota.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut spec, amount) = self.written();
        spec.count_denied = self.counts_denied();
        match amount {
            Amount::Quota(quota) => write!(f, "{spec} {quota}"),
            Amount::Permits(permits) => write!(f, "{spec} {permits}"),
        }
    }
}

/// Why a text is no algorithm or no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParsePolicyError {
    /// No algorithm has this name.
    Algorithm(String),
    /// The algorithm has no such option.
    Option {
        /// What was given.
        option: String,
        /// For which algorithm.
        algorithm: &'static str,
    },
    /// The option takes something else.
    Value {
        /// Which option.
        option: String,
        /// What it takes.
        wants: Wants,
    },
    /// The algorithm stands alone.
    NoQuota(&'static str),
    /// The quota cannot be read.
    Quota(ParseQuotaError),
    /// The number of permits cannot be read.
    Permits,
    /// The parts are well formed, but make no sense together.
    Policy(PolicyError),
    /// No text, or more than two words.
    Form,
}

impl fmt::Display for ParsePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm(name) => {
                write!(f, "no algorithm `{name}`")?;
                let names = ENTRIES.iter().flat_map(|entry| entry.aliases.iter().chain([&entry.name]));
                suggest(f, name, names.copied())?;
                f.write_str("; choose from ")?;
                list(f, ENTRIES.iter().map(|entry| entry.name))
            }
            Self::Option { option, algorithm } => {
                write!(f, "{algorithm} has no option `{option}`")?;
                let spec = AlgorithmSpec::named(algorithm)?;
                let known = || {
                    spec.known()
                        .iter()
                        .map(|known| known.name)
                        .chain(spec.limits_rate().then_some(COUNT_DENIED))
                };
                suggest(f, option, known())?;
                f.write_str("; it has ")?;
                list(f, known())
            }
            Self::Value { option, wants } => write!(f, "`{option}` wants {wants}"),
            Self::NoQuota(algorithm) => {
                let example = if *algorithm == "concurrency" { "10" } else { "100/1m" };
                write!(f, "the limit is missing, as in `{algorithm} {example}`")
            }
            Self::Quota(e) => e.fmt(f),
            Self::Permits => f.write_str(
                "the number of permits must be a whole number from 0 to 4294967295, as in `concurrency 10`",
            ),
            Self::Policy(e) => e.fmt(f),
            Self::Form => {
                f.write_str("a policy is `100/1m`, or an algorithm before it: `token-bucket 100/1m`")
            }
        }
    }
}

impl core::error::Error for ParsePolicyError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Quota(e) => Some(e),
            Self::Policy(e) => Some(e),
            _ => None,
        }
    }
}

/// Only while a name of the registry itself is looked up, which is there.
impl From<ParsePolicyError> for fmt::Error {
    fn from(_: ParsePolicyError) -> Self {
        Self
    }
}

fn list<'a>(f: &mut fmt::Formatter<'_>, mut words: impl Iterator<Item = &'a str>) -> fmt::Result {
    f.write_str(words.next().unwrap_or("none"))?;
    words.try_for_each(|word| write!(f, ", {word}"))
}

/// Names what was probably meant: at most a third of it, or two letters of five, mistyped.
fn suggest<'a>(f: &mut fmt::Formatter<'_>, text: &str, known: impl Iterator<Item = &'a str>) -> fmt::Result {
    let near = known.map(|word| (distance(text, word), word)).min();
    match near {
        Some((distance, word)) if distance * 3 <= word.len() + 1 => write!(f, " (did you mean `{word}`?)"),
        _ => Ok(()),
    }
}

/// How many characters must be added, taken away or replaced (Levenshtein); an underscore is as good as a hyphen.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().take(64).map(|byte| if byte == b'_' { b'-' } else { byte }).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
