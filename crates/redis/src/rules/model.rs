//! A model of a roll-out: two nodes that change their rule, announce it, decide and stop, in every
//! order. Each rule admits one unit in its span. It visits every state that can be reached.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use super::announced::{Announced, GONE, HOLDS};

/// The step of time: an announcement holds for two.
const TICK: u64 = HOLDS / 2;
const HORIZON: u64 = 7 * TICK;
/// How often rules change.
const CHANGES: u8 = 2;

/// A part of the protocol that the model can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// A node decides only while it knows the others' rules.
    Knows,
    /// A former rule binds until the own key has counted everything for its span.
    Span,
    /// A rule that comes back does not end what its former time binds.
    Left,
    /// Nodes with the later rule charge the earlier one's key.
    Earlier,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Node {
    rule: usize,
    /// When the latest announcement was sent, and until when the other rule binds the node by its
    /// reply.
    known: Option<(u64, u64)>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Simulation {
    now: u64,
    /// `first` is 1 for the earlier rule and 2 for the other.
    announced: [Option<Announced>; 2],
    /// When each rule's key was last charged, and when any node last admitted something.
    charged: [Option<u64>; 2],
    admitted: Option<u64>,
    nodes: [Node; 2],
    changes: u8,
}

impl Simulation {
    fn new() -> Self {
        let node = Node {
            rule: 0,
            known: None,
        };
        let (announced, charged) = ([None, None], [None, None]);
        Self {
            now: TICK,
            announced,
            charged,
            admitted: None,
            nodes: [node.clone(), node],
            changes: 0,
        }
    }

    /// As `announce.lua` has it.
    fn announce(&mut self, at: usize, spans: [u64; 2], without: Option<Guard>) {
        let (now, rule) = (self.now, self.nodes[at].rule);
        let lapsed = self.announced[rule]
            .as_ref()
            .is_none_or(|own| now - own.last > HOLDS);
        let left = self.announced[rule]
            .as_ref()
            .map_or(0, |own| if lapsed { own.last } else { own.left });
        if lapsed && let Some(other) = &mut self.announced[1 - rule] {
            other.first = 1;
        }
        let first = self.announced[rule]
            .as_ref()
            .filter(|_| !lapsed)
            .map_or(2, |own| own.first);
        let own = Announced {
            rule: String::new(),
            first,
            last: now,
            left,
            node: String::new(),
        };
        let span = if without == Some(Guard::Span) {
            0
        } else {
            spans[rule]
        };
        let until = match self.announced[1 - rule].clone() {
            Some(mut other) if without != Some(Guard::Earlier) => {
                if without == Some(Guard::Left) {
                    other.left = 0;
                }
                other.binds_until(&own, span)
            }
            _ => 0,
        };
        self.announced[rule] = Some(own);
        self.nodes[at].known = Some((now, until));
    }

    /// Asks a node. Returns whether the total is over both rules.
    fn ask(&mut self, at: usize, spans: [u64; 2], without: Option<Guard>) -> bool {
        let (now, rule) = (self.now, self.nodes[at].rule);
        let until = match self.nodes[at].known {
            Some((_, until)) => until,
            None if without == Some(Guard::Knows) => 0,
            None => return false,
        };
        let asked = if until > now { 0..2 } else { rule..rule + 1 };
        let within = |time: Option<u64>, span: u64| time.is_some_and(|time| now < time + span);
        if asked
            .clone()
            .any(|rule| within(self.charged[rule], spans[rule]))
        {
            return false;
        }
        for rule in asked {
            self.charged[rule] = Some(now);
        }
        let over = spans.iter().all(|&span| within(self.admitted, span));
        self.admitted = Some(now);
        over
    }

    /// Ends what has lapsed, and leaves out what no longer matters, so that fewer states differ.
    fn forget(&mut self, spans: [u64; 2]) {
        let (now, longest) = (self.now, spans[0].max(spans[1]));
        for Node { known, .. } in &mut self.nodes {
            known.take_if(|(sent, _)| now >= *sent + HOLDS);
            if let Some((_, until)) = known
                && *until <= now
            {
                *until = 0;
            }
        }
        for (charged, span) in self.charged.iter_mut().zip(spans) {
            charged.take_if(|charged| now >= *charged + span);
        }
        self.admitted
            .take_if(|admitted| now >= *admitted + spans[0].min(spans[1]));
        for announced in &mut self.announced {
            announced.take_if(|rule| now >= rule.last + GONE + longest);
            if let Some(rule) = announced
                && now >= rule.left + GONE + longest
            {
                rule.left = 0;
            }
        }
        self.nodes.sort_unstable();
    }

    fn next(&self, spans: [u64; 2], without: Option<Guard>) -> Vec<Self> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut simulation = self.clone();
            change(&mut simulation);
            next.push(simulation);
        };
        if self.now < HORIZON {
            step(&|simulation| simulation.now += TICK);
        }
        for at in 0..2 {
            step(&|simulation| simulation.announce(at, spans, without));
            if self.changes < CHANGES {
                step(&|simulation| {
                    simulation.nodes[at] = Node {
                        rule: 1 - simulation.nodes[at].rule,
                        known: None,
                    };
                    simulation.changes += 1;
                });
            }
        }
        next
    }
}

/// Whether the nodes are never over both rules at the same time.
fn is_never_over(ticks: [u64; 2], without: Option<Guard>) -> bool {
    let spans = ticks.map(|ticks| ticks * TICK);
    let hash = RandomState::new();
    let (mut seen, mut open) = (HashSet::new(), vec![Simulation::new()]);
    while let Some(simulation) = open.pop() {
        let mut next = simulation.next(spans, without);
        for at in 0..2 {
            let mut asked = simulation.clone();
            if asked.ask(at, spans, without) {
                return false;
            }
            next.push(asked);
        }
        for mut next in next {
            next.forget(spans);
            if seen.insert(hash.hash_one(&next)) {
                open.push(next);
            }
        }
    }
    true
}

#[test]
fn a_roll_out_is_never_over_both_rules() {
    for ticks in [[1, 6], [6, 1], [5, 6]] {
        assert!(is_never_over(ticks, None), "{ticks:?}");
    }
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for without in [Guard::Knows, Guard::Span, Guard::Left, Guard::Earlier] {
        assert!(!is_never_over([5, 6], Some(without)), "{without:?}");
    }
}
