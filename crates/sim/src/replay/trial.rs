//! A trial: a quota, and the algorithms to try on it.

use tidegate_core::{Policy, PolicyError, Quota};

use crate::{algorithm::AlgorithmSpec, fleet::Fleet};

/// An algorithm with the trial's quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub spec: AlgorithmSpec,
    pub policy: Policy,
}

/// A quota, and the algorithms to run on it side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    quota: Quota,
    candidates: Vec<Candidate>,
    fleet: Option<Fleet>,
}

impl Trial {
    /// Combines each algorithm with the quota.
    ///
    /// # Errors
    /// If the quota does not suit one of them.
    pub fn new(quota: Quota, algorithms: &[AlgorithmSpec]) -> Result<Self, TrialError> {
        let candidate = |spec: &AlgorithmSpec| match spec.policy(quota) {
            Ok(policy) => Ok(Candidate {
                spec: spec.clone(),
                policy,
            }),
            Err(error) => Err(TrialError {
                algorithm: spec.label().to_owned(),
                quota,
                error,
            }),
        };
        let candidates = algorithms.iter().map(candidate).collect::<Result<_, _>>()?;
        Ok(Self {
            quota,
            candidates,
            fleet: None,
        })
    }

    /// The same limits, shared by a fleet of nodes; `None` decides in one place.
    pub fn on(self, fleet: Option<Fleet>) -> Self {
        Self { fleet, ..self }
    }

    /// The quota.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    pub(super) const fn fleet(&self) -> Option<Fleet> {
        self.fleet
    }

    pub(crate) fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    pub(crate) fn has_sliding_counter(&self) -> bool {
        self.candidates
            .iter()
            .any(|candidate| candidate.spec.is_sliding_counter())
    }
}

/// A quota does not suit an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{algorithm} with {quota}: {error}")]
pub struct TrialError {
    /// The algorithm.
    pub algorithm: String,
    /// The quota.
    pub quota: Quota,
    /// The reason.
    #[source]
    pub error: PolicyError,
}
