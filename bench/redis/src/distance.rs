//! A store that is a little way off: how many decisions fail at the usual deadline, by round trip and callers. Beside it stands
//! how many PINGs of as many callers take longer than the deadline: what the machine is to blame for.

use std::time::Duration;

use redis::{IntoConnectionInfo, io::tcp::TcpSettings};
use tidegate_core::Policy;
use tidegate_redis::{OnError, Source, Store};
use tidegate_redis_servers::{Proxy, Server};

const DEADLINE: Duration = Duration::from_millis(50);
const LENGTH: Duration = Duration::from_secs(2);

/// Prints a line for each round trip: decisions a second, and the share of those that failed, for each number of callers.
pub async fn by_callers(server: &Server) {
    for millis in [5, 29, 40] {
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
                        let (mut made, mut failed, mut at) = (0_u64, 0_u64, None);
                        while clock.now().duration_since(start) < LENGTH {
                            let answer = limit.acquire(format!("user:{caller}"), 1).await;
                            if answer.source == Source::Store {
                                made += 1;
                            } else {
                                failed += 1;
                                at.get_or_insert(clock.now().duration_since(start));
                                tokio::time::sleep(Duration::from_millis(1)).await;
                            }
                        }
                        (made, failed, at)
                    })
                })
                .collect();
            let (mut made, mut failed, mut first) = (0, 0, None);
            for task in tasks {
                let (mine, not, at) = task.await.expect("no task panics");
                (made, failed) = (made + mine, failed + not);
                first = at.into_iter().chain(first).min();
            }
            let pings = late_pings(&proxy.address(), callers).await;
            let rate = made as f64 / LENGTH.as_secs_f64();
            let share = 100.0 * failed as f64 / (made + failed).max(1) as f64;
            line += &format!("; {callers}: {rate:.0}/s, {share:.2} % failed (PING {pings:.2} %)");
            line += &first.map_or_else(String::new, |at: Duration| format!(" from {at:.0?} on"));
        }
        // The first of one caller connects.
        println!("distance {millis} ms, deadline 50 ms, callers{line}; health {:?}", store.health());
    }
}

/// The share of PINGs, in percent, that take longer than the deadline, where so many callers share a connection.
async fn late_pings(address: &str, callers: u64) -> f64 {
    // Calls follow each other without waiting: Nagle's algorithm would hold the second back.
    let info = address.into_connection_info().expect("the address is well formed");
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = redis::Client::open(info).expect("the address is well formed");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let connection = connection.await.expect("the server answers");
    let clock = quanta::Clock::new();
    let start = clock.now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (mut connection, clock) = (connection.clone(), clock.clone());
            tokio::spawn(async move {
                let (mut asked, mut late) = (0_u64, 0_u64);
                while clock.now().duration_since(start) < LENGTH {
                    let sent = clock.now();
                    let _: String =
                        redis::cmd("PING").query_async(&mut connection).await.expect("it answers");
                    asked += 1;
                    late += u64::from(clock.now().duration_since(sent) > DEADLINE);
                }
                (asked, late)
            })
        })
        .collect();
    let (mut asked, mut late) = (0, 0);
    for task in tasks {
        let (mine, too_late) = task.await.expect("no task panics");
        (asked, late) = (asked + mine, late + too_late);
    }
    100.0 * late as f64 / asked.max(1) as f64
}
