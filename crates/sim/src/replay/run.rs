//! One algorithm with one quota, during a replay.

use super::{exact::RecentTimes, findings::Row, key_state::KeyState, trial::Candidate};

/// A batch of one key's requests, in order of time, with the values that all runs need for each.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    /// The times and costs.
    pub requests: Vec<(u64, u64)>,
    /// The step of the timeline that contains each request.
    pub timeline_steps: Vec<u16>,
    /// Whether the exact log admitted each request.
    pub exact: Vec<bool>,
}

/// An algorithm with the state of the current key, and the counts over all keys.
#[derive(Clone, Debug)]
pub(super) struct CandidateRun {
    state: KeyState,
    /// The key's admissions, for the worst window.
    admitted: RecentTimes,
    /// Denials of the key.
    denied: u64,
    pub row: Row,
}

impl CandidateRun {
    pub fn new(candidate: &Candidate, window: u64, stretches: usize) -> Self {
        Self {
            state: KeyState::new(candidate.policy),
            admitted: RecentTimes::new(window),
            denied: 0,
            row: Row::of(candidate, stretches),
        }
    }

    pub fn run(&mut self, stretch: &Stretch) {
        let Stretch { requests, timeline_steps, exact } = stretch;
        let mut admitted = 0;
        for ((&(time, cost), &step), &exact) in requests.iter().zip(timeline_steps).zip(exact) {
            let decision = self.state.decide(time, cost);
            if decision.is_denied() {
                self.row.denied_over_time[usize::from(step)] += 1;
                self.row.wrongly_denied += u64::from(exact);
                continue;
            }
            admitted += 1;
            self.row.wrongly_admitted += u64::from(!exact);
            let in_window = self.admitted.count(time) + cost;
            self.admitted.push(time, cost);
            self.row.worst_window = self.row.worst_window.max(in_window);
            if let Some(delays) = &mut self.row.delays {
                delays.add(decision.delay());
            }
        }
        self.row.admitted += admitted;
        self.denied += requests.len() as u64 - admitted;
    }

    /// Ends a key whose requests cost this much together; returns how many of them were denied.
    pub fn finish_key(&mut self, cost: u64) -> u64 {
        self.admitted.clear();
        self.state.clear(cost);
        let denied = std::mem::take(&mut self.denied);
        self.row.denied += denied;
        self.row.denied_keys += u64::from(denied > 0);
        denied
    }
}
