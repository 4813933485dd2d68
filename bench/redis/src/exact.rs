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
const LENGTH: Duration = Duration::from_secs(5);

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

/// The median, and how it stands to others' from the same rounds.
pub fn summary(floor: &[f64], tidegate: &[[f64; 2]], trypema: &[f64]) {
    let median = |mut rates: Vec<f64>| {
        rates.sort_unstable_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let beside = |at: usize, others: &[f64]| {
        median(tidegate.iter().zip(others).map(|(ours, other)| ours[at] / other).collect())
    };
    for (at, name) in ["token-bucket", "sliding-window"].into_iter().enumerate() {
        println!(
            "median, {name}: {:.0} a second, {:.2} x redis-benchmark, {:.1} x trypema",
            median(tidegate.iter().map(|ours| ours[at]).collect()),
            beside(at, floor),
            beside(at, trypema)
        );
    }
}

fn quota() -> Quota {
    "1000/1m".parse().expect("the quota is well formed")
}

/// Decisions a second by token bucket, and by sliding window.
pub async fn tidegate(server: &Server) -> [f64; 2] {
    let mut rates = [0.0; 2];
    let policies = [Policy::token_bucket(quota()), Policy::sliding_window(quota())];
    for (policy, rate) in policies.into_iter().zip(&mut rates) {
        server.ask(&["FLUSHALL"]);
        let address = server.address().parse().expect("the address is well formed");
        // Short, as redis-benchmark's keys are: `tg:api:t:user:0012345`.
        let store = Store::at(address, "tg").expect("the prefix is a word");
        let limit = store.limit("api", policy).on_error(OnError::Closed).deadline(Duration::from_secs(1));
        let limit = limit.build().expect("the policy can be shared");
        let clock = quanta::Clock::new();
        let start = clock.now();
        let tasks: Vec<_> = (1..=TASKS)
            .map(|seed| {
                let (limit, clock) = (limit.clone(), clock.clone());
                tokio::spawn(async move {
                    let (mut random, mut done, mut denied) =
                        (Random(seed * 0x9E37_79B9_7F4A_7C15), 0_u64, 0_u64);
                    while start.elapsed_since(&clock) < LENGTH {
                        let answer = limit.acquire(format!("user:{:07}", random.below(KEYS)), 1).await;
                        denied += u64::from(answer.is_denied());
                        done += 1;
                    }
                    (done, denied)
                })
            })
            .collect();
        let (mut done, mut denied) = (0, 0);
        for task in tasks {
            let (mine, no) = task.await.expect("no task panics");
            (done, denied) = (done + mine, denied + no);
        }
        let stats = store.stats();
        *rate = done as f64 / start.elapsed_since(&clock).as_secs_f64();
        println!(
            "tidegate, {}: {rate:.0} a second ({:.1} decisions a call, {denied} denied)",
            policy.name(),
            stats.decided as f64 / stats.calls as f64
        );
    }
    rates
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
    let connection = client.get_connection_manager().await.expect("the server answers");
    let provider = RedisRateLimiterProvider::builder(connection)
        .window_size(WindowSize::minutes_or_panic(1))
        .bucket_size(BucketSize::seconds_or_panic(6))
        .build()
        .expect("the provider can be built");
    let keys: Arc<Vec<RedisKey>> = Arc::new(
        (0..KEYS).map(|key| RedisKey::try_from(format!("user_{key:07}").as_str()).expect("a key")).collect(),
    );
    let rate = RateLimit::per_minute_or_panic(1_000.0);
    let clock = quanta::Clock::new();
    let start = clock.now();
    let tasks: Vec<_> = (1..=TASKS)
        .map(|seed| {
            let (provider, keys, rate, clock) =
                (Arc::clone(&provider), Arc::clone(&keys), rate, clock.clone());
            tokio::spawn(async move {
                let (mut random, mut done) = (Random(seed * 0x9E37_79B9_7F4A_7C15), 0_u64);
                while start.elapsed_since(&clock) < LENGTH {
                    let key = &keys[random.below(KEYS) as usize];
                    if let Err(error) = provider.absolute().inc(key, &rate, 1).await {
                        return Err(error.to_string());
                    }
                    done += 1;
                }
                Ok(done)
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
    let rate = done as f64 / start.elapsed_since(&clock).as_secs_f64();
    println!("trypema, Redis, absolute, 10 buckets: {rate:.0} a second");
    rate
}
