//! Algorithms as a command line names them: `sliding-window:slots=60:mode=balanced`.

use std::{
    fmt::{self, Write as _},
    str::FromStr,
    time::Duration,
};

use tidegate_core::{
    Policy, PolicyError, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    parse_duration,
};

/// An algorithm with its options, before it has a quota.
///
/// Written as its name, with options behind colons: `fixed-window:first-hit`, `sliding-log:closed`,
/// `sliding-window:slots=60:mode=balanced`, `token-bucket:burst=20`, `leaky-bucket:max-wait=500ms`, and `count-denied`
/// for each.
///
/// ```
/// use tidegate_sim::AlgorithmSpec;
/// let spec: AlgorithmSpec = "token-bucket:burst=20".parse()?;
/// let policy = spec.policy("10/1s".parse()?)?;
/// assert_eq!((spec.label(), policy.name()), ("token-bucket:burst=20", "token-bucket"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmSpec {
    label: String,
    kind: Kind,
    count_denied: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FixedWindow { first_hit: bool },
    SlidingLog { closed: bool },
    SlidingWindow { slots: u32, balanced: bool },
    SlidingCounter,
    TokenBucket { burst: Option<u32> },
    LeakyBucket { max_wait: Option<Duration> },
}

impl AlgorithmSpec {
    /// The names that may be given: all that limit a rate. (`concurrency` limits what is in flight, and a log does
    /// not say when a request ended.)
    pub const NAMES: [&'static str; 6] =
        ["fixed-window", "sliding-log", "sliding-window", "sliding-counter", "token-bucket", "leaky-bucket"];

    /// Each of [`NAMES`](Self::NAMES) with its default options.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let kinds = [
            Kind::FixedWindow { first_hit: false },
            Kind::SlidingLog { closed: false },
            Kind::SlidingWindow { slots: 10, balanced: false },
            Kind::SlidingCounter,
            Kind::TokenBucket { burst: None },
            Kind::LeakyBucket { max_wait: None },
        ];
        let named = |(label, kind): (&str, Kind)| Self { label: label.to_owned(), kind, count_denied: false };
        Self::NAMES.into_iter().zip(kinds).map(named).collect()
    }

    /// Reads several, joined by commas.
    ///
    /// # Errors
    /// That of the first that is wrong.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SpecError> {
        text.split(',').map(|spec| spec.trim().parse()).collect()
    }

    /// As it was written: the name, and the options if any.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether it is a sliding counter, whose estimate of the rate is compared with the rate.
    #[must_use]
    pub const fn is_sliding_counter(&self) -> bool {
        matches!(self.kind, Kind::SlidingCounter)
    }

    /// Whether it may admit with a delay.
    #[must_use]
    pub const fn delays(&self) -> bool {
        matches!(self.kind, Kind::LeakyBucket { .. })
    }

    /// Whether it never admits more than the limit in any window, whatever comes.
    #[must_use]
    pub const fn never_exceeds(&self) -> bool {
        matches!(self.kind, Kind::SlidingLog { .. } | Kind::SlidingWindow { balanced: false, .. })
    }

    /// A limit with this algorithm as an item of a rules file's `limits`, for keys made of `by` (`ip,path`; `global`).
    ///
    /// ```
    /// use tidegate_sim::AlgorithmSpec;
    /// let spec: AlgorithmSpec = "token-bucket:burst=20".parse()?;
    /// let item = spec.yaml("10/1s".parse()?, "ip");
    /// assert_eq!(item, "- {name: per-ip, limit: 10/1s, algorithm: token-bucket, burst: 20, by: ip}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn yaml(&self, quota: Quota, by: &str) -> String {
        let mut parts = self.label.split(':');
        let algorithm = parts.next().unwrap_or_default();
        let mut options = String::new();
        for option in parts {
            let (name, value) = option.split_once('=').unwrap_or((option, "true"));
            // Writing into a string cannot fail.
            let _ = write!(options, ", {}: {value}", name.replace('-', "_"));
        }
        if by == "global" {
            return format!(
                "- {{name: everyone, limit: {quota}, algorithm: {algorithm}{options}, global: true}}"
            );
        }
        let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = format!("per-{by}").chars().map(letter).take(64).collect();
        let by = if by.contains(',') { format!("[{}]", by.replace(',', ", ")) } else { by.to_owned() };
        format!("- {{name: {name}, limit: {quota}, algorithm: {algorithm}{options}, by: {by}}}")
    }

    /// The algorithm with a quota.
    ///
    /// # Errors
    /// When the quota does not suit the algorithm or its options.
    pub fn policy(&self, quota: Quota) -> Result<Policy, PolicyError> {
        let policy: Policy = match self.kind {
            Kind::FixedWindow { first_hit: false } => Policy::fixed_window(quota),
            Kind::FixedWindow { first_hit: true } => FixedWindow::new(quota).first_hit().into(),
            Kind::SlidingLog { closed: false } => Policy::sliding_log(quota)?,
            Kind::SlidingLog { closed: true } => SlidingLog::new(quota)?.closed().into(),
            Kind::SlidingWindow { slots, balanced } => {
                let window = SlidingWindow::new(quota).slots(slots)?;
                if balanced { window.balanced() } else { window }.into()
            }
            Kind::SlidingCounter => Policy::sliding_counter(quota),
            Kind::TokenBucket { burst: None } => Policy::token_bucket(quota),
            Kind::TokenBucket { burst: Some(burst) } => TokenBucket::new(quota)?.burst(burst)?.into(),
            Kind::LeakyBucket { max_wait: None } => Policy::leaky_bucket(quota),
            Kind::LeakyBucket { max_wait: Some(wait) } => LeakyBucket::new(quota).max_wait(wait)?.into(),
        };
        Ok(if self.count_denied { policy.count_denied() } else { policy })
    }

    fn set(&mut self, option: &str) -> Result<(), SpecError> {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let bad = |wants| SpecError::Value { option: option.to_owned(), wants };
        let on = || match value {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(bad("nothing, true or false behind it")),
        };
        let count = || {
            let count: Option<u32> = value.and_then(|value| value.parse().ok());
            count.ok_or_else(|| bad("a whole number, as in slots=60 or burst=20"))
        };
        match (name.replace('_', "-").as_str(), &mut self.kind) {
            ("first-hit", Kind::FixedWindow { first_hit }) => *first_hit = on()?,
            ("closed", Kind::SlidingLog { closed }) => *closed = on()?,
            ("slots", Kind::SlidingWindow { slots, .. }) => *slots = count()?,
            ("mode", Kind::SlidingWindow { balanced, .. }) => {
                *balanced = match value {
                    Some("strict") => false,
                    Some("balanced") => true,
                    _ => return Err(bad("strict or balanced, as in mode=balanced")),
                }
            }
            ("burst", Kind::TokenBucket { burst }) => *burst = Some(count()?),
            ("max-wait", Kind::LeakyBucket { max_wait }) => {
                let wait = value.and_then(|value| parse_duration(value).ok());
                *max_wait = Some(wait.ok_or_else(|| bad("a duration, as in max-wait=500ms"))?);
            }
            ("count-denied", _) => self.count_denied = on()?,
            _ => {
                let algorithm = self.label.split(':').next().unwrap_or_default().to_owned();
                return Err(SpecError::Option {
                    option: option.to_owned(),
                    algorithm,
                    known: self.kind.options(),
                });
            }
        }
        Ok(())
    }
}

impl Kind {
    const fn options(self) -> &'static str {
        match self {
            Self::FixedWindow { .. } => "first-hit, count-denied",
            Self::SlidingLog { .. } => "closed, count-denied",
            Self::SlidingWindow { .. } => "slots=N, mode=strict|balanced, count-denied",
            Self::SlidingCounter => "count-denied",
            Self::TokenBucket { .. } => "burst=N, count-denied",
            Self::LeakyBucket { .. } => "max-wait=DURATION, count-denied",
        }
    }
}

impl FromStr for AlgorithmSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, options) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        if name == "concurrency" {
            return Err(SpecError::Concurrency);
        }
        let mut spec = Self::all()
            .into_iter()
            .find(|spec| spec.label == name)
            .ok_or_else(|| SpecError::Unknown { name: name.to_owned() })?;
        text.clone_into(&mut spec.label);
        options.into_iter().flat_map(|options| options.split(':')).try_for_each(|option| spec.set(option))?;
        Ok(spec)
    }
}

/// Why a text names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// No such name.
    Unknown {
        /// What was given.
        name: String,
    },
    /// The algorithm that no log can be replayed through.
    Concurrency,
    /// The algorithm has no such option.
    Option {
        /// What was given.
        option: String,
        /// For which algorithm.
        algorithm: String,
        /// What it has.
        known: &'static str,
    },
    /// The option takes another value.
    Value {
        /// What was given.
        option: String,
        /// What it takes.
        wants: &'static str,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(f, "no algorithm `{name}`; choose from {}", AlgorithmSpec::NAMES.join(", "))
            }
            Self::Concurrency => f.write_str(
                "concurrency limits what is in flight, and a log does not say when each request ended; choose an \
                 algorithm that limits a rate, such as sliding-window",
            ),
            Self::Option { option, algorithm, known } => {
                write!(f, "{algorithm} has no option `{option}`; it has {known}")
            }
            Self::Value { option, wants } => write!(f, "`{option}` wants {wants}"),
        }
    }
}

impl std::error::Error for SpecError {}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Quota;

    #[test]
    fn every_option_reaches_the_policy() {
        let quota = Quota::per_second(10);
        let policy = |text: &str| text.parse::<AlgorithmSpec>().unwrap().policy(quota).unwrap();
        assert_eq!(policy("fixed-window:first-hit"), FixedWindow::new(quota).first_hit().into());
        assert_eq!(policy("sliding-log:closed"), SlidingLog::new(quota).unwrap().closed().into());
        let balanced = SlidingWindow::new(quota).slots(60).unwrap().balanced();
        assert_eq!(policy("sliding-window:slots=60:mode=balanced"), balanced.into());
        assert_eq!(policy("sliding-window:mode=strict"), Policy::sliding_window(quota));
        let burst = TokenBucket::new(quota).unwrap().burst(20).unwrap();
        assert_eq!(policy("token-bucket:burst=20"), burst.into());
        let wait = LeakyBucket::new(quota).max_wait(Duration::from_millis(500)).unwrap();
        assert_eq!(policy("leaky-bucket:max_wait=500ms"), wait.into());
        assert_eq!(policy("sliding-counter:count-denied"), Policy::sliding_counter(quota).count_denied());
    }

    #[test]
    fn a_name_alone_is_the_algorithm_with_its_defaults() {
        let quota = Quota::per_second(10);
        for spec in AlgorithmSpec::all() {
            assert_eq!(spec.label().parse(), Ok(spec.clone()));
            assert_eq!(spec.policy(quota).unwrap().name(), spec.label());
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_mend() {
        let message = |text: &str| AlgorithmSpec::parse_list(text).unwrap_err().to_string();
        assert!(message("sliding-log,windows").contains("`windows`; choose from fixed-window, sliding-log"));
        assert!(
            message("token-bucket:slots=3").contains("token-bucket has no option `slots=3`; it has burst=N")
        );
        assert!(message("sliding-window:slots=x").contains("whole number"));
        assert!(message("leaky-bucket:max-wait=5").contains("max-wait=500ms"));
        assert!(message("concurrency").contains("in flight"));
        assert!(message("").contains("choose from"));
    }
}
