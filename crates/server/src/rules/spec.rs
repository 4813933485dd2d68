//! Rules as written: one limit's definition, comparable with the one before it and printable as it was written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use tidegate_core::{
    Policy, PolicyError, Quota, QuotaError,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    write_duration,
};
use tidegate_limiter::WhenFull;
use tidegate_redis::{Mode, OnError};

/// Everything that a rules file says, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// The limits; their names differ.
    pub limits: Vec<LimitSpec>,
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
    pub deadline: Option<Duration>,
    /// How long a server keeps units of a leased limit, and how long a reported one's report waits.
    pub slack: Option<Duration>,
    /// How much of a reported limit each server may have used without the store knowing.
    pub unreported: Option<u32>,
}

/// The algorithms by the names that rules give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmName {
    /// [`FixedWindow`]
    FixedWindow,
    /// [`SlidingLog`]
    SlidingLog,
    /// [`SlidingWindow`]
    SlidingWindow,
    /// [`SlidingCounter`](tidegate_core::algorithm::SlidingCounter)
    SlidingCounter,
    /// [`TokenBucket`]
    TokenBucket,
    /// [`LeakyBucket`]
    LeakyBucket,
    /// [`Concurrency`]
    Concurrency,
}

impl AlgorithmName {
    /// All of them, in the order of [`Policy::NAMES`].
    pub const ALL: [Self; 7] = [
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingWindow,
        Self::SlidingCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Concurrency,
    ];

    /// The algorithm of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Policy::NAMES[self as usize]
    }
}

/// An algorithm with its numbers and options, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own in the file")]
pub struct PolicySpec {
    /// Which algorithm.
    pub algorithm: AlgorithmName,
    /// `N` of `N/duration`, or the permits of `concurrency`.
    pub limit: u32,
    /// The duration; `None` for `concurrency`, which has none.
    pub window: Option<Duration>,
    /// `sliding-window`: how many slots.
    pub slots: Option<u32>,
    /// `sliding-window`: `mode: balanced`.
    pub balanced: bool,
    /// `fixed-window`: windows start at a key's first admitted request.
    pub first_hit: bool,
    /// `sliding-log`: closed windows.
    pub closed: bool,
    /// `token-bucket`: what the bucket holds.
    pub burst: Option<u32>,
    /// `leaky-bucket`: the longest delay.
    pub max_wait: Option<Duration>,
    /// `concurrency`: when a permit comes back by itself.
    pub hold: Option<Duration>,
    /// Denied requests consume too.
    pub count_denied: bool,
}

impl PolicySpec {
    /// An algorithm without options.
    #[must_use]
    pub fn new(algorithm: AlgorithmName, limit: u32, window: Option<Duration>) -> Self {
        Self {
            algorithm,
            limit,
            window,
            slots: None,
            balanced: false,
            first_hit: false,
            closed: false,
            burst: None,
            max_wait: None,
            hold: None,
            count_denied: false,
        }
    }

    /// What decides.
    ///
    /// # Errors
    /// When the numbers make no sense together: see [`PolicyError`].
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        // A window that is missing where one is needed is as good as one of no length.
        let quota = || Quota::new(self.limit, self.window.unwrap_or_default()).map_err(PolicyError::Quota);
        let policy = match self.algorithm {
            AlgorithmName::FixedWindow => {
                let windows = FixedWindow::new(quota()?);
                if self.first_hit { windows.first_hit() } else { windows }.into()
            }
            AlgorithmName::SlidingLog => {
                let log = SlidingLog::new(quota()?)?;
                if self.closed { log.closed() } else { log }.into()
            }
            AlgorithmName::SlidingWindow => {
                let mut window = SlidingWindow::new(quota()?);
                if let Some(slots) = self.slots {
                    window = window.slots(slots)?;
                }
                if self.balanced { window.balanced() } else { window }.into()
            }
            AlgorithmName::SlidingCounter => Policy::sliding_counter(quota()?),
            AlgorithmName::TokenBucket => {
                let bucket = TokenBucket::new(quota()?)?;
                self.burst.map_or(Ok(bucket), |burst| bucket.burst(burst))?.into()
            }
            AlgorithmName::LeakyBucket => {
                let bucket = LeakyBucket::new(quota()?);
                self.max_wait.map_or(Ok(bucket), |wait| bucket.max_wait(wait))?.into()
            }
            AlgorithmName::Concurrency => {
                if self.window.is_some() {
                    return Err(PolicyError::Quota(QuotaError::EmptyWindow));
                }
                let permits = Concurrency::new(self.limit);
                self.hold.map_or(Ok(permits), |hold| permits.hold(hold))?.into()
            }
        };
        Ok(if self.count_denied { policy.count_denied() } else { policy })
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
        let mut options = Vec::new();
        let span = |name: &str, span: Duration| {
            let mut text = format!("{name}: ");
            push_duration(&mut text, span);
            text
        };
        options.extend(self.slots.map(|slots| format!("slots: {slots}")));
        options.extend(self.balanced.then(|| "mode: balanced".to_owned()));
        options.extend(self.first_hit.then(|| "first_hit: true".to_owned()));
        options.extend(self.closed.then(|| "closed: true".to_owned()));
        options.extend(self.burst.map(|burst| format!("burst: {burst}")));
        options.extend(self.max_wait.map(|wait| span("max_wait", wait)));
        options.extend(self.hold.map(|hold| span("hold", hold)));
        options.extend(self.count_denied.then(|| "count_denied: true".to_owned()));
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
