//! Tidegate's shared limits compared with Redis alone and with a rival, in one run (see
//! `bench/README.md`).

mod distance;
mod exact;
mod floor;
mod latency;
mod leased;
mod leased_use;
mod memory;
mod processors;

use processors::Processors;
use tidegate_redis_servers::Server;

fn main() {
    // One figure alone, as in `-- exact`.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|want| want == name);
    let workers = std::env::var("WORKERS")
        .ok()
        .and_then(|workers| workers.parse().ok());
    let runtime_of = |threads| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder
            .worker_threads(workers.unwrap_or(threads))
            .enable_all();
        builder.build().expect("the system has threads")
    };
    let runtime = runtime_of(2);
    if let [role, address, quota] = &wanted[..]
        && role == "leased-node"
    {
        runtime.block_on(leased::node(address, quota));
        return;
    }
    if runs("exact") {
        // One thread, as redis-benchmark has. Left to the system, server and client now and then
        // share a processor while the other one idles, with every client.
        let start = || Server::start(&[]);
        Processors::mine().apart(start, |server| {
            let runtime = runtime_of(1);
            let [token_bucket, sliding_window] = exact::policies();
            // In turns, as the machine may do other work now and then; what is compared side by
            // side.
            let round = |_| exact::Round {
                token_bucket: runtime.block_on(exact::tidegate(&server, token_bucket)),
                floor: floor::redis_benchmark(&server),
                sliding_window: runtime.block_on(exact::tidegate(&server, sliding_window)),
                trypema: runtime.block_on(exact::trypema(&server)),
            };
            exact::summary(&(0..9).map(round).collect::<Vec<_>>());
        });
    }
    let mut server = Server::start(&["--unixsocket", "redis.sock"]);
    if runs("latency") {
        runtime.block_on(latency::one_caller(&server));
    }
    if runs("leased") {
        leased::processes(&server);
    }
    if runs("distance") {
        runtime.block_on(distance::by_callers(&server));
    }
    if runs("leased-use") {
        runtime.block_on(leased_use::beside_exact(&server));
    }
    if runs("memory") {
        runtime.block_on(memory::log_of_a_thousand(&server));
    }
    if runs("down") {
        runtime.block_on(latency::store_down(&mut server));
    }
}
