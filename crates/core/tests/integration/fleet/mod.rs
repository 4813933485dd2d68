//! Nodes, an authority, and a network between them that delays, reorders and loses; in made-up
//! time.
//!
//! The oracle's view: every admission of every node, at the moment at which it was given, on the
//! authority's clock.

use std::collections::BTreeMap;

use tidegate_core::lease::{Answer, Grant, Lease, Request, Terms};
use tidegate_core::{Algorithm, Nanos};

/// A clock that is off by a constant, and runs fast or slow by some millionths.
#[derive(Clone, Copy, Debug)]
pub struct Skew {
    pub offset: u64,
    pub ppm: i64,
}

impl Skew {
    fn at(self, time: u64) -> Nanos {
        let run = i128::from(time) * i128::from(1_000_000 + self.ppm) / 1_000_000;
        Nanos::new(self.offset + u64::try_from(run).unwrap())
    }
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // Each test takes the steps that it needs.
pub enum Step {
    /// A caller asks this node for this cost.
    Ask { node: usize, cost: u64 },
    /// The driver asks the lease whether there is something to say.
    Tick { node: usize },
    /// The node is gone from one moment to the next, and another one begins in its place.
    Die { node: usize },
    /// The node leaves in order, and another one begins in its place.
    Leave { node: usize },
}

/// What the network does to one request: delays there and back; lost where `None`.
#[derive(Clone, Copy, Debug)]
pub struct Travel {
    pub there: Option<u64>,
    pub back: Option<u64>,
}

enum Event {
    Step(Step),
    Arrives {
        node: usize,
        life: u64,
        request: Request,
        back: Option<u64>,
    },
    Returns {
        node: usize,
        life: u64,
        request: Request,
        grant: Grant,
    },
    GivenUp {
        node: usize,
        life: u64,
        request: Request,
    },
}

struct Node {
    lease: Lease,
    clock: Skew,
    /// How many nodes have been in this place.
    life: u64,
}

#[allow(dead_code)] // As above.
pub struct Fleet {
    terms: Terms,
    clock: Skew,
    pub shared: Vec<u64>,
    nodes: Vec<Node>,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    travels: Box<dyn FnMut() -> Travel>,
    /// When, on the authority's clock, and how much.
    pub admitted: Vec<(u64, u64)>,
    pub decided_locally: u64,
    pub round_trips: u64,
    pub denied: u64,
}

/// A driver gives up waiting after this long.
const PATIENCE: u64 = 20_000_000;

impl Fleet {
    pub fn new(
        terms: Terms,
        clock: Skew,
        nodes: &[Skew],
        travels: impl FnMut() -> Travel + 'static,
    ) -> Self {
        let node = |&clock: &Skew| Node {
            lease: Lease::new(terms),
            clock,
            life: 0,
        };
        Self {
            terms,
            clock,
            shared: vec![0; terms.policy().words()],
            nodes: nodes.iter().map(node).collect(),
            events: BTreeMap::new(),
            sequence: 0,
            travels: Box::new(travels),
            admitted: Vec::new(),
            decided_locally: 0,
            round_trips: 0,
            denied: 0,
        }
    }

    pub fn at(&mut self, time: u64, step: Step) {
        self.schedule(time, Event::Step(step));
    }

    fn schedule(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), event);
    }

    /// What the authority's clock shows; like Redis's it counts whole microseconds.
    fn authority(&self, time: u64) -> Nanos {
        let now = self.clock.at(time).get();
        Nanos::new(now - now % 1_000)
    }

    pub fn run(&mut self) {
        while let Some(((time, _), event)) = self.events.pop_first() {
            match event {
                Event::Step(step) => self.step(time, step),
                Event::Arrives {
                    node,
                    life,
                    request,
                    back,
                } => {
                    let now = self.authority(time);
                    let grant = self.terms.serve(&mut self.shared, now, &request);
                    if request.cost > 0 && grant.decision.is_allowed() {
                        self.admitted.push((now.get(), request.cost));
                    }
                    match back {
                        Some(delay) => {
                            self.schedule(
                                time + delay,
                                Event::Returns {
                                    node,
                                    life,
                                    request,
                                    grant,
                                },
                            );
                        }
                        None => self.schedule(
                            time + PATIENCE,
                            Event::GivenUp {
                                node,
                                life,
                                request,
                            },
                        ),
                    }
                }
                Event::Returns {
                    node,
                    life,
                    request,
                    grant,
                } => {
                    let node = &self.nodes[node];
                    if node.life == life {
                        let decision = node.lease.granted(request, &grant, node.clock.at(time));
                        self.denied += u64::from(decision.is_denied());
                    }
                }
                Event::GivenUp {
                    node,
                    life,
                    request,
                } => {
                    let node = &self.nodes[node];
                    if node.life == life {
                        node.lease.failed(request);
                    }
                }
            }
        }
    }

    fn step(&mut self, time: u64, step: Step) {
        let now = |fleet: &Self, node: usize| fleet.nodes[node].clock.at(time);
        match step {
            Step::Ask { node, cost } => {
                let answer = self.nodes[node].lease.ask(cost, now(self, node));
                if let Some(decision) = answer.decision() {
                    self.decided_locally += 1;
                    if decision.is_denied() {
                        self.denied += 1;
                    } else if cost > 0 {
                        let moment = self.authority(time).get();
                        self.admitted.push((moment, cost));
                    }
                }
                if let Answer::Renew(_, request) | Answer::Refill(request) = answer {
                    self.send(time, node, request);
                }
            }
            Step::Tick { node } => {
                if let Some(request) = self.nodes[node].lease.returning(now(self, node)) {
                    self.send(time, node, request);
                }
            }
            Step::Die { node } => self.replace(node),
            Step::Leave { node } => {
                for request in self.nodes[node].lease.close(now(self, node)) {
                    self.send(time, node, request);
                }
                self.replace(node);
            }
        }
    }

    fn replace(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.lease = Lease::new(self.terms);
        node.life += 1;
    }

    fn send(&mut self, time: u64, node: usize, request: Request) {
        self.round_trips += 1;
        let Travel { there, back } = (self.travels)();
        let life = self.nodes[node].life;
        match there {
            Some(delay) => self.schedule(
                time + delay,
                Event::Arrives {
                    node,
                    life,
                    request,
                    back,
                },
            ),
            None => self.schedule(
                time + PATIENCE,
                Event::GivenUp {
                    node,
                    life,
                    request,
                },
            ),
        }
    }

    /// All admissions in order of time.
    pub fn admissions(&self) -> Vec<(u64, u64)> {
        let mut all = self.admitted.clone();
        all.sort_by_key(|&(time, _)| time);
        all
    }
}
