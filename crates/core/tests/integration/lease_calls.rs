//! How many calls leases of many keys need, compared with a question for each decision.
#![cfg(feature = "std")]

use crate::random;

use std::collections::BTreeMap;

use tidegate_core::lease::{Answer, Grant, Lease, Request, Terms};
use tidegate_core::{Algorithm, Nanos, Policy};

use random::Random;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const KEYS: usize = 1_000;

enum Event {
    Ask(usize),
    Sweep,
    Returned(Vec<(usize, Request, Grant)>),
}

/// The most keys of a call.
const MOST: usize = 128;

/// One node, and a store 0.2 ms away. Requests of one moment share a call. While a call is under
/// way, others wait, until they are 32 or it returns: as the crate `redis` does for a near store.
struct Node {
    terms: Terms,
    leases: Vec<Lease>,
    states: Vec<Vec<u64>>,
    waiting: Vec<(usize, Request)>,
    under_way: usize,
    calls: u64,
    asked: u64,
    waited: u64,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
}

impl Node {
    fn schedule(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), event);
    }

    fn send(&mut self, time: u64) {
        let early = self.waiting.len() >= 32 && self.under_way < 4;
        if self.waiting.is_empty() || (self.under_way > 0 && !early) {
            return;
        }
        self.under_way += 1;
        let waiting = std::mem::take(&mut self.waiting);
        self.calls += waiting.len().div_ceil(MOST) as u64;
        let there = Nanos::new(time + MS / 10);
        let served = waiting.into_iter().map(|(key, request)| {
            (
                key,
                request,
                self.terms.serve(&mut self.states[key], there, &request),
            )
        });
        let served = served.collect();
        self.schedule(time + MS / 5, Event::Returned(served));
    }
}

/// Calls of a node, and the share of decisions for which a caller waited, in the second after the
/// first, for keys with 30 to 100 requests a second each at random moments.
fn calls(policy: Policy, terms: Terms) -> (u64, f64) {
    let mut node = Node {
        terms,
        leases: (0..KEYS).map(|_| Lease::new(terms)).collect(),
        states: vec![vec![0; policy.words()]; KEYS],
        waiting: Vec::new(),
        under_way: 0,
        calls: 0,
        asked: 0,
        waited: 0,
        events: BTreeMap::new(),
        sequence: 0,
    };
    let (mut random, begin) = (Random(7), 1_000_000 * SECOND);
    for key in 0..KEYS {
        let rate = 30.0 + 70.0 * key as f64 / KEYS as f64;
        let mut at = 0.0;
        while at < 2.0 {
            at -= random.unit().ln() / rate;
            #[allow(clippy::cast_sign_loss, reason = "times begin at 0")]
            node.schedule(begin + (at * 1e9) as u64, Event::Ask(key));
        }
    }
    let tick = (terms.slack().get() / 4).max(MS);
    for nth in 0..2 * SECOND / tick {
        node.schedule(begin + nth * tick, Event::Sweep);
    }
    let mut admitted = vec![Vec::new(); KEYS];
    while let Some(((time, _), event)) = node.events.pop_first() {
        let now = Nanos::new(time);
        if time < begin + SECOND {
            (node.calls, node.asked, node.waited) = (0, 0, 0);
        }
        match event {
            Event::Ask(key) => {
                let answer = node.leases[key].ask(1, now);
                node.asked += 1;
                node.waited += u64::from(answer.decision().is_none());
                if answer
                    .decision()
                    .is_some_and(|decision| decision.is_allowed())
                {
                    admitted[key].push(time);
                }
                if let Answer::Renew(_, request) | Answer::Refill(request) = answer {
                    node.waiting.push((key, request));
                }
            }
            Event::Sweep => {
                for key in 0..KEYS {
                    node.waiting.extend(
                        node.leases[key]
                            .returning(now)
                            .map(|request| (key, request)),
                    );
                }
            }
            Event::Returned(served) => {
                node.under_way -= 1;
                for (key, request, grant) in served {
                    if node.leases[key].granted(request, &grant, now).is_allowed()
                        && request.cost > 0
                    {
                        admitted[key].push(grant.now.get());
                    }
                }
            }
        }
        node.send(time);
    }
    for mut times in admitted {
        let mut judge = vec![0; policy.words()];
        times.sort_unstable();
        assert!(
            times
                .iter()
                .all(|&time| policy.decide(&mut judge, Nanos::new(time), 1).is_allowed())
        );
    }
    (node.calls, node.waited as f64 / node.asked as f64)
}

#[test]
fn a_thousand_keys_with_30_to_100_requests_a_second_need_less_than_half_of_exact_calls() {
    let policies = [
        Policy::token_bucket("1000000/1s".parse().unwrap()),
        Policy::token_bucket("10000/1m".parse().unwrap()),
        Policy::sliding_window("1000/1s".parse().unwrap()),
        Policy::fixed_window("10000/1m".parse().unwrap()),
        Policy::sliding_counter("10000/1m".parse().unwrap()),
    ];
    for policy in policies {
        let (exact, all) = calls(policy, Terms::exact(policy));
        assert!(all > 0.999 && exact > 1_000);
        let (leased, waited) = calls(policy, Terms::leased(policy, Terms::SLACK));
        println!(
            "{}: {leased} calls of {exact}, {waited:.3} waited",
            policy.name()
        );
        assert!(
            2 * leased <= exact,
            "{policy:?}: {leased} calls, exact {exact}, {waited}"
        );
    }
}
