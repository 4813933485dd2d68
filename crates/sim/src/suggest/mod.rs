//! Finds the smallest limit that denies few enough requests.
//!
//! A first pass counts the requests of each window, aligned to the clock. These counts give the
//! limit that a fixed window would need, which is where the search begins. From there a bracket is
//! opened and halved. Each limit that denies too much also shows which requests a higher limit
//! could deny at all (see `busy`). The search replays only these, and the requests that lead up to
//! them, again. The first replay, too, leaves out the stretches of time whose counts show that
//! nothing is denied there (see `sieve`).
//!
//! This finds the smallest limit because a higher limit never denies more requests or keys. The
//! proof is by induction over a key's requests: suppose that the higher limit has admitted at least
//! as many as the lower one up to every earlier moment, and just as many up to now. Each algorithm
//! decides on a weighted sum of its latest admissions, with weights that only decrease as they grow
//! older (a log or window counts 1, then 0; a counter counts 1, then less and less, then 0), or on
//! what a bucket has taken in since some moment minus what has leaked since (and the higher limit
//! leaks no slower). Each admission of the higher limit came no later than that of the lower one,
//! so its sum is not larger, and it admits everything that the lower limit admits. With
//! `count-denied` an algorithm records more than what it admits, and the argument does not hold;
//! for that case the property is tested on random traffic, not proven.

mod busy;
mod fragments;
mod pass;
mod recommend;
mod share;
mod sieve;
mod survey;

use std::{fmt, num::NonZeroUsize};

use tidegate_core::{MAX_LIMIT, Policy, PolicyError, Quota, QuotaError};

use crate::{algorithm::AlgorithmSpec, progress::Progress, replay::on_threads, workload::Workload};
use fragments::Fragments;
use pass::{Allowance, Denials, through_all, through_fragments};
pub use recommend::{MOST_DENIED, Recommendation, limits_around, recommend};
pub use share::{ParseShareError, Share};
pub use survey::Survey;

/// How much a limit may deny. If both shares are given, both apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// At most this share of the keys that make requests is ever denied.
    pub keys: Option<Share>,
    /// At most this share of the requests is denied.
    pub requests: Option<Share>,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.keys, self.requests) {
            (Some(keys), Some(requests)) => {
                write!(f, "{keys} of the keys and {requests} of the requests")
            }
            (Some(keys), None) => write!(f, "{keys} of the keys"),
            (None, Some(requests)) => write!(f, "{requests} of the requests"),
            (None, None) => f.write_str("any share"),
        }
    }
}

/// The smallest limit that meets a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Suggestion {
    /// The limit in its window.
    #[serde(rename = "limit")]
    pub quota: Quota,
    /// Requests that it denies.
    pub denied: u64,
    /// Keys that it denies at least once.
    pub denied_keys: u64,
}

/// Looks for the smallest limit, at least 1, with which each algorithm meets the goal in the window
/// of the survey. The results are in the algorithms' order.
///
/// `progress` counts the requests replayed; a request that is replayed again counts again.
///
/// # Errors
/// For an algorithm whose options are not valid for the window, or with which no limit meets the
/// goal (as may happen with a token bucket's fixed burst).
pub fn suggest_all<W: Workload>(
    workload: &W,
    survey: &Survey,
    algorithms: &[AlgorithmSpec],
    goal: Goal,
    threads: NonZeroUsize,
    progress: &Progress,
) -> Vec<Result<Suggestion, SuggestError>> {
    let (outer, inner) = divided(workload, threads);
    let one = |found: &mut Vec<_>, at: u32| {
        let algorithm = &algorithms[at as usize];
        found.push((
            at,
            Search {
                workload,
                survey,
                algorithm,
                threads: inner,
                progress,
            }
            .run(goal),
        ));
    };
    let mut found = on_threads(algorithms.len() as u32, outer, Vec::new, one, Vec::extend);
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, result)| result).collect()
}

/// The denials of an algorithm with one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CurvePoint {
    /// The limit.
    pub limit: u64,
    /// Requests that it denies.
    pub denied: u64,
    /// Keys that it denies at least once.
    pub denied_keys: u64,
}

/// The denials of an algorithm with each of these limits, in ascending order. Limits that the
/// algorithm rejects are left out.
pub fn curve<W: Workload>(
    workload: &W,
    survey: &Survey,
    algorithm: &AlgorithmSpec,
    mut limits: Vec<u64>,
    threads: NonZeroUsize,
    progress: &Progress,
) -> Vec<CurvePoint> {
    limits.sort_unstable();
    limits.dedup();
    let (outer, inner) = divided(workload, threads);
    let search = Search {
        workload,
        survey,
        algorithm,
        threads: inner,
        progress,
    };
    let point = |(left, points): &mut (Option<Fragments>, Vec<CurvePoint>), at: u32| {
        let limit = limits[at as usize];
        if let Ok((denials, still_left)) = search.attempt(limit, left.as_ref(), Allowance::ALL) {
            // Each thread's limits ascend.
            *left = still_left.or(left.take());
            points.push(CurvePoint {
                limit,
                denied: denials.denied,
                denied_keys: denials.denied_keys,
            });
        }
    };
    let add = |sum: &mut (_, Vec<CurvePoint>), other: (_, Vec<CurvePoint>)| sum.1.extend(other.1);
    let (_, mut points) = on_threads(
        limits.len() as u32,
        outer,
        || (None, Vec::new()),
        point,
        add,
    );
    points.sort_by_key(|point| point.limit);
    points
}

/// How many threads search side by side, and how many of them each search has: threads divide the
/// keys among them, or if there are too few keys, the algorithms or limits.
fn divided<W: Workload>(workload: &W, threads: NonZeroUsize) -> (NonZeroUsize, NonZeroUsize) {
    let few_keys = (workload.keys() as usize) < threads.get();
    if few_keys {
        (threads, NonZeroUsize::MIN)
    } else {
        (NonZeroUsize::MIN, threads)
    }
}

struct Search<'a, W> {
    workload: &'a W,
    survey: &'a Survey,
    algorithm: &'a AlgorithmSpec,
    threads: NonZeroUsize,
    progress: &'a Progress,
}

impl<W: Workload> Search<'_, W> {
    fn policy(&self, limit: u64) -> Result<(Policy, Quota), SuggestError> {
        let quota = Quota::new(limit, self.survey.window()).map_err(SuggestError::Window)?;
        Ok((
            self.algorithm
                .policy(quota)
                .map_err(SuggestError::Algorithm)?,
            quota,
        ))
    }

    /// The denials of a limit, and the requests that it leaves for higher limits; `left` is what a
    /// lower limit left.
    fn attempt(
        &self,
        limit: u64,
        left: Option<&Fragments>,
        allowance: Allowance,
    ) -> Result<(Denials, Option<Fragments>), SuggestError> {
        let (policy, quota) = self.policy(limit)?;
        Ok(match left {
            None => {
                let workload = (self.workload, self.survey);
                through_all(
                    workload,
                    (&policy, quota),
                    allowance,
                    self.threads,
                    self.progress,
                )
            }
            Some(left) => through_fragments(left, (&policy, quota), allowance, self.progress),
        })
    }

    fn run(&self, goal: Goal) -> Result<Suggestion, SuggestError> {
        self.policy(1)?;
        let highest = largest(|limit| self.policy(limit).is_ok());
        let allowance = Allowance::new(goal, self.survey.keys(), self.workload.requests());
        let mut limit = self.survey.fixed_window_limit(allowance).clamp(1, highest);
        let mut step = (limit / 16).max(1);
        // `low` denies too much; a higher limit need only be tried on what it leaves.
        let (mut low, mut left) = (0, None);
        let mut found: Option<Suggestion> = None;
        loop {
            let (denials, still_left) = self.attempt(limit, left.as_ref(), allowance)?;
            if allowance.covers(denials) {
                let quota = self.policy(limit)?.1;
                found = Some(Suggestion {
                    quota,
                    denied: denials.denied,
                    denied_keys: denials.denied_keys,
                });
            } else if limit == highest {
                let algorithm = self.algorithm.label().to_owned();
                return Err(SuggestError::Unattainable {
                    algorithm,
                    goal,
                    highest,
                });
            } else {
                low = limit;
                left = still_left.or(left);
            }
            limit = match found {
                Some(found) if found.quota.limit() - low <= 1 => return Ok(found),
                Some(found) if low > 0 => low + (found.quota.limit() - low) / 2,
                Some(found) => found.quota.limit().saturating_sub(step).max(1),
                None => low.saturating_add(step).min(highest),
            };
            step = step.saturating_mul(2);
        }
    }
}

/// The largest limit that an algorithm accepts, given that it accepts 1 and every limit below an
/// accepted one.
fn largest(takes: impl Fn(u64) -> bool) -> u64 {
    let (mut taken, mut above) = (1, MAX_LIMIT + 1);
    while above - taken > 1 {
        let middle = taken + (above - taken) / 2;
        if takes(middle) {
            taken = middle;
        } else {
            above = middle;
        }
    }
    taken
}

/// Why no limit can be suggested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuggestError {
    /// The window is not valid for a quota.
    #[error(transparent)]
    Window(#[from] QuotaError),
    /// The algorithm's options do not suit the window.
    #[error(transparent)]
    Algorithm(#[from] PolicyError),
    /// No limit denies little enough.
    #[error(
        "{algorithm} denies more than {goal} with any limit up to {highest}: allow a larger share, or change its options"
    )]
    Unattainable {
        /// The algorithm.
        algorithm: String,
        /// The goal.
        goal: Goal,
        /// The highest limit that was tried.
        highest: u64,
    },
}
