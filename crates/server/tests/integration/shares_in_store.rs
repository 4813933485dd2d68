//! A limit that tenants share over a store, at two servers. Nothing refills within a test.

use crate::harness;

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use harness::{Http, Resp, Running, replace, scratch};
use serde_json::json;
use tidegate_core::{Clock, Nanos, clock::SystemClock};
use tidegate_redis_servers::{Server, eventually};
use tidegate_server::Order;

const RULES: &str = "
max_memory: 64MiB
limits:
  - name: api
    limit: 100/366d
    algorithm: token-bucket
    shares: {weights: {acme: 3}}
    deny: [mallory]
  - {name: guarded, limit: 100/366d, algorithm: fixed-window, first_hit: true, shares: {}, on_error: closed}
  - {name: per-key, limit: 50/366d, algorithm: sliding-log}
";

fn on(name: &str, store: &Server) -> Running {
    let server = Running::with_rules_and(name, RULES, |options| {
        options.store_deadline = Duration::from_secs(5).into();
        options.store = Some(store.address());
    });
    let ready = || server.get("/readyz").json()["status"] == "ready";
    eventually("the store is reached", ready);
    server
}

/// How many units a key gets, one by one, from these servers in turn.
fn fill(servers: &[&Running], limit: &str, key: &str) -> u64 {
    let mut clients: Vec<_> = servers
        .iter()
        .map(|server| Resp::connect(server.resp))
        .collect();
    let count = clients.len();
    (0..1_000)
        .take_while(|at| {
            let reply = clients[at % count].ask(&format!("ACQUIRE {limit} {key}"));
            assert!(
                reply.starts_with("[0 ") || reply.starts_with("[1 "),
                "{reply}"
            );
            reply.starts_with("[0 ")
        })
        .count() as u64
}

#[test]
fn tenants_share_the_limit_of_all_servers_by_weight() {
    let store = Server::start(&[]);
    let [one, two] = ["shares-one", "shares-two"].map(|name| on(name, &store));
    let both = [&one, &two];
    assert_eq!(fill(&[&one], "api", "mallory"), 0);
    for key in ["acme/1", "beta/1"] {
        assert!(one.resp(&format!("ACQUIRE api {key}")).starts_with("[0"));
    }
    let (acme, beta) = (fill(&both, "api", "acme/2"), fill(&both, "api", "beta/2"));
    // Half of the limit is spare while nothing refills.
    assert!((35..=39).contains(&acme), "{acme} and {beta}");
    assert!((10..=14).contains(&beta), "{acme} and {beta}");
    assert_eq!(
        two.resp("PEEK api x 0").split(' ').nth(2),
        Some(&*(98 - acme - beta).to_string())
    );
    let told = two.post("/v1/acquire", r#"{"limit":"api","key":"beta/3"}"#);
    assert_eq!(told.status, 429);
    assert_eq!(told.json()["reason"], "quota", "{}", told.body);
    assert!(
        told.json()["retry_after_ms"].as_f64() > Some(1e6),
        "{}",
        told.body
    );
    // What an operator sees at either server.
    for server in both {
        let explained = server.get("/v1/explain?limit=api&key=acme/9").json();
        let tenant = &explained["tenant"];
        assert_eq!(
            (&tenant["name"], &tenant["terms"]),
            (&json!("acme"), &json!("weight 3")),
            "{explained}"
        );
        let share = tenant["share"].as_f64().unwrap();
        assert!((0.74..=0.76).contains(&share), "{explained}");
        assert!(tenant["used"].as_f64() > Some(0.0), "{explained}");
    }
    let page = Http::connect(one.admin)
        .send("GET", "/limit?name=api", "")
        .body;
    assert!(page.contains("acme") && page.contains("beta"), "{page}");
    let metrics = one.get("/metrics").body;
    assert!(
        metrics.contains("tidegate_tenant_share_permille{limit=\"api\",tenant=\"acme\"} 75"),
        "{metrics}"
    );
}

#[test]
fn orders_about_tenants_hold_at_all_servers() {
    let store = Server::start(&[]);
    let [one, two] = ["shares-order-1", "shares-order-2"].map(|name| on(name, &store));
    let denied =
        |server: &Running, key: &str| server.resp(&format!("ACQUIRE api {key}")).starts_with("[1");
    assert_eq!(one.resp("BLOCK api gamma"), "OK");
    assert!(denied(&one, "gamma/1"));
    eventually("the other server follows", || denied(&two, "gamma/2"));
    let all = r#"{"all":[{"limit":"per-key","key":"k"},{"limit":"api","key":"gamma/7"}]}"#;
    assert_eq!(two.post("/v1/acquire", all).status, 429);
    assert_eq!(two.resp("PEEK per-key k").split(' ').nth(2), Some("50"));
    assert_eq!(two.resp("UNBLOCK api gamma"), "1");
    eventually("the block has ended", || !denied(&one, "gamma/1"));
    // A reset forgives a tenant what it has used, and not what all have used.
    assert!(!denied(&one, "delta/1"));
    fill(&[&one, &two], "api", "delta/1");
    assert!(denied(&two, "delta/2"));
    let left = || {
        one.resp("PEEK api x 0")
            .split(' ')
            .nth(2)
            .map(str::to_owned)
    };
    let before = left();
    let reset = two.post("/v1/reset", r#"{"limit":"api","key":"delta"}"#);
    assert!(reset.status < 300, "{}", reset.body);
    assert_eq!(left(), before);
    assert!(!denied(&one, "delta/1"));
    let without_key = one.post("/v1/reset", r#"{"limit":"api"}"#);
    assert_eq!(without_key.status, 409, "{}", without_key.body);
}

#[test]
fn a_weight_that_an_operator_gives_holds_at_all_servers() {
    let store = Server::start(&[]);
    let [one, two] = ["shares-weight-1", "shares-weight-2"].map(|name| on(name, &store));
    assert_eq!(one.resp("OVERRIDE guarded acme weight=4"), "OK");
    let told = || two.get("/v1/explain?limit=guarded&key=acme").json();
    for key in ["acme/1", "beta/1"] {
        let reply = one.resp(&format!("ACQUIRE guarded {key}"));
        assert!(reply.starts_with("[0"), "{reply}");
    }
    eventually("the other server follows", || {
        told()["tenant"]["terms"] == "weight 4"
    });
    assert_eq!(told()["override"]["quota"], "weight=4");
    let (acme, beta) = (
        fill(&[&two, &one], "guarded", "acme"),
        fill(&[&two, &one], "guarded", "beta"),
    );
    let ratio = (acme + 1) as f64 / (beta + 1) as f64;
    assert!((3.5..=4.5).contains(&ratio), "{acme} and {beta}");
    let end = r#"{"limit":"guarded","key":"acme","end":true}"#;
    assert_eq!(two.post("/v1/override", end).status, 200);
    eventually("it has ended", || told()["tenant"]["terms"] == "weight 1");
}

#[test]
fn without_the_store_each_server_shares_its_part() {
    let mut store = Server::start(&[]);
    let server = on("shares-outage", &store);
    store.kill();
    eventually("the store is down", || server.get("/readyz").status == 503);
    for key in ["acme/1", "beta/1"] {
        assert!(server.resp(&format!("ACQUIRE api {key}")).starts_with("[0"));
    }
    let (acme, beta) = (
        fill(&[&server], "api", "acme"),
        fill(&[&server], "api", "beta"),
    );
    assert!(
        (35..=39).contains(&acme) && (10..=14).contains(&beta),
        "{acme} and {beta}"
    );
    assert_eq!(fill(&[&server], "guarded", "acme"), 0);
    store.start_again();
    eventually("the store is up", || server.get("/readyz").status == 200);
    assert_eq!(fill(&[&server], "guarded", "acme"), 100);
}

const RATE: &str = "
limits:
  - {name: api, limit: 300/1s, algorithm: fixed-window, on_error: closed, shares: {weights: {acme: 3}}, sharing: exact}
";

/// What these servers admit of both tenants in so many seconds, if each asks as fast as it can.
fn admitted(servers: [&Running; 2], windows: u64) -> [u64; 2] {
    let counts = [const { AtomicU64::new(0) }; 2];
    let clock = SystemClock::new();
    let ends = clock.now().saturating_add(Nanos::from_secs(windows));
    std::thread::scope(|scope| {
        for (tenant, count) in ["acme", "beta"].into_iter().zip(&counts) {
            for server in servers {
                let clock = &clock;
                scope.spawn(move || {
                    let mut client = Resp::connect(server.resp);
                    let mut asked = 0_u64;
                    while clock.now() < ends {
                        asked += 1;
                        let reply = client.ask(&format!("ACQUIRE api {tenant}/{asked}"));
                        assert!(!reply.contains("ERR"), "{reply}");
                        count.fetch_add(u64::from(reply.starts_with("[0")), Relaxed);
                    }
                });
            }
        }
    });
    counts.map(AtomicU64::into_inner)
}

#[test]
fn a_limit_becomes_leased_and_exact_again_while_tenants_share_it() {
    let store = Server::start(&[]);
    let path = scratch("shares-mode").join("rules.yaml");
    let [mut one, mut two] = ["shares-mode-1", "shares-mode-2"].map(|name| {
        std::fs::write(&path, RATE).unwrap();
        Running::with_rules_and(name, "", |options| {
            options.rules = Some(path.clone());
            options.store_deadline = Duration::from_secs(5).into();
            options.store = Some(store.address());
        })
    });
    for server in [&one, &two] {
        eventually("the store is reached", || {
            server.get("/readyz").json()["status"] == "ready"
        });
    }
    let leased = RATE.replace("sharing: exact", "sharing: leased");
    for (rules, mode) in [(RATE, "exact"), (&leased, "leased"), (RATE, "exact")] {
        replace(&path, rules);
        for server in [&mut one, &mut two] {
            let orders = server.orders();
            server.reloading(|| orders.blocking_send(Order::Reload).unwrap());
        }
        let decided = || {
            [&one, &two]
                .map(|server| server.metric("tidegate_shared_store_decisions_total{by=\"lease\"}"))
        };
        admitted([&one, &two], 1);
        let before = decided();
        let got = admitted([&one, &two], 4);
        let leases = decided();
        println!("{mode}: {got:?}, {before:?} to {leases:?}");
        // At most five windows begin in four seconds.
        assert!(got[0] + got[1] <= 1_500, "{mode}: {got:?}");
        // Half of four: a busy machine does not ask for all that there is.
        assert!(got[0] + got[1] >= 600, "{mode}: {got:?}");
        let ratio = got[0] as f64 / got[1] as f64;
        assert!((2.4..=3.6).contains(&ratio), "{mode}: {got:?}");
        assert_eq!(leases != before, mode == "leased", "{mode}: {leases:?}");
        // The share that this server has seen, and the tenant's terms.
        for server in [&one, &two] {
            let explained = server.get("/v1/explain?limit=api&key=acme/9").json();
            assert_eq!(explained["tenant"]["terms"], "weight 3", "{explained}");
            let used = explained["tenant"]["used"].as_f64().unwrap();
            assert!((0.4..=1.0).contains(&used), "{explained}");
        }
    }
}
