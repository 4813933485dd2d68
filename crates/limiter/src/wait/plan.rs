//! What a line will have done to its state when everybody in it has been admitted: the answer to the next who comes.

use tidegate_core::{Algorithm, Decision, Nanos, Policy};

/// A copy of a state, moved on.
#[derive(Debug)]
pub(super) struct Plan {
    policy: Policy,
    state: Box<[u64]>,
    /// When the last one is admitted; `None` where nobody knows (only another holder's release makes room).
    at: Option<Nanos>,
    /// The first ticket that is not in it yet.
    pub next: u64,
    /// What the line had been through when this plan was begun.
    pub version: u64,
}

/// Where a cost comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Admitted then, to start after that delay.
    At(Nanos, Nanos),
    /// When somebody gives back enough.
    Unknown,
    /// Above the limit, or after the end of time.
    Never,
}

impl Plan {
    /// A plan that begins with `state` as it is, at `at`.
    pub fn new(policy: &Policy, state: &[u64], at: Nanos, version: u64) -> Self {
        Self { policy: *policy, state: state.into(), at: Some(at), next: 0, version }
    }

    /// When `cost` would be admitted behind everybody in the plan.
    pub fn turn(&self, cost: u32) -> Turn {
        turn(&self.policy, &self.state, self.at, cost)
    }

    /// Adds somebody to the plan; returns where they come in.
    pub fn add(&mut self, cost: u32) -> Turn {
        let turn = self.turn(cost);
        self.put(cost, turn);
        turn
    }

    /// Adds somebody who comes in at `turn`, which is this plan's answer to their cost.
    pub fn put(&mut self, cost: u32, turn: Turn) {
        match turn {
            Turn::At(at, _) => {
                self.policy.record(&mut self.state, at, cost);
                self.at = Some(at);
            }
            Turn::Unknown => self.at = None,
            Turn::Never => {}
        }
    }

    /// The denial of `cost` behind everybody in the plan.
    pub fn denial(&self, cost: u32, now: Nanos) -> Decision {
        let limit = self.policy.limit();
        match self.turn(cost) {
            Turn::At(at, _) => {
                // A plan that was overtaken by time still names a time to come.
                let wait = at.saturating_since(now).get().max(1);
                let reset = self.policy.check(&self.state, at, 0).reset_after_nanos();
                Decision::deny(limit, wait, 0, 1, reset.saturating_add(wait))
            }
            Turn::Unknown | Turn::Never => Decision::deny_for_good(limit, 0, 1, u64::MAX),
        }
    }
}

/// When `cost` is admitted by a state that nobody else asks from `at` on.
pub(super) fn turn(policy: &Policy, state: &[u64], at: Option<Nanos>, cost: u32) -> Turn {
    if cost > policy.limit() {
        return Turn::Never;
    }
    let Some(mut at) = at else { return Turn::Unknown };
    // A denial names the time exactly, so the second look admits. It may be too early where `at` is older than the state:
    // then the time that was found is one to look again at.
    for _ in 0..8 {
        let decision = policy.check(state, at, cost);
        if decision.is_allowed() {
            let start = at.saturating_add(decision.delay().into());
            return if start < Nanos::MAX { Turn::At(at, start.saturating_since(at)) } else { Turn::Never };
        }
        let Some(wait) = decision.retry_after() else { return Turn::Unknown };
        let wait = Nanos::from(wait);
        if wait >= Nanos::MAX.saturating_since(at) {
            return Turn::Never;
        }
        at = at.saturating_add(wait.max(Nanos::new(1)));
    }
    Turn::At(at, Nanos::ZERO)
}
