//! How much of a limit leased nodes admit, beside one place that decides everything: an allotment
//! that one node holds is denied to the others, and what nobody uses must come back.

use crate::fleet;

use crate::random;

use fleet::{Fleet, Skew, Step, Travel};
use tidegate_core::lease::Terms;
use tidegate_core::{Algorithm, Nanos, Policy, Quota, algorithm::TokenBucket};

use random::Random;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gaps {
    Equal,
    /// Exponential: as independent callers come.
    Random,
    /// The same, and each time five callers come at once.
    Bursts,
}

/// How requests come.
#[derive(Clone, Copy, Debug)]
struct Demand {
    nodes: usize,
    /// Requests a second at all nodes.
    rate: f64,
    /// Whether each node has twice what the next one has.
    skewed: bool,
    gaps: Gaps,
    seconds: u64,
}

impl Demand {
    /// When each request comes, and to which node; in order.
    fn requests(&self) -> Vec<(u64, usize)> {
        let mut random = Random(7 + self.nodes as u64);
        let weight = |node: usize| {
            if self.skewed {
                1.0 / (1_u64 << node) as f64
            } else {
                1.0
            }
        };
        let all: f64 = (0..self.nodes).map(weight).sum();
        let at_once = if self.gaps == Gaps::Bursts { 5_u64 } else { 1 };
        let mut requests = Vec::new();
        for node in 0..self.nodes {
            let gap = SECOND as f64 * at_once as f64 * all / (self.rate * weight(node));
            let mut time = gap * random.unit();
            #[allow(clippy::cast_sign_loss, reason = "times begin at 0")]
            while time < (self.seconds * SECOND) as f64 {
                requests.extend((0..at_once).map(|nth| (time as u64 + nth, node)));
                time += if self.gaps == Gaps::Equal {
                    gap
                } else {
                    -random.unit().ln() * gap
                };
            }
        }
        requests.sort_unstable();
        requests
    }
}

/// What leased nodes admit, and what one place admits.
fn admitted(policy: Policy, demand: Demand) -> (u64, u64) {
    let begin = 1_000_000 * SECOND;
    let requests = demand.requests();
    let mut state = vec![0; policy.words()];
    let one_place = requests
        .iter()
        .filter(|(time, _)| {
            policy
                .decide(&mut state, Nanos::new(begin + time), 1)
                .is_allowed()
        })
        .count();
    let terms = Terms::leased(policy, Terms::SLACK);
    let clock = Skew {
        offset: begin,
        ppm: 0,
    };
    let travel = || Travel {
        there: Some(100_000),
        back: Some(100_000),
    };
    let mut fleet = Fleet::new(terms, clock, &vec![clock; demand.nodes], travel);
    for &(time, node) in &requests {
        fleet.at(time, Step::Ask { node, cost: 1 });
    }
    let tick = terms.slack().get().max(MS) / 4;
    for node in 0..demand.nodes {
        for nth in 0..demand.seconds * SECOND / tick {
            fleet.at(nth * tick + node as u64 * MS, Step::Tick { node });
        }
    }
    fleet.run();
    let mut judge = vec![0; policy.words()];
    for (time, cost) in fleet.admissions() {
        assert!(
            policy
                .decide(&mut judge, Nanos::new(time), cost)
                .is_allowed(),
            "{policy:?}, {demand:?}"
        );
    }
    (
        fleet.admitted.iter().map(|&(_, cost)| cost).sum(),
        one_place as u64,
    )
}

/// The policies' quotas a second, and for how many seconds to look. The burst of the first bucket
/// takes ten seconds to refill: nothing that its refill loses is made up for by a bucket that is
/// full.
fn policies() -> Vec<(Policy, f64, u64)> {
    let quota = |text: &str| -> Quota { text.parse().unwrap() };
    let bucket = |text: &str, burst| -> Policy {
        TokenBucket::new(quota(text)).burst(burst).unwrap().into()
    };
    vec![
        (bucket("50/1s", 500), 50.0, 13),
        (bucket("50/1s", 50), 50.0, 13),
        (bucket("300/2s", 300), 150.0, 8),
        (bucket("2000/1s", 2_000), 2_000.0, 2),
        (Policy::sliding_window(quota("600/20s")), 30.0, 45),
        (Policy::fixed_window(quota("600/20s")), 30.0, 45),
        (Policy::sliding_counter(quota("600/20s")), 30.0, 45),
        (Policy::sliding_log(quota("600/20s")).unwrap(), 30.0, 45),
        (Policy::sliding_window(quota("300/2s")), 150.0, 8),
    ]
}

/// Of callers who come at once near the limit one asks, and the others are denied until its answer
/// is here: so bursts lose more.
#[test]
fn leased_nodes_admit_97_percent_of_what_one_node_admits_and_90_percent_of_bursts() {
    let mut lowest = [100.0_f64; 2];
    for (policy, rate, seconds) in policies() {
        for nodes in [1, 2, 4, 16] {
            for gaps in [Gaps::Equal, Gaps::Random, Gaps::Bursts] {
                for skewed in [false, true] {
                    for share in [0.5, 0.93, 1.0, 1.1, 1.5] {
                        let demand = Demand {
                            nodes,
                            rate: rate * share,
                            skewed,
                            gaps,
                            seconds,
                        };
                        let (leased, one_place) = admitted(policy, demand);
                        let bursts = gaps == Gaps::Bursts;
                        let least = if bursts { 90 } else { 97 };
                        let share = 100.0 * leased as f64 / one_place as f64;
                        lowest[usize::from(bursts)] = lowest[usize::from(bursts)].min(share);
                        assert!(
                            leased * 100 >= one_place * least,
                            "{leased} of {one_place}: {} of {rate} a second, {demand:?}",
                            policy.name()
                        );
                    }
                }
            }
        }
    }
    println!(
        "the lowest share: {:.1} %; of bursts: {:.1} %",
        lowest[0], lowest[1]
    );
}

/// 80 a second at 50 a second with a burst of 500: what was taken ahead and not used took its
/// refill with it.
#[test]
fn a_leased_bucket_that_is_partly_used_loses_little_of_its_refill() {
    let policy = TokenBucket::new("50/1s".parse().unwrap())
        .burst(500)
        .unwrap()
        .into();
    for nodes in [1, 3, 16] {
        for gaps in [Gaps::Equal, Gaps::Random, Gaps::Bursts] {
            let demand = Demand {
                nodes,
                rate: 80.0,
                skewed: false,
                gaps,
                seconds: 14,
            };
            let (leased, one_place) = admitted(policy, demand);
            assert!(
                leased * 100 >= one_place * 98,
                "{leased} of {one_place}: {demand:?}"
            );
        }
    }
}

/// Units that were taken ahead count when they were taken, and may be used a slack later. A cost
/// that only the full bucket can hold must fit even then.
#[test]
fn a_large_cost_waits_until_units_that_were_taken_ahead_are_used() {
    use tidegate_core::lease::{Request, Terms};
    use tidegate_core::{Algorithm, Nanos, Policy};

    let full: Policy = "token-bucket 1000/1s".parse().expect("it is well formed");
    let slack = Nanos::from_millis(50);
    let terms = Terms::leased(full, slack);
    assert_eq!((terms.limit(), terms.most()), (950, 1_000));
    let at = |ms: u64| Nanos::from_millis(1_000_000 + ms);
    let mut state = vec![0; terms.policy().words()];
    let request = |cost, ahead, now| Request {
        cost,
        ahead,
        spent: 0,
        back: None,
        sent: now,
    };
    let taken = terms.serve(&mut state, at(0), &request(0, 30, at(0))).units;
    assert_eq!(taken, 30);
    // The shared state has recovered, and the units have not been used yet.
    let large = |state: &mut Vec<u64>, now| terms.serve(state, now, &request(1_000, 0, now));
    let denied = large(&mut state, at(30)).decision;
    assert!(
        denied.is_denied() && denied.retry_after() == Some(slack.into()),
        "{denied:?}"
    );
    // By the times of use, the full bucket denies it, too.
    let mut used = vec![0; full.words()];
    assert!(full.decide(&mut used, at(29), taken.into()).is_allowed());
    assert!(full.decide(&mut used, at(30), 1_000).is_denied());
    assert!(large(&mut state, at(80)).decision.is_allowed());
    assert!(large(&mut state, at(81)).decision.is_denied());
    let never = terms.serve(&mut state, at(5_000), &request(1_001, 0, at(5_000)));
    assert_eq!(never.decision.retry_after(), None);
}
