//! A model of allotments: two nodes and an authority, and every sequence of requests, lost, late
//! and repeated messages, and pauses. After each sequence both nodes ask until all is used up. What
//! was admitted, asked again at the moments of admission in one place, must be admitted there, too.
#![cfg(feature = "std")]

use std::collections::VecDeque;

use tidegate_core::lease::{Answer, Grant, Lease, Request, Terms};
use tidegate_core::{Algorithm, Nanos, Policy};

/// A part of the protocol that the model can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// The authority serves each message once.
    Once,
    /// A node stops using units when they expire.
    Expires,
    /// Units are charged before they are used.
    ChargedFirst,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(usize),
    /// The oldest message arrives at the authority, and its answer at the node.
    Deliver,
    /// It arrives there, and the node gives up waiting for the answer.
    LoseAnswer,
    /// The latest message arrives once more.
    Repeat,
    Pause(u64),
}

const STEPS: [Step; 7] = [
    Step::Ask(0),
    Step::Ask(1),
    Step::Deliver,
    Step::LoseAnswer,
    Step::Repeat,
    Step::Pause(30_000_000),
    Step::Pause(970_000_000),
];
const COST: u64 = 4;

struct World {
    terms: Terms,
    without: Option<Guard>,
    now: Nanos,
    shared: Vec<u64>,
    judge: Vec<u64>,
    policy: Policy,
    nodes: [Lease; 2],
    sent: VecDeque<(usize, Request)>,
    latest: Option<(usize, Request)>,
    is_over: bool,
}

impl World {
    fn new(without: Option<Guard>) -> Self {
        let policy = Policy::fixed_window("32/1s".parse().unwrap());
        let terms = match without {
            Some(Guard::ChargedFirst) => Terms::reported(policy, 8, Terms::SLACK),
            _ => Terms::leased(policy, Terms::SLACK),
        };
        Self {
            terms,
            without,
            now: Nanos::from_secs(1_000),
            shared: vec![0; policy.words()],
            judge: vec![0; policy.words()],
            policy,
            nodes: [Lease::new(terms), Lease::new(terms)],
            sent: VecDeque::new(),
            latest: None,
            is_over: false,
        }
    }

    /// The time that a node sees.
    fn clock(&self) -> Nanos {
        if self.without == Some(Guard::Expires) {
            Nanos::from_secs(1_000)
        } else {
            self.now
        }
    }

    fn admitted(&mut self, cost: u64) {
        self.is_over |= cost > 0
            && !self
                .policy
                .decide(&mut self.judge, self.now, cost)
                .is_allowed();
    }

    /// Returns whether the request was decided, and admitted.
    fn ask(&mut self, node: usize, cost: u64) -> Option<bool> {
        let answer = self.nodes[node].ask(cost, self.clock());
        let told = answer.decision().map(|decision| decision.is_allowed());
        if told == Some(true) {
            self.admitted(cost);
        }
        if let Answer::Renew(_, request) | Answer::Refill(request) = answer {
            self.sent.push_back((node, request));
        }
        told
    }

    fn serve(&mut self, request: &Request) -> Grant {
        let grant = self.terms.serve(&mut self.shared, self.now, request);
        if grant.decision.is_allowed() {
            self.admitted(request.cost);
        }
        grant
    }

    fn deliver(&mut self) -> Option<bool> {
        let (node, request) = self.sent.pop_front()?;
        let grant = self.serve(&request);
        self.latest = Some((node, request));
        Some(
            self.nodes[node]
                .granted(request, &grant, self.clock())
                .is_allowed(),
        )
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask(node) => drop(self.ask(node, COST)),
            Step::Deliver => drop(self.deliver()),
            Step::LoseAnswer => {
                let Some((node, request)) = self.sent.pop_front() else {
                    return;
                };
                self.serve(&request);
                self.latest = Some((node, request));
                self.nodes[node].failed(request);
            }
            Step::Repeat if self.without == Some(Guard::Once) => {
                if let Some((_, request)) = self.latest {
                    // Its second answer reaches nobody.
                    let _grant = self.terms.serve(&mut self.shared, self.now, &request);
                }
            }
            Step::Repeat => {}
            Step::Pause(span) => {
                self.now = self.now.saturating_add(Nanos::new(span));
                for node in 0..2 {
                    if let Some(request) = self.nodes[node].returning(self.clock()) {
                        self.sent.push_back((node, request));
                    }
                }
            }
        }
    }

    /// Both nodes ask until nothing is left.
    fn use_up(&mut self) {
        while !self.sent.is_empty() {
            self.deliver();
        }
        for node in [0, 1, 0] {
            let mut admitted = true;
            while admitted && !self.is_over {
                admitted = self.ask(node, 1).unwrap_or(false) | self.deliver().unwrap_or(false);
            }
        }
    }
}

/// Whether any sequence of this many steps leads to more than one place would have admitted.
fn is_ever_over(depth: u32, without: Option<Guard>) -> bool {
    let all = STEPS.len().pow(depth);
    (0..all).any(|number| {
        let mut world = World::new(without);
        // From its second request on a node takes units ahead.
        world.step(Step::Ask(0));
        world.step(Step::Deliver);
        let mut rest = number;
        for _ in 0..depth {
            world.step(STEPS[rest % STEPS.len()]);
            rest /= STEPS.len();
        }
        world.use_up();
        world.is_over
    })
}

#[test]
fn nodes_are_never_over_in_any_sequence_of_messages_and_pauses() {
    assert!(!is_ever_over(6, None));
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for without in [Guard::Once, Guard::Expires, Guard::ChargedFirst] {
        assert!(is_ever_over(6, Some(without)), "{without:?}");
    }
}
