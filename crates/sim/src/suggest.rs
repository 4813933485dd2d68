//! The smallest limit that denies few enough.
//!
//! A replay is repeated with other limits, first doubling, then halving the gap. This finds the smallest limit because
//! more limit never denies more, neither requests nor keys. For, by induction over a key's requests: suppose that the
//! higher limit has admitted at least as many as the lower one up to every earlier moment, and just as many up to now.
//! Each algorithm decides on a weighted sum of its latest admissions, with weights that only fall as they grow older
//! (a log or window counts 1, then 0; a counter counts 1, then less and less, then 0), or on what a bucket has taken in
//! since some moment less what has leaked since (and the higher limit leaks no slower). The higher limit's admissions
//! came no later one by one, so its sum is no larger, and where the lower limit admits it does too.
//! With `count-denied` what is recorded is not what is admitted, and the argument does not hold; there the property is
//! tested on random traffic, not proven.

use std::{fmt, num::NonZeroUsize, str::FromStr, time::Duration};

use tidegate_core::{Policy, PolicyError, Quota, QuotaError};

use crate::{
    algorithm::AlgorithmSpec,
    progress::Progress,
    replay::{KeyState, on_threads},
    workload::Workload,
};

/// A share of all, exact to a ten-millionth of a percent.
///
/// ```
/// use tidegate_sim::Share;
/// let share: Share = "0.1%".parse()?;
/// assert_eq!(share.of(12_345), 12);
/// # Ok::<(), tidegate_sim::ParseShareError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    billionths: u32,
}

impl Share {
    /// One in a hundred.
    pub const ONE_PERCENT: Self = Self { billionths: 10_000_000 };

    /// The largest whole number that is at most this share of `all`.
    #[must_use]
    pub const fn of(self, all: u64) -> u64 {
        (all as u128 * self.billionths as u128 / 1_000_000_000) as u64
    }
}

impl FromStr for Share {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = text.strip_suffix('%').ok_or(ParseShareError)?.trim_end();
        let (whole, fraction) = percent.split_once('.').unwrap_or((percent, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 7 {
            return Err(ParseShareError);
        }
        let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 100).ok_or(ParseShareError)?;
        // At most seven digits, filled up to seven.
        let fraction: u32 = format!("{fraction:0<7}").parse().map_err(|_| ParseShareError)?;
        let billionths = whole * 10_000_000 + fraction;
        if billionths > 1_000_000_000 { Err(ParseShareError) } else { Ok(Self { billionths }) }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.billionths / 10_000_000, self.billionths % 10_000_000);
        let fraction = format!("{fraction:07}");
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            fraction => write!(f, "{whole}.{fraction}%"),
        }
    }
}

/// A text that is no share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseShareError;

impl fmt::Display for ParseShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write a percentage from 0% to 100%, with at most seven digits behind the point, as in 1% or 0.1%")
    }
}

impl std::error::Error for ParseShareError {}

/// How much a limit may deny: both hold where both are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// At most this share of the keys that make requests is ever denied.
    pub keys: Option<Share>,
    /// At most this share of the requests is denied.
    pub requests: Option<Share>,
}

impl Goal {
    fn is_met(&self, denials: Denials, requests: u64) -> bool {
        self.keys.is_none_or(|share| denials.denied_keys <= share.of(denials.keys))
            && self.requests.is_none_or(|share| denials.denied <= share.of(requests))
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.keys, self.requests) {
            (Some(keys), Some(requests)) => write!(f, "{keys} of the keys and {requests} of the requests"),
            (Some(keys), None) => write!(f, "{keys} of the keys"),
            (None, Some(requests)) => write!(f, "{requests} of the requests"),
            (None, None) => f.write_str("any share"),
        }
    }
}

/// The smallest limit that meets a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The limit in its window.
    pub quota: Quota,
    /// Requests that it denies.
    pub denied: u64,
    /// Keys that it denies at least once.
    pub denied_keys: u64,
}

/// Looks for the smallest limit, at least 1, with which the algorithm meets the goal.
///
/// The workload is replayed at most 64 times; `progress` counts requests, anew for each replay.
///
/// # Errors
/// When the window or the algorithm's options make no quota, or when no limit meets the goal (as a token bucket's fixed
/// burst may not).
pub fn suggest<W: Workload>(
    workload: &W,
    algorithm: &AlgorithmSpec,
    window: Duration,
    goal: Goal,
    threads: NonZeroUsize,
    progress: &Progress,
) -> Result<Suggestion, SuggestError> {
    let policy = |limit| {
        let quota = Quota::new(limit, window).map_err(SuggestError::Window)?;
        Ok((quota, algorithm.policy(quota).map_err(SuggestError::Algorithm)?))
    };
    let attempt = |limit| {
        let (quota, policy) = policy(limit)?;
        let denials = count_denials(workload, policy, threads, progress);
        let suggestion = Suggestion { quota, denied: denials.denied, denied_keys: denials.denied_keys };
        Ok(goal.is_met(denials, workload.requests()).then_some(suggestion))
    };
    policy(1)?;
    let highest = largest(|limit| policy(limit).is_ok());
    // `low` denies too much.
    let (mut low, mut high) = (0, 1);
    let mut found = loop {
        match attempt(high)? {
            Some(found) => break found,
            None if high == highest => {
                let algorithm = algorithm.label().to_owned();
                return Err(SuggestError::Unattainable { algorithm, goal, highest });
            }
            None => (low, high) = (high, high.saturating_mul(2).min(highest)),
        }
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match attempt(middle)? {
            Some(better) => (found, high) = (better, middle),
            None => low = middle,
        }
    }
    Ok(found)
}

/// The largest limit that an algorithm takes, given that it takes 1 and all below one that it takes.
fn largest(takes: impl Fn(u32) -> bool) -> u32 {
    let (mut taken, mut above) = (1, u64::from(u32::MAX) + 1);
    while above - u64::from(taken) > 1 {
        let middle = taken + ((above - u64::from(taken)) / 2) as u32;
        if takes(middle) {
            taken = middle;
        } else {
            above = middle.into();
        }
    }
    taken
}

/// Why no limit can be suggested.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuggestError {
    /// The window makes no quota.
    Window(QuotaError),
    /// The algorithm's options do not suit the window.
    Algorithm(PolicyError),
    /// No limit denies little enough.
    Unattainable {
        /// The algorithm.
        algorithm: String,
        /// What was asked for.
        goal: Goal,
        /// The highest limit that was tried.
        highest: u32,
    },
}

impl fmt::Display for SuggestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window(error) => error.fmt(f),
            Self::Algorithm(error) => error.fmt(f),
            Self::Unattainable { algorithm, goal, highest } => write!(
                f,
                "{algorithm} denies more than {goal} with any limit up to {highest}: allow a larger share, or change \
                 its options"
            ),
        }
    }
}

impl std::error::Error for SuggestError {}

#[derive(Clone, Copy, Debug, Default)]
struct Denials {
    keys: u64,
    denied: u64,
    denied_keys: u64,
}

/// A replay that looks at nothing but denials.
fn count_denials<W: Workload>(
    workload: &W,
    policy: Policy,
    threads: NonZeroUsize,
    progress: &Progress,
) -> Denials {
    progress.begin(workload.requests());
    let key = |(denials, state): &mut (Denials, KeyState), key: u32| {
        let (mut requests, mut denied) = (0, 0);
        for time in workload.times(key) {
            requests += 1;
            denied += u64::from(state.decide(time).is_denied());
        }
        state.clear(requests);
        denials.keys += u64::from(requests > 0);
        denials.denied += denied;
        denials.denied_keys += u64::from(denied > 0);
        progress.add(requests);
    };
    let fresh = || (Denials::default(), KeyState::new(policy));
    let add = |(sum, _): &mut (Denials, KeyState), (other, _): (Denials, KeyState)| {
        sum.keys += other.keys;
        sum.denied += other.denied;
        sum.denied_keys += other.denied_keys;
    };
    on_threads(workload.keys(), threads, fresh, key, add).0
}
