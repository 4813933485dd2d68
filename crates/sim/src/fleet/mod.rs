//! One limit shared by nodes, with a network between them and whoever owns the shared state.
//!
//! Each request of a key goes to one of the nodes, drawn at random but the same in every run, as a load balancer deals
//! them that knows nothing of keys. A node decides by its [`Lease`](tidegate_core::lease::Lease); what it has to ask takes half
//! a round trip there and half a round trip back. A request that waits for the authority is decided, and counts as
//! admitted, when it arrives there. A node that dies does so from one moment to the next: what it held is lost, and whoever
//! waited at it is denied.

mod messages;
mod node;
mod run;

use std::{num::NonZeroU16, time::Duration};

use tidegate_core::lease::{Mode, Terms};
use tidegate_core::{Nanos, Policy};

pub(crate) use run::FleetRun;

/// Nodes that share a limit, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// How many nodes there are at any time.
    pub nodes: NonZeroU16,
    /// How they share it.
    pub mode: Mode,
    /// From a node to the authority and back.
    pub round_trip: Duration,
    /// How long a leased unit is kept at most, and a report waits.
    pub slack: Duration,
    /// What a node may have used and not yet reported (`reported`); `None` is a twentieth of the limit.
    pub unreported: Option<u32>,
    /// After how long each node dies and a new one takes its place; `None` is never. They do not die together.
    pub node_life: Option<Duration>,
}

impl Fleet {
    /// Nodes that never die, half a millisecond from the authority.
    #[must_use]
    pub fn new(nodes: NonZeroU16, mode: Mode) -> Self {
        Self {
            nodes,
            mode,
            round_trip: Duration::from_micros(500),
            slack: Terms::SLACK.into(),
            unreported: None,
            node_life: None,
        }
    }

    /// What node and authority agree on for a limit.
    #[must_use]
    pub fn terms(&self, policy: Policy) -> Terms {
        let slack = Nanos::from(self.slack);
        match self.mode {
            Mode::Exact => Terms::exact(policy),
            Mode::Leased => Terms::leased(policy, slack),
            Mode::Reported => {
                let unreported = self.unreported.unwrap_or_else(|| Terms::default_unreported(&policy));
                Terms::reported(policy, unreported, slack)
            }
        }
    }
}

/// What came of sharing a limit, beside what one place that decides everything at once would have made of the same
/// requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The mode that came out: exact where the algorithm admits of no other.
    pub mode: Mode,
    /// What the algorithm admits in one place.
    pub admitted_in_one_place: u64,
    /// Requests denied that it admits in one place.
    pub denied_wrongly: u64,
    /// The most requests in any window that were admitted and that the algorithm, asked at the moments at which they
    /// were, would have denied.
    pub over: u64,
    /// Requests to the authority, those that nobody waited for included.
    pub round_trips: u64,
    /// Requests to the limit that waited for the authority.
    pub waited: u64,
}

impl Shared {
    const fn new(mode: Mode) -> Self {
        Self { mode, admitted_in_one_place: 0, denied_wrongly: 0, over: 0, round_trips: 0, waited: 0 }
    }

    pub(crate) fn absorb(&mut self, other: &Self) {
        self.admitted_in_one_place += other.admitted_in_one_place;
        self.denied_wrongly += other.denied_wrongly;
        self.over = self.over.max(other.over);
        self.round_trips += other.round_trips;
        self.waited += other.waited;
    }
}
