//! What a node and the authority tell each other.

use crate::{Decision, Nanos};

/// From a node to the authority.
///
/// Each must end in exactly one [`granted`](super::Lease::granted) or [`failed`](super::Lease::failed) of the lease that
/// made it, also when the caller that it was made for has gone away: while it is out the lease asks for no other piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "send it, then call `granted` or `failed`"]
pub struct Request {
    /// What the caller wants to know: decide on this cost, to be used at once. 0 where no caller waits.
    pub cost: u32,
    /// How much is wanted beyond that, for later.
    pub ahead: u32,
    /// Units that were taken and will not be used.
    pub back: Option<GiveBack>,
    /// Units that were used and not yet charged (`reported` alone).
    pub spent: u32,
    /// When it was made, on the node's clock.
    pub sent: Nanos,
}

/// Units that a node took and will not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// How many.
    pub units: u32,
    /// When they were taken, on the authority's clock: [`Grant::now`].
    pub taken: Nanos,
}

/// From the authority to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The answer to the caller's cost.
    pub decision: Decision,
    /// Units beyond it: taken from the shared state (`leased`), or merely seen to be free there (`reported`).
    pub units: u32,
    /// For how long from `now` the units may be used.
    pub usable_for: Nanos,
    /// When the authority decided, on its clock.
    pub now: Nanos,
}

/// What a lease says to a caller.
#[derive(Clone, Copy, Debug)]
#[must_use = "an answer may hold a request that must be sent"]
pub enum Answer {
    /// Decided in memory.
    Decided(Decision),
    /// Decided in memory; the request is to be sent meanwhile, nobody waits for it.
    Renew(Decision, Request),
    /// Only the authority can tell: send the request; [`granted`](super::Lease::granted) returns the decision.
    Refill(Request),
}

impl Answer {
    /// The decision, where it has been made.
    #[must_use]
    pub const fn decision(&self) -> Option<Decision> {
        match self {
            Self::Decided(decision) | Self::Renew(decision, _) => Some(*decision),
            Self::Refill(_) => None,
        }
    }

    /// The request, where there is one to be sent.
    #[must_use]
    pub const fn request(&self) -> Option<Request> {
        match self {
            Self::Renew(_, request) | Self::Refill(request) => Some(*request),
            Self::Decided(_) => None,
        }
    }
}
