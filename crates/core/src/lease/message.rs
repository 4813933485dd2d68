//! The messages between a node and the authority.

use crate::{Decision, Nanos};

/// A message from a node to the authority.
///
/// Each request must end in exactly one [`granted`](super::Lease::granted) or
/// [`failed`](super::Lease::failed) of the lease that made it, even if its caller has gone away:
/// until then the lease requests no other units ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "send it, then call `granted` or `failed`"]
pub struct Request {
    /// The cost that the caller waits for: decide on it, and it is used at once. 0 if no caller
    /// waits.
    pub cost: u64,
    /// How many more units are wanted for later.
    pub ahead: u32,
    /// Units that were taken and will not be used.
    pub back: Option<GiveBack>,
    /// Units that were used and not yet charged (only for `reported`).
    pub spent: u32,
    /// When the request was made, on the node's clock.
    pub sent: Nanos,
}

/// Units that a node took and will not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// The number of units.
    pub units: u32,
    /// When they were taken, on the authority's clock: [`Grant::now`].
    pub taken: Nanos,
}

/// A message from the authority to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The answer to the caller's cost.
    pub decision: Decision,
    /// More units: taken from the shared state (`leased`), or only seen to be free there
    /// (`reported`).
    pub units: u32,
    /// How long after `now` the units may be used.
    pub usable_for: Nanos,
    /// When the authority decided, on its clock.
    pub now: Nanos,
}

/// A lease's answer to a caller.
#[derive(Clone, Copy, Debug)]
#[must_use = "an answer may hold a request that must be sent"]
pub enum Answer {
    /// Decided in memory.
    Decided(Decision),
    /// Decided in memory. Send the request in the background.
    Renew(Decision, Request),
    /// Only the authority can decide: send the request, and [`granted`](super::Lease::granted)
    /// returns the decision.
    Refill(Request),
}

impl Answer {
    /// The decision, if it has been made.
    #[must_use]
    pub const fn decision(&self) -> Option<Decision> {
        match self {
            Self::Decided(decision) | Self::Renew(decision, _) => Some(*decision),
            Self::Refill(_) => None,
        }
    }

    /// The request to send, if there is one.
    #[must_use]
    pub const fn request(&self) -> Option<Request> {
        match self {
            Self::Renew(_, request) | Self::Refill(request) => Some(*request),
            Self::Decided(_) => None,
        }
    }
}
