//! A store that is a little way off: how many decisions fail at the usual deadline, by round trip
//! and callers. Beside it stands how many bare PINGs take longer than the deadline at the same
//! time: what the machine and the proxy are to blame for.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_core::Policy;
use tidegate_redis::{OnError, Source, Store};
use tidegate_redis_servers::{Proxy, Server};

const DEADLINE: Duration = Duration::from_millis(50);
const LENGTH: Duration = Duration::from_secs(2);

/// Prints a line for each round trip: decisions a second, and the share of those that failed, for
/// each number of callers.
pub async fn by_callers(server: &Server) {
    for millis in [5, 29, 40] {
        let proxy = Proxy::before(server.port());
        proxy.delay(Duration::from_millis(millis));
        let store = Store::open(&proxy.address()).expect("the address is well formed");
        let policy = Policy::token_bucket("1000000/1s".parse().expect("the quota is well formed"));
        let limit = store
            .limit("distance", policy)
            .on_error(OnError::Closed)
            .deadline(DEADLINE);
        let limit = limit.build().expect("the policy can be shared");
        let mut line = String::new();
        for callers in [1_u64, 1, 2, 3, 5, 16, 64, 256] {
            let clock = quanta::Clock::new();
            let probe = Probe::start(&proxy.address());
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
            let (late, slowest) = probe.end();
            let rate = made as f64 / LENGTH.as_secs_f64();
            let share = 100.0 * failed as f64 / (made + failed).max(1) as f64;
            line += &format!(
                "; {callers}: {rate:.0}/s, {share:.2} % failed (PING {late:.2} %, {slowest:.0?})"
            );
            line += &first.map_or_else(String::new, |at: Duration| format!(" from {at:.0?} on"));
        }
        // The first of one caller connects.
        println!(
            "distance {millis} ms, deadline 50 ms, callers{line}; health {:?}",
            store.health()
        );
    }
}

/// PINGs on a separate connection through the same proxy, one every two milliseconds, by two
/// separate threads.
struct Probe {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<Vec<Duration>>,
}

impl Probe {
    fn start(address: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let address = address.trim_start_matches("redis://");
        let mut answers = TcpStream::connect(address).expect("the proxy accepts connections");
        // Without it, Nagle's algorithm holds the second PING back until the first is acknowledged.
        answers
            .set_nodelay(true)
            .expect("a TCP socket has the option");
        let mut pings = answers.try_clone().expect("the system has descriptors");
        let (sent, times) = mpsc::channel();
        let ended = Arc::clone(&stop);
        thread::spawn(move || {
            let clock = quanta::Clock::new();
            while !ended.load(Ordering::Relaxed) {
                let now = clock.now();
                if pings.write_all(b"PING\r\n").is_err() || sent.send(now).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(2));
            }
        });
        let reader = thread::spawn(move || {
            let clock = quanta::Clock::new();
            let mut answer = [0; b"+PONG\r\n".len()];
            let mut took = Vec::new();
            for at in times {
                answers.read_exact(&mut answer).expect("the server answers");
                took.push(clock.now().duration_since(at));
            }
            took
        });
        Self { stop, reader }
    }

    /// The share of PINGs, in percent, that took longer than the deadline, and what the slowest
    /// took.
    fn end(self) -> (f64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let took = self.reader.join().expect("the reader does not panic");
        let late = took.iter().filter(|took| **took > DEADLINE).count();
        (
            100.0 * late as f64 / took.len().max(1) as f64,
            took.into_iter().max().unwrap_or_default(),
        )
    }
}
