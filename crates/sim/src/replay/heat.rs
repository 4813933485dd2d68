//! When the most denied keys send requests, and when they are denied.

use super::{DeniedKey, Findings, KeyState, Trial, key_state::Owed};
use crate::workload::Workload;

/// Requests and denials of some keys over time, by a trial's first algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatMap {
    /// The algorithm.
    pub algorithm: String,
    /// The length of a part of the timeline, in nanoseconds.
    pub step: u64,
    /// For each key, in the order given: requests and denials in each part of the timeline.
    pub keys: Vec<Vec<(u64, u64)>>,
}

impl HeatMap {
    /// The maximum number of parts of the timeline for each key.
    pub const PARTS: usize = 48;
}

/// The most denied keys of these findings of the trial, by its first algorithm in one place.
///
/// Replays these keys once more, except for a single key: the findings already contain its numbers.
pub fn heat_map<W: Workload>(workload: &W, trial: &Trial, findings: &Findings) -> HeatMap {
    let Some(candidate) = trial.candidates().first() else {
        return HeatMap::default();
    };
    let timeline = findings.timeline;
    // A part is a whole number of the timeline's steps, so that all have the same length.
    let merged = timeline.stretches.div_ceil(HeatMap::PARTS).max(1);
    let (part, parts) = (|at: usize| at / merged, timeline.stretches.div_ceil(merged));
    let length = timeline.step.saturating_mul(merged as u64);
    let algorithm = candidate.spec.label().to_owned();
    if let ([_], 1, None, Some(row)) = (
        &findings.most_denied[..],
        findings.keys,
        findings.fleet,
        findings.rows.first(),
    ) {
        let mut parts = vec![(0, 0); parts];
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
            step: length,
            keys: vec![parts],
        };
    }
    let mut state = KeyState::new(candidate.policy);
    let row = |key: &DeniedKey| {
        let mut parts = vec![(0, 0); parts];
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
        step: length,
        keys: findings.most_denied.iter().map(row).collect(),
    }
}
