//! Recommends one of several suggested limits.

use tidegate_core::{Algorithm, MAX_LIMIT, Quota};

use super::{CurvePoint, Goal, Share, Suggestion};
use crate::algorithm::AlgorithmSpec;

/// A recommended limit that denies more than this share of the requests is not recommended without
/// saying so first: a few keys may make most requests.
pub const MOST_DENIED: Share = Share::FIVE_PERCENT;

/// A limit to start with, and the reason for the choice.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Recommendation {
    /// The algorithm, with its options if any.
    pub algorithm: String,
    /// The limit.
    #[serde(rename = "limit")]
    pub quota: Quota,
    /// Why this limit was chosen among the suggested ones.
    pub reason: String,
    /// Requests that it denies.
    pub denied: u64,
    /// Keys that it denies at least once.
    pub denied_keys: u64,
    /// If it denies more than 5% of the requests: the smallest limit that does not.
    pub milder: Option<Suggestion>,
    /// An item of a rules file's `limits`.
    pub yaml: String,
    /// The denials of the algorithm with this and with other limits.
    pub curve: Vec<CurvePoint>,
}

/// Chooses an algorithm: among those that never admit more than the limit in any window, the one
/// with the smallest state. If none of these was requested, among all. `by` names the keys. Returns
/// `None` if nothing was suggested.
///
/// The curve stays empty.
pub fn recommend(found: &[(AlgorithmSpec, Suggestion)], by: &str) -> Option<Recommendation> {
    let bytes = |(spec, suggestion): &(AlgorithmSpec, Suggestion)| {
        spec.policy(suggestion.quota)
            .map_or(usize::MAX, |policy| policy.words() * size_of::<u64>())
    };
    let strict = found
        .iter()
        .filter(|(spec, _)| spec.never_exceeds())
        .min_by_key(|each| bytes(each));
    let (chosen, why) = match strict {
        Some(chosen) => (chosen, "it never admits more than the limit in any window"),
        None => (
            found.iter().min_by_key(|each| bytes(each))?,
            "none of the algorithms asked for keeps to the limit in every window; this one needs the least memory",
        ),
    };
    let (spec, suggestion) = chosen;
    let rivals = found
        .iter()
        .filter(|(rival, _)| strict.is_some() && rival.never_exceeds() && rival != spec);
    let rivals: Vec<String> = rivals
        .map(|each| format!("{} takes {}", each.0.label(), bytes(each)))
        .collect();
    let against = if rivals.is_empty() {
        String::new()
    } else {
        format!(", where {}", rivals.join(" and "))
    };
    Some(Recommendation {
        algorithm: spec.label().to_owned(),
        quota: suggestion.quota,
        reason: format!("{why}, and takes {} bytes a key{against}", bytes(chosen)),
        denied: suggestion.denied,
        denied_keys: suggestion.denied_keys,
        milder: None,
        yaml: spec.yaml(suggestion.quota, by),
        curve: Vec::new(),
    })
}

impl Recommendation {
    /// The goal of a milder limit, if this one denies more of all `requests` than it should without
    /// a word.
    pub fn milder_goal(&self, goal: Goal, requests: u64) -> Option<Goal> {
        (self.denied > MOST_DENIED.of(requests)).then_some(Goal {
            requests: Some(MOST_DENIED),
            ..goal
        })
    }
}

/// Limits around one, from half of it to four times, to see what a stricter and a more generous
/// limit would deny.
pub fn limits_around(limit: u64) -> Vec<u64> {
    let part = |eighths: u64| (limit * eighths).div_ceil(8).clamp(1, MAX_LIMIT);
    let mut limits: Vec<u64> = [4, 6, 7, 8, 9, 10, 12, 16, 24, 32].map(part).into();
    limits.dedup();
    limits
}
