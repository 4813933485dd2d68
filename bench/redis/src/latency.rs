//! One caller, and a store that is down.

use std::time::Duration;

use tidegate_core::{Policy, Quota};
use tidegate_redis::{OnError, Source, Store};
use tidegate_redis_servers::Server;

const ASKED: usize = 20_000;

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

/// A decision and a PING through the same client library, in turns.
pub async fn one_caller(server: &Server) {
    let quota: Quota = "1000000/1m".parse().expect("the quota is well formed");
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = store
        .limit("one", Policy::token_bucket(quota))
        .deadline(Duration::from_secs(1));
    let limit = limit.build().expect("the policy can be shared");
    let client = redis::Client::open(server.address()).expect("the address is well formed");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("the server answers");
    let clock = quanta::Clock::new();
    // In a task, where services live.
    let (decisions, pings) = tokio::spawn(async move {
        let (mut decisions, mut pings) = (Vec::new(), Vec::new());
        for at in 0..ASKED {
            let before = clock.raw();
            let answer = limit.acquire("one", 1).await;
            let between = clock.raw();
            let _: String = redis::cmd("PING")
                .query_async(&mut connection)
                .await
                .expect("the server answers");
            let after = clock.raw();
            assert_eq!(answer.source, Source::Store);
            if at >= ASKED / 10 {
                decisions.push(clock.delta_as_nanos(before, between));
                pings.push(clock.delta_as_nanos(between, after));
            }
        }
        (median(decisions), median(pings))
    })
    .await
    .expect("the task does not panic");
    println!(
        "one caller, median: decision {:.1} µs, PING {:.1} µs, ratio {:.2}",
        decisions as f64 / 1e3,
        pings as f64 / 1e3,
        decisions as f64 / pings as f64
    );
}

/// Decisions in memory while no server listens at the store's address.
pub async fn store_down(server: &mut Server) {
    let store = Store::open(&server.address()).expect("the address is well formed");
    let quota: Quota = "1000000000/1m".parse().expect("the quota is well formed");
    let limit = store
        .limit("down", Policy::token_bucket(quota))
        .on_error(OnError::Local);
    let limit = limit.build().expect("the policy can be shared");
    server.kill();
    let clock = quanta::Clock::new();
    let mut all = Vec::new();
    for at in 0..1_000_000 {
        let before = clock.raw();
        let answer = limit
            .acquire(["alice", "bob", "carol", "dave"][at % 4], 1)
            .await;
        let after = clock.raw();
        assert!(
            matches!(answer.source, Source::Local(_)) || at < 10,
            "{answer:?}"
        );
        all.push(clock.delta_as_nanos(before, after));
    }
    println!(
        "store down, on_error = local: {} ns at the median",
        median(all)
    );
}
