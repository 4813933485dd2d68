//! One algorithm with one quota, during a replay.

use super::{
    exact::RecentTimes,
    findings::Row,
    key_state::{KeyState, Owed},
    trial::Candidate,
};

/// A batch of one key's requests, in order of time, with the values that all runs need for each.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    /// The times and costs.
    pub requests: Vec<(u64, u64)>,
    /// When each is charged; empty if costs are known before.
    pub ends: Vec<u64>,
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
    /// Costs of the key that are charged later.
    owed: Owed,
    /// Denials of the key.
    denied: u64,
    pub row: Row,
}

impl CandidateRun {
    pub fn new(candidate: &Candidate, window: u64, stretches: usize) -> Self {
        Self {
            state: KeyState::new(candidate.policy),
            admitted: RecentTimes::new(window),
            owed: Owed::default(),
            denied: 0,
            row: Row::of(candidate, stretches),
        }
    }

    pub fn run(&mut self, stretch: &Stretch) {
        let Stretch {
            requests,
            ends,
            timeline_steps,
            exact,
        } = stretch;
        let mut admitted = 0;
        let all = requests.iter().zip(timeline_steps).zip(exact);
        for (at, ((&(time, cost), &step), &exact)) in all.enumerate() {
            let end = ends.get(at);
            let asked = if end.is_some() { 0 } else { cost };
            if end.is_some() {
                self.charge_until(time);
            }
            let decision = self.state.decide(time, asked);
            if decision.is_denied() {
                self.row.denied_over_time[usize::from(step)] += 1;
                self.row.wrongly_denied += u64::from(exact);
                continue;
            }
            admitted += 1;
            self.row.wrongly_admitted += u64::from(!exact);
            match end {
                Some(&end) => self.owed.push(end, cost),
                None => {
                    self.row.worst_window =
                        self.row.worst_window.max(self.admitted.add(time, cost));
                }
            }
            if let Some(delays) = &mut self.row.delays {
                delays.add(decision.delay());
            }
        }
        self.row.admitted += admitted;
        self.denied += requests.len() as u64 - admitted;
    }

    /// Charges what is due, whether it fits or not.
    fn charge_until(&mut self, now: u64) {
        let Self {
            state,
            admitted,
            owed,
            row,
            ..
        } = self;
        owed.due(now, |time, cost| {
            state.charge(time, cost);
            row.worst_window = row.worst_window.max(admitted.add(time, cost));
        });
    }

    /// Ends a key whose requests cost this much together; returns how many of them were denied.
    pub fn finish_key(&mut self, cost: u64) -> u64 {
        self.charge_until(u64::MAX);
        self.admitted.clear();
        self.state.clear(cost);
        let denied = std::mem::take(&mut self.denied);
        self.row.denied += denied;
        self.row.denied_keys += u64::from(denied > 0);
        denied
    }
}
