//! A hot key under a leased limit, by one node and by four, each in a separate process.

use std::{process::Command, time::Duration};

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Mode, OnError, Store};
use tidegate_redis_servers::Server;

const LENGTH: Duration = Duration::from_secs(5);
/// Tasks of each node.
const TASKS: usize = 2;

/// Prints what nodes do together: where all is admitted, and where the limit is soon used up.
pub fn processes(server: &Server) {
    for (name, quota) in [
        ("all admitted", "4000000000/1h"),
        ("used up", "10000000/1h"),
    ] {
        for nodes in [1, 4] {
            server.ask(&["FLUSHALL"]);
            let program = std::env::current_exe().expect("the program knows where it is");
            let start = || {
                Command::new(&program)
                    .args(["leased-node", &server.address(), quota])
                    .output()
            };
            let outputs: Vec<_> = std::thread::scope(|scope| {
                let running: Vec<_> = (0..nodes).map(|_| scope.spawn(start)).collect();
                running
                    .into_iter()
                    .map(|node| node.join().expect("no node panics"))
                    .collect()
            });
            let (mut done, mut admitted, mut seconds, mut cores) = (0.0, 0.0, 0.0, 0.0);
            for output in outputs {
                let output = output.expect("the node runs");
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let numbers: Vec<f64> = text
                    .split_whitespace()
                    .filter_map(|word| word.parse().ok())
                    .collect();
                let [mine, yes, took, cpu] = numbers[..] else {
                    panic!("a node failed: {output:?}")
                };
                (done, admitted, seconds, cores) =
                    (done + mine, admitted + yes, took.max(seconds), cores + cpu);
            }
            let limit = quota
                .parse::<Quota>()
                .expect("the quota is well formed")
                .limit();
            println!(
                "leased, hot key, {nodes} processes, {name}: {:.1} million a second, {:.1} million a second and core; \
                 {admitted} admitted, {} over",
                done / seconds / 1e6,
                done / cores / 1e6,
                (admitted - limit as f64).max(0.0),
            );
        }
    }
}

/// One node: asks for a while, then prints how often, how much was admitted, in how many seconds,
/// and at how many seconds of processor time.
pub async fn node(address: &str, quota: &str) {
    let store = Store::open(address).expect("the address is well formed");
    let policy = Policy::sliding_window(quota.parse().expect("the quota is well formed"));
    let limit = store
        .limit("leased", policy)
        .mode(Mode::Leased)
        .on_error(OnError::Closed);
    let limit = limit
        .deadline(Duration::from_secs(1))
        .build()
        .expect("the policy can be shared");
    let clock = quanta::Clock::new();
    let start = clock.now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (limit, clock) = (limit.clone(), clock.clone());
            tokio::spawn(async move {
                let (mut done, mut admitted) = (0_u64, 0_u64);
                while clock.now().duration_since(start) < LENGTH {
                    for _ in 0..64 {
                        admitted += u64::from(limit.acquire("hot", 1).await.is_allowed());
                    }
                    done += 64;
                }
                (done, admitted)
            })
        })
        .collect();
    let (mut done, mut admitted) = (0, 0);
    for task in tasks {
        let (mine, yes) = task.await.expect("no task panics");
        (done, admitted) = (done + mine, admitted + yes);
    }
    let took = clock.now().duration_since(start).as_secs_f64();
    println!("{done} {admitted} {took} {}", processor_seconds());
    store.close().await;
}

/// The processor time that this process has taken so far.
fn processor_seconds() -> f64 {
    let nanos = |thread: &std::path::Path| -> Option<f64> {
        std::fs::read_to_string(thread.join("schedstat"))
            .ok()?
            .split(' ')
            .next()?
            .parse()
            .ok()
    };
    let threads = std::fs::read_dir("/proc/self/task").expect("the system is Linux");
    threads
        .filter_map(|thread| nanos(&thread.ok()?.path()))
        .sum::<f64>()
        / 1e9
}
