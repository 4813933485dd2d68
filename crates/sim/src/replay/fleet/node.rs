//! One place in a fleet: a node, and after its death the node that replaces it.

use tidegate_core::Nanos;
use tidegate_core::lease::{Lease, Terms};

/// The number of the node in the succession of one place.
pub(super) type Life = u64;

/// When the nodes of each place die.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lives {
    nodes: u64,
    length: Option<u64>,
}

impl Lives {
    pub fn new(nodes: u64, length: Option<u64>) -> Self {
        Self {
            nodes,
            length: length.map(|length| length.max(1)),
        }
    }

    /// The node that is at a place at a time. The deaths of the places are spread evenly over a
    /// lifetime.
    pub fn at(&self, place: usize, time: u64) -> Life {
        let Some(length) = self.length else { return 0 };
        let shift = u128::from(length) * place as u128 / u128::from(self.nodes);
        ((u128::from(time) + shift) / u128::from(length)) as Life
    }
}

#[derive(Debug)]
pub(super) struct FleetNode {
    lease: Lease,
    life: Life,
    /// When a caller last asked.
    pub asked: u64,
    /// Whether its next tick is in the queue.
    pub ticking: bool,
}

impl FleetNode {
    pub fn new(terms: Terms, life: Life) -> Self {
        Self {
            lease: Lease::new(terms),
            life,
            asked: 0,
            ticking: false,
        }
    }

    /// The lease of the current node: a new node starts with nothing.
    pub fn lease(&mut self, life: Life) -> &Lease {
        if self.life != life {
            *self = Self {
                ticking: self.ticking,
                asked: self.asked,
                ..Self::new(*self.lease.terms(), life)
            };
        }
        &self.lease
    }

    /// Whether there may be something to send without a request.
    pub fn is_awake(&self, now: u64) -> bool {
        let slack = self.lease.terms().slack();
        Nanos::new(now).saturating_since(Nanos::new(self.asked)) <= slack.saturating_add(slack)
    }
}
