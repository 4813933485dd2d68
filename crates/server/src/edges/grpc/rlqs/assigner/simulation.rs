//! Simulated Envoys with the real limits and a manual clock.

use std::fs;

use envoy_types::pb::envoy::{
    service::rate_limit_quota::v3::{
        BucketId, rate_limit_quota_response::bucket_action::BucketAction as Action,
    },
    r#type::v3::rate_limit_strategy::{BlanketRule, Strategy},
};
use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng},
};
use tidegate_core::ManualClock;

use super::*;
use crate::{
    decide::{limits::Limits, throttle::Throttle},
    rules::Keeping,
    serve::sources::Sources,
};

const STEP: Nanos = Nanos::from_millis(50);
const START: Nanos = Nanos::from_secs(1_700_049_600);

/// Behaves like Envoy 1.40: the first bucket starts full, a changed one keeps its tokens, reports come every five seconds and
/// the first one immediately, and an assignment ends after its time to live. Without an assignment it denies.
struct Envoy {
    id: u64,
    bucket: Vec<(&'static str, &'static str)>,
    said: mpsc::Receiver<Said>,
    is_open: bool,
    /// The tokens, and both the capacity and the refill per second; `None` without a token bucket.
    tokens: Option<(f64, f64)>,
    admits_all: bool,
    until: Nanos,
    is_known: bool,
    reports_at: Nanos,
    admitted: u64,
    denied: u64,
    /// Over its whole life.
    total: u64,
    abandoned: u32,
}

impl Envoy {
    /// How much it may admit at this moment without more tokens.
    #[allow(clippy::cast_sign_loss, reason = "no bucket owes tokens")]
    fn in_hand(&self) -> u64 {
        self.tokens.map_or(0, |(tokens, _)| tokens.floor() as u64)
    }

    fn hear(&mut self, now: Nanos) {
        while let Ok(said) = self.said.try_recv() {
            for action in said.expect("the stream goes on").bucket_action {
                match action.bucket_action.expect("every action says something") {
                    Action::AbandonAction(_) => {
                        (self.tokens, self.admits_all, self.is_known) = (None, false, false);
                        self.abandoned += 1;
                    }
                    Action::QuotaAssignmentAction(assigned) => {
                        let life = assigned.assignment_time_to_live.expect("it ends some time").seconds;
                        self.until = now.saturating_add(Nanos::from_secs(life.cast_unsigned()));
                        let strategy = assigned.rate_limit_strategy.and_then(|strategy| strategy.strategy);
                        match strategy.expect("there is a strategy") {
                            Strategy::TokenBucket(bucket) => {
                                let most = f64::from(bucket.max_tokens);
                                assert_eq!(bucket.tokens_per_fill.unwrap().value, bucket.max_tokens);
                                assert_eq!(bucket.fill_interval.unwrap().seconds, 1);
                                let has = self.tokens.map_or(most, |(tokens, _)| tokens.min(most));
                                (self.tokens, self.admits_all) = (Some((has, most)), false);
                            }
                            Strategy::BlanketRule(rule) => {
                                self.tokens = None;
                                self.admits_all = rule == i32::from(BlanketRule::AllowAll);
                            }
                            Strategy::RequestsPerTimeUnit(_) => panic!("Envoy ignores it"),
                        }
                    }
                }
            }
        }
        if now >= self.until {
            (self.tokens, self.admits_all) = (None, false);
        }
    }

    fn fill(&mut self) {
        if let Some((tokens, most)) = &mut self.tokens {
            *tokens = (*tokens + *most * STEP.get() as f64 / SECOND as f64).min(*most);
        }
    }

    fn request(&mut self) -> bool {
        let admits = self.admits_all
            || self.tokens.as_mut().is_some_and(|(tokens, _)| {
                // Sums of fractions of a second are not exact.
                let has = *tokens > 1.0 - 1e-6;
                *tokens -= f64::from(u8::from(has));
                has
            });
        let count = if admits { &mut self.admitted } else { &mut self.denied };
        *count += 1;
        self.total += u64::from(admits);
        admits
    }
}

struct World {
    clock: Arc<ManualClock>,
    assigner: Assigner,
    envoys: Vec<Envoy>,
    /// The requests admitted in the window, and the tokens that the Envoys had when it began.
    window: u64,
    admitted: u64,
    in_hand: u64,
    limit: u64,
    span: u64,
    opened: u64,
}

impl World {
    fn new(limit: u64, unit: &str, span: u64) -> Self {
        // Each test has its own thread.
        let name = format!("tidegate-rlqs-{}-{:?}", std::process::id(), std::thread::current().id());
        let file = std::env::temp_dir().join(format!("{name}-{limit}-{unit}.yaml"));
        let config = format!(
            "domain: shop\ndescriptors:\n  - {{key: plan, value: free, descriptors: [{{key: zone, rate_limit: {{unit: \
             {unit}, requests_per_unit: {limit}}}}}]}}\n  - {{key: any, rate_limit: {{unlimited: true}}}}\n"
        );
        fs::write(&file, config).unwrap();
        let loaded =
            Sources { envoy: Some(file.clone()), ..Sources::default() }.load(Keeping::Memory).unwrap();
        fs::remove_file(&file).unwrap();
        let clock = Arc::new(ManualClock::new(START));
        let limits = Limits::new(loaded.rules, 100, |_| None, START).unwrap();
        let limits = InForce::new(limits, loaded.domains, None);
        let throttle = Throttle::new(10, None).unwrap();
        let its: Arc<dyn tidegate_core::Clock> = Arc::<ManualClock>::clone(&clock);
        let service = Arc::new(Service::new(limits, throttle, its));
        let assigner = Assigner::new(service, Arc::default());
        let (envoys, window) = (Vec::new(), START.get() / SECOND / span);
        Self { clock, assigner, envoys, window, admitted: 0, in_hand: 0, limit, span, opened: 0 }
    }

    /// Another server with the same limits, as if they were in a store.
    fn beside(&self) -> Self {
        let mut assigner = Assigner::new(Arc::clone(&self.assigner.service), Arc::default());
        assigner.servers = |_| 2;
        let (clock, envoys) = (Arc::clone(&self.clock), Vec::new());
        Self { clock, assigner, envoys, admitted: 0, in_hand: 0, opened: 0, ..*self }
    }

    fn now(&self) -> Nanos {
        self.assigner.service.now()
    }

    async fn join(&mut self, bucket: &[(&'static str, &'static str)]) -> usize {
        let (say, said) = mpsc::channel(super::super::WAITING);
        let id = self.opened;
        self.opened += 1;
        self.assigner.take_in(Event::Opened { id, say }).await;
        self.envoys.push(Envoy {
            id,
            bucket: bucket.to_vec(),
            said,
            is_open: true,
            tokens: None,
            admits_all: false,
            until: Nanos::ZERO,
            is_known: false,
            reports_at: self.now(),
            admitted: 0,
            denied: 0,
            total: 0,
            abandoned: 0,
        });
        self.envoys.len() - 1
    }

    async fn lose(&mut self, at: usize) {
        self.envoys[at].is_open = false;
        let id = self.envoys[at].id;
        self.assigner.take_in(Event::Closed { id }).await;
    }

    async fn report(&mut self, at: usize) {
        let envoy = &mut self.envoys[at];
        if !envoy.is_open {
            return;
        }
        let pairs = envoy.bucket.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let usage = BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket: pairs.collect() }),
            time_elapsed: None,
            num_requests_allowed: std::mem::take(&mut envoy.admitted),
            num_requests_denied: std::mem::take(&mut envoy.denied),
        };
        let report =
            RateLimitQuotaUsageReports { domain: "shop".to_owned(), bucket_quota_usages: vec![usage] };
        self.assigner.take_in(Event::Reported { id: self.envoys[at].id, report }).await;
    }

    /// Advances by one step, in which each Envoy gets `load` requests.
    async fn step(&mut self, load: &[u64]) {
        self.clock.advance(STEP);
        self.turn(load).await;
    }

    /// Each Envoy gets `load` requests at this time.
    async fn turn(&mut self, load: &[u64]) {
        let now = self.now();
        self.envoys.iter_mut().for_each(Envoy::fill);
        let window = now.get() / SECOND / self.span;
        if window != self.window {
            (self.window, self.admitted) = (window, 0);
            self.in_hand = self.envoys.iter().map(Envoy::in_hand).sum();
        }
        self.assigner.catch_up(now).await;
        self.assigner.charge_later(now).await;
        for at in 0..self.envoys.len() {
            self.envoys[at].hear(now);
            if self.envoys[at].is_known && now >= self.envoys[at].reports_at {
                self.envoys[at].reports_at = now.saturating_add(Nanos::from_secs(5));
                self.report(at).await;
                self.envoys[at].hear(now);
            }
            for _ in 0..load.get(at).copied().unwrap_or(0) {
                let admits = self.envoys[at].request();
                if !self.envoys[at].admits_all {
                    self.admitted += u64::from(admits);
                }
                if !self.envoys[at].is_known {
                    self.envoys[at].is_known = true;
                    self.report(at).await;
                    self.envoys[at].hear(now);
                }
            }
        }
        let bound = self.limit + self.in_hand;
        assert!(
            self.admitted <= bound,
            "{} of {} (+ {} in hand) in a window of {} s",
            self.admitted,
            self.limit,
            self.in_hand,
            self.span
        );
    }

    /// Runs for `seconds`, with `load` requests per second to each Envoy. Returns how many each admitted.
    async fn run(&mut self, seconds: u64, load: &[u64]) -> Vec<u64> {
        let steps_a_second = SECOND / STEP.get();
        let before: Vec<u64> = self.envoys.iter().map(|envoy| envoy.total).collect();
        for step in 0..seconds * steps_a_second {
            let at = step % steps_a_second;
            // Spread evenly over the second.
            let now: Vec<u64> = load
                .iter()
                .map(|load| load * (at + 1) / steps_a_second - load * at / steps_a_second)
                .collect();
            self.step(&now).await;
        }
        self.envoys.iter().zip(before).map(|(envoy, before)| envoy.total - before).collect()
    }
}

const FREE: [(&str, &str); 2] = [("zone", "eu"), ("plan", "free")];

#[tokio::test]
async fn envoys_share_a_limit_and_shares_follow_the_load() {
    let mut world = World::new(100, "second", 1);
    world.join(&FREE).await;
    world.join(&FREE).await;
    // Both want the whole limit.
    world.run(10, &[200, 200]).await;
    let both = world.run(10, &[200, 200]).await;
    assert!(both.iter().all(|admitted| *admitted >= 490), "{both:?}");
    // All load moves to the second Envoy. Within two reports it has its part, and soon after it has everything.
    world.run(11, &[0, 200]).await;
    let moved = world.run(5, &[0, 200]).await;
    assert!(moved[1] >= 490, "{moved:?}");
    assert_eq!(world.envoys[0].abandoned, 1, "the idle one gave its share back");
    // The load moves back. Soon the first Envoy has a share, and by its second report it has its part.
    let back = world.run(2, &[200, 0]).await;
    assert!(back[0] >= 50, "{back:?}");
    world.run(15, &[200, 0]).await;
    let back = world.run(5, &[200, 0]).await;
    assert!(back[0] >= 490, "{back:?}");
}

/// The limit is for what Envoys need; an even part of it is only for what is left.
#[tokio::test]
async fn a_busy_envoy_gets_what_those_with_little_load_leave() {
    for quiet in [1, 9] {
        let mut world = World::new(100, "second", 1);
        let mut load = vec![200];
        load.resize(1 + quiet, 1);
        for _ in &load {
            world.join(&FREE).await;
        }
        world.run(10, &load).await;
        let admitted = world.run(10, &load).await;
        let others: u64 = admitted[1..].iter().sum();
        assert!(admitted[0] + others >= 980, "{admitted:?}");
        assert!(admitted[1..].iter().all(|admitted| *admitted >= 9), "{admitted:?}");
        // The loads change places.
        let last = load.len() - 1;
        load.swap(0, last);
        world.run(10, &load).await;
        let admitted = world.run(10, &load).await;
        assert!(admitted[last] >= 1_000 - 10 * quiet as u64 - 20, "{admitted:?}");
    }
}

#[tokio::test]
async fn fifty_envoys_with_unequal_loads_use_the_limit() {
    let mut world = World::new(1_000, "second", 1);
    // Zipf's law, 1,350 a second in all.
    let load: Vec<u64> = (1..=50).map(|rank| 300 / rank).collect();
    for _ in &load {
        world.join(&FREE).await;
    }
    world.run(12, &load).await;
    let admitted: u64 = world.run(20, &load).await.iter().sum();
    assert!(admitted >= 19_000, "{admitted} of 20,000");
}

#[tokio::test]
async fn a_busy_envoy_gets_what_the_envoys_of_another_server_leave() {
    let mut busy = World::new(100, "second", 1);
    busy.assigner.servers = |_| 2;
    let mut quiet = busy.beside();
    busy.join(&FREE).await;
    for _ in 0..9 {
        quiet.join(&FREE).await;
    }
    for second in 0..30 {
        let before = busy.envoys[0].total;
        for step in 0..SECOND / STEP.get() {
            busy.step(&[10]).await;
            quiet.turn(&[u64::from(step == 0); 9]).await;
        }
        let got = busy.envoys[0].total - before;
        assert!(second < 10 || got >= 85, "{second}: {got} of the 91 that the others leave");
    }
    assert!(quiet.envoys.iter().all(|envoy| envoy.total >= 20));
}

#[tokio::test]
async fn a_lost_envoy_keeps_its_share_for_the_time_to_live() {
    let mut world = World::new(100, "second", 1);
    world.join(&FREE).await;
    world.join(&FREE).await;
    world.run(11, &[200, 200]).await;
    world.lose(0).await;
    // The lost Envoy keeps its last assignment, so the other one cannot have more.
    let lost = world.run(3, &[200, 200]).await;
    assert!(lost[0] >= 100 && lost[1] <= 170, "{lost:?}");
    world.run(3, &[200, 200]).await;
    let after = world.run(5, &[200, 200]).await;
    assert_eq!(after[0], 0);
    assert!(after[1] >= 490, "{after:?}");
    assert_eq!(world.assigner.held.len(), 1, "nothing is left of it");
}

#[tokio::test]
async fn an_hourly_limit_can_be_spent_at_once_and_unused_units_are_given_back() {
    let mut world = World::new(1_000, "hour", 3_600);
    world.join(&FREE).await;
    world.join(&FREE).await;
    // With little use, each report gives back the units charged in advance.
    let little = world.run(60, &[1, 1]).await;
    assert!(little[0] >= 50 && little[1] >= 50, "{little:?}");
    let used: u64 = little.iter().sum();
    let spent = world.run(60, &[300, 0]).await;
    assert!(spent[0] >= (1_000 - used) * 9 / 10, "{spent:?} after {used}");
    assert!(world.admitted <= 1_000);
}

#[tokio::test]
async fn envoys_take_turns_with_a_limit_smaller_than_their_number() {
    let mut world = World::new(1, "second", 1);
    for _ in 0..3 {
        world.join(&FREE).await;
    }
    let admitted = world.run(60, &[5, 5, 5]).await;
    assert!(admitted.iter().all(|admitted| *admitted >= 10), "{admitted:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every step checks the bound itself.
    #[test]
    fn envoys_that_come_go_and_change_never_admit_more_than_the_bound(
        seed: [u8; 32], limit in 1..300_u64, unit in 0..3_usize,
    ) {
        let (unit, span) = [("second", 1), ("minute", 60), ("hour", 3_600)][unit];
        let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut below = move |most: u64| random.next_u64() % most;
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            let mut world = World::new(limit, unit, span);
            world.join(&FREE).await;
            for _ in 0..30 {
                let open = world.envoys.iter().filter(|envoy| envoy.is_open).count();
                match below(4) {
                    0 if open < 4 => drop(world.join(&FREE).await),
                    1 if open > 1 => {
                        let at = below(world.envoys.len() as u64) as usize;
                        if world.envoys[at].is_open {
                            world.lose(at).await;
                        }
                    }
                    _ => {}
                }
                let load: Vec<u64> =
                    world.envoys.iter().map(|_| below(3).min(1) * below(2 * limit + 20)).collect();
                world.run(1 + below(7), &load).await;
            }
        });
    }
}
