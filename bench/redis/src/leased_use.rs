//! How much of a limit leased nodes admit, compared with exact ones that are asked at the same
//! moments.

use std::time::Duration;

use tidegate_core::{Policy, Quota, algorithm::TokenBucket};
use tidegate_redis::{Health, Mode, OnError, SharedLimit, Store};
use tidegate_redis_servers::{Cluster, Server};

/// Long enough for a window of the slowest limit and a little of the next.
const LENGTH: Duration = Duration::from_secs(24);

/// A limit, and how much it admits a second in the long run.
struct Shared {
    policy: Policy,
    rate: f64,
    called: &'static str,
}

fn limits() -> [Shared; 4] {
    let quota = |text: &str| -> Quota { text.parse().expect("the quota is well formed") };
    let burst = TokenBucket::new(quota("50/1s"))
        .burst(500)
        .expect("it fills in 10 s");
    [
        Shared {
            policy: Policy::sliding_window(quota("300/2s")),
            rate: 150.0,
            called: "window 300/2s",
        },
        Shared {
            policy: Policy::token_bucket(quota("300/2s")),
            rate: 150.0,
            called: "bucket 300/2s",
        },
        Shared {
            policy: burst.into(),
            rate: 50.0,
            called: "bucket 50/1s, burst 500",
        },
        Shared {
            policy: Policy::sliding_window(quota("600/20s")),
            rate: 30.0,
            called: "window 600/20s",
        },
    ]
}

/// Prints a line for each store, limit, number of nodes, demand and way in which it is spread. The
/// cases of a store run at the same time: together they ask some thousand times a second.
pub async fn beside_exact(server: &Server) {
    let cluster = Cluster::start(3);
    let addresses = [
        ("one server", server.address()),
        (
            "a cluster",
            format!("redis+cluster://{}", cluster.addresses().join(",")),
        ),
    ];
    for (at, address) in &addresses {
        let mut cases = Vec::new();
        for limit in limits() {
            for (nodes, demand, skewed) in [
                (1, 1.0, false),
                (2, 0.93, false),
                (2, 1.6, false),
                (3, 0.6, false),
                (3, 0.93, false),
                (3, 1.6, false),
                (3, 1.5, true),
                (3, 3.0, false),
                (4, 0.93, false),
                (4, 1.6, false),
                (16, 0.93, false),
                (16, 1.5, false),
            ] {
                let name = format!("{}-{}-{nodes}-{demand}", limit.policy.name(), limit.rate);
                let called = format!(
                    "{at}, {}, {nodes} nodes, demand {demand} x the limit{}",
                    limit.called,
                    if skewed { ", skewed" } else { "" }
                );
                let (address, policy, rate) = (address.clone(), limit.policy, limit.rate * demand);
                let case = async move { one(&address, &name, policy, nodes, rate, skewed).await };
                cases.push((called, tokio::spawn(case)));
            }
        }
        for (called, case) in cases {
            let (leased, exact) = case.await.expect("no task panics");
            let share = 100.0 * leased as f64 / exact as f64;
            println!("leased use, {called}: leased admits {leased}, exact {exact}: {share:.1} %");
        }
    }
}

/// How many leased and exact limits admit, where `rate` requests a second come.
async fn one(
    address: &str,
    name: &str,
    policy: Policy,
    nodes: u32,
    rate: f64,
    skewed: bool,
) -> (u64, u64) {
    let mut tasks = Vec::new();
    for node in 0..nodes {
        // A skewed node has twice what the next one has.
        let all = if skewed { 2_u32.pow(nodes) - 1 } else { nodes };
        let share = if skewed {
            2_u32.pow(nodes - 1 - node)
        } else {
            1
        };
        let own = rate * f64::from(share) / f64::from(all);
        let store = Store::open(address).expect("the address is well formed");
        let limit = |mode, name: String| {
            let limit = store
                .limit(&name, policy)
                .mode(mode)
                .on_error(OnError::Closed);
            limit
                .deadline(Duration::from_secs(1))
                .build()
                .expect("the policy can be shared")
        };
        let (leased, exact) = (
            limit(Mode::Leased, format!("l-{name}")),
            limit(Mode::Exact, format!("e-{name}")),
        );
        while store.health() != Health::Up {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
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
