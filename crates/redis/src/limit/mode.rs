//! Where a shared limit is decided, and what becomes of it without the store.

use std::time::Duration;

use tidegate_core::Policy;
use tidegate_core::lease::{Mode as Agreed, Terms};

/// Where a shared limit is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Every decision in the store, in one atomic step: exact, at the price of a round trip (which callers at the same time
    /// share).
    #[default]
    Exact,
    /// In memory, from allotments of the quota that this node has taken from the store: never over, at the price of some denials
    /// while other nodes hold what is left. See [`LimitBuilder::slack`](crate::LimitBuilder::slack).
    Leased,
    /// In memory, from what the store had left when it was last asked, and reported to it in the background: over by at most
    /// [`LimitBuilder::unreported`](crate::LimitBuilder::unreported) for each node.
    Reported,
}

impl Mode {
    /// The mode that comes out for a policy, with a slack other than the default: [`Exact`](Self::Exact) where it admits of
    /// no other (see [`LimitBuilder::mode`](crate::LimitBuilder::mode)).
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

/// What to answer while the store gives no decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// Admit everything: the limit does not hold.
    Open,
    /// Deny everything: nobody is served.
    Closed,
    /// Decide in memory, with the limit divided by the last known number of nodes (at least 1 for each): the limit holds
    /// about, from scratch.
    #[default]
    Local,
}
