//! The state after every waiter of a line has been admitted: the basis for the answer to the next
//! request.

use tidegate_core::{Algorithm, Decision, Nanos, Policy, Standing};

use super::{Ground, place::Place};

/// A copy of a state, advanced in time.
#[derive(Debug)]
pub(super) struct WaitPlan {
    policy: Policy,
    state: Box<[u64]>,
    /// When the last waiter is admitted; `None` if unknown (only the release of a permit makes
    /// room).
    at: Option<Nanos>,
    /// The first place that the plan does not include.
    pub next: Place,
    /// The line's version at the start of this plan.
    pub version: u64,
}

/// When a cost is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitTurn {
    /// Admitted at this time, to start after this delay.
    At(Nanos, Nanos),
    /// Admitted when enough units are returned.
    Unknown,
    /// Above the limit, or after the end of time.
    Never,
}

impl WaitTurn {
    /// The denial of `cost` until this turn.
    pub fn denial(self, ground: &Ground<'_>, cost: u64) -> Decision {
        let Ground { policy, now, .. } = *ground;
        let limit = policy.limit();
        if cost > limit {
            return policy.peek(ground.state, now, cost);
        }
        match self {
            Self::At(at, _) => {
                let wait = at.saturating_since(now).get();
                let reset = policy.peek(ground.state, now, 0).reset_after_nanos();
                Decision::deny(
                    Standing {
                        limit,
                        room: 0,
                        unit: 1,
                        reset_after: reset.max(wait),
                    },
                    wait,
                )
            }
            Self::Unknown | Self::Never => denied_for_good(limit),
        }
    }
}

impl WaitPlan {
    /// A plan that starts with `state` at time `at`.
    pub fn new(policy: &Policy, state: &[u64], at: Nanos, version: u64) -> Self {
        Self {
            policy: *policy,
            state: state.into(),
            at: Some(at),
            next: Place::default(),
            version,
        }
    }

    /// When `cost` would be admitted behind all waiters in the plan.
    pub fn turn(&self, cost: u64) -> WaitTurn {
        turn(&self.policy, &self.state, self.at, cost)
    }

    /// Adds a waiter to the plan; returns when it is admitted.
    pub fn add(&mut self, cost: u64) -> WaitTurn {
        let turn = self.turn(cost);
        self.put(cost, turn);
        turn
    }

    /// Adds a waiter that is admitted at `turn`, which is this plan's answer to its cost.
    pub fn put(&mut self, cost: u64, turn: WaitTurn) {
        match turn {
            WaitTurn::At(at, _) => {
                self.policy.record(&mut self.state, at, cost);
                self.at = Some(at);
            }
            WaitTurn::Unknown => self.at = None,
            WaitTurn::Never => {}
        }
    }

    /// The denial of `cost` behind all waiters in the plan.
    pub fn denial(&self, cost: u64, now: Nanos) -> Decision {
        let limit = self.policy.limit();
        match self.turn(cost) {
            WaitTurn::At(at, _) => {
                // An outdated plan still gives a time in the future.
                let wait = at.saturating_since(now).get().max(1);
                let reset = self.policy.peek(&self.state, at, 0).reset_after_nanos();
                let reset_after = reset.saturating_add(wait);
                Decision::deny(
                    Standing {
                        limit,
                        room: 0,
                        unit: 1,
                        reset_after,
                    },
                    wait,
                )
            }
            WaitTurn::Unknown | WaitTurn::Never => denied_for_good(limit),
        }
    }
}

fn denied_for_good(limit: u64) -> Decision {
    Decision::deny_for_good(Standing {
        limit,
        room: 0,
        unit: 1,
        reset_after: u64::MAX,
    })
}

/// The time at which a state admits `cost`, without other requests from `at` on.
pub(super) fn turn(policy: &Policy, state: &[u64], at: Option<Nanos>, cost: u64) -> WaitTurn {
    if cost > policy.highest_cost() {
        return WaitTurn::Never;
    }
    let Some(mut at) = at else {
        return WaitTurn::Unknown;
    };
    // A denial gives the exact time, so the second attempt admits. The first may be too early if
    // `at` is older than the state; then the search continues from the time that was found.
    for _ in 0..8 {
        let decision = policy.peek(state, at, cost);
        if decision.is_allowed() {
            let start = at.saturating_add(decision.delay().into());
            return if start < Nanos::MAX {
                WaitTurn::At(at, start.saturating_since(at))
            } else {
                WaitTurn::Never
            };
        }
        let Some(wait) = decision.retry_after() else {
            return WaitTurn::Unknown;
        };
        let wait = Nanos::from(wait);
        if wait >= Nanos::MAX.saturating_since(at) {
            return WaitTurn::Never;
        }
        at = at.saturating_add(wait.max(Nanos::new(1)));
    }
    WaitTurn::At(at, Nanos::ZERO)
}
