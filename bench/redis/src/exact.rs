//! 64 tasks over 100,000 keys, each waiting for its answer before it asks again.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Policy, Quota};
use tidegate_redis::{OnError, Store};
use tidegate_redis_servers::Server;
use trypema::{
    BucketSize, RateLimit, RateLimiterBuilder, WindowSize,
    redis::{RedisKey, RedisRateLimiterProvider},
};

const TASKS: u64 = 64;
const KEYS: u64 = 100_000;
/// So long each key is asked for for the first time or two, which does not count.
const WARM_UP: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(2);

/// A generator that needs nothing but its seed (Marsaglia's xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Decisions a second in one round, and redis-benchmark's calls.
pub struct Round {
    pub token_bucket: f64,
    pub floor: f64,
    pub sliding_window: f64,
    pub trypema: f64,
}

/// The medians, and how they stand to what others reached in the same round.
pub fn summary(rounds: &[Round]) {
    let median = |of: &dyn Fn(&Round) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let ours: [(_, fn(&Round) -> f64); 2] = [
        ("token-bucket", |round| round.token_bucket),
        ("sliding-window", |round| round.sliding_window),
    ];
    for (name, rate) in ours {
        println!(
            "median, {name}: {:.0} a second, {:.2} x redis-benchmark, {:.1} x trypema",
            median(&rate),
            median(&|round| rate(round) / round.floor),
            median(&|round| rate(round) / round.trypema)
        );
    }
}

fn quota() -> Quota {
    "1000/1m".parse().expect("the quota is well formed")
}

pub fn policies() -> [Policy; 2] {
    [
        Policy::token_bucket(quota()),
        Policy::sliding_window(quota()),
    ]
}

/// Decisions a second.
pub async fn tidegate(server: &Server, policy: Policy) -> f64 {
    server.ask(&["FLUSHALL"]);
    let address = server
        .address()
        .parse()
        .expect("the address is well formed");
    // Short, as redis-benchmark's keys are: `tg:api:t:user:0012345`.
    let store = Store::at(address, "tg").expect("the prefix is a word");
    let limit = store
        .limit("api", policy)
        .on_error(OnError::Closed)
        .deadline(Duration::from_secs(1));
    let limit = limit.build().expect("the policy can be shared");
    let clock = quanta::Clock::new();
    let start = clock.now();
    let tasks: Vec<_> = (1..=TASKS)
        .map(|seed| {
            let (limit, clock) = (limit.clone(), clock.clone());
            tokio::spawn(async move {
                let (mut random, mut done, mut denied) =
                    (Random(seed * 0x9E37_79B9_7F4A_7C15), 0_u64, 0_u64);
                loop {
                    let answer = limit
                        .acquire(format!("user:{:07}", random.below(KEYS)), 1)
                        .await;
                    denied += u64::from(answer.is_denied());
                    let elapsed = start.elapsed_since(&clock);
                    if elapsed >= WARM_UP + LENGTH {
                        return (done, denied);
                    }
                    done += u64::from(elapsed >= WARM_UP);
                }
            })
        })
        .collect();
    let (mut done, mut denied) = (0, 0);
    for task in tasks {
        let (mine, no) = task.await.expect("no task panics");
        (done, denied) = (done + mine, denied + no);
    }
    let (stats, rate) = (store.stats(), done as f64 / LENGTH.as_secs_f64());
    println!(
        "tidegate, {}: {rate:.0} a second ({:.1} decisions a call, {denied} denied)",
        policy.name(),
        stats.decided as f64 / stats.calls as f64
    );
    rate
}

trait ElapsedSince {
    fn elapsed_since(&self, clock: &quanta::Clock) -> Duration;
}

impl ElapsedSince for quanta::Instant {
    fn elapsed_since(&self, clock: &quanta::Clock) -> Duration {
        clock.now().duration_since(*self)
    }
}

/// Decisions a second.
pub async fn trypema(server: &Server) -> f64 {
    server.ask(&["FLUSHALL"]);
    let client = redis::Client::open(server.address()).expect("the address is well formed");
    let connection = client
        .get_connection_manager()
        .await
        .expect("the server answers");
    let provider = RedisRateLimiterProvider::builder(connection)
        .window_size(WindowSize::minutes_or_panic(1))
        .bucket_size(BucketSize::seconds_or_panic(6))
        .build()
        .expect("the provider can be built");
    let keys: Arc<Vec<RedisKey>> = Arc::new(
        (0..KEYS)
            .map(|key| RedisKey::try_from(format!("user_{key:07}").as_str()).expect("a key"))
            .collect(),
    );
    let rate = RateLimit::per_minute_or_panic(1_000.0);
    let clock = quanta::Clock::new();
    let start = clock.now();
    let tasks: Vec<_> = (1..=TASKS)
        .map(|seed| {
            let (provider, keys, rate, clock) = (
                Arc::clone(&provider),
                Arc::clone(&keys),
                rate,
                clock.clone(),
            );
            tokio::spawn(async move {
                let (mut random, mut done) = (Random(seed * 0x9E37_79B9_7F4A_7C15), 0_u64);
                loop {
                    let key = &keys[random.below(KEYS) as usize];
                    if let Err(error) = provider.absolute().inc(key, &rate, 1).await {
                        return Err(error.to_string());
                    }
                    let elapsed = start.elapsed_since(&clock);
                    if elapsed >= WARM_UP + LENGTH {
                        return Ok(done);
                    }
                    done += u64::from(elapsed >= WARM_UP);
                }
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        match task.await.expect("no task panics") {
            Ok(mine) => done += mine,
            Err(error) => panic!("trypema, Redis: {error}"),
        }
    }
    let rate = done as f64 / LENGTH.as_secs_f64();
    println!("trypema, Redis, absolute, 10 buckets: {rate:.0} a second");
    rate
}
