//! One limit shared by nodes, with a network between the nodes and the authority that owns the
//! shared state.
//!
//! Each request goes to a random node, the same in every run, as with a load balancer that does not
//! know the keys ([`Load`] says how evenly). A node decides by its
//! [`Lease`](tidegate_core::lease::Lease). A message to the authority takes half a round trip, and
//! so does the answer. A request that waits for the authority is decided, and counts as admitted,
//! when its message arrives there. A node dies without notice: what it held is lost, and requests
//! that wait at it are denied.

use std::{num::NonZeroU16, time::Duration};

use tidegate_core::lease::{Mode, Terms};
use tidegate_core::{Nanos, Policy};

/// Nodes that share a limit, and the way in which they share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// The number of nodes at any time.
    pub nodes: NonZeroU16,
    /// How the requests are distributed over the nodes.
    pub load: Load,
    /// How the nodes share the limit.
    pub mode: Mode,
    /// The round trip between a node and the authority.
    pub round_trip: Duration,
    /// The maximum time for which a leased unit is kept and a report waits.
    pub slack: Duration,
    /// How much a node may have used and not yet reported (`reported`); `None` means a twentieth of
    /// the limit.
    pub unreported: Option<u32>,
    /// The lifetime of a node, after which a new one replaces it; `None` means unlimited. Nodes do
    /// not die at the same time.
    pub node_life: Option<Duration>,
}

/// How requests are distributed over nodes, at random.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Load {
    /// All nodes get as many.
    #[default]
    Even,
    /// The first quarter of the nodes gets half of the requests, and the first node of 16 a
    /// quarter.
    Skewed,
    /// The same, but each second the next node is the first.
    Moving,
}

impl Load {
    /// The node for a request that comes at `time`, from a random number.
    pub(crate) fn node(self, random: u64, time: u64, nodes: u64) -> u64 {
        let even = |random: u64| ((u128::from(random) * u128::from(nodes)) >> 64) as u64;
        let skewed = even((u128::from(random).pow(2) >> 64) as u64);
        match self {
            Self::Even => random % nodes,
            Self::Skewed => skewed,
            Self::Moving => (skewed + time / Nanos::from_secs(1).get()) % nodes,
        }
    }
}

impl Fleet {
    /// Nodes that never die, half a millisecond from the authority.
    pub fn new(nodes: NonZeroU16, mode: Mode) -> Self {
        Self {
            nodes,
            load: Load::Even,
            mode,
            round_trip: Duration::from_micros(500),
            slack: Terms::SLACK.into(),
            unreported: None,
            node_life: None,
        }
    }

    /// The terms that nodes and authority share for a limit.
    pub fn terms(&self, policy: Policy) -> Terms {
        Terms::of(self.mode, policy, self.slack.into(), self.unreported)
    }
}

/// The results of sharing a limit, compared with one place that makes every decision on the same
/// requests immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Sharing {
    /// The effective mode: exact if the algorithm supports no other.
    #[serde(skip)]
    pub mode: Mode,
    /// The number of requests that the algorithm admits in one place.
    pub admitted_in_one_place: u64,
    /// The number of denied requests that the algorithm admits in one place.
    pub denied_by_sharing: u64,
    /// The most admitted requests in any window that the algorithm, asked at the times of their
    /// admission, would have denied.
    pub over: u64,
    /// Requests to the authority, including those that no caller waited for.
    pub round_trips: u64,
    /// Requests to the limit that waited for the authority.
    pub waited: u64,
}

impl Sharing {
    pub(crate) const fn new(mode: Mode) -> Self {
        Self {
            mode,
            admitted_in_one_place: 0,
            denied_by_sharing: 0,
            over: 0,
            round_trips: 0,
            waited: 0,
        }
    }

    pub(crate) fn absorb(&mut self, other: &Self) {
        self.admitted_in_one_place += other.admitted_in_one_place;
        self.denied_by_sharing += other.denied_by_sharing;
        self.over = self.over.max(other.over);
        self.round_trips += other.round_trips;
        self.waited += other.waited;
    }
}
