//! A store that is a little way off: how many decisions fail at the usual deadline, by round trip and callers.

use std::time::Duration;

use tidegate_core::Policy;
use tidegate_redis::{OnError, Source, Store};
use tidegate_redis_servers::{Proxy, Server};

const DEADLINE: Duration = Duration::from_millis(50);
const LENGTH: Duration = Duration::from_secs(2);

/// Prints a line for each round trip: decisions a second, and the share of those that failed, for each number of callers.
pub async fn by_callers(server: &Server) {
    for millis in [5, 15, 29, 40] {
        let proxy = Proxy::before(server.port());
        proxy.delay(Duration::from_millis(millis));
        let store = Store::open(&proxy.address()).expect("the address is well formed");
        let policy = Policy::token_bucket("1000000/1s".parse().expect("the quota is well formed"));
        let limit = store.limit("distance", policy).on_error(OnError::Closed).deadline(DEADLINE);
        let limit = limit.build().expect("the policy can be shared");
        let mut line = String::new();
        for callers in [1_u64, 1, 2, 3, 5, 16, 64, 256] {
            let clock = quanta::Clock::new();
            let start = clock.now();
            let tasks: Vec<_> = (0..callers)
                .map(|caller| {
                    let (limit, clock) = (limit.clone(), clock.clone());
                    tokio::spawn(async move {
                        let (mut made, mut failed) = (0_u64, 0_u64);
                        while clock.now().duration_since(start) < LENGTH {
                            let answer = limit.acquire(format!("user:{caller}"), 1).await;
                            if answer.source == Source::Store {
                                made += 1;
                            } else {
                                failed += 1;
                                tokio::time::sleep(Duration::from_millis(1)).await;
                            }
                        }
                        (made, failed)
                    })
                })
                .collect();
            let (mut made, mut failed) = (0, 0);
            for task in tasks {
                let (mine, not) = task.await.expect("no task panics");
                (made, failed) = (made + mine, failed + not);
            }
            let rate = made as f64 / LENGTH.as_secs_f64();
            let share = 100.0 * failed as f64 / (made + failed).max(1) as f64;
            line += &format!("; {callers}: {rate:.0}/s, {share:.2} % failed");
        }
        // The first of one caller connects.
        println!("distance {millis} ms, deadline 50 ms, callers{line}; health {:?}", store.health());
    }
}
