//! When the most denied keys send requests, and when they are denied.

use super::{DeniedKey, Findings, KeyState, Trial, key_state::Owed};
use crate::workload::Workload;

/// Requests and denials of some keys over time, by a trial's first algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatMap {
    /// The algorithm.
    pub algorithm: String,
    /// For each key, in the order given: requests and denials in each of [`HeatMap::STEPS`] equal
    /// parts of the timeline.
    pub keys: Vec<Vec<(u64, u64)>>,
}

impl HeatMap {
    /// The number of parts of the timeline for each key.
    pub const STEPS: usize = 48;
}

/// The most denied keys of these findings of the trial, by its first algorithm in one place.
///
/// Replays these keys once more, except for a single key: the findings already contain its numbers.
pub fn heat_map<W: Workload>(workload: &W, trial: &Trial, findings: &Findings) -> HeatMap {
    let Some(candidate) = trial.candidates().first() else {
        return HeatMap::default();
    };
    let timeline = findings.timeline;
    let part = |step: usize| step * HeatMap::STEPS / timeline.stretches;
    let algorithm = candidate.spec.label().to_owned();
    if let ([_], 1, None, Some(row)) = (
        &findings.most_denied[..],
        findings.keys,
        findings.fleet,
        findings.rows.first(),
    ) {
        let mut parts = vec![(0, 0); HeatMap::STEPS];
        for (step, (requests, denied)) in findings
            .requests_over_time
            .iter()
            .zip(&row.denied_over_time)
            .enumerate()
        {
            let (all, bad) = &mut parts[part(step)];
            *all += requests;
            *bad += denied;
        }
        return HeatMap {
            algorithm,
            keys: vec![parts],
        };
    }
    let mut state = KeyState::new(candidate.policy);
    let row = |key: &DeniedKey| {
        let mut parts = vec![(0, 0); HeatMap::STEPS];
        let (mut sum, mut ends, mut owed) = (0, workload.ends(key.key), Owed::default());
        for (time, cost) in workload.costs(key.key) {
            sum += cost;
            owed.due(time, |time, cost| state.charge(time, cost));
            let end = ends.next();
            let is_denied = state
                .decide(time, if end.is_some() { 0 } else { cost })
                .is_denied();
            if let Some(end) = end.filter(|_| !is_denied) {
                owed.push(end, cost);
            }
            let (requests, denied) = &mut parts[part(timeline.stretch(time))];
            *requests += 1;
            *denied += u64::from(is_denied);
        }
        state.clear(sum);
        parts
    };
    HeatMap {
        algorithm,
        keys: findings.most_denied.iter().map(row).collect(),
    }
}
