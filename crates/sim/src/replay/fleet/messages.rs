//! The messages in transit. Messages of one kind all take the same time, so each kind is a queue in
//! the order of time.

use std::collections::VecDeque;

use tidegate_core::lease::{Grant, Request};

use super::node::Life;

/// A request to the limit, with the decisions of the exact log and of one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// The step of the timeline that contains the request.
    pub step: u16,
    /// Whether the exact log admits the request.
    pub exact: bool,
    /// Whether the algorithm admits the request in one place.
    pub one_place: bool,
    pub cost: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ToAuthority {
    pub node: usize,
    pub life: Life,
    pub request: Request,
    /// The caller that waits for the answer, if there is one.
    pub caller: Option<Caller>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ToNode {
    pub node: usize,
    pub life: Life,
    pub request: Request,
    pub grant: Grant,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FleetEvent {
    Tick(usize),
    ToAuthority(ToAuthority),
    ToNode(ToNode),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    ticks: VecDeque<(u64, usize)>,
    to_authority: VecDeque<(u64, ToAuthority)>,
    to_node: VecDeque<(u64, ToNode)>,
}

impl Queues {
    pub fn tick(&mut self, time: u64, node: usize) {
        self.ticks.push_back((time, node));
    }

    pub fn send(&mut self, time: u64, message: ToAuthority) {
        self.to_authority.push_back((time, message));
    }

    pub fn answer(&mut self, time: u64, message: ToNode) {
        self.to_node.push_back((time, message));
    }

    /// The first event that is due at or before `now`; answers before questions, and questions
    /// before ticks.
    pub fn next(&mut self, now: u64) -> Option<(u64, FleetEvent)> {
        let first = |time: Option<u64>| time.unwrap_or(u64::MAX);
        let ticks = first(self.ticks.front().map(|event| event.0));
        let there = first(self.to_authority.front().map(|event| event.0));
        let back = first(self.to_node.front().map(|event| event.0));
        let time = ticks.min(there).min(back);
        if time > now {
            return None;
        }
        if time == back {
            self.to_node
                .pop_front()
                .map(|(time, message)| (time, FleetEvent::ToNode(message)))
        } else if time == there {
            self.to_authority
                .pop_front()
                .map(|(time, message)| (time, FleetEvent::ToAuthority(message)))
        } else {
            self.ticks
                .pop_front()
                .map(|(time, node)| (time, FleetEvent::Tick(node)))
        }
    }

    /// Stops the ticks when no more requests will come; only the messages in transit remain.
    pub fn stop_ticking(&mut self) {
        self.ticks.clear();
    }
}
