//! Envoys under load that share a limit, simulated second by second.

use std::time::Duration;

use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng},
};
use tidegate_envoy::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::BucketAction;
use tidegate_redis_servers::eventually;
use tidegate_server::Options;

use crate::{
    harness::{Running, scratch},
    quota::{Envoy, assigned},
};

/// A bucket is filled in as many steps of a second.
const STEPS: u64 = 20;

/// Behaves like Envoy 1.40: the first bucket starts full, a changed one keeps its tokens, reports
/// come every five seconds and the first one immediately, and an assignment ends after its time to
/// live. Without an assignment it denies.
struct Loaded {
    /// `None` once the stream is lost. The Envoy goes on.
    stream: Option<Envoy>,
    /// In parts of a token.
    tokens: u64,
    /// The capacity and the refill per second; 0 without a bucket.
    share: u64,
    until: u64,
    is_known: bool,
    reported_at: u64,
    admitted: u64,
    denied: u64,
    abandoned: u32,
}

impl Loaded {
    fn hear(&mut self, now: u64) {
        let stream = self.stream.as_mut().expect("an open stream");
        let said = stream
            .next()
            .unwrap()
            .expect("the stream goes on")
            .bucket_action;
        for action in said.iter().filter(|action| is_limited(action)) {
            let (told, seconds) = assigned(action);
            if told == "forget" {
                (self.tokens, self.share, self.is_known) = (0, 0, false);
                self.abandoned += 1;
                continue;
            }
            let share = if told == "none" {
                0
            } else {
                told.parse().unwrap()
            };
            self.tokens = if self.share == 0 {
                STEPS * share
            } else {
                self.tokens.min(STEPS * share)
            };
            (self.share, self.until) = (share, now + seconds);
        }
    }

    /// The bucket without a limit is answered at once: by then the server has read the report.
    fn report(&mut self, now: u64) {
        let Some(stream) = &self.stream else { return };
        stream.report_plans(&[("limited", self.admitted, self.denied), ("all", 1, 0)]);
        (self.admitted, self.denied, self.reported_at) = (0, 0, now);
        self.hear(now);
    }

    /// Takes this many requests in a second. Returns how many it admits.
    fn pass(&mut self, now: u64, mut load: u64) -> u64 {
        if self.is_known && self.stream.is_some() {
            self.hear(now);
        }
        if now >= self.until {
            (self.tokens, self.share) = (0, 0);
        }
        if !self.is_known && load > 0 {
            load -= 1;
            (self.denied, self.is_known) = (self.denied + 1, true);
            self.report(now);
        }
        // The last step comes with the next second.
        let tokens = self.tokens + (STEPS - 1) * self.share;
        let admitted = load.min(tokens / STEPS);
        self.tokens = (tokens - STEPS * admitted).min(STEPS * self.share);
        self.admitted += admitted;
        self.denied += load - admitted;
        if self.is_known && now >= self.reported_at + 5 {
            self.report(now);
        }
        admitted
    }
}

fn is_limited(action: &BucketAction) -> bool {
    action.bucket_id.as_ref().unwrap().bucket["plan"] == "limited"
}

struct World {
    server: Running,
    /// Its answer shows that the server has seen the time.
    pulse: Envoy,
    envoys: Vec<Loaded>,
    now: u64,
    limit: u64,
    span: u64,
    /// The requests admitted in the window, and the tokens that the Envoys had when it began.
    admitted: u64,
    in_hand: u64,
}

impl World {
    fn new(name: &str, limit: u64, (unit, span): (&str, u64), envoys: usize) -> Self {
        let path = scratch(&format!("quota-load-{name}")).join("shop.yaml");
        let config = format!(
            "domain: shop\ndescriptors:\n  - {{key: plan, value: all, rate_limit: {{unlimited: true}}}}\n  \
             - {{key: plan, value: limited, rate_limit: {{unit: {unit}, requests_per_unit: {limit}}}}}\n"
        );
        std::fs::write(&path, config).unwrap();
        let (grpc, envoy_config) = (Some("127.0.0.1:0".to_owned()), Some(path));
        // It begins with an hour.
        let server = Running::start(Options {
            grpc,
            envoy_config,
            ..Options::default()
        });
        let pulse = Envoy::of(&server);
        let mut world = Self {
            server,
            pulse,
            envoys: Vec::new(),
            now: 0,
            limit,
            span,
            admitted: 0,
            in_hand: 0,
        };
        (0..envoys).for_each(|_| world.join());
        world
    }

    fn join(&mut self) {
        self.envoys.push(Loaded {
            stream: Some(Envoy::of(&self.server)),
            tokens: 0,
            share: 0,
            until: 0,
            is_known: false,
            reported_at: 0,
            admitted: 0,
            denied: 0,
            abandoned: 0,
        });
    }

    fn open(&self) -> usize {
        self.envoys
            .iter()
            .filter(|envoy| envoy.stream.is_some())
            .count()
    }

    fn lose(&mut self, at: usize) {
        self.envoys[at].stream = None;
        let streams = 1 + self.open() as u64;
        eventually("the stream has ended", || {
            self.server.metric("tidegate_grpc_quota_streams") == streams
        });
    }

    /// Lets a second pass in which each Envoy gets `load` requests. Returns how many each admitted.
    fn pass(&mut self, load: &[u64]) -> Vec<u64> {
        self.now += 1;
        for envoy in &mut self.envoys {
            envoy.tokens = (envoy.tokens + envoy.share).min(STEPS * envoy.share);
        }
        if self.now.is_multiple_of(self.span) {
            self.admitted = 0;
            self.in_hand = self.envoys.iter().map(|envoy| envoy.tokens / STEPS).sum();
        }
        self.server.advance(Duration::from_secs(1));
        self.pulse.report("all", 1, 0);
        assert_eq!(self.pulse.told(), "all");
        let (now, all) = (self.now, self.envoys.iter_mut().zip(load));
        let admitted: Vec<u64> = all.map(|(envoy, load)| envoy.pass(now, *load)).collect();
        self.admitted += admitted.iter().sum::<u64>();
        let Self {
            admitted: all,
            limit,
            in_hand,
            span,
            ..
        } = self;
        assert!(
            *all <= *limit + *in_hand,
            "{all} of {limit} (+ {in_hand} in hand) in a window of {span} s"
        );
        admitted
    }

    /// Lets `seconds` pass. Returns how many each Envoy admitted.
    fn run(&mut self, seconds: u64, load: &[u64]) -> Vec<u64> {
        let mut sums = vec![0; self.envoys.len()];
        for _ in 0..seconds {
            sums.iter_mut()
                .zip(self.pass(load))
                .for_each(|(sum, admitted)| *sum += admitted);
        }
        sums
    }
}

const SECOND: (&str, u64) = ("second", 1);

#[test]
fn envoys_share_a_limit_and_shares_follow_the_load() {
    let mut world = World::new("follow", 100, SECOND, 2);
    // Both want the whole limit.
    world.run(10, &[200, 200]);
    let both = world.run(10, &[200, 200]);
    assert!(both.iter().all(|admitted| *admitted >= 490), "{both:?}");
    // All load moves to the second Envoy. Within two reports it has its part, and soon after it has
    // everything.
    world.run(11, &[0, 200]);
    let moved = world.run(5, &[0, 200]);
    assert!(moved[1] >= 490, "{moved:?}");
    assert_eq!(
        world.envoys[0].abandoned, 1,
        "the idle one gave its share back"
    );
    // The load moves back. Soon the first Envoy has a share, and by its second report it has its
    // part.
    let back = world.run(3, &[200, 0]);
    assert!(back[0] >= 90, "{back:?}");
    world.run(14, &[200, 0]);
    let back = world.run(5, &[200, 0]);
    assert!(back[0] >= 490, "{back:?}");
}

/// The limit is for what Envoys need; an even part of it is only for what is left.
#[test]
fn a_busy_envoy_gets_what_those_with_little_load_leave() {
    for quiet in [1, 9] {
        let mut world = World::new(&format!("busy-{quiet}"), 100, SECOND, 1 + quiet);
        let mut load = vec![200];
        load.resize(1 + quiet, 1);
        world.run(10, &load);
        let admitted = world.run(10, &load);
        assert!(admitted.iter().sum::<u64>() >= 980, "{admitted:?}");
        assert!(
            admitted[1..].iter().all(|admitted| *admitted >= 9),
            "{admitted:?}"
        );
        // The loads change places.
        load.swap(0, quiet);
        world.run(10, &load);
        let admitted = world.run(10, &load);
        assert!(
            admitted[quiet] >= 1_000 - 10 * quiet as u64 - 20,
            "{admitted:?}"
        );
    }
}

#[test]
fn fifty_envoys_with_unequal_loads_use_the_limit() {
    let mut world = World::new("fifty", 1_000, SECOND, 50);
    // Zipf's law, 1,350 a second in all.
    let load: Vec<u64> = (1..=50).map(|rank| 300 / rank).collect();
    world.run(12, &load);
    let admitted: u64 = world.run(20, &load).iter().sum();
    assert!(admitted >= 19_000, "{admitted} of 20,000");
}

#[test]
fn a_lost_envoy_keeps_its_share_for_the_time_to_live() {
    let mut world = World::new("lost", 100, SECOND, 2);
    world.run(11, &[200, 200]);
    world.lose(0);
    // The lost Envoy keeps its last assignment, so the other one cannot have more.
    let lost = world.run(3, &[200, 200]);
    assert!(lost[0] >= 100 && lost[1] <= 170, "{lost:?}");
    world.run(3, &[200, 200]);
    let after = world.run(5, &[200, 200]);
    assert_eq!(after[0], 0);
    assert!(after[1] >= 490, "{after:?}");
    // Those of the other one, and the pulse.
    assert_eq!(
        world.server.metric("tidegate_grpc_quota_buckets"),
        3,
        "nothing is left of it"
    );
}

#[test]
fn an_hourly_limit_can_be_spent_at_once_and_unused_units_are_given_back() {
    let mut world = World::new("hourly", 1_000, ("hour", 3_600), 2);
    // With little use, each report gives back the units charged in advance.
    let little = world.run(60, &[1, 1]);
    assert!(little[0] >= 50 && little[1] >= 50, "{little:?}");
    let used: u64 = little.iter().sum();
    let spent = world.run(60, &[300, 0]);
    assert!(
        spent[0] >= (1_000 - used) * 9 / 10,
        "{spent:?} after {used}"
    );
    assert!(world.admitted <= 1_000);
}

#[test]
fn envoys_take_turns_with_a_limit_smaller_than_their_number() {
    let mut world = World::new("turns", 1, SECOND, 3);
    let admitted = world.run(60, &[5, 5, 5]);
    assert!(
        admitted.iter().all(|admitted| *admitted >= 10),
        "{admitted:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every second checks the bound itself.
    #[test]
    fn envoys_that_come_go_and_change_never_admit_more_than_the_bound(
        seed: [u8; 32], limit in 1..300_u64, unit in 0..3_usize,
    ) {
        let unit = [SECOND, ("minute", 60), ("hour", 3_600)][unit];
        let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut below = move |most: u64| random.next_u64() % most;
        let mut world = World::new("random", limit, unit, 1);
        for _ in 0..30 {
            match below(4) {
                0 if world.open() < 4 => world.join(),
                1 if world.open() > 1 => {
                    let at = below(world.envoys.len() as u64) as usize;
                    if world.envoys[at].stream.is_some() {
                        world.lose(at);
                    }
                }
                _ => {}
            }
            let load: Vec<u64> =
                world.envoys.iter().map(|_| below(3).min(1) * below(2 * limit + 20)).collect();
            world.run(1 + below(7), &load);
        }
    }
}
