//! Where a shared limit is decided, and what happens without the store.

use std::time::Duration;

use tidegate_core::Policy;
use tidegate_core::lease::{Mode as Agreed, Terms};

/// Where a shared limit is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// The store makes every decision in one atomic step. This is exact and costs a round trip, which concurrent callers
    /// share.
    #[default]
    Exact,
    /// This node decides in memory from allotments that it has taken from the store. The limit is never over, but some
    /// requests are denied while other nodes hold what is left. See [`LimitBuilder::slack`](crate::LimitBuilder::slack).
    Leased,
    /// This node decides in memory from what the store had left at the last request, and reports use in the background. The
    /// limit is over by at most [`LimitBuilder::unreported`](crate::LimitBuilder::unreported) per node.
    Reported,
}

impl Mode {
    /// The mode in force for a policy and a slack (the default if `None`): [`Exact`](Self::Exact) if the policy allows no
    /// other (see [`LimitBuilder::mode`](crate::LimitBuilder::mode)).
    #[must_use]
    pub fn for_policy(self, policy: impl Into<Policy>, slack: Option<Duration>) -> Self {
        Self::of(&self.terms(policy.into(), slack.unwrap_or(Terms::SLACK.into()), None))
    }

    pub(crate) fn terms(self, policy: Policy, slack: Duration, unreported: Option<u32>) -> Terms {
        match self {
            Self::Exact => Terms::exact(policy),
            Self::Leased => Terms::leased(policy, slack.into()),
            Self::Reported => {
                let unreported = unreported.unwrap_or_else(|| Terms::default_unreported(&policy));
                Terms::reported(policy, unreported, slack.into())
            }
        }
    }

    pub(crate) const fn of(terms: &Terms) -> Self {
        match terms.mode() {
            Agreed::Exact => Self::Exact,
            Agreed::Leased => Self::Leased,
            Agreed::Reported => Self::Reported,
        }
    }
}

/// The substitute for the store's decision while the store makes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// Admit everything, without any limit.
    Open,
    /// Deny everything.
    Closed,
    /// Decide in memory, starting from zero, with the limit divided by the last known number of nodes (at least 1 for each).
    /// The limit holds approximately.
    #[default]
    Local,
}
