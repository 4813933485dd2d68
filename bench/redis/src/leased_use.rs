//! How much of a limit leased nodes admit, beside exact ones that are asked at the same moments.

use std::time::Duration;

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Mode, OnError, SharedLimit, Store};
use tidegate_redis_servers::{Cluster, Server};

const LENGTH: Duration = Duration::from_secs(8);

/// Prints a line for each store, policy, number of nodes, demand and way in which it is spread.
pub async fn beside_exact(server: &Server) {
    let cluster = Cluster::start(3);
    let addresses = [
        ("one server", server.address()),
        ("a cluster", format!("redis+cluster://{}", cluster.addresses().join(","))),
    ];
    let quota: Quota = "300/2s".parse().expect("the quota is well formed");
    let policies = [Policy::sliding_window(quota), Policy::token_bucket(quota)];
    for (at, address) in &addresses {
        for policy in policies {
            for (nodes, demand, skewed) in [
                (1, 1.0, false),
                (3, 0.6, false),
                (3, 0.93, false),
                (3, 1.5, true),
                (16, 0.93, false),
                (16, 1.5, false),
            ] {
                let name = format!("{}-{nodes}-{demand}", policy.name());
                let (leased, exact) = one(address, &name, policy, nodes, 150.0 * demand, skewed).await;
                println!(
                    "leased use, {at}, {}, {nodes} nodes, demand {demand} x the limit{}: leased admits {leased}, exact \
                     {exact}: {:.1} %",
                    policy.name(),
                    if skewed { ", skewed" } else { "" },
                    100.0 * leased as f64 / exact as f64
                );
            }
        }
    }
}

/// How many leased and exact limits admit, where `rate` requests a second come.
async fn one(address: &str, name: &str, policy: Policy, nodes: u32, rate: f64, skewed: bool) -> (u64, u64) {
    let limit = |mode, name: String| {
        let store = Store::open(address).expect("the address is well formed");
        let limit = store.limit(&name, policy).mode(mode).on_error(OnError::Closed);
        limit.deadline(Duration::from_secs(1)).build().expect("the policy can be shared")
    };
    let mut tasks = Vec::new();
    for node in 0..nodes {
        // A skewed node has twice what the next one has.
        let all = if skewed { 2_u32.pow(nodes) - 1 } else { nodes };
        let share = if skewed { 2_u32.pow(nodes - 1 - node) } else { 1 };
        let own = rate * f64::from(share) / f64::from(all);
        let (leased, exact) =
            (limit(Mode::Leased, format!("l-{name}")), limit(Mode::Exact, format!("e-{name}")));
        tasks.push(tokio::spawn(ask(leased, exact, own)));
    }
    let (mut leased, mut exact) = (0, 0);
    for task in tasks {
        let (mine, theirs) = task.await.expect("no task panics");
        (leased, exact) = (leased + mine, exact + theirs);
    }
    (leased, exact)
}

async fn ask(leased: SharedLimit, exact: SharedLimit, rate: f64) -> (u64, u64) {
    let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    let (mut of_leased, mut of_exact) = (0, 0);
    for _ in 0..(rate * LENGTH.as_secs_f64()) as u64 {
        tick.tick().await;
        of_leased += u64::from(leased.acquire("hot", 1).await.is_allowed());
        of_exact += u64::from(exact.acquire("hot", 1).await.is_allowed());
    }
    leased.store().close().await;
    (of_leased, of_exact)
}
