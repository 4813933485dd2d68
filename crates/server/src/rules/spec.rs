//! Rules as written: one limit's definition, comparable with the one before it and printable as it was written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use tidegate_core::{AlgorithmSpec, Policy, PolicyError, Quota, write_duration};
use tidegate_limiter::WhenFull;
use tidegate_redis::{Mode, OnError, Timeout};

/// Everything that a rules file says, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// The limits; their names differ.
    pub limits: Vec<LimitSpec>,
    /// Bytes that the states of all limits may take together, divided by use; `None` where the file does not say.
    pub max_memory: Option<u64>,
    /// Flow control, for programs with a gate of their own that read the same file. The server only checks it.
    pub gate: tidegate_flow::rules::Rules,
}

/// One limit as a rules file defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// What requests and metrics call it: 1 to 64 of `A-Z a-z 0-9 . _ : -`.
    pub name: String,
    /// The algorithm and its options.
    pub policy: PolicySpec,
    /// One state for everybody instead of one for each key.
    pub global: bool,
    /// Counted and reported, but never denies.
    pub shadow: bool,
    /// How many keys are remembered at most; `None` for the server's own setting.
    pub max_keys: Option<usize>,
    /// What happens to unknown keys when forgetting an exhausted one is all that could make room.
    pub when_full: WhenFull,
    /// Keys with a policy of their own.
    pub overrides: BTreeMap<String, PolicySpec>,
    /// Keys that are always denied.
    pub deny: BTreeSet<String>,
    /// How it is shared, where the server has a store.
    pub sharing: SharingSpec,
    /// Which requests of a log it concerns, for `tidegate simulate --rules`. A server is told the key by its caller.
    pub traffic: TrafficSpec,
}

/// Which requests of a log a limit concerns, and what their keys are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficSpec {
    /// `match`: fields and the patterns that all of them must fit, as in `path: /login`.
    pub conditions: Vec<(String, String)>,
    /// `by`: the fields whose values make the key; empty where the rules do not say.
    pub by: Vec<String>,
}

/// How servers share a limit; `None` where the rules leave it to the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharingSpec {
    /// Where it is decided.
    pub mode: Option<Mode>,
    /// What the answer is while the store gives none.
    pub on_error: Option<OnError>,
    /// How long the store may take for a decision.
    pub deadline: Option<Timeout>,
    /// How long a server keeps units of a leased limit, and how long a reported one's report waits.
    pub slack: Option<Duration>,
    /// How much of a reported limit each server may have used without the store knowing.
    pub unreported: Option<u32>,
}

/// An algorithm with its numbers and options, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    /// Which algorithm, with its options.
    pub algorithm: AlgorithmSpec,
    /// `N` of `N/duration`, or the permits of `concurrency`.
    pub limit: u32,
    /// The duration; `None` for `concurrency`, which has none.
    pub window: Option<Duration>,
}

impl PolicySpec {
    /// An algorithm with a limit.
    #[must_use]
    pub const fn new(algorithm: AlgorithmSpec, limit: u32, window: Option<Duration>) -> Self {
        Self { algorithm, limit, window }
    }

    /// What decides.
    ///
    /// # Errors
    /// When the numbers make no sense together: see [`PolicyError`].
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        match self.window {
            Some(window) => {
                self.algorithm.policy(Quota::new(self.limit, window).map_err(PolicyError::Quota)?)
            }
            None => self.algorithm.permits(self.limit),
        }
    }

    /// `100/1m`, or the number of permits.
    #[must_use]
    pub fn quota(&self) -> String {
        let mut text = self.limit.to_string();
        if let Some(window) = self.window {
            text.push('/');
            push_duration(&mut text, window);
        }
        text
    }

    /// The options beside the quota, as the file writes them: `burst: 20, count_denied: true`.
    #[must_use]
    pub fn options(&self) -> String {
        let options: Vec<String> =
            self.algorithm.options().map(|(name, value)| format!("{name}: {value}")).collect();
        options.join(", ")
    }
}

fn push_duration(text: &mut String, span: Duration) {
    // Writing to a `String` does not fail.
    let _ = write_duration(text, span);
}

/// As a mapping in YAML, the form that [`parse_policy`](super::parse_policy) reads back.
impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{algorithm: {}, limit: {}", self.algorithm.name(), self.quota())?;
        let options = self.options();
        if !options.is_empty() {
            write!(f, ", {options}")?;
        }
        f.write_str("}")
    }
}
