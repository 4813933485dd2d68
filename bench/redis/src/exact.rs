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

fn quota() -> Quota {
    "1000/1m".parse().expect("the quota is well formed")
}

pub async fn tidegate(server: &Server) {
    for (name, policy) in
        [("token-bucket", Policy::token_bucket(quota())), ("sliding-window", Policy::sliding_window(quota()))]
    {
        server.ask(&["FLUSHALL"]);
        let store = Store::open(&server.address()).expect("the address is well formed");
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
        println!(
            "tidegate, {name}: {:.0} a second ({:.1} decisions a call, {denied} denied)",
            done as f64 / start.elapsed_since(&clock).as_secs_f64(),
            stats.decided as f64 / stats.calls as f64
        );
    }
}

trait ElapsedSince {
    fn elapsed_since(&self, clock: &quanta::Clock) -> Duration;
}

impl ElapsedSince for quanta::Instant {
    fn elapsed_since(&self, clock: &quanta::Clock) -> Duration {
        clock.now().duration_since(*self)
    }
}

pub async fn trypema(server: &Server) {
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
            Err(error) => return println!("trypema, Redis: {error}"),
        }
    }
    println!(
        "trypema, Redis, absolute, 10 buckets: {:.0} a second",
        done as f64 / start.elapsed_since(&clock).as_secs_f64()
    );
}
