//! The limits of descriptors in a store that servers share.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use tidegate_envoy::pb::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    r#type::v3::RateLimitUnit,
};

use serde_json::json;
use tidegate_core::{Clock, Nanos, clock::SystemClock};
use tidegate_redis_servers::{Cluster, Server, eventually};
use tidegate_server::{Options, descriptors::Consume};

use crate::{
    client::{Client, hits, one, refund},
    harness::{Http, Running},
    quota::Envoy,
    rls::{CONFIG, SHARED, START, options},
};

fn on_store(name: &str, address: &str, config: &str) -> Running {
    start(on(name, address, config))
}

fn on(name: &str, address: &str, config: &str) -> Options {
    let mut options = options(name, config);
    options.store = Some(address.to_owned());
    options.store_deadline = Duration::from_secs(5).into();
    options
}

fn start(options: Options) -> Running {
    let server = Running::start_at(options, START);
    eventually("the store has been reached", || {
        server.get("/readyz").json()["status"] == "ready"
    });
    server
}

/// How many requests of a tenant these servers admit, in turn, before they deny for half a second: one
/// of them may be taking units ahead.
fn fill(clients: &mut [Client; 2], tenant: &str) -> u64 {
    let clock = SystemClock::new();
    let (mut admitted, mut denied) = (0, clock.now());
    for at in 0..100_000 {
        let told = clients[at % 2].told(vec![one("tenant", tenant)]);
        if told.starts_with("OK") {
            admitted += 1;
            denied = clock.now();
        } else if clock.now().saturating_since(denied) > Nanos::from_millis(500) {
            return admitted;
        }
    }
    panic!("{tenant} is never denied for long: {admitted}");
}

#[test]
fn the_values_of_a_key_share_its_limit_over_a_store() {
    for consume in [Consume::Each, Consume::AllOrNone] {
        for sharing in ["exact", "leased"] {
            let redis = Server::start(&[]);
            // Nothing refills.
            let shares = format!("sharing: {sharing}, shares: {{weights");
            let config = SHARED.replace("unit: minute", "unit: year");
            let config = config.replace("shares: {weights", &shares);
            // A ceiling leaves an eighth of its part at once.
            let config = config.replace(", ceiling: 80%", "");
            let [here, there] = ["one", "other"].map(|name| {
                start(Options {
                    envoy_consume: consume,
                    ..on(&format!("grpc-tenants-{name}"), &redis.address(), &config)
                })
            });
            let mut clients = [Client::of(here.grpc), Client::of(there.grpc)];
            for tenant in ["acme", "beta"] {
                let told = clients[0].told(vec![one("tenant", tenant)]);
                assert!(told.starts_with("OK"), "{told}");
            }
            let (acme, beta) = (fill(&mut clients, "acme"), fill(&mut clients, "beta"));
            let ratio = (acme + 1) as f64 / (beta + 1) as f64;
            assert!((2.4..=3.6).contains(&ratio), "{sharing}: {acme}, {beta}");
            // A request that another limit denies takes nothing of the tenant's, if all or none does.
            let both = || vec![one("tenant", "gamma"), one("path", "/cart")];
            let told: Vec<_> = (0..3).map(|_| clients[1].told(both())).collect();
            assert!(told[1].starts_with("OK: OK/"), "{told:?}");
            assert!(
                told[2].starts_with("OVER: OK/") && told[2].ends_with(" OVER/0"),
                "{told:?}"
            );
            let told = there.get("/v1/explain?limit=shop.tenant&key=acme").json();
            assert_eq!(told["tenant"]["terms"], "weight 3", "{told}");
        }
    }
}

#[test]
fn servers_share_the_limits_of_descriptors_over_a_store() {
    let config = CONFIG
        .replace("unit: minute", "unit: year")
        .replace("unit: hour", "unit: year");
    let redis = Server::start(&[]);
    let [one_server, other] = ["one", "other"]
        .map(|name| on_store(&format!("grpc-store-{name}"), &redis.address(), &config));
    let (mut here, mut there) = (Client::of(one_server.grpc), Client::of(other.grpc));
    let both = || vec![one("user", "ada"), one("path", "/cart")];
    assert_eq!(here.told(both()), "OK: OK/2 OK/1");
    assert_eq!(there.told(both()), "OK: OK/1 OK/0");
    assert_eq!(here.told(both()), "OVER: OK/1 OVER/0");
    assert_eq!(there.told(vec![one("user", "ada")]), "OK: OK/0");
    assert_eq!(here.told(vec![refund(one("user", "ada"))]), "OK: OK/1");
    let year = vec![RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 1,
            unit: RateLimitUnit::Year.into(),
        }),
        ..one("user", "ada")
    }];
    assert_eq!(here.told(year.clone()), "OK: OK/0");
    assert_eq!(there.told(year), "OVER: OVER/0");
    // A key that is blocked on this server is denied without the store.
    assert_eq!(one_server.resp("BLOCK shop.user eve"), "OK");
    assert!(
        here.told(vec![one("user", "eve")])
            .starts_with("OVER: OVER/")
    );
    let series = r#"tidegate_envoy_over_limit_with_local_cache_total{domain="shop",rule="user"}"#;
    assert_eq!(one_server.metric(series), 1);
}

#[test]
fn a_leased_limit_is_decided_in_memory_by_each_server_and_never_over() {
    const LIMIT: usize = 400;
    let config = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 400, sharing: leased}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 400}}
";
    let redis = Server::start(&[]);
    let servers = ["one", "other"]
        .map(|name| on_store(&format!("grpc-leased-{name}"), &redis.address(), config));
    let ask = |server: &Running| {
        let mut client = Client::of(server.grpc);
        let answers = (0..150).map(|_| client.told(vec![one("user", "ada")]));
        answers.filter(|told| told.starts_with("OK: OK/")).count()
    };
    let admitted: usize = thread::scope(|scope| {
        let asked: Vec<_> = servers
            .iter()
            .flat_map(|server| [server; 2])
            .map(|server| scope.spawn(move || ask(server)))
            .collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).sum()
    });
    assert!(
        (1..=LIMIT).contains(&admitted),
        "{admitted} admitted of {LIMIT}"
    );
    for server in &servers {
        assert!(
            server.metric("tidegate_shared_store_decisions_total{by=\"lease\"}") > 0,
            "decided in memory"
        );
    }
    // A refund reaches the store, whichever server holds the units.
    let refunded = Client::of(servers[0].grpc).told(vec![refund(one("user", "ada"))]);
    assert!(refunded.starts_with("OK: OK/"), "{refunded}");
    // Beside an exact limit it is a part of one decision.
    let both = || vec![one("user", "eve"), one("path", "/cart")];
    let mut client = Client::of(servers[1].grpc);
    assert_eq!(client.told(both()), "OK: OK/399 OK/399");
    assert_eq!(
        client.told(vec![one("path", "/cart"), hits(400, one("user", "eve"))]),
        "OVER: OK/399 OVER/0"
    );
}

/// What two Envoys at two servers may admit, as each server says at every second, with all of it
/// used.
#[test]
fn quotas_of_two_servers_over_a_store_never_add_up_to_more_than_the_limit() {
    const LIMIT: u64 = 1_000;
    let config = "
domain: shop
descriptors:
  - {key: plan, value: year, rate_limit: {unit: year, requests_per_unit: 1000}}
";
    let redis = Server::start(&[]);
    let servers = ["one", "other"]
        .map(|name| on_store(&format!("quota-store-{name}"), &redis.address(), config));
    let mut envoys = servers.each_ref().map(Envoy::of);
    let left = || {
        let look = json!({"domain": "shop", "descriptors": [
            {"entries": [{"key": "plan", "value": "year"}], "hits_addend": 0}]});
        let answer = servers[1].post("/json", &look.to_string()).json();
        answer["statuses"][0]["limitRemaining"]
            .as_u64()
            .unwrap_or(0)
    };
    // A first bucket is full when it begins to fill.
    let mut unreported = [0; 2];
    for (envoy, unreported) in envoys.iter_mut().zip(&mut unreported) {
        envoy.report("year", 0, 1);
        *unreported = 2 * tokens(&envoy.told());
    }
    let mut admitted: u64 = unreported.iter().sum();
    assert!(admitted > 0);
    for _ in 0..60 {
        let charged = LIMIT - left();
        assert!(
            admitted <= charged,
            "{admitted} may be admitted, {charged} were charged"
        );
        for ((server, envoy), unreported) in servers.iter().zip(&mut envoys).zip(&mut unreported) {
            server.advance(Duration::from_secs(1));
            let share = tokens(&envoy.told());
            admitted += share;
            envoy.report("year", *unreported + share, 1);
            *unreported = 0;
        }
    }
    assert!(admitted <= LIMIT, "{admitted}");
    assert!(
        admitted >= LIMIT * 9 / 10,
        "{admitted}: nearly all of it is assigned"
    );
    assert!(left() <= LIMIT / 10);
}

/// The servers' clocks follow the real time, as that of the store does.
#[test]
fn envoys_at_two_servers_over_a_store_share_each_second_by_what_they_need() {
    const SECONDS: usize = 8;
    let config = "
domain: shop
descriptors:
  - {key: plan, value: second, rate_limit: {unit: second, requests_per_unit: 100}}
";
    let redis = Server::start(&[]);
    let clock = SystemClock::new();
    let servers = ["one", "other"].map(|name| {
        let options = on(&format!("quota-even-{name}"), &redis.address(), config);
        let server = Running::start_at(options, clock.now());
        eventually("the store has been reached", || {
            server.get("/readyz").json()["status"] == "ready"
        });
        server
    });
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (servers, clock, done) = (&servers, &clock, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for server in servers {
                    server.advance(clock.now().saturating_since(server.clock.now()).into());
                }
                #[allow(clippy::disallowed_methods, reason = "the store's time passes, too")]
                thread::sleep(Duration::from_millis(5));
            }
        });
        let shares = [(&servers[0], 100), (&servers[1], 5)].map(|(server, later)| {
            scope.spawn(move || {
                let mut envoy = Envoy::of(server);
                envoy.report("second", 0, 100);
                let (mut shares, mut last) = (Vec::new(), 0);
                // Within a second a share only grows.
                while shares.len() < 5 + 2 * SECONDS {
                    let share = tokens(&envoy.told());
                    if share <= last {
                        shares.push(last);
                        let load = if shares.len() < 5 + SECONDS {
                            last + 100
                        } else {
                            later
                        };
                        envoy.report("second", last.min(load), load.saturating_sub(last));
                    }
                    last = share;
                }
                shares
            })
        });
        let [busy, other] = shares.map(|shares| shares.join().expect("each second has a share"));
        done.store(true, Ordering::Relaxed);
        for shares in [&busy, &other] {
            // Until both servers know each other, the first one may take nearly all.
            assert!(
                shares[5..5 + SECONDS]
                    .iter()
                    .all(|share| (40..=60).contains(share)),
                "{shares:?}"
            );
        }
        // The other one has little load then.
        let all = |shares: &[u64], least| {
            shares[5 + SECONDS + 4..]
                .iter()
                .all(|share| *share >= least)
        };
        assert!(all(&busy, 85) && all(&other, 5), "{busy:?}, {other:?}");
    });
}

fn tokens(told: &str) -> u64 {
    told.parse().unwrap_or_else(|_| {
        assert_eq!(told, "none");
        0
    })
}

/// The users of one client, who live on all nodes of a cluster.
const USERS: usize = 12;

/// Asks for each user in turn until `done`. Each question must be admitted by the store, and is
/// counted for its user.
fn load(done: &AtomicBool, counts: &[AtomicU32; USERS], mut ask: impl FnMut(String) -> String) {
    let mut at = 0;
    while !done.load(Ordering::Relaxed) {
        let told = ask(format!("u{at}"));
        assert!(told.starts_with("OK"), "{told}");
        counts[at].fetch_add(1, Ordering::Relaxed);
        at = (at + 1) % USERS;
    }
}

#[test]
fn over_a_cluster_descriptors_are_answered_through_reloads_and_keep_their_use() {
    const MOST: u32 = 1_000_000;
    const RELOADS: u32 = 10;
    let config = |most: u32| {
        format!(
            "domain: shop\ndescriptors:\n  - {{key: user, rate_limit: {{unit: year, requests_per_unit: {most}}}}}\n"
        )
    };
    let cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let mut options = on("grpc-cluster", &address, &config(MOST));
    options.reload_interval = Duration::from_millis(10);
    let path = options.envoy_config.clone().unwrap();
    let next = path.with_extension("next");
    let mut server = start(options);
    let (grpc, http) = (server.grpc, server.http);
    let (done, counts) = (AtomicBool::new(false), [const { AtomicU32::new(0) }; USERS]);
    let asked = || {
        counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum::<u32>()
    };
    thread::scope(|scope| {
        // Set even if something here fails; otherwise the clients would run for ever.
        let end = Done(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = Client::of(grpc);
                load(&done, &counts, |user| client.told(vec![one("user", &user)]));
            });
        }
        scope.spawn(|| {
            let mut client = Http::connect(http);
            load(&done, &counts, |user| {
                let body =
                    json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": user}]}]});
                let answer = client.send("POST", "/json", &body.to_string());
                answer.json()["overallCode"].as_str().unwrap_or(&answer.body).to_owned()
            });
        });
        for round in 1..=RELOADS {
            let before = asked();
            // By renaming, so that no half of it is read.
            std::fs::write(&next, config(MOST + round)).unwrap();
            server.reloading(|| std::fs::rename(&next, &path).unwrap());
            eventually("clients are answered", || asked() > before + 60);
        }
        drop(end);
    });
    assert_eq!(
        server.metric("tidegate_rules_reloads_total{result=\"ok\"}"),
        u64::from(RELOADS)
    );
    assert_eq!(
        server.metric("tidegate_shared_store_decisions_total{by=\"local\"}"),
        0
    );
    let mut client = Client::of(grpc);
    for (at, count) in counts.iter().enumerate() {
        let left = MOST + RELOADS - count.load(Ordering::Relaxed);
        assert_eq!(
            client.told(vec![hits(0, one("user", &format!("u{at}")))]),
            format!("OK: OK/{left}")
        );
    }
    // One decision on keys of several nodes is impossible, so each limit is decided and charged.
    let all: Vec<_> = (0..USERS)
        .map(|at| one("user", &format!("u{at}")))
        .collect();
    assert!(client.told(all.clone()).starts_with("OK: OK/"));
    for (at, count) in counts.iter().enumerate() {
        let left = MOST + RELOADS - count.load(Ordering::Relaxed) - 1;
        assert_eq!(
            client.told(vec![hits(0, one("user", &format!("u{at}")))]),
            format!("OK: OK/{left}")
        );
    }
    let mut options = on("grpc-cluster-each", &address, &config(MOST));
    options.envoy_consume = Consume::Each;
    let each = start(options);
    assert!(Client::of(each.grpc).told(all).starts_with("OK: OK/"));
}

/// Ends the load when it is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
