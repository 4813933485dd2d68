//! One algorithm with one quota, shared by a fleet, during a replay.

use tidegate_core::lease::{Answer, Request, Terms};
use tidegate_core::{Decision, Nanos};

use super::{
    messages::{Caller, FleetEvent, Queues, ToAuthority, ToNode},
    node::{FleetNode, Lives},
};
use crate::{
    fleet::{Fleet, Load, Sharing},
    replay::{Candidate, KeyState, RecentTimes, Row, Stretch},
    workload::mix,
};

/// The nodes, the authority and the network for the current key, and the counts over all keys.
#[derive(Debug)]
pub(crate) struct FleetRun {
    terms: Terms,
    load: Load,
    lives: Lives,
    /// Half a round trip.
    one_way: u64,
    nodes: Vec<FleetNode>,
    shared: KeyState,
    queues: Queues,
    /// The algorithm in one place, on all requests at their arrival.
    one_place: KeyState,
    /// The algorithm at the times of the admissions.
    reference: KeyState,
    admitted: RecentTimes,
    over: RecentTimes,
    /// The current key, and the number of its requests so far.
    key: u32,
    requests: u64,
    /// What they cost together.
    cost: u64,
    /// Units charged to the shared state for the key.
    charged: u64,
    denied: u64,
    row: Row,
    figures: Sharing,
}

impl FleetRun {
    pub fn new(candidate: &Candidate, fleet: Fleet, window: u64, stretches: usize) -> Self {
        let terms = fleet.terms(candidate.policy);
        let life = fleet.node_life.map(|life| Nanos::from(life).get());
        Self {
            terms,
            load: fleet.load,
            lives: Lives::new(fleet.nodes.get().into(), life),
            one_way: Nanos::from(fleet.round_trip).get() / 2,
            nodes: (0..fleet.nodes.get())
                .map(|_| FleetNode::new(terms, 0))
                .collect(),
            shared: KeyState::new(*terms.policy()),
            queues: Queues::default(),
            one_place: KeyState::new(candidate.policy),
            reference: KeyState::new(candidate.policy),
            admitted: RecentTimes::new(window),
            over: RecentTimes::new(window),
            key: 0,
            requests: 0,
            cost: 0,
            charged: 0,
            denied: 0,
            row: Row::of(candidate, stretches),
            figures: Sharing::new(terms.mode()),
        }
    }

    pub fn run(&mut self, key: u32, stretch: &Stretch) {
        self.key = key;
        let Stretch {
            requests,
            timeline_steps,
            exact,
            ..
        } = stretch;
        for ((&(time, cost), &step), &exact) in requests.iter().zip(timeline_steps).zip(exact) {
            self.advance(time);
            let one_place = !self.one_place.decide(time, cost).is_denied();
            self.figures.admitted_in_one_place += u64::from(one_place);
            self.ask(
                time,
                Caller {
                    step,
                    exact,
                    one_place,
                    cost,
                },
            );
        }
    }

    /// Runs the events that are due up to `now`.
    fn advance(&mut self, now: u64) {
        while let Some((time, event)) = self.queues.next(now) {
            match event {
                FleetEvent::Tick(node) => self.tick(time, node),
                FleetEvent::ToAuthority(message) => self.serve(time, message),
                FleetEvent::ToNode(ToNode {
                    node,
                    life,
                    request,
                    grant,
                }) => {
                    // If the node is gone, the answer is lost.
                    if self.lives.at(node, time) == life {
                        let _ =
                            self.nodes[node]
                                .lease(life)
                                .granted(request, &grant, Nanos::new(time));
                    }
                }
            }
        }
    }

    fn ask(&mut self, now: u64, caller: Caller) {
        let at = self
            .load
            .node(deal(self.key, self.requests), now, self.nodes.len() as u64)
            as usize;
        self.requests += 1;
        self.cost += caller.cost;
        let node = &mut self.nodes[at];
        node.asked = now;
        let answer = node
            .lease(self.lives.at(at, now))
            .ask(caller.cost, Nanos::new(now));
        if let Some(decision) = answer.decision() {
            self.decided(now, &decision, caller);
        }
        match answer {
            Answer::Decided(_) => {}
            Answer::Renew(_, request) => self.send(now, at, request, None),
            Answer::Refill(request) => {
                self.figures.waited += 1;
                self.send(now, at, request, Some(caller));
            }
        }
        self.schedule_tick(now, at);
    }

    fn send(&mut self, now: u64, node: usize, request: Request, caller: Option<Caller>) {
        self.figures.round_trips += 1;
        let life = self.lives.at(node, now);
        self.queues.send(
            now + self.one_way,
            ToAuthority {
                node,
                life,
                request,
                caller,
            },
        );
    }

    fn serve(&mut self, now: u64, message: ToAuthority) {
        let ToAuthority {
            node,
            life,
            request,
            caller,
        } = message;
        let grant = self
            .terms
            .serve(self.shared.words(), Nanos::new(now), &request);
        self.charged +=
            request.cost + u64::from(request.spent) + u64::from(grant.units.min(request.ahead));
        let back = now + self.one_way;
        if let Some(caller) = caller {
            if self.lives.at(node, back) == life {
                self.decided(now, &grant.decision, caller);
            } else {
                self.deny(caller);
            }
        }
        self.queues.answer(
            back,
            ToNode {
                node,
                life,
                request,
                grant,
            },
        );
    }

    fn schedule_tick(&mut self, now: u64, node: usize) {
        let every = self.terms.slack().get() / 4;
        if every > 0 && !self.nodes[node].ticking {
            self.nodes[node].ticking = true;
            self.queues.tick(now + every, node);
        }
    }

    fn tick(&mut self, now: u64, at: usize) {
        let node = &mut self.nodes[at];
        node.ticking = false;
        let request = node
            .lease(self.lives.at(at, now))
            .returning(Nanos::new(now));
        if node.is_awake(now) {
            self.schedule_tick(now, at);
        }
        if let Some(request) = request {
            self.send(now, at, request, None);
        }
    }

    fn decided(&mut self, now: u64, decision: &Decision, caller: Caller) {
        if decision.is_denied() {
            return self.deny(caller);
        }
        self.row.admitted += 1;
        self.row.wrongly_admitted += u64::from(!caller.exact);
        self.row.worst_window = self
            .row
            .worst_window
            .max(self.admitted.add(now, caller.cost));
        if let Some(delays) = &mut self.row.delays {
            delays.add(decision.delay());
        }
        if self.reference.decide(now, caller.cost).is_denied() {
            self.figures.over = self.figures.over.max(self.over.add(now, caller.cost));
        }
    }

    fn deny(&mut self, caller: Caller) {
        self.denied += 1;
        self.row.denied_over_time[usize::from(caller.step)] += 1;
        self.row.wrongly_denied += u64::from(caller.exact);
        self.figures.denied_by_sharing += u64::from(caller.one_place);
    }

    /// Ends a key; returns how many of its requests were denied.
    pub fn finish_key(&mut self) -> u64 {
        self.queues.stop_ticking();
        self.advance(u64::MAX - 1);
        for node in &mut self.nodes {
            *node = FleetNode::new(self.terms, 0);
        }
        self.admitted.clear();
        self.over.clear();
        self.requests = 0;
        let cost = std::mem::take(&mut self.cost);
        self.shared.clear(std::mem::take(&mut self.charged));
        self.one_place.clear(cost);
        self.reference.clear(cost);
        let denied = std::mem::take(&mut self.denied);
        self.row.denied += denied;
        self.row.denied_keys += u64::from(denied > 0);
        denied
    }

    pub fn absorb(&mut self, other: &Self) {
        self.row.absorb(&other.row);
        self.figures.absorb(&other.figures);
    }

    pub fn row(&self) -> Row {
        Row {
            shared: Some(self.figures),
            ..self.row.clone()
        }
    }
}

/// A pseudo-random number for each request of each key.
fn deal(key: u32, request: u64) -> u64 {
    mix((u64::from(key) << 32)
        .wrapping_add(request)
        .wrapping_add(0x9e37_79b9_7f4a_7c15))
}
