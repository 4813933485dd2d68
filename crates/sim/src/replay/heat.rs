//! When the most denied keys send requests, and when they are denied.

use super::{DeniedKey, KeyState, Timeline, Trial};
use crate::workload::Workload;

/// Requests and denials of some keys over time, by a trial's first algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatMap {
    /// The algorithm.
    pub algorithm: String,
    /// For each key, in the order given: requests and denials in each of [`HeatMap::STEPS`] equal parts of the timeline.
    pub keys: Vec<Vec<(u64, u64)>>,
}

impl HeatMap {
    /// The number of parts of the timeline for each key.
    pub const STEPS: usize = 48;
}

/// Replays these keys again, through the first algorithm of the trial.
#[must_use]
pub fn heat_map<W: Workload>(workload: &W, trial: &Trial, keys: &[DeniedKey]) -> HeatMap {
    let Some(candidate) = trial.candidates().first() else { return HeatMap::default() };
    let timeline = Timeline::new(workload.span(), workload.has_dates());
    let mut state = KeyState::new(candidate.policy);
    let row = |key: &DeniedKey| {
        let mut steps = vec![(0, 0); HeatMap::STEPS];
        for time in workload.times(key.key) {
            let step = timeline.stretch(time) * HeatMap::STEPS / timeline.stretches;
            let (requests, denied) = &mut steps[step];
            *requests += 1;
            *denied += u64::from(state.decide(time).is_denied());
        }
        state.clear(key.requests);
        steps
    };
    HeatMap { algorithm: candidate.spec.label().to_owned(), keys: keys.iter().map(row).collect() }
}
