//! The registry: every algorithm by its name. Rule files, command lines and
//! `"sliding-log 100/1m".parse::<Policy>()` all parse and print through it.

use alloc::{string::String, vec::Vec};
use core::{fmt, str::FromStr};

use super::{AlgorithmEntry, AlgorithmSpec, Amount, COMMON, Value, Wants, same};
use crate::{
    ParseQuotaError, Policy, PolicyError, Quota, Spans,
    algorithm::{DEFAULT, ENTRIES},
    parse_duration, parse_units,
};

impl AlgorithmSpec {
    /// All algorithms, each with its default options.
    #[must_use]
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        ENTRIES.iter().map(|entry| Self::of(entry))
    }

    /// The algorithm with this name or alias, with its default options.
    ///
    /// # Errors
    /// [`ParsePolicyError::Algorithm`] if there is none.
    pub fn named(name: &str) -> Result<Self, ParsePolicyError> {
        let is_it = |entry: &&&AlgorithmEntry| entry.name == name || entry.aliases.contains(&name);
        let entry = ENTRIES
            .iter()
            .find(is_it)
            .ok_or_else(|| ParsePolicyError::Algorithm(name.into()))?;
        Ok(Self::of(entry))
    }

    /// Sets an option from its text; `None` means that the option was written without a value.
    /// Setting the default value is the same as not setting the option.
    ///
    /// # Errors
    /// If the algorithm has no such option, or the option does not accept the value.
    pub fn set(&mut self, option: &str, value: Option<&str>) -> Result<(), ParsePolicyError> {
        let common = COMMON
            .iter()
            .position(|known| same(known.name, option) && self.entry.limits_rate);
        let (place, wants) = match (self.position(option), common) {
            (Some(at), _) => (&mut self.values[at], self.entry.options[at].wants),
            (None, Some(at)) => (&mut self.common[at], COMMON[at].wants),
            (None, None) => {
                return Err(ParsePolicyError::Option {
                    option: option.into(),
                    algorithm: self.entry.name,
                });
            }
        };
        let value = read(option, wants, value)?;
        let is_default = match (wants, value) {
            (Wants::OneOf(words), Value::Word(word)) => words.first() == Some(&word),
            (Wants::Switch, _) => false,
            (_, value) => value == Value::Flag(false),
        };
        *place = (!is_default).then_some(value);
        Ok(())
    }
}

/// The algorithm used if none is named: the sliding window, which is accurate enough to avoid
/// surprises at any limit.
impl Default for AlgorithmSpec {
    fn default() -> Self {
        Self::of(DEFAULT)
    }
}

impl FromStr for AlgorithmSpec {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let mut spec = Self::named(parts.next().unwrap_or_default())?;
        for option in parts {
            let (name, value) = option
                .split_once('=')
                .map_or((option, None), |(name, value)| (name, Some(value)));
            spec.set(name, value)?;
        }
        Ok(spec)
    }
}

fn read(option: &str, wants: Wants, text: Option<&str>) -> Result<Value, ParsePolicyError> {
    let value = match (wants, text) {
        (Wants::Flag | Wants::Switch, None | Some("true")) => Some(Value::Flag(true)),
        (Wants::Flag | Wants::Switch, Some("false")) => Some(Value::Flag(false)),
        (Wants::Count { least, most }, Some(text)) => parse_units(text)
            .filter(|count| (least..=most).contains(count))
            .map(Value::Count),
        (Wants::Span, Some(text)) => parse_duration(text).ok().map(Value::Span),
        (Wants::Spans, Some(text)) => Spans::parse(text).map(Value::Spans),
        #[cfg(feature = "calendar")]
        (Wants::Zone, Some(text)) => crate::calendar::zone(text).map(Value::Word),
        (Wants::OneOf(words), Some(text)) => words
            .iter()
            .copied()
            .find(|word| *word == text)
            .map(Value::Word),
        _ => None,
    };
    value.ok_or_else(|| ParsePolicyError::Value {
        option: option.into(),
        wants,
    })
}

/// Parses a policy: a quota such as `100/1m`, which means a sliding window, or an algorithm
/// followed by its amount, such as `token-bucket:burst=20 100/1m` or `concurrency:hold=30s 10`.
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
            spec.permits(parse_units(amount).ok_or(ParsePolicyError::Permits)?)
        };
        policy.map_err(ParsePolicyError::Policy)
    }
}

/// The strict sliding window with ten slots, as [`Policy::sliding_window`] builds it.
impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::sliding_window(quota)
    }
}

/// Writes the form that is parsed: `token-bucket:burst=20 10/1s`.
///
/// Parsing the text gives an equal policy. The text is the shortest one: a burst equal to the units
/// of a whole window is written as that window's quota.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (spec, amount) = self.written();
        match amount {
            Amount::Quota(quota) => write!(f, "{spec} {quota}"),
            Amount::Permits(permits) => write!(f, "{spec} {permits}"),
        }
    }
}

/// Why a text is not an algorithm or a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePolicyError {
    /// No algorithm has this name.
    #[error(fmt = no_algorithm)]
    Algorithm(String),
    /// The algorithm has no such option.
    #[error(fmt = no_option)]
    Option {
        /// The option that was given.
        option: String,
        /// The algorithm that was named.
        algorithm: &'static str,
    },
    /// The option does not accept the value.
    #[error("`{option}` wants {wants}")]
    Value {
        /// The option.
        option: String,
        /// The values that it accepts.
        wants: Wants,
    },
    /// The quota or number of permits after the algorithm is missing.
    #[error("the limit is missing, as in `{0} {example}`", example = if *.0 == "concurrency" { "10" } else { "100/1m" })]
    NoQuota(&'static str),
    /// The quota cannot be parsed.
    #[error("{0}")]
    Quota(#[source] ParseQuotaError),
    /// The number of permits cannot be parsed.
    #[error(
        "the number of permits must be a whole number from 0 to 4294967295, as in `concurrency 10`"
    )]
    Permits,
    /// The parts are well formed but do not fit together.
    #[error("{0}")]
    Policy(#[source] PolicyError),
    /// The text is empty or has more than two words.
    #[error("a policy is `100/1m`, or an algorithm before it: `token-bucket 100/1m`")]
    Form,
}

fn no_algorithm(name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "no algorithm `{name}`; choose from ")?;
    list(f, ENTRIES.iter().map(|entry| entry.name))
}

fn no_option(option: &str, algorithm: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{algorithm} has no option `{option}`")?;
    let spec = AlgorithmSpec::named(algorithm)?;
    let known = spec.known().iter().map(|known| known.name);
    let common = COMMON.iter().map(|known| known.name);
    f.write_str("; it has ")?;
    list(f, known.chain(common.filter(|_| spec.limits_rate())))?;
    let has = |entry: &&&AlgorithmEntry| entry.options.iter().any(|known| same(known.name, option));
    let mut owners = ENTRIES
        .iter()
        .filter(has)
        .map(|entry| entry.name)
        .peekable();
    if owners.peek().is_some() {
        f.write_str(". It is an option of ")?;
        list(f, owners)?;
    }
    Ok(())
}

/// For the look-up of the registry's own names alone, which cannot fail.
impl From<ParsePolicyError> for fmt::Error {
    fn from(_: ParsePolicyError) -> Self {
        Self
    }
}

fn list<'a>(f: &mut fmt::Formatter<'_>, mut words: impl Iterator<Item = &'a str>) -> fmt::Result {
    f.write_str(words.next().unwrap_or("none"))?;
    words.try_for_each(|word| write!(f, ", {word}"))
}
