//! Algorithms in the form of the command line: `sliding-window:slots=60:mode=balanced`.

use std::{fmt::Write as _, str::FromStr};

use tidegate_core::{ParsePolicyError, Policy, PolicyError, Quota};

/// An algorithm that limits a rate, with its options but without a quota: a
/// [`tidegate_core::AlgorithmSpec`] and its label. (Algorithms that limit work in flight are
/// excluded, because a log does not say when a request ended.)
///
/// The text form is the name followed by the options, each after a colon: `fixed-window:first-hit`,
/// `sliding-log:closed`, `sliding-window:slots=60:mode=balanced`, `token-bucket:burst=20`,
/// `leaky-bucket:max-wait=500ms`, and `count-denied` for each.
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
    spec: tidegate_core::AlgorithmSpec,
}

impl AlgorithmSpec {
    /// All algorithms with their default options.
    pub fn all() -> Vec<Self> {
        let rates =
            tidegate_core::AlgorithmSpec::all().filter(tidegate_core::AlgorithmSpec::limits_rate);
        rates
            .map(|spec| Self {
                label: spec.name().to_owned(),
                spec,
            })
            .collect()
    }

    /// Parses several algorithms, separated by commas.
    ///
    /// # Errors
    /// The error of the first invalid one.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SpecError> {
        text.split(',').map(|spec| spec.trim().parse()).collect()
    }

    /// The text that was parsed: the name, and the options if there are any.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether this is a sliding counter, whose estimate of the rate is compared with the real
    /// rate.
    pub fn is_sliding_counter(&self) -> bool {
        self.spec.name() == "sliding-counter"
    }

    /// Whether the algorithm may admit requests with a delay.
    pub fn delays(&self) -> bool {
        self.spec.name() == "leaky-bucket" || self.spec.get("oversize_wait").is_some()
    }

    /// Whether the algorithm never admits more than the limit in any window.
    pub fn never_exceeds(&self) -> bool {
        match self.spec.name() {
            "sliding-log" => true,
            "sliding-window" => !self.label.contains("mode=balanced"),
            _ => false,
        }
    }

    /// A limit with this algorithm as an item of a rules file's `limits`, with the keys `by`
    /// (`ip,path`; `global`).
    ///
    /// ```
    /// use tidegate_sim::AlgorithmSpec;
    /// let spec: AlgorithmSpec = "token-bucket:burst=20".parse()?;
    /// let item = spec.yaml("10/1s".parse()?, "ip");
    /// assert_eq!(item, "- {name: per-ip, limit: 10/1s, algorithm: token-bucket, burst: 20, by: ip}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn yaml(&self, quota: Quota, by: &str) -> String {
        let mut parts = self.label.split(':');
        let algorithm = parts.next().unwrap_or_default();
        let mut options = String::new();
        for option in parts {
            let (name, value) = option.split_once('=').unwrap_or((option, "true"));
            // Writing to a string cannot fail.
            let _ = write!(options, ", {}: {value}", name.replace('-', "_"));
        }
        if by == "global" {
            return format!(
                "- {{name: everyone, limit: {quota}, algorithm: {algorithm}{options}, global: true}}"
            );
        }
        let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = format!("per-{by}").chars().map(letter).take(64).collect();
        let by = if by.contains(',') {
            format!("[{}]", by.replace(',', ", "))
        } else {
            by.to_owned()
        };
        format!("- {{name: {name}, limit: {quota}, algorithm: {algorithm}{options}, by: {by}}}")
    }

    /// The policy of this algorithm with a quota.
    ///
    /// # Errors
    /// If the quota does not suit the algorithm or its options.
    pub fn policy(&self, quota: Quota) -> Result<Policy, PolicyError> {
        self.spec.policy(quota)
    }
}

impl FromStr for AlgorithmSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let spec: tidegate_core::AlgorithmSpec = text.parse().map_err(SpecError::Parse)?;
        if !spec.limits_rate() {
            return Err(SpecError::InFlight(spec.name()));
        }
        Ok(Self {
            label: text.to_owned(),
            spec,
        })
    }
}

/// Why a text is not an algorithm that can be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The name is unknown, or an option is invalid.
    #[error(transparent)]
    Parse(#[from] ParsePolicyError),
    /// The algorithm limits work in flight.
    #[error(
        "{0} limits what is in flight, and a log does not say when each request ended; choose an algorithm that limits a rate, such as sliding-window"
    )]
    InFlight(&'static str),
}
