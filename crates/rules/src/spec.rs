//! Rules as written: definitions that can be compared with earlier ones and printed as in the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    time::Duration,
};

use serde_json::json;
use tidegate_core::{AlgorithmSpec, Nanos, ParseQuotaError, Policy, PolicyError, Quota, Value};
use tidegate_limiter::WhenFull;
use tidegate_redis::{Mode, OnError, Timeout};

use crate::SharesSpec;

/// The contents of a rules file, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// The limits; their names differ.
    pub limits: Vec<LimitSpec>,
    /// The maximum bytes for the states of all limits together, divided by use; `None` if the file
    /// does not set it.
    pub max_memory: Option<u64>,
    /// Flow control for programs with a gate that read the same file. The server only checks it.
    pub gate: tidegate_flow::rules::Rules,
}

/// One limit as a rules file defines it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSpec {
    /// The name in requests and metrics: 1 to 64 of `A-Z a-z 0-9 . _ : -`.
    pub name: String,
    /// The algorithm and its options.
    pub policy: PolicySpec,
    /// One state for all requests instead of one for each key.
    pub global: bool,
    /// Counts and reports, but never denies.
    pub shadow: bool,
    /// Counts every request, also beyond the limit, and answers say that it is exceeded. A soft
    /// limit is a `shadow` limit, too.
    pub soft: bool,
    /// Percentages of the limit. A key that has used one of them is reported once in each period.
    pub thresholds: Vec<u8>,
    /// The maximum number of keys in memory; `None` for the server's own setting.
    pub max_keys: Option<usize>,
    /// The decision on new keys if only evicting an exhausted key could make room.
    pub when_full: WhenFull,
    /// The treatment of an estimate whose reservation expires.
    pub on_expiry: OnExpiry,
    /// Keys with a different policy.
    pub overrides: BTreeMap<String, PolicySpec>,
    /// Keys that are always denied.
    pub deny: BTreeSet<String>,
    /// The tenants that share it.
    pub shares: Option<SharesSpec>,
    /// How servers share it, if the server has a store.
    pub sharing: SharingSpec,
    /// Which requests of a log it applies to, for `tidegate simulate --rules`. A server gets the
    /// key from its caller.
    pub traffic: TrafficSpec,
}

impl LimitSpec {
    /// A limit without any option.
    pub fn new(name: String, policy: PolicySpec) -> Self {
        Self {
            name,
            policy,
            ..Self::default()
        }
    }

    /// Whether all requests change the same state: the limit is global, or tenants share it.
    pub fn has_one_state(&self) -> bool {
        self.global || self.shares.is_some()
    }

    /// The keys that are neither of the policy nor of the sharing, as a rules file has them, unless
    /// they are as usual: `max_keys: 1000`.
    pub fn further(&self) -> Vec<String> {
        let mut keys = Vec::new();
        if !self.thresholds.is_empty() {
            let percentages: Vec<_> = self
                .thresholds
                .iter()
                .map(|percent| format!("{percent}%"))
                .collect();
            keys.push(format!("thresholds: [{}]", percentages.join(", ")));
        }
        keys.extend(
            self.max_keys
                .map(|max_keys| format!("max_keys: {max_keys}")),
        );
        if self.when_full == WhenFull::Deny {
            keys.push("when_full: deny".to_owned());
        }
        if self.on_expiry == OnExpiry::Release {
            keys.push("on_expiry: release".to_owned());
        }
        // A JSON string is also a YAML string, with any characters.
        let TrafficSpec { conditions, by } = &self.traffic;
        if !conditions.is_empty() {
            let conditions: Vec<_> = conditions
                .iter()
                .map(|(field, pattern)| format!("{}: {}", json!(field), json!(pattern)))
                .collect();
            keys.push(format!("match: {{{}}}", conditions.join(", ")));
        }
        if !by.is_empty() {
            keys.push(format!("by: {}", json!(by)));
        }
        keys
    }

    /// The limit in the form of a rules file.
    pub fn yaml(&self) -> String {
        let mut text = format!("- name: {}\n", self.name);
        // Writing to a `String` does not fail.
        let _ = writeln!(
            text,
            "  limit: {}\n  algorithm: {}",
            self.policy.quota(),
            self.policy.algorithm.name()
        );
        for options in [self.policy.options(), self.sharing.options()] {
            options
                .split(", ")
                .filter(|option| !option.is_empty())
                .for_each(|option| {
                    let _ = writeln!(text, "  {option}");
                });
        }
        for (name, on) in [
            ("global", self.global),
            ("shadow", self.shadow && !self.soft),
            ("soft", self.soft),
        ] {
            if on {
                let _ = writeln!(text, "  {name}: true");
            }
        }
        for key in self.further() {
            let _ = writeln!(text, "  {key}");
        }
        // A JSON string is also a YAML string, with any characters.
        if !self.overrides.is_empty() {
            text.push_str("  overrides:\n");
            for (key, policy) in &self.overrides {
                let options = policy.options();
                let options = if options.is_empty() {
                    options
                } else {
                    format!(", {options}")
                };
                let _ = writeln!(
                    text,
                    "    {}: {{limit: {}{options}}}",
                    json!(key),
                    policy.quota()
                );
            }
        }
        if !self.deny.is_empty() {
            let _ = writeln!(text, "  deny: {}", json!(self.deny));
        }
        text += &self
            .shares
            .as_ref()
            .map_or_else(String::new, SharesSpec::yaml);
        text
    }
}

/// The treatment of an estimate whose reservation expires before it is settled. Permits in flight
/// are always released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// The estimate stays charged: the work may have been done.
    #[default]
    Keep,
    /// The estimate is given back.
    Release,
}

/// Which requests of a log a limit applies to, and their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficSpec {
    /// `match`: fields with patterns, all of which must match, as in `path: /login`.
    pub conditions: Vec<(String, String)>,
    /// `by`: the fields whose values make up the key; empty if the rules do not set it.
    pub by: Vec<String>,
}

/// How servers share a limit; `None` stands for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharingSpec {
    /// Whether each server decides by its own count, also with a store. No rules file says so.
    pub unshared: bool,
    /// Where it is decided.
    pub mode: Option<Mode>,
    /// The substitute decision while the store is down.
    pub on_error: Option<OnError>,
    /// The deadline of a decision by the store.
    pub deadline: Option<Timeout>,
    /// How long a server keeps units of a leased limit, and how long a report of a reported limit
    /// waits.
    pub slack: Option<Duration>,
    /// How much each server may use of a reported limit before it must report it.
    pub unreported: Option<u32>,
    /// Whether requests can wait in line for it in the store.
    pub line: bool,
}

/// An algorithm with its numbers and options, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySpec {
    /// Which algorithm, with its options.
    pub algorithm: AlgorithmSpec,
    /// `N` of `N/duration`, or the permits of `concurrency`.
    pub limit: u64,
    /// The duration; `None` for `concurrency`.
    pub window: Option<Duration>,
    /// Whether the states have room for other limits that come while the server runs, such as those
    /// that a number of connections gives. No rules file says so.
    pub wide: bool,
}

impl PolicySpec {
    /// An algorithm with a limit.
    pub const fn new(algorithm: AlgorithmSpec, limit: u64, window: Option<Duration>) -> Self {
        Self {
            algorithm,
            limit,
            window,
            wide: false,
        }
    }

    /// The same with states in which limits up to 4,294,967,295 have room.
    pub fn wide(self) -> Self {
        Self { wide: true, ..self }
    }

    /// The policy that decides.
    ///
    /// # Errors
    /// When the numbers are invalid together: see [`PolicyError`].
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        let policy = match self.window {
            Some(window) => self
                .algorithm
                .policy(Quota::new(self.limit, window).map_err(PolicyError::Quota)?),
            None => self.algorithm.permits(self.limit),
        }?;
        Ok(if self.wide { policy.wide() } else { policy })
    }

    /// `100/1m`, or the number of permits. A month is written as a month only if it follows the
    /// calendar, and else as its length: `500/30d10h29m6s`.
    pub fn quota(&self) -> String {
        let Some(window) = self.window else {
            return self.limit.to_string();
        };
        match Quota::new(self.limit, window) {
            Ok(quota) if self.follows_calendar() => quota.to_string(),
            _ => format!("{}/{}", self.limit, Nanos::from(window)),
        }
    }

    fn follows_calendar(&self) -> bool {
        let is_on = |option| self.algorithm.get(option) == Some(Value::Flag(true));
        let is_off = self.algorithm.get("calendar") == Some(Value::Flag(false));
        self.algorithm.name() == "fixed-window" && !is_on("first_hit") && !is_off
    }

    /// The same algorithm and options with another quota: `100/1m`, or a number of permits.
    ///
    /// # Errors
    /// When the text is not a quota of this algorithm.
    pub fn with_quota(&self, text: &str) -> Result<Self, QuotaTextError> {
        let (limit, window) = if self.algorithm.limits_rate() {
            let quota: Quota = text.parse()?;
            (quota.limit(), Some(quota.window()))
        } else {
            (text.parse().map_err(|_| QuotaTextError::Permits)?, None)
        };
        let spec = Self {
            limit,
            window,
            ..self.clone()
        };
        spec.policy().map_err(QuotaTextError::Policy)?;
        Ok(spec)
    }

    /// This quota with the algorithm and the options of another policy. Whether they fit
    /// [`policy`](Self::policy) says.
    pub fn of(self, other: &Self) -> Self {
        Self {
            algorithm: other.algorithm,
            wide: other.wide,
            ..self
        }
    }

    /// All options except the quota, as in the file: `burst: 20, count_denied: true`.
    pub fn options(&self) -> String {
        let options: Vec<String> = self
            .algorithm
            .options()
            .map(|(name, value)| match value {
                // Commas end a value in `{}`.
                Value::Spans(spans) => format!("{name}: \"{spans}\""),
                value => format!("{name}: {value}"),
            })
            .collect();
        options.join(", ")
    }
}

/// Why a text is not a quota of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaTextError {
    /// The algorithm counts permits.
    #[error("concurrency counts permits: write a whole number, as in 10")]
    Permits,
    /// It is not `N/duration`.
    #[error("{0}; write it as in 10/500ms, 100/1m or 5000/1d")]
    Quota(#[from] ParseQuotaError),
    /// The algorithm cannot count by it.
    #[error(transparent)]
    Policy(PolicyError),
}

/// A YAML mapping, the form that [`parse_policy`](crate::parse_policy) parses.
impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{algorithm: {}, limit: {}",
            self.algorithm.name(),
            self.quota()
        )?;
        let options = self.options();
        if !options.is_empty() {
            write!(f, ", {options}")?;
        }
        f.write_str("}")
    }
}
